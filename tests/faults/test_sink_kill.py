"""The death of the sink at any step loses no row and doubles none.

Covered: SIGKILL at each step between a poll and the snapshot of the marks, more than once in a row on the same bus
and lake, while the producer goes on, repeats what it sent and sends what cannot be read. Not covered: loss of
power; for that the sink relies on fsync of every file and log entry before it counts on them.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from analytics.query import connect
from contract.bus import Record
from contract.bus.local import LocalBus
from contract.codec import Event, encode_event
from contract.streams.gpu import GPU_SAMPLES
from contract.testing import example_rows
from tests.faults.sink_child import STREAMS, Killer, open_sink

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CHECKOUT = Path(__file__).resolve().parents[2]
ROWS = 8
STEPS = (
    "polled",
    "rows_written",
    "file_synced",
    "letters_begin",
    "letters_published",
    "commit_begins",
    "committed",
    "commit_synced",
    "snapshot_written",
    "snapshot_named",
    "checkpoint_written",
)


class Producer:
    """Sends stamped events of several hosts, some of them again, and now and then poison."""

    def __init__(self, bus: LocalBus, seed: int) -> None:
        self.bus = bus
        self.random = random.Random(seed)
        self.sent: dict[str, int] = {f"h{n}": 0 for n in range(4)}
        self.poisoned: list[tuple[int, int]] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            host = self.random.choice(list(self.sent))
            self._append(host, self._event(host, self.sent[host]))
            self.sent[host] += 1
            if self.random.random() < 0.2:
                # A producer that died resends everything from its lowest unacknowledged sequence.
                first = max(0, self.sent[host] - self.random.randint(1, 4))
                for sequence in range(first, self.sent[host]):
                    self._append(host, self._event(host, sequence))
            if self.random.random() < 0.1:
                partition = GPU_SAMPLES.partition_of(host)
                [offset] = self._append(host, Record(host, {"content-type": "text/plain"}, b"poison"))
                self.poisoned.append((partition, offset))

    def _append(self, host: str, record: Record) -> list[int]:
        return self.bus.append([(GPU_SAMPLES.topic, GPU_SAMPLES.partition_of(host), record)])

    def _event(self, host: str, sequence: int) -> Record:
        table = example_rows(GPU_SAMPLES, ROWS, host=host, energy_millijoules=sequence)
        event = Event(source=f"test@{host}/0", epoch="e", sequence=sequence, table=table)
        return encode_event(GPU_SAMPLES, event, host)


def run_until_killed(folder: Path, step: str, count: int, producer: Producer) -> int:
    """Run a sink in a process of its own while the producer goes on; return its exit code."""
    command = [sys.executable, "-m", "tests.faults.sink_child", str(folder), step, str(count)]
    process = subprocess.Popen(command, cwd=CHECKOUT)
    while process.poll() is None:
        producer.send(5)
        time.sleep(0.05)
    return process.returncode


def audit(folder: Path, producer: Producer) -> None:
    """Compare the lake with everything that was ever sent."""
    with connect(folder / "lake", versions={}) as lake:
        rows = lake.sql("SELECT _source, _seq, count(*) FROM gpu_samples GROUP BY ALL").fetchall()
        offsets = lake.sql(
            "SELECT _partition, _offset, count(DISTINCT _seq), count(*) FROM gpu_samples GROUP BY ALL"
        ).fetchall()
        letters = lake.sql('SELECT "partition", "offset" FROM dead_letters').fetchall()
    expected = {(f"test@{host}/0", n): ROWS for host, count in producer.sent.items() for n in range(count)}
    assert {(source, sequence): count for source, sequence, count in rows} == expected
    assert {(events, count) for _, _, events, count in offsets} == {(1, ROWS)}
    assert Counter(letters) == Counter(producer.poisoned)


def test_death_at_every_step_loses_nothing_and_doubles_nothing(tmp_path):
    bus = LocalBus(tmp_path / "bus", fsync=False)
    bus.ensure_topics(STREAMS)
    producer = Producer(bus, seed=7)
    for place, step in enumerate(STEPS):
        killed = run_until_killed(tmp_path, step, 1 + place % 3, producer)
        assert killed == -signal.SIGKILL, f"{step} was not reached"
    producer.send(10)
    survivor = open_sink(tmp_path, Killer("", 0))
    for _ in range(4):
        survivor.step()
        survivor.flush()
    survivor.close()
    bus.close()
    audit(tmp_path, producer)
