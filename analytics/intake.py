"""One stream on its way into its table: decoded, checked, gathered, and committed with its offsets.

Nothing here outlives a failure. Whatever goes wrong, the rows gathered are dropped and `load` begins again from
the offsets that are stored: the bus still has everything after them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from analytics.chain import Chain, load_chain, read_chained
from analytics.dead_letters import DeadLetterWriter
from analytics.lake import Lake, LakeTable, Progress
from analytics.marks import load_marks, write_snapshot
from contract.bus.protocols import Message
from contract.clock import Clock
from contract.errors import LogReplaced, LogTruncated, TransportError
from contract.reader import Batch, DeadLetter, Marks, read_batch
from contract.stream import LAKE_COLUMNS, Stream
from contract.streams.alerts import ALERTS
from contract.streams.self import DEAD_LETTERS

DECODE_MESSAGES = 2_500
DECODE_BYTES = 16_777_216
"""Messages are decoded together, for speed; at most so many, for memory."""


class Span(NamedTuple):
    """What the bus has of one partition: the first offset, and the one after the last."""

    begin: int
    end: int


@dataclass(slots=True)
class Tally:
    """What was gathered since the last commit."""

    rows: int = 0
    events: int = 0
    repeats: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    values_rejected: Counter[str] = field(default_factory=Counter)
    oldest_received_us: int | None = None

    def count(self, batch: Batch) -> None:
        """Add what one batch held."""
        self.rows += batch.table.num_rows
        self.events += len(batch.events)
        self.repeats += batch.repeats
        self.dead.update(letter.error.reason for letter in batch.dead)
        for (_, reason), values in batch.values_rejected.items():
            self.values_rejected[reason] += values
        if batch.events and self.oldest_received_us is None:
            self.oldest_received_us = min(event.message.received_us for event in batch.events)


class Intake:
    """Gathers one stream's messages. `load` first, then `take` and `flush`; after an error `load` again."""

    _table: LakeTable

    def __init__(
        self,
        stream: Stream,
        lake: Lake,
        letters: DeadLetterWriter,
        clock: Clock,
        *,
        synthetic: bool,
        accept_new_log: bool = False,
    ) -> None:
        self.stream = stream
        self._lake = lake
        self._letters = letters
        self._clock = clock
        self._synthetic = synthetic
        self._accept_new_log = accept_new_log
        self._log = ""
        self._marks: Marks = {}
        self._chain = Chain()
        self._starts: dict[int, int] = {}
        self._nexts: dict[int, int] = {}
        self.drop()

    def drop(self) -> None:
        """Forget what was gathered."""
        self._pending: list[Message] = []
        self._pending_bytes = 0
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._dead: list[DeadLetter] = []
        self._tally = Tally()
        self._since: float | None = None
        self._nexts = dict(self._starts)

    @property
    def rows(self) -> int:
        """Rows gathered, not counting messages that still wait to be decoded."""
        return self._tally.rows

    @property
    def bytes(self) -> int:
        """What those rows take in memory."""
        return self._bytes

    @property
    def since(self) -> float | None:
        """When, by the monotonic clock, the oldest message gathered was taken."""
        return self._since

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition that is not yet stored."""
        return dict(self._starts)

    def load(self, log: str, spans: Mapping[int, Span], owned: set[int]) -> dict[int, int]:
        """Begin again from what is stored; return the offset from which to read each owned partition.

        `spans` has every partition of the topic. Raises StoreError; LogReplaced and LogTruncated where the bus
        cannot continue what is stored and going on was not accepted.
        """
        self._starts = {}
        self.drop()
        table = self._lake.table(self.stream)
        if table is None:
            table = self._lake.create(self.stream, log, {p: span.begin for p, span in spans.items()})
        self._table, self._log = table, log
        self._adopt(table, {p: spans[p] for p in owned})
        self._starts = {p: table.offset(log, p) or 0 for p in owned}
        self._nexts = dict(self._starts)
        self._marks = load_marks(table, log, owned)
        if self.stream is ALERTS:
            self._chain = load_chain(table)
        return self.positions

    def _adopt(self, table: LakeTable, spans: Mapping[int, Span]) -> None:
        """See to it that every partition goes on where the table's rows end; else stop, or note what is lost."""
        moves, notes = {}, []
        for partition, span in spans.items():
            stored = table.offset(self._log, partition)
            error = _break(self.stream.topic, self._log, partition, stored, span)
            if error is None:
                continue
            if not self._accept_new_log:
                raise error
            if isinstance(error, LogTruncated):
                self._letters.publish_gap(self.stream, self._log, error, self._clock.now_us())
            moves[partition] = Progress(stored, span.begin)
            notes.append(str(error))
        if moves:
            table.commit(self._log, moves, [], note="; ".join(notes))
            table.refresh()

    def take(self, messages: Sequence[Message]) -> None:
        """Gather messages; each partition's in offset order."""
        nexts = self._nexts
        fresh = [m for m in messages if m.offset >= nexts.get(m.partition, m.offset + 1)]
        if not fresh:
            return
        if self._since is None:
            self._since = self._clock.monotonic()
        for message in fresh:
            nexts[message.partition] = message.offset + 1
            self._pending_bytes += len(message.body)
        self._pending += fresh
        if len(self._pending) >= DECODE_MESSAGES or self._pending_bytes >= DECODE_BYTES:
            self._decode()

    def _decode(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, [], 0
        for messages in _portions(pending):
            self._gather(messages)

    def _gather(self, messages: Sequence[Message]) -> None:
        if self.stream is ALERTS:
            batch = read_chained(self.stream, messages, self._marks, self._chain, synthetic=self._synthetic)
        else:
            batch = read_batch(self.stream, messages, self._marks, synthetic=self._synthetic)
        self._tally.count(batch)
        self._dead += batch.dead
        if batch.table.num_rows:
            columns = [*batch.table.columns, *batch.lake_columns(self._log)]
            names = [*batch.table.column_names, *(c.name for c in LAKE_COLUMNS)]
            table = pa.Table.from_arrays(columns, names=names)
            self._tables.append(table)
            self._bytes += table.nbytes

    def flush(self) -> Tally:
        """Commit what was gathered, with its offsets; durable when it returns.

        Raises CommitRefused, StoreError, TransportError: then nothing was committed, or it is not known.
        """
        self._decode()
        moved = {p: Progress(start, self._nexts[p]) for p, start in self._starts.items()}
        progress = {p: at for p, at in moved.items() if at.end != at.start}
        if progress:
            if self._dead and self.stream is not DEAD_LETTERS:
                self._letters.publish(self.stream, self._log, self._dead)
            files = self._table.write(pa.concat_tables(self._tables)) if self._tables else []
            self._table.commit(self._log, progress, files)
        tally, self._starts = self._tally, dict(self._nexts)
        self.drop()
        return tally

    def snapshot(self) -> None:
        """Snapshot the marks; call right after `flush`. Raises StoreError."""
        self._table.refresh()
        idle_before_us = self._clock.now_us() - round(self._lake.marks_kept_hours * 3_600_000_000)
        write_snapshot(self._table, idle_before_us, reached=self._lake.reached)
        self._marks = load_marks(self._table, self._log, set(self._starts))

    def clean_log(self) -> None:
        """Remove old entries of the table's log; call right after `snapshot`. Raises StoreError."""
        self._table.clean_log()


def _portions(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Cut messages into what is decoded together."""
    begin, size = 0, 0
    for at, message in enumerate(messages):
        size += len(message.body)
        if at - begin + 1 == DECODE_MESSAGES or size >= DECODE_BYTES:
            yield messages[begin : at + 1]
            begin, size = at + 1, 0
    if begin < len(messages):
        yield messages[begin:]


def _break(topic: str, log: str, partition: int, stored: int | None, span: Span) -> TransportError | None:
    """Say why a partition cannot go on from its stored offset, if so."""
    if stored is None:
        return LogReplaced(
            f"{topic}/{partition}: the lake was filled from another log than {log}; the topic was made again, or "
            "this is another bus: go on with --accept-new-log"
        )
    if span.end < stored:
        return LogReplaced(
            f"{topic}/{partition}: the lake holds everything before offset {stored}, the log ends at {span.end}: "
            "it was cut or restored; go on with --accept-new-log, which reads it again and drops what is known"
        )
    if span.begin > stored:
        return LogTruncated(topic, partition, stored, span.begin)
    return None
