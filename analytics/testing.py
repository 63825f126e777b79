"""A sink over a bus in memory, with a producer that stamps what it sends and an audit that counts what arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analytics.lake import Lake
from analytics.parquet import Reached, nothing
from analytics.query import connect
from analytics.sink import Sink
from contract.bus.protocols import Record
from contract.bus.testing import MemoryBus
from contract.codec import Event, encode_event
from contract.config import LakeSection
from contract.metrics import Metrics
from contract.stream import Stream
from contract.streams.gpu import GPU_SAMPLES
from contract.streams.self import DEAD_LETTERS
from contract.testing import FakeClock, example_rows


class SinkRig:
    """One bus, one lake, and any number of sinks one after the other or at once."""

    def __init__(self, folder: Path, *, streams: Iterable[Stream] = (GPU_SAMPLES, DEAD_LETTERS)) -> None:
        self.clock = FakeClock()
        self.bus = MemoryBus(self.clock)
        self.streams = tuple(streams)
        self.bus.ensure_topics(self.streams)
        self.path = folder / "lake"
        self.metrics = Metrics()

    def sink(
        self, *, reached: Reached = nothing, flush_rows: int = 400_000, accept_new_log: bool = False
    ) -> Sink:
        """Start a sink, as a new process would."""
        self.metrics = Metrics()
        return Sink(
            LakeSection(path=self.path, flush_rows=flush_rows),
            self.bus,
            Lake(self.path, reached=reached),
            synthetic=False,
            clock=self.clock,
            metrics=self.metrics,
            accept_new_log=accept_new_log,
            streams=self.streams,
        )

    def send(
        self,
        sequence: int,
        *,
        stream: Stream = GPU_SAMPLES,
        source: str = "test@h1/0",
        epoch: str = "e1",
        rows: int = 8,
        key: str = "h1",
        **values: Any,
    ) -> int:
        """Append one event to the bus; return its offset."""
        table = example_rows(stream, rows, **{stream.key: key, "synthetic": False, **values})
        event = Event(source=source, epoch=epoch, sequence=sequence, table=table)
        return self.bus.append(stream.topic, stream.partition_of(key), encode_event(stream, event, key))

    def poison(self, *, stream: Stream = GPU_SAMPLES, key: str = "h1", body: bytes = b"not json") -> int:
        """Append a message that cannot become rows; return its offset."""
        record = Record(key=key, headers={"content-type": "text/plain"}, body=body)
        return self.bus.append(stream.topic, stream.partition_of(key), record)

    def drain(self, sink: Sink, steps: int = 3) -> None:
        """Let the sink take and commit everything, the dead letters it makes included."""
        for _ in range(steps):
            sink.step()
            sink.flush()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the lake."""
        with connect(self.path) as lake:
            return lake.sql(query).fetchall()

    def metric(self, name: str, labels: Mapping[str, str]) -> float:
        """Return the value of one of the newest sink's own metrics."""
        return self.metrics.registry.get_sample_value(f"hallwatch_{name}", dict(labels)) or 0.0
