"""Between a source and its outlet: rows become events with sequences, and what was not taken is put again unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from contract.bus.protocols import Record
from contract.codec import ARROW_FROM_ROWS, MAX_ROWS, Event, encode_event, encode_events
from contract.errors import TransportError
from contract.stream import Stream
from contract.streams import BY_TOPIC
from ingest.spool import Outgoing, Outlet


class Sender:
    """Sends the events of one source: per stream a sequence from 0 without holes.

    Events that were queued together are put together, with the cursor that belongs to them.
    """

    def __init__(self, outlet: Outlet, source: str, epoch: str) -> None:
        self._outlet = outlet
        self._source = source
        self._epoch = epoch
        self._next: dict[str, int] = {}
        self._queue: list[Outgoing] = []
        self._rows = 0
        self._cursor: bytes | None = None
        self.sent: dict[str, int] = {}
        """The highest sequence that is durable, by stream."""

    @property
    def waiting(self) -> bool:
        """Whether something is queued that the outlet has not taken."""
        return bool(self._queue) or self._cursor is not None

    @property
    def rows(self) -> int:
        """How many rows are queued."""
        return self._rows

    def queue(self, stream: Stream, table: pa.Table) -> None:
        """Make the rows one event, or as many as they have keys; a table without rows is none."""
        for key, part in _by_key(stream, table):
            for at in range(0, part.num_rows, MAX_ROWS):
                self._queue.append(self._outgoing(stream, part.slice(at, MAX_ROWS), key))
        self._rows += table.num_rows

    def keep(self, cursor: bytes) -> None:
        """Store `cursor` with what is queued."""
        self._cursor = cursor

    def put(self) -> None:
        """Return when everything queued is durable.

        Raises TransportError; the queue is then as before, except where an event is too large for any outlet: that
        one is lost, and the hole in its sequence says so.
        """
        if not self.waiting:
            return
        try:
            self._outlet.put(self._queue, None if self._cursor is None else (self._source, self._cursor))
        except TransportError as error:
            if error.reason == "too_large":
                self._clear()
            raise
        for outgoing in self._queue:
            headers = outgoing.record.headers
            self.sent[BY_TOPIC[outgoing.topic].name] = int(headers["ce_sequence"])
        self._clear()

    def _clear(self) -> None:
        self._queue, self._rows, self._cursor = [], 0, None

    def _outgoing(self, stream: Stream, table: pa.Table, key: str) -> Outgoing:
        sequence = self._next.get(stream.name, 0)
        self._next[stream.name] = sequence + 1
        event = Event(source=self._source, epoch=self._epoch, sequence=sequence, table=table)
        encode = _encode_arrow if table.num_rows >= ARROW_FROM_ROWS else encode_event
        return Outgoing(stream.topic, stream.partition_of(key), encode(stream, event, key))


def _encode_arrow(stream: Stream, event: Event, key: str) -> Record:
    return encode_events(stream, [event], key)


def _by_key(stream: Stream, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    keys = table.column(stream.key)
    different = keys.unique().to_pylist()
    for key in different:
        yield key, table if len(different) == 1 else table.filter(pc.equal(keys, key))
