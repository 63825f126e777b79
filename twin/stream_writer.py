"""Rows of a large hall onto a bus, as its collectors and its gateway send them: who, in which epoch, with which number."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from contract.bus import Producer, Record
from contract.codec import ARROW_FROM_ROWS, ARROW_TYPE, encode_columns, headers_of
from contract.stream import TIME_TYPE, ColumnKind, Stream
from contract.streams import STREAMS
from twin.site import Ints

_MOST_ROWS = 20_000
"""In one event."""

_ARROW_FROM_EVENTS = 8
"""From here one Arrow body is smaller and sooner made than as many JSON bodies, however few rows each has."""


@dataclass(slots=True)
class Senders:
    """The instances of one collector, one by subject: hosts, coolant units, or the hall."""

    collector: str
    subjects: Sequence[str]
    seed: int
    sources: list[str] = field(init=False)
    epochs: list[str] = field(init=False)
    _starts: list[int] = field(init=False)
    _next: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.sources = [f"{self.collector}@{subject}/main" for subject in self.subjects]
        self._starts = [0] * len(self.subjects)
        self.epochs = [self.epoch_of(at, 0) for at in range(len(self.subjects))]

    def epoch_of(self, at: int, start: int | str) -> str:
        """Return the id of a start of an instance; drawn from the seed, so that a run can be repeated."""
        text = f"{self.seed}/{self.sources[at]}/{start}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def restart(self, at: int, starts: int) -> None:
        """Begin a new epoch where an instance was started again since."""
        if starts != self._starts[at]:
            self._starts[at] = starts
            self.epochs[at] = self.epoch_of(at, starts)
            for numbers in self._next.values():
                numbers[at] = 0

    def numbers(self, stream: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the next sequence of every instance, to be read and moved on."""
        return self._next.setdefault(stream, np.zeros(len(self.subjects), np.int64))

    def last_sequences(self, at: int) -> dict[str, int]:
        """Return what the status of an instance says of its streams."""
        return {stream: int(numbers[at]) - 1 for stream, numbers in self._next.items() if numbers[at]}


class StreamWriter:
    """Sends events. What belongs to one partition goes together as Arrow, where it is much; else each event as JSON."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._partitions: dict[tuple[str, str], Ints] = {}
        self._held: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.held: tuple[str, int] | None = None
        """A partition of a topic whose records wait; None: none."""

    def write(
        self, stream: Stream, senders: Senders, subject: Ints, keys: Sequence[str], columns: Mapping[str, Any]
    ) -> None:
        """Send rows; `subject` tells whose each is, `keys` the key of every subject.

        One event for each subject that has rows.
        """
        if not len(subject):
            return
        partition = self._partition_of(stream, senders.collector, keys)[subject]
        order = np.lexsort((np.arange(len(subject)), subject, partition))
        subject, partition = subject[order], partition[order]
        table = _table(stream, columns, order)
        numbers = senders.numbers(stream.name)
        sequence = numbers[subject]
        ends = np.append(np.flatnonzero(np.diff(partition)) + 1, len(partition))
        lists: dict[str, list[Any]] = {}
        begin = 0
        for end in ends.tolist():
            at = int(partition[begin])
            events = 1 + np.count_nonzero(np.diff(subject[begin:end]))
            if end - begin >= ARROW_FROM_ROWS or events >= _ARROW_FROM_EVENTS:
                part = table.slice(begin, end - begin)
                record = _arrow(stream, senders, subject[begin:end], sequence[begin:end], part, keys)
                self._send(stream, at, record)
            else:
                lists = lists or _lists(stream, table)
                part = {name: values[begin:end] for name, values in lists.items()}
                for record in _jsons(stream, senders, subject[begin:end], sequence[begin:end], part, keys):
                    self._send(stream, at, record)
            begin = end
        numbers[np.unique(subject)] += 1

    def write_rows(
        self, stream: Stream, senders: Senders, subject: int, key: str, rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Send rows that need not have the same columns, as events of one instance."""
        numbers = senders.numbers(stream.name)
        for begin in range(0, len(rows), _MOST_ROWS):
            part = rows[begin : begin + _MOST_ROWS]
            names = dict.fromkeys(name for row in part for name in row)
            columns = {name: [row.get(name) for row in part] for name in names}
            here = int(numbers[subject])
            if len(part) >= ARROW_FROM_ROWS:
                who = np.full(len(part), subject)
                table = stream.table(columns)
                record = _arrow(stream, senders, who, np.full(len(part), here), table, {subject: key})
            else:
                headers = headers_of(stream, senders.sources[subject], senders.epochs[subject], here)
                record = Record(key=key, headers=headers, body=encode_columns(stream, columns))
            self._send(stream, stream.partition_of(key), record)
            numbers[subject] += 1

    def repeat(self, stream: Stream, record: Record) -> None:
        """Send a record as it is, whoever made it."""
        self._send(stream, stream.partition_of(record.key), record)

    def release(self) -> None:
        """Send what waited, in order."""
        self.held = None
        for (name, partition), records in self._held.items():
            for record in records:
                self._producer.send(STREAMS[name].topic, partition, record)
        self._held.clear()

    def _send(self, stream: Stream, partition: int, record: Record) -> None:
        if self.held == (stream.name, partition):
            self._held[self.held].append(record)
        else:
            self._producer.send(stream.topic, partition, record)

    def _partition_of(self, stream: Stream, collector: str, keys: Sequence[str]) -> Ints:
        found = self._partitions.get((stream.name, collector))
        if found is None:
            found = np.array([stream.partition_of(key) for key in keys])
            self._partitions[stream.name, collector] = found
        return found


def _table(stream: Stream, columns: Mapping[str, Any], order: Ints) -> pa.Table:
    """Build a table in the wire types of a stream out of columns, rows in `order`; columns not named are left out."""
    take = pa.array(order)
    arrays, fields = [], []
    for column in stream.columns:
        if column.name not in columns:
            continue
        values = columns[column.name]
        if isinstance(values, (str, bool, int, float)):
            array = pa.repeat(pa.scalar(values, column.type), len(order))
        else:
            array = values if isinstance(values, pa.Array) else pa.array(values)
            array = array.take(take)
            if array.type != column.type:
                array = (
                    array.cast(pa.int64()).cast(TIME_TYPE)
                    if column.type == TIME_TYPE
                    else array.cast(column.type)
                )
        arrays.append(array)
        fields.append(pa.field(column.name, column.type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _arrow(
    stream: Stream,
    senders: Senders,
    subject: Ints,
    sequence: Ints,
    table: pa.Table,
    keys: Sequence[str] | Mapping[int, str],
) -> Record:
    """Put whole events of many instances into one record."""
    who, place = np.unique(subject, return_inverse=True)
    place = pa.array(place)
    sources = pa.array([senders.sources[at] for at in who.tolist()]).take(place)
    epochs = pa.array([senders.epochs[at] for at in who.tolist()]).take(place)
    table = (
        table.append_column("_source", sources)
        .append_column("_epoch", epochs)
        .append_column("_seq", pa.array(sequence, pa.int64()))
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    first = int(subject[0])
    headers = headers_of(stream, senders.sources[first], senders.epochs[first], int(sequence[0]))
    body = sink.getvalue().to_pybytes()
    return Record(key=keys[first], headers=headers | {"content-type": ARROW_TYPE}, body=body)


def _lists(stream: Stream, table: pa.Table) -> dict[str, list[Any]]:
    """Return the columns of a table as a JSON body has them: times are numbers."""
    return {
        name: (
            table.column(name).cast(pa.int64())
            if stream.by_name[name].kind is ColumnKind.TIME
            else table.column(name)
        ).to_pylist()
        for name in table.column_names
    }


def _jsons(
    stream: Stream,
    senders: Senders,
    subject: Ints,
    sequence: Ints,
    columns: Mapping[str, list[Any]],
    keys: Sequence[str],
) -> list[Record]:
    """Put the event of each instance into a record of its own."""
    records = []
    begin = 0
    for end in np.append(np.flatnonzero(np.diff(subject)) + 1, len(subject)).tolist():
        at = int(subject[begin])
        part = {name: values[begin:end] for name, values in columns.items()}
        headers = headers_of(stream, senders.sources[at], senders.epochs[at], int(sequence[begin]))
        records.append(Record(key=keys[at], headers=headers, body=encode_columns(stream, part)))
        begin = end
    return records
