"""Bytes per sample in the files that the sink writes, beside the entropy of the noise in the data.

A sample is one non-null metric of one GPU; the file holds the envelope too: times, host, identity, and where each
row came from. A hall of 4,000 GPUs is drawn at full resolution and written as a flush of 5 seconds is; larger
halls differ by less than 2 %.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import halldata
import pyarrow as pa
from bench import BenchRow

from analytics.lake import Lake
from analytics.parquet import STEADY, Layout, to_lake, write_file
from contract.reader import read_batch
from contract.stream import LAKE_COLUMNS
from contract.streams.gpu import GPU_SAMPLES

GPUS, SECONDS = 4_000, 5
STEADY_GPUS, STEADY_SECONDS = 200, 600
LOG = "0123456789abcdef0123456789abcdef"


def read_hall(hall: halldata.Hall) -> pa.Table:
    """Return a hall's messages as the sink gathers them."""
    batch = read_batch(GPU_SAMPLES, list(halldata.messages(hall)), {}, synthetic=False)
    names = [*batch.table.column_names, *(column.name for column in LAKE_COLUMNS)]
    return pa.Table.from_arrays([*batch.table.columns, *batch.lake_columns(LOG)], names=names)


def measure() -> list[BenchRow]:
    """Return bytes per sample of a fresh file, and of a steady one as compaction writes it."""
    with tempfile.TemporaryDirectory(prefix="hallwatch-bench-") as name:
        fresh = halldata.draw(GPUS, SECONDS)
        table = Lake(Path(name)).create(GPU_SAMPLES, LOG, {})
        size = sum(file.bytes for file in table.write(read_hall(fresh)))
        steady = halldata.draw(STEADY_GPUS, STEADY_SECONDS)
        steady_size = _size(read_hall(steady), STEADY, Path(name))
    return [
        _row("bytes per sample, 5 s file", size, fresh, 2.0),
        _row("bytes per sample, 10 min file", steady_size, steady, 1.5),
    ]


def _size(rows: pa.Table, layout: Layout, folder: Path) -> int:
    stored = to_lake(GPU_SAMPLES, rows, layout)
    day = rows.column("_received")[0].as_py().date()
    return write_file(folder, GPU_SAMPLES, stored, day, layout).bytes


def _row(name: str, size: int, hall: halldata.Hall, goal: float) -> BenchRow:
    value = size / (hall.gpus * hall.seconds * len(hall.metrics))
    return BenchRow(
        name=name,
        value=value,
        unit="B",
        baseline=hall.floor_bytes,
        goal=f"<= {goal} of the noise",
        holds=value <= goal * hall.floor_bytes,
    )
