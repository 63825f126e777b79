"""How old an event is when SQL first shows it, and what the sink needs for that, at 20,000 rows a second.

Three processes as in a hall: this one appends the hall's messages to the local bus in slices of 100 ms, `hallwatch
sink` runs with its defaults, and a reader asks the lake four times a second. A slice counts when all its rows are
there; its age is taken from the event time of its rows.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import halldata
import numpy as np
from bench import BenchRow

from analytics.query import connect
from contract.bus import Record
from contract.bus.local import LocalBus
from contract.codec import headers_of
from contract.errors import StoreError
from contract.streams import STREAMS
from contract.streams.gpu import GPU_SAMPLES

HOSTS, SECONDS, SLICES = 2_500, 40, 10
PATIENCE_SECONDS = 60
CONFIG = '[hall]\nname = "bench"\n'


def measure(hosts: int = HOSTS, seconds: int = SECONDS) -> list[BenchRow]:
    """Return the 95th percentile of the age at first sight, and the sink's greatest resident size."""
    with tempfile.TemporaryDirectory(prefix="hallwatch-bench-") as name:
        folder = Path(name)
        (folder / "hallwatch.toml").write_text(CONFIG)
        slices = list(_slices(hosts))
        bus = LocalBus(folder / "bus", fsync=True)
        bus.ensure_topics(STREAMS.values())
        sink = subprocess.Popen(
            [sys.executable, "-m", "hallwatch", "sink", "--config", str(folder / "hallwatch.toml")],
            stderr=subprocess.DEVNULL,
        )
        try:
            sent: dict[int, int] = {}
            writer = threading.Thread(target=_write, args=(bus, slices, seconds, sent))
            writer.start()
            ages = _watch(folder / "lake", sent, writer)
            peak_mib = _peak_mib(sink.pid)
        finally:
            sink.send_signal(signal.SIGTERM)
            sink.wait(60)
            bus.close()
    age = float(np.percentile(ages, 95))
    return [
        BenchRow(
            name="event to SQL, p95",
            value=age,
            unit=f"s at {hosts * halldata.GPUS_PER_HOST:,} rows/s",
            baseline=float(np.median(ages)),
            goal="<= 10 s (baseline: median)",
            holds=age <= 10,
        ),
        BenchRow(
            name="sink, greatest resident size",
            value=peak_mib,
            unit="MiB",
            baseline=None,
            goal="<= 1,024 MiB",
            holds=peak_mib <= 1024,
        ),
    ]


Slice = list[tuple[str, int, str, str, bytes, bytes]]
"""Source, partition, key, epoch and the body before and after its time stamps."""


def _slices(hosts: int) -> Iterator[Slice]:
    """Draw one second of the hall, ready to be stamped and sent again and again."""
    drawn = list(halldata.messages(halldata.draw(hosts * halldata.GPUS_PER_HOST, 1, warm_up=1)))
    for part in range(SLICES):
        yield [
            (
                message.headers["ce_source"],
                message.partition,
                message.key,
                message.headers["ce_epoch"],
                message.body[: message.body.index(b'"ts":[') + 6],
                message.body[message.body.index(b"]", message.body.index(b'"ts":[')) :],
            )
            for message in drawn[part::SLICES]
        ]


def _write(bus: LocalBus, slices: list[Slice], seconds: int, sent: dict[int, int]) -> None:
    began = time.monotonic()
    for number in range(seconds * SLICES):
        time.sleep(max(0.0, began + number / SLICES - time.monotonic()))
        sequence, part = divmod(number, SLICES)
        now_us = time.time_ns() // 1000
        stamps = ",".join([str(now_us)] * halldata.GPUS_PER_HOST).encode()
        bus.append(
            [
                (
                    GPU_SAMPLES.topic,
                    partition,
                    Record(key, headers_of(GPU_SAMPLES, source, epoch, sequence), head + stamps + tail),
                )
                for source, partition, key, epoch, head, tail in slices[part]
            ]
        )
        sent[now_us] = len(slices[part]) * halldata.GPUS_PER_HOST


def _watch(lake: Path, sent: dict[int, int], writer: threading.Thread) -> list[float]:
    """Ask until every slice that was sent is there; return their ages at first sight."""
    ages: dict[int, float] = {}
    deadline: float | None = None
    connection = None
    while writer.is_alive() or len(ages) < len(sent):
        time.sleep(0.25)
        if not writer.is_alive():
            deadline = deadline or time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(sent) - len(ages)} slices never came")
        try:
            connection = connection or connect(lake, max_age_seconds=0.0)
        except StoreError:
            continue  # the sink has not made it yet
        oldest = min((us for us in list(sent) if us not in ages), default=0)
        counts = connection.sql(
            f"SELECT epoch_us(ts), count(*) FROM gpu_samples WHERE ts >= make_timestamp({oldest}) GROUP BY ts"
        ).fetchall()
        now_us = time.time_ns() // 1000
        for us, rows in counts:
            if us not in ages and sent.get(us) == rows:
                ages[us] = (now_us - us) / 1e6
    return list(ages.values())


def _peak_mib(pid: int) -> float:
    """Read the greatest resident size; Linux keeps it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


if __name__ == "__main__":
    print(json.dumps([row.value for row in measure()]))
