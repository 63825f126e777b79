"""Latencies are counted so that they can be merged, and a percentile of the whole stays within its error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.bus import Message
from contract.codec import ARROW_TYPE, Event, encode_event, encode_events, headers_of
from contract.histogram import MAX_NANOSECONDS, Histogram, Recorder, error_ratio, merge
from contract.reader import read_batch
from contract.stream import Stream, histogram
from contract.streams.envelope import HOST
from contract.testing import tables

LATENCIES = st.lists(st.integers(1, 2**50), max_size=200)
MEASURED = Stream(
    name="measured",
    family="test",
    version=1,
    key="host",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="For tests.",
    columns=[*HOST, *histogram("rtt", "Round trips.")],
)


def exact(values: list[int], ratio: float) -> int:
    return int(np.quantile(values, ratio, method="inverted_cdf"))


def cleaned(*rows: dict[str, Any]) -> tuple[list[Histogram | None], dict[tuple[str, str], int]]:
    names = {name for row in rows for name in row}
    columns: dict[str, Any] = {
        "ts": [1] * len(rows),
        "host": ["h"] * len(rows),
        "synthetic": [False] * len(rows),
    }
    columns |= {name: [row.get(name) for row in rows] for name in names}
    table, rejected = MEASURED.clean(columns)
    return [Histogram.from_row(row, "rtt") for row in table.to_pylist()], rejected


@given(LATENCIES.filter(bool), st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_percentile_is_within_its_error_of_the_exact_one(values: list[int], ratio: float) -> None:
    found = Histogram.of(values).percentile(ratio)
    assert found == pytest.approx(exact(values, ratio), rel=error_ratio() + 1e-9)


def test_the_error_of_the_schema_in_use_is_one_and_a_tenth_percent() -> None:
    assert error_ratio() == pytest.approx(0.01083, abs=1e-5)


@given(st.lists(LATENCIES, max_size=5), st.sampled_from([0.5, 0.99]))
def test_what_is_merged_is_what_would_have_been_counted_together(
    parts: list[list[int]], ratio: float
) -> None:
    together = Histogram.of([value for part in parts for value in part])
    merged = merge(Histogram.of(part) for part in parts)
    assert merged == together
    assert merged.percentile(ratio) == together.percentile(ratio)


@given(LATENCIES)
def test_values_counted_one_by_one_make_the_same_histogram(values: list[int]) -> None:
    recorder = Recorder()
    for value in values:
        recorder.record(value)
    one_by_one, at_once = recorder.histogram(), Histogram.of(values)
    assert (one_by_one.count, one_by_one.sum, one_by_one.min, one_by_one.max) == (
        at_once.count,
        at_once.sum,
        at_once.min,
        at_once.max,
    )
    # The two libraries' logarithms may differ in the last bit, where a value lies on a bucket's very bound.
    assert sum(abs(a - b) for a, b in zip(one_by_one.idx, at_once.idx, strict=False)) <= 1


@given(LATENCIES, st.integers(0, 8))
def test_wider_buckets_hold_exactly_what_would_have_been_counted_in_them(
    values: list[int], schema: int
) -> None:
    powers = [2 ** (value.bit_length() - 1) for value in values]  # no bound is in doubt at a power of two
    assert Histogram.of(powers, 8).downscaled(schema) == Histogram.of(powers, schema)


def test_histograms_of_two_schemas_merge_in_the_coarser() -> None:
    fine, coarse = Histogram.of([1_000, 2_000], 5), Histogram.of([4_000, 8_000], 3)
    assert merge([fine, coarse]) == merge([fine.downscaled(3), coarse])
    assert fine.downscaled(5) is fine
    with pytest.raises(ValueError, match="finer"):
        coarse.downscaled(5)


def test_nothing_measured_has_no_percentile() -> None:
    assert Histogram().percentile(0.5) is None
    assert merge([Histogram(), Histogram.of([7])]) == Histogram.of([7])
    assert merge([]).mean is None


def test_a_time_that_cannot_be_is_counted_at_the_edge() -> None:
    recorder = Recorder()
    recorder.record(-5)
    recorder.record(2**70)
    found = recorder.histogram()
    assert (found.min, found.max, found.idx) == (1, MAX_NANOSECONDS, (0, 62 * 32))


@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
@given(data=st.data())
def test_a_histogram_crosses_the_bus_unchanged(arrow: bool, data: st.DataObject) -> None:
    table: pa.Table = data.draw(tables(MEASURED).filter(lambda t: t.num_rows > 0))
    event = Event(source="s", epoch="e", sequence=0, table=table)
    record = encode_events(MEASURED, [event], "k") if arrow else encode_event(MEASURED, event, "k")
    batch = read_batch(
        MEASURED, [Message(MEASURED.topic, 0, 0, 0, record.key, record.headers, record.body)], {}
    )
    assert not batch.dead
    assert not batch.values_rejected
    assert batch.table.equals(table)


GOOD = Histogram.of([900, 1_000, 5_000]).columns("rtt")


def lists_with(parts: list[tuple[list[int | None], bool]], number: pa.DataType) -> pa.Array:
    """Return lists of which the null ones own their values all the same, as Arrow permits."""
    offsets = np.cumsum([0, *(len(values) for values, _ in parts)])
    flat = pa.array([value for values, _ in parts for value in values], number)
    hidden = pa.array([hides for _, hides in parts])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, mask=hidden)


BUCKETS = st.lists(st.integers(-2, 3) | st.sampled_from([None, 40_000]), max_size=4)


@given(
    rows=st.lists(st.tuples(BUCKETS | st.just(GOOD["rtt_idx"]), st.booleans(), st.booleans()), min_size=1),
    number=st.sampled_from([pa.int32(), pa.int64()]),
)
def test_a_null_list_that_still_owns_values_is_null_and_ends_no_reader(
    rows: list[tuple[list[int | None], bool, bool]], number: pa.DataType
) -> None:
    names = MEASURED.schema.names
    plain: dict[str, Any] = {"ts": 1, "host": "h", "synthetic": False} | GOOD
    table = MEASURED.table({name: [plain.get(name)] * len(rows) for name in names})
    idx = lists_with([(values, hides) for values, hides, _ in rows], number)
    cnt = lists_with([(GOOD["rtt_cnt"], hides) for _, _, hides in rows], number)
    for name, lists in (("rtt_idx", idx), ("rtt_cnt", cnt)):
        table = table.set_column(names.index(name), name, lists)
    identity = {"_source": pa.string(), "_epoch": pa.string(), "_seq": pa.int64()}
    for (name, type), value in zip(identity.items(), ("s", "e", 0), strict=True):
        table = table.append_column(name, pa.repeat(pa.scalar(value, type), len(rows)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    headers = headers_of(MEASURED, "s", "e", 0) | {"content-type": ARROW_TYPE}
    body = sink.getvalue().to_pybytes()
    batch = read_batch(MEASURED, [Message(MEASURED.topic, 0, 0, 0, "h", headers, body)], {})
    if batch.dead:  # Arrow looks at hidden values too when it narrows a column
        assert any(hides and 40_000 in values for values, hides, _ in rows)
        assert [letter.error.reason for letter in batch.dead] == ["bad_value"]
        return
    found = [Histogram.from_row(row, "rtt") for row in batch.table.to_pylist()]
    assert found == [
        Histogram.of([900, 1_000, 5_000]) if values == GOOD["rtt_idx"] and not (one or other) else None
        for values, one, other in rows
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"rtt_count": 4},
        {"rtt_cnt": [1, 1]},
        {"rtt_cnt": [1, 0, 2]},
        {"rtt_cnt": [1, -1, 3]},
        {"rtt_cnt": None},
        {"rtt_idx": [315, 314, 394]},
        {"rtt_idx": [315, 315, 394]},
        {"rtt_min": None},
        {"rtt_max": 10},
        {"rtt_sum": 10**6},
        {"rtt_schema": None},
        {"rtt_idx": [], "rtt_cnt": []},
        {"rtt_count": 0, "rtt_idx": [], "rtt_cnt": []},
    ],
    ids=str,
)
def test_parts_that_make_no_histogram_become_null_together_and_are_counted(change: dict[str, Any]) -> None:
    found, rejected = cleaned(GOOD, GOOD | change, GOOD)
    assert found == [Histogram.of([900, 1_000, 5_000]), None, Histogram.of([900, 1_000, 5_000])]
    assert rejected == {("rtt_idx", "not_a_histogram"): 1}


def test_a_bucket_that_no_column_can_hold_costs_its_own_row() -> None:
    found, rejected = cleaned(GOOD | {"rtt_idx": [1, 2, 40_000]}, GOOD | {"rtt_idx": [1, 2, None]}, GOOD)
    assert found == [None, None, Histogram.of([900, 1_000, 5_000])]
    assert rejected[("rtt_idx", "out_of_range")] == 2


def test_more_buckets_than_any_histogram_has_are_refused() -> None:
    many = 5_000
    row = GOOD | {"rtt_idx": list(range(many)), "rtt_cnt": [1] * many, "rtt_count": many}
    found, rejected = cleaned(row)
    assert found == [None]
    assert rejected[("rtt_idx", "too_long")] == 1
