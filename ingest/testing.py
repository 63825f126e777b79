"""Fakes for the tests of collectors and runner, and readers that only tests need."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from contract.bus.protocols import Message
from contract.config import HallSection
from contract.errors import TransportError
from contract.reader import Marks, read_batch
from contract.stream import Rejected, Stream
from contract.testing import FakeClock
from ingest.collector import Context, Reading, Rows
from ingest.gpu.dcgm import DcgmCollector, DcgmConfig
from ingest.gpu.exposition import Exposition, PageReader, Sample

if TYPE_CHECKING:
    from ingest.spool import Outgoing


class FakeOutlet:
    """Keeps everything in memory; refuses as often as `refusals` has reasons left."""

    def __init__(self, *refusals: str) -> None:
        self.records: list[Outgoing] = []
        self.cursors: dict[str, bytes] = {}
        self.attempts: list[list[Outgoing]] = []
        self.refusals = list(refusals)
        self._lock = threading.Lock()

    def put(self, records: Sequence[Outgoing], cursor: tuple[str, bytes] | None = None) -> None:
        with self._lock:
            self.attempts.append(list(records))
            if self.refusals:
                raise TransportError(self.refusals.pop(0), "refused by the fake")
            self.records += records
            if cursor is not None:
                self.cursors[cursor[0]] = cursor[1]

    def cursor(self, name: str) -> bytes | None:
        return self.cursors.get(name)

    def depth(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def rows(self, stream: Stream, *, synthetic: bool | None = None) -> list[dict[str, Any]]:
        """Return the rows of a stream as a reader of the bus would see them; fail on what a reader would reject."""
        messages = [
            Message(o.topic, o.partition, at, 0, o.record.key, o.record.headers, o.record.body)
            for at, o in enumerate(self.records)
            if o.topic == stream.topic
        ]
        batch = read_batch(stream, messages, Marks(), synthetic=synthetic)
        assert not batch.dead, batch.dead
        assert not batch.values_rejected
        assert not batch.repeats
        rows: list[dict[str, Any]] = batch.table.to_pylist()
        return rows


class FakeCollector:
    """Answers from a list of readings and errors, then with the last of them for ever."""

    def __init__(self, *answers: Reading | Exception, before: Callable[[], object] | None = None) -> None:
        self.answers = list(answers)
        self.asked: list[int] = []
        self.kept = b""
        self.restored: bytes | None = None
        self.closed = False
        self._before = before

    def collect(self, now_us: int) -> Reading:
        self.asked.append(now_us)
        if self._before is not None:
            self._before()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cursor(self) -> bytes:
        return self.kept

    def restore(self, cursor: bytes) -> None:
        self.restored = cursor

    def close(self) -> None:
        self.closed = True


def fake_dcgm(*, host: str = "host1", **values: Any) -> DcgmCollector:
    """Return a collector that is given its pages instead of fetching them."""
    config = DcgmConfig(collector="gpu-dcgm", host=host, url="http://127.0.0.1:1/metrics", **values)
    return DcgmCollector(config, Context(hall=HallSection(name="test"), clock=FakeClock()))


def rows_of(reading: Reading, stream: Stream) -> list[dict[str, Any]]:
    """Return the cleaned rows of one stream of a reading, without their nulls and what the runner adds."""
    return [
        {
            name: row[name]
            for name in rows.columns
            if row[name] is not None and name not in ("ts", "synthetic")
        }
        for rows in reading.rows
        if rows.stream is stream
        for row in clean(rows)[0]
    ]


def clean(rows: Rows) -> tuple[list[dict[str, Any]], Rejected]:
    """Do what the runner does with rows: return them with impossible values null, and the counts of those."""
    table, rejected = stamped(rows)
    return table.to_pylist(), rejected


def stamped(rows: Rows) -> tuple[pa.Table, Rejected]:
    """Do the same, as a table."""
    stamps: dict[str, list[Any]] = {"ts": [0] * len(rows), "synthetic": [False] * len(rows)}
    if "equipment" in rows.stream.by_name:
        stamps["equipment"] = ["unit-1"] * len(rows)
    return rows.stream.clean({**stamps, **rows.columns})


def read_answer(body: bytes) -> Exposition:
    """Read what Prometheus' own HTTP API answers to an instant query (its documentation, "HTTP API")."""
    reader = PageReader()
    samples = []
    for series in json.loads(body)["data"]["result"]:
        labels = dict(series["metric"])
        family = labels.pop("__name__")
        text = series["value"][1]
        samples.append(Sample(family, reader.intern(labels), float(text), text))
    return Exposition(samples=samples)
