"""Bytes of a stored sample in the files that the sink writes every 5 seconds, over the noise in it.

A sample is one value that is not null out of the 20 metrics; the bytes are those of the whole file: time stamps,
identities and the origin of every row are in them. The floor is the entropy of the noise that the generator drew:
no code without loss can go below. Full resolution, as the device reports (profile raw).
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import halldata
from bench import BenchRow

from analytics.lake import Lake
from analytics.sink import Sink
from contract.bus import Record
from contract.bus.local import LocalBus
from contract.config import LakeSection
from contract.streams.gpu import GPU_SAMPLES
from contract.streams.self import DEAD_LETTERS

GPUS, SECONDS = 20_000, 5


def measure(gpus: int = GPUS, seconds: int = SECONDS) -> list[BenchRow]:
    """Return bytes per sample over the noise floor, and bytes of a row."""
    hall = halldata.draw(gpus, seconds)
    rows = gpus * seconds
    with tempfile.TemporaryDirectory(prefix="hallwatch-bench-") as name:
        written = _sink(Path(name), hall, rows)
    per_sample = written / (rows * len(hall.metrics))
    return [
        BenchRow(
            name="fresh file, bytes per sample over the noise floor",
            value=per_sample / hall.floor_bytes,
            unit="ratio",
            baseline=1.0,
            goal="<= 2.0",
            holds=per_sample / hall.floor_bytes <= 2.0,
        ),
        BenchRow(
            name="fresh file, bytes per sample",
            value=per_sample,
            unit="B",
            baseline=hall.floor_bytes,
            goal="<= 2.0 of the floor",
            holds=per_sample / hall.floor_bytes <= 2.0,
        ),
    ]


def _sink(folder: Path, hall: halldata.Hall, rows: int) -> int:
    """Let the sink write one file of all rows; return its bytes."""
    streams = (GPU_SAMPLES, DEAD_LETTERS)
    bus = LocalBus(folder / "bus", fsync=False)
    bus.ensure_topics(streams)
    messages = halldata.messages(hall)
    while part := list(itertools.islice(messages, 2_000)):
        bus.append([(m.topic, m.partition, Record(m.key, m.headers, m.body)) for m in part])
    section = LakeSection(path=folder / "lake", flush_rows=rows, flush_seconds=3600)
    sink = Sink(section, bus, Lake(section.path), synthetic=False, streams=streams)
    while not (files := list((folder / "lake" / GPU_SAMPLES.name).glob("*/*.parquet"))):
        sink.step()
    sink.close()
    bus.close()
    (file,) = files
    return file.stat().st_size
