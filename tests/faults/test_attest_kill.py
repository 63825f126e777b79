"""Evidence that is dropped while its reader is killed at any moment: each piece is judged once and archived once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from contract.bus import TopicPartition
from contract.bus.local import LocalBus
from contract.reader import Marks, read_batch
from contract.stream import Stream
from contract.streams.attestation import ATTESTATION_EVIDENCE, ATTESTATION_RESULTS
from tests.faults.attest_child import open_source

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CHECKOUT = Path(__file__).resolve().parents[2]
KILLS = 8


def drop(folder: Path, stop: threading.Event, digests: list[str]) -> None:
    """Rename evidence into the folder, under few names that come again; none of it is genuine."""
    while not stop.is_set():
        number = len(digests)
        body = b"\x84module_id %d" % number
        target = folder / f"host{number % 3}" / f"{number % 50}.evidence"
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            part = target.with_name(f".{target.name}")
            part.write_bytes(body)
            part.rename(target)
            digests.append(hashlib.sha256(body).hexdigest())
        time.sleep(0.002)


def told(folder: Path, stream: Stream, column: str) -> list[str]:
    """Return a column of all rows as a reader of the bus sees them."""
    with closing(LocalBus(folder / "bus", fsync=False)) as bus, closing(bus.consumer("audit")) as consumer:
        partitions = [TopicPartition(stream.topic, number) for number in range(stream.partitions)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        marks: Marks = {}
        values: list[str] = []
        while messages := consumer.poll(0.0, 10_000):
            batch = read_batch(stream, messages, marks)
            assert not batch.dead
            values += batch.table.column(column).to_pylist()
        return values


def test_a_reader_that_is_killed_loses_and_doubles_no_evidence(tmp_path: Path) -> None:
    folder = tmp_path / "drop"
    folder.mkdir()
    stop, digests = threading.Event(), list[str]()
    writer = threading.Thread(target=drop, args=(folder, stop, digests))
    writer.start()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.attest_child", str(tmp_path), str(KILLS)],
            cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        stop.set()
        writer.join()
    assert done.returncode == 0, done.stdout + done.stderr
    with open_source(tmp_path) as source:
        for _ in range(4):
            assert source.poll()
    assert len(digests) > 100
    assert sorted(told(tmp_path, ATTESTATION_RESULTS, "digest")) == sorted(digests)
    assert sorted(told(tmp_path, ATTESTATION_EVIDENCE, "digest")) == sorted(digests)
    assert not [path for path in (folder / "taking").rglob("*") if path.is_file()]
