"""The rows of one stream out of one batch, with everything that is worked out about them once for all rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import orjson
import pyarrow as pa

from alerts.arrival import Arrivals
from alerts.projection import Codes, Projection
from alerts.state import Entities, Ints, Order
from contract.bus import Message
from contract.reader import Batch
from contract.stream import TIME_TYPE, ColumnKind, Stream

AHEAD_US = 5_000_000
"""How far a source's clock may be ahead of the bus before it is no longer believed."""

MAX_VALUE_CHARACTERS = 1_000
MAX_EVIDENCE_BYTES = 60_000


class Position(NamedTuple):
    """Where in the order of everything read something was decided."""

    message: int
    row: int
    rule: int


class Frame:
    """Rows in the order they were read.

    `ts_us` is by the sources' clocks, `received_us` by the engine's time (`alerts/arrival.py`).
    """

    def __init__(
        self, batch: Batch, projection: Projection, messages: Mapping[int, int], arrivals: Arrivals
    ) -> None:
        self.stream: Stream = batch.stream
        self.table: pa.Table = batch.table
        self._events = batch.events
        self._messages = messages
        self._numbers: dict[Entities, Ints] = {}
        self._orders: dict[Entities, Order] = {}
        rows = np.fromiter((event.rows for event in batch.events), np.int64, len(batch.events))
        self._rows = rows
        self._ends = np.cumsum(rows)
        times = arrivals.times_us([event.message for event in batch.events])
        self.received_us: Ints = np.repeat(times, rows)
        self._received_wall_us: Ints = self.received_us - arrivals.offset_us
        self.truths = projection.evaluate(self.table, pa.array(self._received_wall_us).cast(TIME_TYPE))

    @cached_property
    def ts_us(self) -> Ints:
        """Event times; a clock that is ahead is taken for the bus's own, so that setting it right loses nothing."""
        clamped: Ints = np.minimum(self._sent_us, self._received_wall_us + AHEAD_US)
        return clamped

    @cached_property
    def _sent_us(self) -> Ints:
        times: Ints = self.table.column("ts").combine_chunks().cast(pa.int64()).to_numpy()
        return times

    @cached_property
    def sources(self) -> Ints:
        """Return a number for the source of every row, the same at every start."""
        numbers = (crc32(event.source.encode()) for event in self._events)
        return np.repeat(np.fromiter(numbers, np.int64, len(self._events)), self._rows)

    def numbers(self, entities: Entities) -> Ints:
        """Return the entity of every row."""
        if entities not in self._numbers:
            self._numbers[entities] = entities.numbers_in(self.table, self.received_us)
        return self._numbers[entities]

    def order(self, entities: Entities) -> Order:
        """Return how the rows follow each other; advances the entities' clocks once per frame."""
        if entities not in self._orders:
            numbers = self.numbers(entities)
            self._orders[entities] = entities.order(numbers, self.ts_us, self.sources, self._sent_us)
        return self._orders[entities]

    def codes(self, condition: str) -> Codes:
        return self.truths.codes[condition]

    def position(self, row: int, rule: int) -> Position:
        event = int(np.searchsorted(self._ends, row, side="right"))
        first = int(self._ends[event - 1]) if event else 0
        return Position(self._messages[id(self._events[event].message)], row - first, rule)

    def values(self, rows: Sequence[int] | Ints) -> list[dict[str, Any]]:
        """Return rows as dictionaries, times as microseconds."""
        part = self.table.take(pa.array(rows, pa.int64()))
        times = [c.name for c in self.stream.columns if c.kind is ColumnKind.TIME]
        for name in times:
            at = part.schema.get_field_index(name)
            part = part.set_column(at, name, part.column(name).cast(pa.int64()))
        found: list[dict[str, Any]] = part.to_pylist()
        return found

    def evidence(self, values: Mapping[str, Any]) -> str:
        """Return a row as JSON: what it says, without what it leaves open."""
        kinds = self.stream.by_name
        shown = {}
        for name, value in values.items():
            kind = kinds[name].kind
            if value is None or kind is ColumnKind.BLOB:
                continue
            if kind is ColumnKind.TIME:
                value = iso(value)
            shown[name] = value[:MAX_VALUE_CHARACTERS] if isinstance(value, str) else value
        return as_json(shown)


def as_json(values: Mapping[str, Any]) -> str:
    """Return evidence as JSON text of bounded length: the last fields go first."""
    text = orjson.dumps(values)
    while len(text) > MAX_EVIDENCE_BYTES:
        values = dict(list(values.items())[:-1])
        text = orjson.dumps(values)
    return text.decode()


def iso(us: int) -> str:
    """Return microseconds UTC as ISO 8601."""
    seconds, rest = divmod(us, 1_000_000)
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{us} us"
    return f"{text}.{rest:06d}Z"


def message_order(messages: Sequence[Message]) -> dict[int, int]:
    """Return the place of every message in the batch, by its identity in memory."""
    return {id(message): at for at, message in enumerate(messages)}
