"""The engine's memory: NumPy arrays by entity, and how they are written down.

An entity gets a small number when it is first seen; everything known about it sits at that place in arrays.
"""

from __future__ import annotations

import functools
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from contract.errors import StoreError
from contract.stream import Stream

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

GAP_INTERVALS = 3
"""A silence longer than this many intervals is a gap: nothing is known about it."""

CLOCK_BACK_US = 5_000_000
"""Time that falls by more than this within one source is a clock that was set, not rows that were late."""

SEED_INTERVALS = 30
"""How far an entity's first interval may exceed the stream's and still be taken for its pace.

DCGM exporters are scraped every 1 to 30 s, whatever the stream expects.
"""


class Arrays:
    """Arrays of one length, by field, that grow with the number of entities."""

    def __init__(self, **fields: Any) -> None:
        self._fills = fields
        self._arrays = {name: np.full(64, fill) for name, fill in fields.items()}

    def __getitem__(self, field: str) -> npt.NDArray[Any]:
        return self._arrays[field]

    def grow(self, count: int) -> None:
        """Make room for `count` entities."""
        have = len(next(iter(self._arrays.values())))
        if count > have:
            room = max(count, 2 * have) - have
            for name, array in self._arrays.items():
                more = np.full(room, self._fills[name], array.dtype)
                self._arrays[name] = np.concatenate([array, more])

    def dump(self, numbers: Ints | slice) -> dict[str, npt.NDArray[Any]]:
        return {name: array[numbers].copy() for name, array in self._arrays.items()}

    def load(self, numbers: Ints, saved: Mapping[str, npt.NDArray[Any]]) -> None:
        if len(numbers):
            self.grow(int(numbers.max()) + 1)
        for name, array in self._arrays.items():
            array[numbers] = saved[name]


@dataclass(frozen=True, slots=True)
class Order:
    """How the rows of one batch follow each other, entity by entity."""

    fresh: Bools
    """The row is newer than everything seen of its entity."""
    known_us: Ints
    """How much time since the entity's row before is known about; 0 after a gap."""
    turn: Ints
    """0 for an entity's first row of the batch, 1 for its second, ..."""


def turns_of(rows: Ints, turn: Ints) -> Iterator[Ints]:
    """Yield rows so that no entity is twice in one yield and each entity's rows keep their order."""
    if not len(rows):
        return
    turns = turn[rows]
    if not turns.any():
        yield rows
        return
    rows = rows[np.argsort(turns, kind="stable")]
    yield from np.split(rows, np.flatnonzero(np.diff(turn[rows])) + 1)


class Entities:
    """The entities of a stream under one naming, numbered as they appear."""

    def __init__(self, stream: Stream, columns: Sequence[str], otherwise: str | None = None) -> None:
        self.names: list[str] = []
        self.columns = tuple(columns)
        self.otherwise = otherwise
        self.skipped = 0
        """Rows not newer than their entity's last, so far."""
        self._numbers: dict[str, int] = {}
        self._known = pa.array([], pa.string())
        self._interval_us = round(stream.interval.total_seconds() * 1e6) if stream.interval else 0
        self._arrays = Arrays(last_us=0, last_source=0, last_sent_us=0, pace_us=0, received_us=0, beat_us=0)
        self._beats = False
        self._stamp = np.zeros(64, np.int64)

    @property
    def received_us(self) -> Ints:
        """When each was last heard of, by number; 0 = never."""
        times: Ints = self._arrays["received_us"]
        return times

    def silence_us(self, least_us: int, numbers: Ints) -> Ints:
        """Return how long each may be silent: `least_us`, and never less than three of its own intervals."""
        slowest: Ints = np.maximum(least_us, GAP_INTERVALS * self._arrays["beat_us"][numbers])
        return slowest

    def learn_beat(self) -> None:
        """Learn from now on how often each entity is heard of."""
        self._beats = bool(self._interval_us)

    def number(self, name: str) -> int:
        """Return the number of an entity, a new one where it was never named before."""
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
            self._arrays.grow(number + 1)
        return number

    def numbers_in(self, table: pa.Table, received_us: Ints) -> Ints:
        """Return every row's entity, -1 where none is named, and note that they were heard of."""
        names = self._names_in(table)
        if len(self._known) != len(self.names):
            self._known = pa.array(self.names, pa.string())
        found = pc.index_in(names, self._known)
        if found.null_count > names.null_count:
            for name in names.filter(pc.is_null(found)).unique().to_pylist():
                if name is not None:
                    self.number(name)
            self._known = pa.array(self.names, pa.string())
            found = pc.index_in(names, self._known)
        numbers: Ints = found.fill_null(-1).to_numpy().astype(np.int64)
        rows = np.flatnonzero(numbers >= 0)
        at, received = numbers[rows], received_us[rows]
        before = self.received_us[at]
        self.received_us[at] = np.maximum(before, received)
        if self._beats:
            step = np.where(before > 0, received - before, 0)
            beat = self._arrays["beat_us"]
            beat[at] = self._pace(step, beat[at])[1]
        return numbers

    def order(self, numbers: Ints, ts_us: Ints, sources: Ints, sent_us: Ints) -> Order:
        """Put a batch behind what was seen before, row by row as it arrived.

        A source sends in the order in which it read. So among its own rows it is its own time that counts, not what
        was made of it (`sent_us`, not `ts_us`); and one that falls far from a row to the next is a clock that was
        set back: a gap, and then all is judged on.
        """
        turn = self._turns(numbers)
        fresh, known_us = np.zeros(len(numbers), np.bool_), np.zeros(len(numbers), np.int64)
        last, pace = self._arrays["last_us"], self._arrays["pace_us"]
        last_source, last_sent = self._arrays["last_source"], self._arrays["last_sent_us"]
        for rows in turns_of(np.flatnonzero(numbers >= 0), turn):
            at, ts, sent = numbers[rows], ts_us[rows], sent_us[rows]
            before, sent_before = last[at], last_sent[at]
            newer = ts > before
            follows = (sent > sent_before) | (sent < sent_before - CLOCK_BACK_US)
            taken = newer | (follows & (sources[rows] == last_source[at]))
            fresh[rows] = taken
            self.skipped += len(rows) - int(np.count_nonzero(taken))
            last[at] = np.where(taken, ts, before)
            last_sent[at] = np.where(taken, sent, sent_before)
            last_source[at] = np.where(taken, sources[rows], last_source[at])
            if self._interval_us:
                step = np.where(newer & (before > 0), ts - before, 0)
                known_us[rows], pace[at] = self._pace(step, pace[at])
        return Order(fresh, known_us, turn)

    def _pace(self, step: Ints, pace: Ints) -> tuple[Ints, Ints]:
        """Judge steps against each entity's own pace, which falls at once and at most doubles."""
        seed = np.where(step <= SEED_INTERVALS * self._interval_us, step, 0)
        judge = np.maximum(np.where(pace > 0, pace, seed), self._interval_us)
        known = np.where(step <= GAP_INTERVALS * judge, step, 0)
        return known, np.where(step > 0, np.clip(step, self._interval_us, 2 * judge), pace)

    def _turns(self, numbers: Ints) -> Ints:
        if len(self._stamp) <= len(self.names):
            self._stamp = np.zeros(2 * len(self.names), np.int64)
        places = np.arange(len(numbers))
        self._stamp[numbers] = places  # -1 falls on the spare last place
        if np.count_nonzero(self._stamp[numbers] != places) == 0:
            return np.zeros(len(numbers), np.int64)
        order = np.argsort(numbers, kind="stable")
        firsts = np.concatenate([[True], np.diff(numbers[order]) != 0])
        turn = np.empty(len(numbers), np.int64)
        turn[order] = places - np.maximum.accumulate(np.where(firsts, places, 0))
        return turn

    def _names_in(self, table: pa.Table) -> pa.Array:
        texts = [_text(table.column(name)) for name in self.columns]
        names = texts[0]
        if len(texts) > 1:
            # A row in which all are null would not be joined but left out: an array of fewer rows comes back.
            unnamed = functools.reduce(pc.and_, map(pc.is_null, texts))
            texts[0] = pc.if_else(unnamed, "", texts[0])
            joined = pc.binary_join_element_wise(*texts, "/", null_handling="skip")
            names = pc.if_else(pc.equal(joined, ""), pa.scalar(None, pa.string()), joined)
        if self.otherwise is not None:
            names = pc.coalesce(names, _text(table.column(self.otherwise)))
        return names

    def dump(self) -> dict[str, Any]:
        return {"names": self.names, "skipped": self.skipped} | self._arrays.dump(slice(len(self.names)))

    def load(self, saved: Mapping[str, Any]) -> None:
        self.skipped = saved["skipped"]
        numbers = np.array([self.number(name) for name in saved["names"]], np.int64)
        self._arrays.load(numbers, saved)


def _text(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if array.type == pa.string() else array.cast(pa.string())


def pack(document: Any) -> bytes:
    """Write a JSON document whose leaves may also be arrays."""
    arrays: list[npt.NDArray[Any]] = []

    def flat(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            arrays.append(value)
            return {"$array": len(arrays) - 1}
        if isinstance(value, Mapping):
            return {str(key): flat(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [flat(item) for item in value]
        return value

    buffer = io.BytesIO()
    text = orjson.dumps(flat(document))
    buffer.write(len(text).to_bytes(8, "little") + text)
    for array in arrays:
        np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return zlib.compress(buffer.getvalue(), 1)


def unpack(body: bytes) -> Any:
    """Read what `pack` wrote; raise StoreError(damaged) where it is not that."""
    try:
        buffer = io.BytesIO(zlib.decompress(body))
        document = orjson.loads(buffer.read(int.from_bytes(buffer.read(8), "little")))
        arrays = []
        while buffer.tell() < buffer.getbuffer().nbytes:
            arrays.append(np.lib.format.read_array(buffer, allow_pickle=False))
    except (zlib.error, ValueError, EOFError) as error:
        raise StoreError("damaged", f"a snapshot cannot be read: {error}") from error

    def deep(value: Any) -> Any:
        if isinstance(value, dict):
            return arrays[value["$array"]] if "$array" in value else {k: deep(v) for k, v in value.items()}
        return [deep(item) for item in value] if isinstance(value, list) else value

    return deep(document)
