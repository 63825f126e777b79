"""Messages to rows, for every reader of the bus: decode, drop repeats, reject what breaks the contract.

The sink and the engine read through the same code, so that they agree on what an event is.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contract.bus.protocols import Message
from contract.codec import ARROW_TYPE, JSON_TYPE, MAX_BODY_BYTES, decode_blobs, parse_arrow, parse_json
from contract.errors import ContractError
from contract.stream import TIME_TYPE, ColumnKind, Rejected, Stream, infer_array

if find_spec("dateutil") is None:
    # pyarrow looks for it at every conversion whose type it infers, 0.2 ms each where it is not installed.
    sys.modules["dateutil"] = None  # type: ignore[assignment]


class MarkKey(NamedTuple):
    """Whose sequence a mark belongs to, within one log."""

    partition: int
    source: str
    epoch: str


Marks = dict[MarkKey, int]
"""The highest sequence seen of each; what is not above it is a repeat."""


class EventOrigin(NamedTuple):
    """Where the rows of one event came from."""

    message: Message
    source: str
    epoch: str
    sequence: int
    rows: int


class DeadLetter(NamedTuple):
    """A message that cannot become rows, and why."""

    message: Message
    error: ContractError


@dataclass(slots=True)
class Batch:
    """The rows of one stream out of some messages, in the order they were read."""

    stream: Stream
    table: pa.Table
    events: list[EventOrigin] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    repeats: int = 0
    values_rejected: Counter[tuple[str, str]] = field(default_factory=Counter)

    def lake_columns(self, log: str) -> list[pa.Array]:
        """Return the columns of LAKE_COLUMNS for every row."""
        rows = np.fromiter((e.rows for e in self.events), np.int64, len(self.events))

        def words(values: Sequence[str]) -> pa.Array:
            coded = pa.array(values, pa.string()).dictionary_encode()
            return pa.DictionaryArray.from_arrays(np.repeat(coded.indices.to_numpy(), rows), coded.dictionary)

        def numbers(values: Iterable[int], kind: type) -> Any:
            return np.repeat(np.fromiter(values, kind, len(self.events)), rows)

        events, total = self.events, self.table.num_rows
        return [
            pa.DictionaryArray.from_arrays(np.zeros(total, np.int32), pa.array([log])),
            pa.array(numbers((e.message.partition for e in events), np.int32)),
            pa.array(numbers((e.message.offset for e in events), np.int64)),
            words([e.source for e in events]),
            words([e.epoch for e in events]),
            pa.array(numbers((e.sequence for e in events), np.int64)),
            pa.array(numbers((e.message.received_us for e in events), np.int64)).cast(TIME_TYPE),
            pa.nulls(total, pa.string()),
        ]


def read_batch(
    stream: Stream, messages: Sequence[Message], marks: Marks, *, synthetic: bool | None = None
) -> Batch:
    """Turn messages of one stream into rows; advance `marks`.

    A row whose `synthetic` disagrees with the hall's makes its whole message a dead letter. Nothing raises for
    what a message holds.
    """
    batch = Batch(stream, stream.schema.empty_table())
    tables: list[pa.Table] = []
    for content, run in groupby(
        _acceptable(stream, messages, batch), lambda message: message.headers["content-type"]
    ):
        part = list(run)
        if content == JSON_TYPE:
            part = [message for message in part if _is_new_message(marks, message, batch)]
        _decode_run(_DECODERS[content], part, tables, batch, marks, synthetic)
    if tables:
        batch.table = pa.concat_tables(tables)
    return batch


def _acceptable(stream: Stream, messages: Sequence[Message], batch: Batch) -> Iterator[Message]:
    topic = stream.topic
    for message in messages:
        try:
            _check_headers(topic, message)
        except ContractError as error:
            batch.dead.append(DeadLetter(message, error))
        else:
            yield message


def _check_headers(topic: str, message: Message) -> None:
    headers = message.headers
    content = headers.get("content-type")
    if content not in _DECODERS:
        raise ContractError("unknown_content_type", f"content-type {content!r}"[:300])
    if headers.get("ce_type") != topic:
        raise ContractError("wrong_type", f"ce_type {headers.get('ce_type')!r} on {topic}"[:300])
    if len(message.body) > MAX_BODY_BYTES:
        raise ContractError("too_large", f"{len(message.body)} bytes, at most {MAX_BODY_BYTES}")
    if content == ARROW_TYPE:
        return  # it carries its identity in columns
    sequence = headers.get("ce_sequence")
    if not headers.get("ce_source") or not headers.get("ce_epoch") or sequence is None:
        raise ContractError("missing_header", "ce_source, ce_epoch and ce_sequence are needed")
    if not (sequence.isdigit() and sequence.isascii() and len(sequence) < 19):
        raise ContractError("bad_header", f"ce_sequence {sequence!r}"[:300])


def _is_new_message(marks: Marks, message: Message, batch: Batch) -> bool:
    headers = message.headers
    key = (message.partition, headers["ce_source"], headers["ce_epoch"])
    return _is_new(marks, key, int(headers["ce_sequence"]), batch)


def _is_new(marks: Marks, key: tuple[int, str, str], sequence: int, batch: Batch) -> bool:
    # The plain tuple finds the named one: only a source's first event pays for its making.
    known = marks.get(cast(MarkKey, key), -1)
    if sequence <= known:
        batch.repeats += 1
        return False
    marks[cast(MarkKey, key) if known >= 0 else MarkKey(*key)] = sequence
    return True


_Decode = Callable[[Stream, Sequence[Message]], tuple[pa.Table, list[EventOrigin], Rejected]]


def _decode_run(
    decode: _Decode,
    run: list[Message],
    tables: list[pa.Table],
    batch: Batch,
    marks: Marks,
    synthetic: bool | None,
) -> None:
    """Decode messages together; halve them where one is broken, until that one stands alone."""
    pending = [run] if run else []
    while pending:
        part = pending.pop()
        try:
            table, origins, rejected = decode(batch.stream, part)
            _check_world(table, synthetic)
        except ContractError as error:
            if len(part) == 1:
                batch.dead.append(DeadLetter(part[0], error))
            else:
                middle = len(part) // 2
                pending += [part[middle:], part[:middle]]
            continue
        if decode is _decode_arrow:
            table, origins = _drop_repeats(table, origins, batch, marks)
        tables.append(table)
        batch.events += origins
        batch.values_rejected.update(rejected)


def _check_world(table: pa.Table, synthetic: bool | None) -> None:
    if synthetic is not None and not pc.all(pc.equal(table.column("synthetic"), synthetic)).as_py():
        raise ContractError("wrong_world", f"synthetic is not {synthetic}, as this hall's configuration says")


class _Layout:
    """The values of all bodies that name the same columns in the same order, filled body by body.

    A column that was one value in every body so far is kept as one value per body.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.places: list[int] = []
        self.rows: list[int] = []
        self.columns: list[list[Any]] = [[] for _ in names]
        self.one_per_body = [True] * len(names)
        self._count = 0
        self._add_one: list[Callable[[Any], None]] = [values.append for values in self.columns]
        self._add_list: list[Callable[[Any], None]] = [partial(self._spread, at) for at in range(len(names))]

    def add(self, place: int, document: dict[str, Any], rows: int) -> None:
        """Add one body; raise ContractError(unequal_columns): then the whole layout is spoilt."""
        self._count = rows
        for values, add_list, add_one in zip(document.values(), self._add_list, self._add_one, strict=True):
            if type(values) is not list:
                add_one(values)
            elif len(values) == rows:
                add_list(values)
            else:
                raise ContractError("unequal_columns", f"a column of {len(values)} values, ts has {rows}")
        self.places.append(place)
        self.rows.append(rows)

    def _spread(self, at: int, values: list[Any]) -> None:
        """Take the first list of a column: from now on it has one value per row."""
        column = self.columns[at]
        column[:] = [value for value, rows in zip(column, self.rows, strict=True) for _ in range(rows)]
        column += values
        self.one_per_body[at] = False
        self._add_list[at] = column.extend
        self._add_one[at] = lambda value: column.extend([value] * self._count)


def _decode_json(stream: Stream, messages: Sequence[Message]) -> tuple[pa.Table, list[EventOrigin], Rejected]:
    layouts: dict[tuple[str, ...], _Layout] = {}
    origins: list[EventOrigin] = []
    for place, message in enumerate(messages):
        document, rows = parse_json(message.body)
        names = tuple(document)
        layout = layouts.get(names)
        if layout is None:
            layout = layouts[names] = _Layout(names)
        layout.add(place, document, rows)
        origins.append(_origin(message, rows))
    rejected: Counter[tuple[str, str]] = Counter()
    parts = []
    for layout in layouts.values():
        table, counts = _assemble(stream, layout)
        rejected.update(counts)
        parts.append(table)
    table = parts[0] if len(parts) == 1 else _in_order(parts, list(layouts.values()), origins)
    return table, origins, dict(rejected)


def _assemble(stream: Stream, layout: _Layout) -> tuple[pa.Table, Rejected]:
    body_of_row = pa.array(np.repeat(np.arange(len(layout.rows)), layout.rows))
    arrays = {}
    for name, values, one_per_body in zip(layout.names, layout.columns, layout.one_per_body, strict=True):
        column = stream.by_name.get(name)
        if column is None:
            continue  # a later version of the stream may have added it
        array = infer_array(column, decode_blobs(values, name) if column.kind is ColumnKind.BLOB else values)
        arrays[name] = array.take(body_of_row) if one_per_body else array
    return stream.validate(pa.table(arrays))


def _origin(message: Message, rows: int) -> EventOrigin:
    headers = message.headers
    return EventOrigin(message, headers["ce_source"], headers["ce_epoch"], int(headers["ce_sequence"]), rows)


def _in_order(parts: list[pa.Table], layouts: list[_Layout], origins: list[EventOrigin]) -> pa.Table:
    """Bring rows that were gathered by layout back into the order of their messages."""
    rows = np.array([origin.rows for origin in origins])
    messages = np.concatenate([np.repeat(layout.places, rows[layout.places]) for layout in layouts])
    return pa.concat_tables(parts).take(pa.array(np.argsort(messages, kind="stable")))


def _decode_arrow(
    stream: Stream, messages: Sequence[Message]
) -> tuple[pa.Table, list[EventOrigin], Rejected]:
    raws = [parse_arrow(message.body) for message in messages]
    try:
        whole = pa.concat_tables(raws, promote_options="default").combine_chunks()
    except pa.ArrowException as error:
        raise ContractError("bad_value", f"columns of one name and two types: {error}"[:500]) from error
    table, rejected = stream.validate(whole)
    return table, _origins(messages, [raw.num_rows for raw in raws], whole), rejected


def _origins(messages: Sequence[Message], counts: Sequence[int], whole: pa.Table) -> list[EventOrigin]:
    """Cut Arrow bodies into events: one ends with its message, and where source, epoch or sequence changes."""
    if whole.num_rows == 0:
        return []
    ends = np.cumsum(counts)
    sequence = whole.column("_seq").to_numpy()
    begins = np.zeros(whole.num_rows, np.bool_)
    begins[0] = True
    begins[ends[ends < whole.num_rows]] = True
    begins[1:] |= np.diff(sequence) != 0
    for name in ("_source", "_epoch"):
        codes = whole.column(name).combine_chunks().dictionary_encode().indices.to_numpy()
        begins[1:] |= np.diff(codes) != 0
    starts = np.flatnonzero(begins)
    at = pa.array(starts)
    sources, epochs = (whole.column(name).take(at).to_pylist() for name in ("_source", "_epoch"))
    rows = np.diff(np.append(starts, whole.num_rows)).tolist()
    places = np.searchsorted(ends, starts, side="right").tolist()
    return [
        EventOrigin(messages[place], *identity)
        for place, *identity in zip(places, sources, epochs, sequence[starts].tolist(), rows, strict=True)
    ]


def _drop_repeats(
    table: pa.Table, origins: list[EventOrigin], batch: Batch, marks: Marks
) -> tuple[pa.Table, list[EventOrigin]]:
    fresh = [
        _is_new(marks, (origin.message.partition, origin.source, origin.epoch), origin.sequence, batch)
        for origin in origins
    ]
    if all(fresh):
        return table, origins
    keep = np.repeat(np.array(fresh, bool), [origin.rows for origin in origins])
    return table.filter(pa.array(keep)), [origin for origin, new in zip(origins, fresh, strict=True) if new]


_DECODERS: dict[str, _Decode] = {JSON_TYPE: _decode_json, ARROW_TYPE: _decode_arrow}
