"""From an event to SQL, and the sink's memory, while a hall of 20,000 GPUs reports every second.

A producer process appends 2,500 messages a second, each stamped with the moment it was made; the sink runs as its
own process with the shipped settings; this process asks SQL for what is new, and takes the time at which each event
was first seen in an answer.
"""

from __future__ import annotations

import itertools
import re
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

from analytics.lake import Lake
from analytics.query import connect
from analytics.sink import Sink
from contract.bus import Record
from contract.bus.local import LocalBus
from contract.codec import headers_of
from contract.config import LakeSection
from contract.streams import STREAMS
from contract.streams.gpu import GPU_SAMPLES

HOSTS, SECONDS = 2_500, 30
BATCHES_PER_SECOND = 20
ASK_SECONDS = 0.5
PATIENCE_SECONDS = 120.0
GIB = 2**30


def _peak_bytes() -> int:
    """Return this process's greatest resident size.

    Not `getrusage`: its figure survives exec, so a process begins with the size of the one that started it.
    """
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)[0]) * 1024


def produce(folder: Path, hosts: int, seconds: int) -> None:
    """Append a hall's messages at the pace of the clock."""
    bus = LocalBus(folder / "bus")
    due = time.monotonic()
    batches = _batches(hosts, hosts // BATCHES_PER_SECOND)
    for batch in itertools.islice(batches, seconds * BATCHES_PER_SECOND):
        due += 1 / BATCHES_PER_SECOND
        time.sleep(max(0.0, due - time.monotonic()))
        now_us = time.time_ns() // 1000
        stamp = b'{"ts":' + str([now_us] * halldata.GPUS_PER_HOST).encode()
        bus.append([(topic, p, Record(r.key, r.headers, stamp + r.body)) for topic, p, r in batch])
    bus.close()


def _batches(hosts: int, size: int) -> Iterator[list[tuple[str, int, Record]]]:
    """Yield records for ever, without the beginning of their bodies: that is the time."""
    hall = halldata.draw(hosts * halldata.GPUS_PER_HOST, 2)
    drawn = [
        (m.partition, m.key, m.headers, re.sub(rb'^{"ts":(\[[^]]*\]|\d+)', b"", m.body))
        for m in halldata.messages(hall)
    ]
    sequences = dict.fromkeys((key for _, key, _, _ in drawn), 0)
    batch = []
    for partition, key, headers, body in itertools.cycle(drawn):
        stamped = headers_of(GPU_SAMPLES, headers["ce_source"], headers["ce_epoch"], sequences[key])
        sequences[key] += 1
        batch.append((GPU_SAMPLES.topic, partition, Record(key, stamped, body)))
        if len(batch) == size:
            yield batch
            batch = []


def run_sink(folder: Path) -> None:
    """Sink until told to end; print the most memory it had."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    section = LakeSection(path=folder / "lake")
    Sink(section, LocalBus(folder / "bus"), Lake(section.path), synthetic=False).run(stop)
    print(_peak_bytes())


def observe(folder: Path, events: int) -> list[float]:
    """Ask for new events until all were seen or patience ends; return each one's age when it was first seen."""
    ages: list[float] = []
    seen: set[int] = set()
    newest_us, patience = 0, time.monotonic() + PATIENCE_SECONDS
    with connect(folder / "lake") as lake:
        while len(ages) < events and time.monotonic() < patience:
            # The bus stamps a batch with one time, and a commit may cut it: look some seconds back.
            found = lake.arrow(
                "SELECT _partition * (1::BIGINT << 40) + _offset AS place, epoch_us(ts) AS ts_us, "
                "epoch_us(_received) AS received_us FROM gpu_samples "
                "WHERE gpu_index = 0 AND _received > make_timestamp($since)",
                {"since": max(0, newest_us - 5_000_000)},
            )
            now_us = time.time_ns() // 1000
            for place, ts_us in zip(found["place"].to_pylist(), found["ts_us"].to_pylist(), strict=True):
                if place not in seen:
                    seen.add(place)
                    ages.append((now_us - ts_us) / 1e6)
            if found.num_rows:
                newest_us = max(newest_us, int(found["received_us"].to_numpy().max()))
            time.sleep(ASK_SECONDS)
    return ages


def measure(hosts: int = HOSTS, seconds: int = SECONDS) -> list[BenchRow]:
    """Return the freshness and the memory."""
    with tempfile.TemporaryDirectory(prefix="hallwatch-bench-") as name:
        folder = Path(name)
        bus = LocalBus(folder / "bus")
        bus.ensure_topics(STREAMS.values())
        bus.close()
        (folder / "lake").mkdir()
        sink = _start("sink", folder)
        producer = _start("produce", folder, str(hosts), str(seconds))
        try:
            ages = observe(folder, hosts * seconds)
        finally:
            producer.wait()
            sink.terminate()
            memory = int(sink.communicate()[0] or 0)
    p95 = float(np.percentile(ages, 95))
    complete = len(ages) == hosts * seconds
    return [
        BenchRow(
            name="event to SQL, p95",
            value=p95,
            unit="s",
            baseline=None,
            goal="<= 10 at 20,000 rows/s, every event seen once",
            holds=p95 <= 10 and complete,
        ),
        BenchRow(
            name="sink memory, peak",
            value=memory / GIB,
            unit="GiB",
            baseline=None,
            goal="<= 1",
            holds=0 < memory <= GIB,
        ),
    ]


def _start(what: str, folder: Path, *rest: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, what, str(folder), *rest]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    if sys.argv[1] == "sink":
        run_sink(Path(sys.argv[2]))
    else:
        produce(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
