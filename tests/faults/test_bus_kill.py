"""The death of a process at any moment costs the local bus nothing that it acknowledged.

Covered: SIGKILL of a writer between and inside its system calls, while another process goes on writing; the file as
the kernel has it is then opened again. Not covered: loss of power. No test can tear the page cache away from the
disk; for that the bus relies on SQLite's synchronous=FULL, an fsync of the write-ahead log at every commit, which
tests/unit/contract/bus/test_local.py only checks to be switched on.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from contract.bus import Message, TopicPartition
from contract.bus.local import LocalBus
from ingest.spool import SpoolOutlet
from tests.faults.bus_children import PARTITIONS, TOPIC

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0


@dataclass
class Child:
    """A process, and the promises it printed before it died."""

    arguments: tuple[str, ...]
    promises: list[list[str]] = field(default_factory=list)

    def start(self) -> None:
        """Start it and return when it has given its first promise."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.bus_children", *self.arguments],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.promised = threading.Event()
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()
        assert self.promised.wait(PATIENCE_SECONDS)

    def listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A process that is killed while it speaks leaves half a line: that promise was not heard.
            if line.endswith("\n"):
                self.promises.append(line.split())
                self.promised.set()

    def kill(self) -> None:
        """Kill it; it must have been alive until then."""
        assert self.process.poll() is None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)
        self.listener.join(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


def read_log(bus: LocalBus) -> dict[int, list[Message]]:
    """Return every message, by partition."""
    partitions = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
    messages: dict[int, list[Message]] = {n: [] for n in range(PARTITIONS)}
    with closing(bus.consumer("audit")) as consumer:
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        while polled := consumer.poll(0):
            for message in polled:
                messages[message.partition].append(message)
    return messages


def numbers_by_source(messages: Iterable[Message]) -> dict[str, list[int]]:
    """Return the numbers of each source in the order of the log."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        kind, source, number = message.headers["words"].split()
        found[f"{kind} {source}"].append(int(number))
    return found


def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    dice = random.Random(20260601)
    children = [Child(("write", str(tmp_path), name)) for name in ("a", "b")]
    for child in children:
        child.start()
    for turn in range(10):
        child = children[turn % 2]
        time.sleep(dice.uniform(0.0, 0.5))
        child.kill()
        child.start()
    for child in children:
        child.kill()
    with closing(LocalBus(tmp_path)) as bus:
        log = read_log(bus)
        for messages in log.values():
            assert [m.offset for m in messages] == list(range(len(messages)))
            times = [m.received_us for m in messages]
            assert times == sorted(times)
        everything = [message for messages in log.values() for message in messages]
        found = numbers_by_source(everything)
        for name, child in zip(("a", "b"), children, strict=True):
            audit_batches(bus, name, child, log, found)
            audit_sent(child, log)
        assert sum(map(len, found.values())) == len(everything) > 1_000


def audit_batches(
    bus: LocalBus, name: str, child: Child, log: dict[int, list[Message]], found: dict[str, list[int]]
) -> None:
    """Each batch is there once, whole, with its cursor; in order within a partition."""
    numbers = found[f"batch {name}"]
    promised = [int(words[2]) for words in child.promises if words[0] == "batch"]
    assert sorted(numbers) == list(range(max(numbers) + 1))
    assert bus.cursor(name) == str(max(numbers)).encode()
    assert promised[-1] <= max(numbers)
    for messages in log.values():
        mine = numbers_by_source(messages).get(f"batch {name}", [])
        assert mine == sorted(mine)


def audit_sent(child: Child, log: dict[int, list[Message]]) -> None:
    """Each acknowledged record is where its acknowledgement said; no source has a hole or a repeat."""
    acknowledged = [words for words in child.promises if words[0] == "sent"]
    assert len({words[1] for words in acknowledged}) > 1
    for _, source, number, partition, offset in acknowledged:
        assert log[int(partition)][int(offset)].headers["words"] == f"sent {source} {number}"
    for place, messages in log.items():
        for source, numbers in numbers_by_source(messages).items():
            if source.startswith(f"sent {child.arguments[2]}/"):
                assert numbers == list(range(place, numbers[-1] + 1, PARTITIONS))


def test_a_killed_forwarder_delivers_every_event_in_order(tmp_path: Path) -> None:
    dice = random.Random(7)
    child = Child(("spool", str(tmp_path), "s"))
    child.start()
    for _ in range(8):
        time.sleep(dice.uniform(0.0, 0.5))
        child.kill()
        child.start()
    child.kill()
    with closing(LocalBus(tmp_path / "bus")) as bus:
        deliver_rest(tmp_path, bus)
        log = read_log(bus)
    last = max(int(words[2]) for words in child.promises if words[0] == "put")
    arrived: set[int] = set()
    for partition, messages in log.items():
        first = list(dict.fromkeys(numbers_by_source(messages)["put s"]))
        assert first == list(range(partition, first[-1] + 1, PARTITIONS))
        arrived |= set(first)
    assert arrived == set(range(max(arrived) + 1))
    assert max(arrived) >= last > 100
    # The kills hit a spool at work: some start found events that the one before had left.
    assert any(int(words[1]) > 0 for words in child.promises if words[0] == "depth")


def deliver_rest(path: Path, bus: LocalBus) -> None:
    """Forward what the dead process left in its spool."""
    with closing(SpoolOutlet(path / "spool", bus)) as outlet:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while outlet.depth():
            assert time.monotonic() < deadline
            time.sleep(0.01)
