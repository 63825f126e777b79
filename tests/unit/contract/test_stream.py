"""A stream is declared once and everything else follows from it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ContractError
from contract.stream import LAKE_COLUMNS, ColumnKind, Stream, counter, gauge, state, text
from contract.streams import BY_TOPIC, STREAMS
from contract.streams.envelope import HOST

EVERY_STREAM = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)


def small_stream(*columns: object) -> Stream:
    return Stream(
        name="small",
        family="test",
        version=1,
        key="host",
        partitions=3,
        interval=timedelta(seconds=1),
        rows_per_second=1,
        doc="For tests.",
        columns=[*HOST, *columns],  # type: ignore[list-item]
    )


def one_row(stream: Stream, **values: object) -> pa.Table:
    columns: dict[str, Any] = {"ts": [1], "host": ["h"], "synthetic": [False]}
    return stream.clean(columns | {k: [v] for k, v in values.items()})[0]


@EVERY_STREAM
def test_every_row_says_when_and_whether_it_is_synthetic(stream: Stream) -> None:
    assert stream.columns[0].name == "ts"
    assert {"ts", "synthetic"} <= {c.name for c in stream.columns if c.required}


@EVERY_STREAM
def test_no_column_of_a_stream_can_be_mistaken_for_one_the_lake_adds(stream: Stream) -> None:
    assert not {c.name for c in stream.columns} & {c.name for c in LAKE_COLUMNS}
    assert stream.lake_schema.names[-len(LAKE_COLUMNS) :] == [c.name for c in LAKE_COLUMNS]


@EVERY_STREAM
def test_every_column_is_explained_and_its_range_fits_its_type(stream: Stream) -> None:
    for column in stream.columns:
        assert column.doc.endswith(".") or column.doc.endswith("none."), column.name
        if column.kind in (ColumnKind.GAUGE, ColumnKind.COUNTER, ColumnKind.BITMASK):
            low, high = column.bounds()
            pa.array([low, high] if pa.types.is_floating(column.type) else [int(low), int(high)], column.type)


@EVERY_STREAM
def test_a_topic_names_one_stream_and_its_version(stream: Stream) -> None:
    assert stream.topic == f"hallwatch.{stream.name}.v{stream.version}"
    assert BY_TOPIC[stream.topic] is stream


def test_a_key_always_falls_into_the_same_partition() -> None:
    stream = STREAMS["gpu_samples"]
    assert [stream.partition_of(h) for h in ("h100-a01-01", "h100-a01-02", "")] == [11, 17, 0]
    assert {stream.partition_of(f"h{i}") for i in range(1000)} == set(range(24))


def test_a_column_declared_twice_or_a_key_without_column_is_refused() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        small_stream(text("a", "A."), text("a", "A."))
    with pytest.raises(ValueError, match="no column 'nowhere'"):
        Stream(
            name="s", family="f", version=1, key="nowhere", partitions=1, interval=None,
            rows_per_second=1, doc="D.", columns=[*HOST],
        )  # fmt: skip


def test_a_resolution_must_be_one_over_a_whole_number() -> None:
    with pytest.raises(ValueError, match="whole number"):
        gauge("power", "float64", "P.", resolution=0.3)


@given(steps=st.integers(-20_000, 150_000))
def test_a_value_at_its_resolution_is_a_whole_number_of_steps(steps: int) -> None:
    column = gauge("t", "float64", "T.", valid=(-20, 150), resolution=0.001)
    assert column.steps_per_unit == 1000
    assert column.lake_type == pa.int32()
    assert round(steps / 1000 * column.steps_per_unit) == steps


@pytest.mark.parametrize("value", [-0.001, 100.001, 1e300, float("inf"), float("-inf"), float("nan")])
def test_a_number_outside_its_range_is_null_and_never_clipped(value: float) -> None:
    stream = small_stream(gauge("g", "float32", "G.", valid=(0, 100)))
    table, rejected = stream.clean({"ts": [1], "host": ["h"], "synthetic": [False], "g": [value]})
    assert table.column("g").to_pylist() == [None]
    assert sum(rejected.values()) == 1


@pytest.mark.parametrize("value", [0.0, 100.0])
def test_the_ends_of_a_range_are_valid(value: float) -> None:
    stream = small_stream(gauge("g", "float32", "G.", valid=(0, 100)))
    assert one_row(stream, g=value).column("g").to_pylist() == [value]


@pytest.mark.parametrize("value", [1e308, -1.0, 0.5, float(2**63), 2.0**64])
def test_a_float_that_is_no_count_is_null(value: float) -> None:
    stream = small_stream(counter("c", "C."))
    for rows in (1, 1000):
        table, rejected = stream.clean(
            {"ts": [1] * rows, "host": ["h"] * rows, "synthetic": [False] * rows, "c": [value] * rows}
        )
        assert table.column("c").null_count == rows
        assert sum(rejected.values()) == rows


@pytest.mark.parametrize("rows", [4, 1000])
def test_whole_numbers_survive_at_any_length_whatever_their_python_type(rows: int) -> None:
    stream = small_stream(counter("c", "C."), gauge("g", "float64", "G."))
    counts: list[Any] = [2**63 - 1, 0, None] + [5] * (rows - 3)
    gauges: list[Any] = [7.0, 7, None] + [5] * (rows - 3)
    table = stream.table(
        {"ts": [1] * rows, "host": ["h"] * rows, "synthetic": [False] * rows, "c": counts, "g": gauges}
    )
    assert table.column("c").to_pylist() == counts
    assert table.column("g").to_pylist() == gauges


def test_an_unknown_state_is_null_and_a_missing_required_value_is_no_event() -> None:
    stream = small_stream(state("s", ("on", "off"), "S."), state("t", ("on",), "T.", required=True))
    assert one_row(stream, s="half", t="on").column("s").to_pylist() == [None]
    with pytest.raises(ContractError, match=r"small\.t is missing"):
        one_row(stream, s="on", t="half")


def test_a_text_too_long_is_null() -> None:
    stream = small_stream(text("x", "X.", max_length=3))
    assert one_row(stream, x="äa").column("x").to_pylist() == ["äa"]
    assert one_row(stream, x="ää").column("x").to_pylist() == [None]


def test_arrow_columns_of_other_width_fit_and_of_other_nature_do_not() -> None:
    stream = small_stream(gauge("g", "int32", "G.", valid=(0, 100)))
    base = {
        "ts": pa.array([1], pa.int64()),
        "host": pa.array(["h"]).dictionary_encode(),
        "synthetic": pa.array([True]),
    }
    table, rejected = stream.validate(
        pa.table(base | {"g": pa.array([7], pa.int8()), "later": pa.array([1])})
    )
    assert table.column("g").to_pylist() == [7]
    assert table.schema.equals(stream.schema)
    assert not rejected
    with pytest.raises(ContractError, match="where int32 belongs"):
        stream.validate(pa.table(base | {"g": pa.array(["7"])}))


def test_columns_of_unequal_length_or_without_declaration_are_refused() -> None:
    stream = small_stream()
    with pytest.raises(ContractError, match=r"columns of \[1, 2\]"):
        stream.table({"ts": [1, 2], "host": ["h"], "synthetic": [True]})
    with pytest.raises(ContractError, match="no column 'nope'"):
        stream.table({"ts": [1], "host": ["h"], "synthetic": [True], "nope": [1]})
