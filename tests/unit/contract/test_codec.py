"""Rows survive the bus, and no body does anything but become rows or a dead letter."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.bus import Message, Record
from contract.codec import (
    ARROW_TYPE,
    MAX_ROWS,
    Event,
    encode_columns,
    encode_event,
    encode_events,
    headers_of,
)
from contract.reader import read_batch
from contract.stream import Stream
from contract.streams import STREAMS
from contract.testing import example_rows, tables

EVERY_STREAM = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
SAMPLES = STREAMS["gpu_samples"]


def on_the_bus(stream: Stream, record: Record, offset: int = 0, partition: int = 0) -> Message:
    return Message(stream.topic, partition, offset, 1_000, record.key, record.headers, record.body)


@EVERY_STREAM
@settings(max_examples=30)
@given(data=st.data())
def test_rows_come_back_from_json_as_they_went(stream: Stream, data: st.DataObject) -> None:
    table = data.draw(tables(stream))
    record = encode_event(stream, Event(source="s", epoch="e", sequence=0, table=table), "k")
    batch = read_batch(stream, [on_the_bus(stream, record)], {})
    assert not batch.dead
    assert not batch.values_rejected
    assert batch.table.equals(table)


@EVERY_STREAM
@settings(max_examples=30)
@given(data=st.data())
def test_rows_come_back_from_arrow_as_they_went(stream: Stream, data: st.DataObject) -> None:
    parts = data.draw(
        st.lists(tables(stream, max_rows=4).filter(lambda t: t.num_rows > 0), min_size=1, max_size=3)
    )
    events = [Event(source="s", epoch="e", sequence=i, table=part) for i, part in enumerate(parts)]
    batch = read_batch(stream, [on_the_bus(stream, encode_events(stream, events, "k"))], {})
    assert not batch.dead
    assert batch.table.equals(pa.concat_tables(parts))
    assert [(e.sequence, e.rows) for e in batch.events] == [(i, p.num_rows) for i, p in enumerate(parts)]


@EVERY_STREAM
@settings(max_examples=30)
@given(body=st.binary(max_size=300), arrow=st.booleans())
def test_random_bytes_become_a_dead_letter_that_keeps_them(stream: Stream, body: bytes, arrow: bool) -> None:
    headers = headers_of(stream, "s", "e", 0) | ({"content-type": ARROW_TYPE} if arrow else {})
    batch = read_batch(stream, [on_the_bus(stream, Record("k", headers, body))], {})
    assert batch.table.num_rows == 0
    assert [letter.message.body for letter in batch.dead] == [body]
    assert batch.dead[0].error.reason in type(batch.dead[0].error).reasons


@given(data=st.data())
@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
def test_a_damaged_body_becomes_rows_of_the_stream_or_a_dead_letter(arrow: bool, data: st.DataObject) -> None:
    event = Event(source="s", epoch="e", sequence=0, table=data.draw(tables(SAMPLES)))
    record = encode_events(SAMPLES, [event], "k") if arrow else encode_event(SAMPLES, event, "k")
    body = bytearray(record.body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(body) - 1)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    batch = read_batch(SAMPLES, [on_the_bus(SAMPLES, Record("k", record.headers, bytes(body)))], {})
    assert batch.table.schema.equals(SAMPLES.schema)
    batch.table.validate(full=True)
    assert len(batch.dead) in (0, 1)
    assert sum(e.rows for e in batch.events) == batch.table.num_rows


BROKEN_BODIES = [
    (b"", "unreadable_body"),
    (b"null", "unreadable_body"),
    (b"[1]", "unreadable_body"),
    (b'{"ts":NaN}', "unreadable_body"),
    (b"[" * 100_000, "unreadable_body"),
    (b"\xff\xfe", "unreadable_body"),
    (b"{}", "missing_value"),
    (b'{"ts":[1,2],"host":["a"]}', "unequal_columns"),
    (b'{"ts":[1],"host":"a","synthetic":true,"gpu_uuid":["a","b"]}', "unequal_columns"),
    (b'{"ts":1,"host":"a","gpu_uuid":"b"}', "missing_value"),
    (b'{"ts":1,"host":null,"synthetic":true,"gpu_uuid":"b"}', "missing_value"),
    (b'{"ts":1,"host":7,"synthetic":true,"gpu_uuid":"b"}', "bad_value"),
    (b'{"ts":"now","host":"a","synthetic":true,"gpu_uuid":"b"}', "bad_value"),
    (b'{"ts":1,"host":"a","synthetic":1,"gpu_uuid":"b"}', "bad_value"),
    (b'{"ts":1,"host":"a","synthetic":true,"gpu_uuid":"b","power_watts":"hot"}', "bad_value"),
    (b'{"ts":1,"host":"a","synthetic":true,"gpu_uuid":"b","power_watts":true}', "bad_value"),
    (b'{"ts":1,"host":"a","synthetic":true,"gpu_uuid":"b","power_watts":{"a":1}}', "bad_value"),
    (b'{"ts":[1],"host":"a","synthetic":true,"gpu_uuid":"b","power_watts":[[1]]}', "bad_value"),
    (b'{"ts":[' + b"1," * MAX_ROWS + b'1],"host":"a","synthetic":true,"gpu_uuid":"b"}', "too_large"),
]


@pytest.mark.parametrize(("body", "reason"), BROKEN_BODIES, ids=range(len(BROKEN_BODIES)))
def test_each_way_to_break_a_body_has_its_reason(body: bytes, reason: str) -> None:
    batch = read_batch(
        SAMPLES, [on_the_bus(SAMPLES, Record("k", headers_of(SAMPLES, "s", "e", 0), body))], {}
    )
    assert [letter.error.reason for letter in batch.dead] == [reason]
    assert batch.table.num_rows == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"content-type": "text/plain"}, "unknown_content_type"),
        ({"ce_type": "hallwatch.inventory.v1"}, "wrong_type"),
        ({"ce_source": ""}, "missing_header"),
        ({"ce_epoch": ""}, "missing_header"),
        ({"ce_sequence": "-1"}, "bad_header"),
        ({"ce_sequence": "1.5"}, "bad_header"),
        ({"ce_sequence": "٣"}, "bad_header"),
        ({"ce_sequence": "9" * 40}, "bad_header"),
    ],
)
def test_each_way_to_break_the_headers_has_its_reason(change: dict[str, str], reason: str) -> None:
    record = encode_event(
        SAMPLES, Event(source="s", epoch="e", sequence=0, table=example_rows(SAMPLES, 1)), "k"
    )
    batch = read_batch(
        SAMPLES, [on_the_bus(SAMPLES, Record("k", {**record.headers, **change}, record.body))], {}
    )
    assert [letter.error.reason for letter in batch.dead] == [reason]


@given(
    broken=st.sets(st.integers(0, 11), max_size=5), layouts=st.lists(st.booleans(), min_size=12, max_size=12)
)
def test_broken_neighbours_cost_no_good_message_and_order_is_kept(
    broken: set[int], layouts: list[bool]
) -> None:
    messages = []
    for i, wide in enumerate(layouts):
        rows = example_rows(SAMPLES, 2, gpu_uuid=f"gpu-{i}", **({"power_watts": float(i)} if wide else {}))
        record = encode_event(SAMPLES, Event(source="s", epoch="e", sequence=i, table=rows), "k")
        body = record.body.replace(b'"ts":[', b'"ts":["x",') if i in broken else record.body
        messages.append(on_the_bus(SAMPLES, Record("k", record.headers, body), offset=i))
    batch = read_batch(SAMPLES, messages, {})
    good = [i for i in range(12) if i not in broken]
    assert sorted(letter.message.offset for letter in batch.dead) == sorted(broken)
    assert batch.table.column("gpu_uuid").to_pylist() == [f"gpu-{i}" for i in good for _ in range(2)]
    assert [e.message.offset for e in batch.events] == good


def test_events_of_arrow_bodies_end_where_who_sent_them_changes_and_with_their_message() -> None:
    def sent(*events: tuple[str, str, int, int]) -> Record:
        parts = [
            Event(source=source, epoch=epoch, sequence=sequence, table=example_rows(SAMPLES, rows))
            for source, epoch, sequence, rows in events
        ]
        return encode_events(SAMPLES, parts, "k")

    bodies = [
        sent(("a", "1", 5, 2), ("b", "1", 5, 3), ("b", "2", 5, 1)),
        sent(("c", "1", 0, 0)),
        sent(("c", "1", 7, 2)),
        sent(("c", "1", 8, 1), ("c", "1", 9, 4)),
    ]
    messages = [on_the_bus(SAMPLES, body, offset) for offset, body in enumerate(bodies)]
    batch = read_batch(SAMPLES, messages, {})
    assert not batch.dead
    assert [(e.message.offset, e.source, e.epoch, e.sequence, e.rows) for e in batch.events] == [
        (0, "a", "1", 5, 2),
        (0, "b", "1", 5, 3),
        (0, "b", "2", 5, 1),
        (2, "c", "1", 7, 2),
        (3, "c", "1", 8, 1),
        (3, "c", "1", 9, 4),
    ]


def test_a_repeated_event_is_dropped_whichever_body_it_comes_in() -> None:
    events = [Event(source="s", epoch="e", sequence=i, table=example_rows(SAMPLES, 3)) for i in range(3)]
    messages = [
        on_the_bus(SAMPLES, encode_event(SAMPLES, events[0], "k"), 0),
        on_the_bus(SAMPLES, encode_events(SAMPLES, events[:2], "k"), 1),
        on_the_bus(SAMPLES, encode_event(SAMPLES, events[1], "k"), 2),
        on_the_bus(SAMPLES, encode_event(SAMPLES, events[2], "k"), 3),
    ]
    batch = read_batch(SAMPLES, messages, {})
    assert [(e.sequence, e.message.offset, e.rows) for e in batch.events] == [(0, 0, 3), (1, 1, 3), (2, 3, 3)]
    assert batch.repeats == 2
    assert batch.table.num_rows == 9


def test_the_same_sequence_of_another_epoch_or_partition_is_no_repeat() -> None:
    table = example_rows(SAMPLES, 1)
    first, restarted = (
        encode_event(SAMPLES, Event(source="s", epoch=epoch, sequence=0, table=table), "k")
        for epoch in ("a", "b")
    )
    messages = [
        on_the_bus(SAMPLES, first),
        on_the_bus(SAMPLES, restarted),
        on_the_bus(SAMPLES, first, partition=1),
    ]
    assert read_batch(SAMPLES, messages, {}).repeats == 0


def test_a_row_of_the_wrong_world_makes_its_message_a_dead_letter() -> None:
    records = [
        encode_event(
            SAMPLES,
            Event(source="s", epoch="e", sequence=i, table=example_rows(SAMPLES, 1, synthetic=s)),
            "k",
        )
        for i, s in enumerate([False, True, False])
    ]
    batch = read_batch(
        SAMPLES, [on_the_bus(SAMPLES, r, i) for i, r in enumerate(records)], {}, synthetic=False
    )
    assert [(d.message.offset, d.error.reason) for d in batch.dead] == [(1, "wrong_world")]
    assert batch.table.num_rows == 2


def test_a_column_unknown_here_is_left_aside_and_an_absent_one_is_null() -> None:
    body = encode_columns(SAMPLES, {"ts": [1], "host": ["h"], "synthetic": [False], "gpu_uuid": ["g"]})
    document = orjson.loads(body) | {"added_later": [1]}
    record = Record("k", headers_of(SAMPLES, "s", "e", 0), orjson.dumps(document))
    batch = read_batch(SAMPLES, [on_the_bus(SAMPLES, record)], {})
    assert not batch.dead
    assert batch.table.column("power_watts").to_pylist() == [None]


def test_impossible_numbers_become_null_and_are_counted_by_reason() -> None:
    columns = {
        "ts": [1, 2, 3, 4],
        "host": "h",
        "synthetic": False,
        "gpu_uuid": "g",
        "temperature_celsius": [345, 82505, 644245923, 61],
        "utilization_percent": [2619, 4294967295, 91.5, 91],
        "energy_millijoules": [-1, 5, 5551899580, 15152422938],
    }
    record = Record("k", headers_of(SAMPLES, "s", "e", 0), orjson.dumps(columns))
    batch = read_batch(SAMPLES, [on_the_bus(SAMPLES, record)], {})
    assert batch.table.column("temperature_celsius").to_pylist() == [None, None, None, 61]
    assert batch.table.column("utilization_percent").to_pylist() == [None, None, None, 91]
    assert batch.table.column("energy_millijoules").to_pylist() == [None, 5, 5551899580, 15152422938]
    assert dict(batch.values_rejected) == {
        ("temperature_celsius", "out_of_range"): 3,
        ("utilization_percent", "out_of_range"): 2,
        ("utilization_percent", "not_whole"): 1,
        ("energy_millijoules", "out_of_range"): 1,
    }


def test_the_lake_columns_say_where_each_row_came_from() -> None:
    events = [
        Event(source=f"s{i}", epoch="e", sequence=i, table=example_rows(SAMPLES, 1 + i)) for i in range(2)
    ]
    messages = [on_the_bus(SAMPLES, encode_event(SAMPLES, e, "k"), 10 + i, 3) for i, e in enumerate(events)]
    log, partition, offset, source, epoch, sequence, received, principal = (
        column.to_pylist() for column in read_batch(SAMPLES, messages, {}).lake_columns("log-id")
    )
    assert log == ["log-id"] * 3
    assert partition == [3] * 3
    assert offset == [10, 11, 11]
    assert source == ["s0", "s1", "s1"]
    assert epoch == ["e"] * 3
    assert sequence == [0, 1, 1]
    assert [t.microsecond for t in received] == [1_000] * 3
    assert principal == [None] * 3
