"""A disk that fills up costs the local bus nothing: the append fails whole, and goes on when there is room again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from contract.bus import TopicPartition
from contract.bus.local import LocalBus
from contract.errors import TransportError
from tests.suites.bus_suite import record

pytestmark = pytest.mark.faults

CHECKOUT = Path(__file__).resolve().parents[2]
OWN_MOUNTS = ["unshare", "--map-root-user", "--mount"]
"""Runs a command that may mount file systems which nobody else sees."""


def may_mount() -> bool:
    try:
        return subprocess.run([*OWN_MOUNTS, "mount"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


LIMITS = [("size", "unreachable"), *([("mount", "full")] if may_mount() else [])]
"""A real small disk where this machine lets us have one; a limit on the size of files everywhere."""


@pytest.mark.parametrize(("limit", "reason"), LIMITS)
def test_a_failed_write_leaves_nothing_half_written(tmp_path: Path, limit: str, reason: str) -> None:
    child = [sys.executable, "-m", "tests.faults.bus_children", "fill", str(tmp_path), limit]
    run = subprocess.run(
        [*(OWN_MOUNTS if limit == "mount" else []), *child],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in run.stdout.splitlines()]
    assert {words[1] for words in lines if words[0] == "failed"} == {reason}
    assert ["recovered", "True"] in lines
    [(_, stored, cursor)] = [words for words in lines if words[0] == "stored"]
    assert int(stored) > 10
    assert int(cursor) == int(stored) - 1
    for partition in ("0", "1"):
        read = [words for words in lines if words[:2] == ["read", partition]]
        assert [words[2:] for words in read] == [[str(n), str(n)] for n in range(int(stored))]


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[LocalBus]:
    with closing(LocalBus(tmp_path, fsync=False)) as bus:
        bus.create_topic("t", 2)
        yield bus


def set_max_pages(bus: LocalBus, pages: int) -> None:
    with bus._database.reading() as connection:
        connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def test_an_append_that_does_not_fit_is_undone_in_every_partition(bus: LocalBus) -> None:
    partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    bus.append([("t", 0, record("a")), ("t", 1, record("a"))], {"c": b"1"})
    set_max_pages(bus, 40)
    large = [("t", 0, record("b")), *[("t", 1, record(b"x" * 100_000))] * 20]
    with pytest.raises(TransportError) as caught:
        bus.append(large, {"c": b"2"})
    assert caught.value.reason == "full"
    assert bus.cursor("c") == b"1"
    with closing(bus.consumer("g")) as consumer:
        assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, 1)
        set_max_pages(bus, 2**20)
        bus.append(large, {"c": b"2"})
        assert consumer.end_offsets(partitions) == dict(zip(partitions, (2, 21), strict=True))
    assert bus.cursor("c") == b"2"


def test_a_producer_on_a_full_disk_fails_and_its_successor_goes_on(bus: LocalBus) -> None:
    results: list[int | TransportError] = []
    set_max_pages(bus, 40)
    with closing(bus.producer()) as producer:
        for _ in range(20):
            producer.send("t", 0, record(b"x" * 100_000), results.append)
        with pytest.raises(TransportError) as caught:
            producer.flush()
    assert caught.value.reason == "full"
    acknowledged = [result for result in results if isinstance(result, int)]
    assert len(results) == 20
    assert len(acknowledged) < 20
    assert results[: len(acknowledged)] == acknowledged == list(range(len(acknowledged)))
    set_max_pages(bus, 2**20)
    with closing(bus.producer()) as producer:
        producer.send("t", 0, record("after"), results.append)
        producer.flush()
    assert results[-1] == len(acknowledged)
