"""The sink against the least that could do its work, over the same messages on the same local bus.

The bare loop polls, parses each message with orjson, gathers its values message by message, and writes the same
tuned Parquet; it checks nothing, knows no repeats, commits nothing. Both run alone in a process of their own, in
turn; compared is the CPU time (user and system) from the first poll to the last file.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import halldata
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from bench import BenchRow, median_ratio

from analytics.lake import Lake
from analytics.parquet import FRESH, ROW_GROUP_ROWS, order_of, writer_options
from analytics.sink import POLL_MESSAGES, Sink
from contract.bus import Record, TopicPartition
from contract.bus.local import LocalBus
from contract.config import LakeSection
from contract.metrics import Metrics
from contract.stream import Column
from contract.streams.gpu import GPU_SAMPLES
from contract.streams.self import DEAD_LETTERS

HOSTS, TICKS = 2_500, 20
STREAMS = (GPU_SAMPLES, DEAD_LETTERS)
FILE_ROWS = 100_000
"""What a hall of 20,000 GPUs brings in 5 seconds."""


def fill(path: Path, hosts: int = HOSTS, ticks: int = TICKS) -> int:
    """Put a hall's messages on a new bus; return how many rows they hold."""
    hall = halldata.draw(hosts * halldata.GPUS_PER_HOST, ticks)
    bus = LocalBus(path, fsync=False)
    bus.ensure_topics(STREAMS)
    messages = halldata.messages(hall)
    while part := list(itertools.islice(messages, 2_000)):
        bus.append([(m.topic, m.partition, Record(m.key, m.headers, m.body)) for m in part])
    bus.close()
    return hall.gpus * hall.seconds


def run_sink(folder: Path, rows: int) -> None:
    """Sink what is on the bus."""
    bus = LocalBus(folder / "bus", fsync=False)
    section = LakeSection(path=folder / "lake", flush_rows=FILE_ROWS, flush_seconds=3600)
    metrics = Metrics()
    sink = Sink(section, bus, Lake(section.path), synthetic=False, metrics=metrics, streams=STREAMS)
    steps = 0
    while stored_rows(metrics) < rows:
        sink.step()
        steps += 1
        if steps * POLL_MESSAGES * halldata.GPUS_PER_HOST >= rows:
            sink.flush()
    sink.close()


def stored_rows(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("hallwatch_sink_rows_total", {"stream": GPU_SAMPLES.name}) or 0


def run_bare(folder: Path, rows: int) -> None:
    """Write what is on the bus."""
    consumer = LocalBus(folder / "bus", fsync=False).consumer("bare")
    consumer.assign(TopicPartition(GPU_SAMPLES.topic, p) for p in range(GPU_SAMPLES.partitions))
    for partition in range(GPU_SAMPLES.partitions):
        consumer.seek(TopicPartition(GPU_SAMPLES.topic, partition), 0)
    columns: dict[str, list[Any]] = {}
    while rows:
        for message in consumer.poll(1.0, POLL_MESSAGES):
            document = orjson.loads(message.body)
            count = len(document["ts"])
            for name, values in document.items():
                if name not in columns:
                    columns[name] = []
                columns[name].extend(values if type(values) is list else [values] * count)
            if len(columns["ts"]) >= FILE_ROWS:
                rows -= len(columns["ts"])
                write_bare(folder, columns)
                columns = {}


def write_bare(folder: Path, columns: dict[str, list[Any]]) -> None:
    """Write columns as the lake does: whole steps, sorted, tuned."""
    arrays = [bare_array(GPU_SAMPLES.by_name[name], values) for name, values in columns.items()]
    table = pa.Table.from_arrays(arrays, names=list(columns))
    table = table.take(pa.array(order_of(table, FRESH.order(GPU_SAMPLES))))
    with (folder / f"{uuid.uuid4().hex}.parquet").open("wb") as file:
        pq.write_table(
            table, file, row_group_size=ROW_GROUP_ROWS, **writer_options(GPU_SAMPLES, table, FRESH)
        )


def bare_array(column: Column, values: list[Any]) -> pa.Array:
    if pa.types.is_string(column.type):
        return pa.array(values, column.type).dictionary_encode()
    if column.steps_per_unit is not None:
        return pa.array(np.rint(np.array(values) * column.steps_per_unit)).cast(column.lake_type)
    return pa.array(values, column.lake_type)


def measure(hosts: int = HOSTS, ticks: int = TICKS, rounds: int = 5) -> list[BenchRow]:
    """Return rows per second and core of the sink beside the bare loop."""
    with tempfile.TemporaryDirectory(prefix="hallwatch-bench-") as name:
        folder = Path(name)
        rows = fill(folder / "bus", hosts, ticks)

        def speed(what: str) -> float:
            return rows / cpu_seconds(what, folder, rows)

        ours, bare, ratio = median_ratio(lambda: speed("sink"), lambda: speed("bare"), rounds)
    return [
        BenchRow(
            name="sink, rows per second and core",
            value=ours,
            unit="rows/s",
            baseline=bare,
            goal=">= 0.5 of the bare loop",
            holds=ratio >= 0.5,
        ),
        BenchRow(
            name="sink over the bare loop",
            value=ratio,
            unit="ratio",
            baseline=1.0,
            goal=">= 0.5",
            holds=ratio >= 0.5,
        ),
    ]


def cpu_seconds(what: str, folder: Path, rows: int) -> float:
    """Run one of the two in a new process; return its CPU time without start and imports."""
    command = [sys.executable, __file__, what, str(folder), str(rows)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(folder / "lake", ignore_errors=True)
    for file in folder.glob("*.parquet"):
        file.unlink()
    return float(result.stdout)


if __name__ == "__main__":
    run = {"sink": run_sink, "bare": run_bare}[sys.argv[1]]
    began = time.process_time()
    run(Path(sys.argv[2]), int(sys.argv[3]))
    print(time.process_time() - began)
