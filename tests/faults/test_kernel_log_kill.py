"""A kernel log that is written and rotated while its reader is killed at any moment: no line is lost, none told twice."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from contract.bus import TopicPartition
from contract.bus.local import LocalBus
from contract.reader import Marks, read_batch
from contract.streams.gpu import GPU_EVENTS
from tests.faults.kernel_log_child import open_source

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CHECKOUT = Path(__file__).resolve().parents[2]
KILLS = 20
LINES_PER_FILE = 150
APART = timedelta(seconds=400)
"""So far apart that repeats of one code are told one by one, each with its own words."""


class Writer:
    """Appends numbered lines, in halves now and then, and rotates the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._began = datetime.now(UTC) - timedelta(days=200)
        self._log = path.open("a", buffering=1)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.write()
            if self.count % LINES_PER_FILE == 0:
                self.rotate()
            time.sleep(0.002)
        self._log.close()

    def write(self) -> None:
        at = (self._began + self.count * APART).isoformat()
        line = f"{at} h1 kernel: NVRM: Xid (PCI:0000:53:00): 31, number {self.count}\n"
        cut = self.count * 7 % len(line) if self.count % 10 == 0 else 0
        self._log.write(line[:cut])
        self._log.flush()
        self._log.write(line[cut:])
        self._log.flush()
        self.count += 1

    def rotate(self) -> None:
        older = sorted(self.path.parent.glob("kern.log.*"), key=lambda path: -int(path.suffix[1:]))
        for path in older:
            path.rename(path.with_suffix(f".{int(path.suffix[1:]) + 1}"))
        self.path.rename(self.path.with_suffix(".log.1"))
        new = self.path.open("a", buffering=1)
        self._log.close()
        self._log = new


@contextmanager
def written(path: Path) -> Iterator[Writer]:
    writer, stop = Writer(path), threading.Event()
    thread = threading.Thread(target=writer.run, args=(stop,))
    thread.start()
    try:
        yield writer
    finally:
        stop.set()
        thread.join()


def finish(folder: Path, kind: str) -> None:
    """Read what is left, and let a spool pass it on."""
    with open_source(folder, kind) as (source, outlet):
        for _ in range(3):
            assert source.poll()
        for _ in range(600):
            if not outlet.depth():
                return
            time.sleep(0.05)
    raise AssertionError("the spool does not empty")


def told(folder: Path) -> list[str]:
    """Return the words of every event as a reader of the bus sees them: repeats of an event are dropped."""
    with closing(LocalBus(folder / "bus", fsync=False)) as bus, closing(bus.consumer("audit")) as consumer:
        partitions = [TopicPartition(GPU_EVENTS.topic, number) for number in range(GPU_EVENTS.partitions)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        marks: Marks = {}
        words: list[str] = []
        while messages := consumer.poll(0.0, 10_000):
            batch = read_batch(GPU_EVENTS, messages, marks)
            assert not batch.dead
            words += batch.table.column("detail").to_pylist()
        return words


@pytest.mark.parametrize("kind", ["direct", "spool"])
def test_a_reader_that_is_killed_loses_and_doubles_no_line(tmp_path: Path, kind: str) -> None:
    (tmp_path / "kern.log").touch()
    finish(tmp_path, kind)  # a first start, from which on nothing may be missed
    with written(tmp_path / "kern.log") as writer:
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.kernel_log_child", str(tmp_path), kind, str(KILLS)],
            cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    finish(tmp_path, kind)
    assert writer.count > 2 * LINES_PER_FILE
    assert told(tmp_path) == [f"number {number}" for number in range(writer.count)]
