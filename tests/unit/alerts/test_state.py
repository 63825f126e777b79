"""The engine's memory: numbers for entities, their pace, and how it is written down."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.state import Arrays, Entities, pack, turns_of, unpack
from contract.errors import StoreError
from contract.streams import STREAMS
from contract.testing import example_rows

GPU = STREAMS["gpu_samples"]
SECOND = 1_000_000


def numbers(entities, *names):
    rows = example_rows(GPU, len(names), gpu_uuid=list(names))
    return entities.numbers_in(rows, np.full(len(names), 5 * SECOND))


def order(entities, ids, ts, sources=None):
    return entities.order(ids, ts, np.zeros(len(ids), np.int64) if sources is None else np.array(sources), ts)


def test_time_that_falls_within_one_source_is_a_clock_and_between_two_it_is_a_late_row() -> None:
    entities = Entities(GPU, ["gpu_uuid"])
    ids = numbers(entities, "a")
    hour = 3_600 * SECOND
    rows = [(9 * hour, 1), (9 * hour + SECOND, 1), (6 * hour, 2), (6 * hour, 1), (6 * hour + SECOND, 1)]
    found = [order(entities, ids, np.array([ts]), [source]) for ts, source in rows]
    assert [bool(one.fresh[0]) for one in found] == [True, True, False, True, True]
    assert [int(one.known_us[0]) for one in found] == [0, SECOND, 0, 0, SECOND]
    assert entities.skipped == 1


def test_an_entity_keeps_its_number() -> None:
    entities = Entities(GPU, ["gpu_uuid"])
    assert numbers(entities, "a", "b", "a").tolist() == [0, 1, 0]
    assert numbers(entities, "c", "b").tolist() == [2, 1]
    assert entities.names == ["a", "b", "c"]


def test_numbers_survive_being_written_down() -> None:
    entities = Entities(GPU, ["gpu_uuid"])
    ids = numbers(entities, "a", "b", "c")
    order(entities, ids, np.array([SECOND, 2 * SECOND, 3 * SECOND]))
    again = Entities(GPU, ["gpu_uuid"])
    again.load(unpack(pack(entities.dump())))
    assert numbers(again, "b", "d").tolist() == [1, 3]
    stale = order(again, np.array([1, 3]), np.array([2 * SECOND, SECOND]))
    assert stale.fresh.tolist() == [False, True]


def test_more_entities_than_there_was_room_for() -> None:
    entities = Entities(GPU, ["gpu_uuid"])
    names = [f"gpu-{n}" for n in range(1_000)]
    ids = numbers(entities, *names)
    found = order(entities, ids, np.arange(1_000) + SECOND)
    assert ids.tolist() == list(range(1_000))
    assert found.fresh.all()
    assert not found.turn.any()


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(1, 40)), max_size=40))
def test_order_is_what_a_loop_over_the_rows_would_find(rows) -> None:
    entities = Entities(GPU, ["gpu_uuid"])
    for name in "abcdef":
        entities.number(name)
    ids, ts = (
        (np.array(values, np.int64) for values in zip(*rows, strict=True))
        if rows
        else (np.zeros(0, np.int64),) * 2
    )
    found = order(entities, ids, ts)
    last: dict[int, int] = {}
    seen: dict[int, int] = {}
    for at, (number, time) in enumerate(zip(ids.tolist(), ts.tolist(), strict=True)):
        if number < 0:
            continue
        assert found.turn[at] == seen.setdefault(number, -1) + 1
        seen[number] += 1
        assert found.fresh[at] == (time > last.get(number, 0))
        last[number] = max(last.get(number, 0), time)


@given(st.lists(st.integers(0, 4), max_size=30))
def test_turns_hold_each_entity_once_and_keep_its_order(ids) -> None:
    turn = np.array([ids[:at].count(number) for at, number in enumerate(ids)], np.int64)
    parts = [part.tolist() for part in turns_of(np.arange(len(ids)), turn)]
    for part in parts:
        assert len({ids[row] for row in part}) == len(part)
    for number in set(ids):
        assert [row for part in parts for row in part if ids[row] == number] == [
            row for row in range(len(ids)) if ids[row] == number
        ]


@pytest.mark.parametrize(
    ("times", "known"),
    [
        ([0, 1, 2, 3], [0, 1, 1, 1]),
        ([0, 1, 2, 5, 6], [0, 1, 1, 3, 1]),
        ([0, 1, 2, 6, 7], [0, 1, 1, 0, 1]),
        ([0, 15, 30, 45], [0, 15, 15, 15]),
        ([0, 31, 62, 93, 124, 155], [0, 0, 0, 0, 0, 31]),
        ([0, 15, 30, 31, 32, 36], [0, 15, 15, 1, 1, 0]),
        ([0, 0.1, 0.2, 3], [0, 0.1, 0.1, 2.8]),
    ],
    ids=[
        "steady",
        "three intervals",
        "a gap",
        "slow",
        "slow beyond belief",
        "faster",
        "never below the stream's",
    ],
)
def test_known_time_follows_each_entitys_pace(times, known) -> None:
    entities = Entities(GPU, ["gpu_uuid"])
    number = np.array([entities.number("a")])
    found = [
        int(order(entities, number, np.array([round((100 + time) * SECOND)])).known_us[0]) / SECOND
        for time in times
    ]
    assert found == known


def test_columns_are_joined_and_the_null_ones_left_out() -> None:
    links = STREAMS["gpu_links"]
    entities = Entities(links, ["gpu_uuid", "link"], "host")
    rows = example_rows(links, 3, gpu_uuid=["g", None, None], link=[1, 2, 3], host="h1")
    entities.numbers_in(rows, np.full(3, SECOND))
    assert entities.names == ["g/1", "2", "3"]


def test_a_row_that_names_nothing_stays_a_row() -> None:
    links = STREAMS["gpu_links"]
    entities = Entities(links, ["gpu_uuid", "nvswitch"])
    rows = example_rows(links, 3, gpu_uuid=[None, "g", None])
    assert entities.numbers_in(rows, np.full(3, SECOND)).tolist() == [-1, 0, -1]


def test_arrays_grow_and_keep_what_they_hold() -> None:
    arrays = Arrays(value=7)
    arrays["value"][3] = 1
    arrays.grow(1_000)
    assert arrays["value"][[3, 4, 999]].tolist() == [1, 7, 7]


def test_a_document_with_arrays_comes_back_as_it_was() -> None:
    document = {"a": np.arange(3), "b": [{"c": np.array([True, False])}, None, "x"], "d": {}}
    again = unpack(pack(document))
    assert again["a"].tolist() == [0, 1, 2]
    assert again["b"][0]["c"].dtype == np.bool_
    assert (again["b"][1:], again["d"]) == ([None, "x"], {})


@pytest.mark.parametrize("body", [b"", b"x", pack({"a": np.arange(9)})[:-4]])
def test_a_damaged_snapshot_is_an_error_and_nothing_is_unpickled(body) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        unpack(body)


def test_a_clock_that_was_ahead_and_is_set_right_leaves_no_row_of_its_source_unjudged() -> None:
    entities = Entities(GPU, ["gpu_uuid"])
    ids = numbers(entities, "a")
    one = np.zeros(1, np.int64)
    hour = 3_600 * SECOND
    # What was an hour ahead is taken for five seconds ahead, and two rows that arrived at once for the same moment.
    rows = [(5, hour), (5, hour + 1), (1, 1), (2, 2), (2, 2)]
    found = [
        entities.order(ids, np.array([ts * SECOND]), one, np.array([sent * SECOND])) for ts, sent in rows
    ]
    assert [bool(order.fresh[0]) for order in found] == [True, True, True, True, False]
    assert [int(order.known_us[0]) for order in found] == [0, 0, 0, SECOND, 0]
