"""The producer of the local bus: a queue, and a thread that empties it into the log."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contract.bus.local_tables import Row, encode_row, no_topic
from contract.bus.protocols import AckCallback, Record
from contract.errors import TransportError

if TYPE_CHECKING:
    from contract.bus.local import LocalBus

_BATCH_RECORDS, _BATCH_BYTES = 2_000, 8 * 2**20
_QUEUE_RECORDS, _QUEUE_BYTES = 10_000, 64 * 2**20
_CLOSE_SECONDS = 30.0


@dataclass(slots=True)
class _Sent:
    """A record that waits to be written."""

    topic: str
    partition: int
    row: Row
    on_ack: AckCallback | None


class LocalProducer:
    """A queue and a thread that writes all that has gathered as one transaction.

    The first failure ends it: every record that waits, and all later ones, get the same error. So a partition
    never holds a record whose predecessor failed.
    """

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self._process = os.getpid()
        self._partitions: dict[str, int] = {}
        self._changed = threading.Condition()
        self._queue: deque[_Sent] = deque()
        self._queued_bytes = 0
        self._sent = self._acknowledged = 0
        self._closing = False
        self._error: TransportError | None = None
        self._thread = threading.Thread(target=self._run, name="bus-producer", daemon=True)
        self._thread.start()

    def send(self, topic: str, partition: int, record: Record, on_ack: AckCallback | None = None) -> None:
        if not 0 <= partition < self._count_partitions(topic):
            raise no_topic(f"{topic}/{partition}")
        sent = _Sent(topic, partition, encode_row(record), on_ack)
        with self._changed:
            while self._is_full() and not self._unusable():
                self._changed.wait()
            if error := self._unusable():
                raise error
            self._queue.append(sent)
            self._queued_bytes += len(sent.row.body)
            self._sent += 1
            if len(self._queue) == 1:
                self._changed.notify_all()

    def flush(self, timeout_seconds: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            goal = self._sent
            while self._acknowledged < goal and self._error is None:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TransportError("timeout", f"not everything was written in {timeout_seconds} s")
            if self._error is not None:
                raise self._error.with_traceback(None)

    def close(self) -> None:
        """Write what was sent, for at most 30 s; the rest fails."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            self._fail([], TransportError("closed", f"not written within {_CLOSE_SECONDS} s after closing"))

    def _unusable(self) -> TransportError | None:
        if self._error is not None:
            return self._error.with_traceback(None)
        if self._closing:
            return TransportError("closed", "this producer was closed")
        return None

    def _is_full(self) -> bool:
        return len(self._queue) >= _QUEUE_RECORDS or self._queued_bytes >= _QUEUE_BYTES

    def _count_partitions(self, topic: str) -> int:
        if self._process != os.getpid():
            raise TransportError("closed", "this producer belongs to the process that made it")
        count = self._partitions.get(topic)
        if count is None:
            count = self._partitions[topic] = self._bus.describe(topic).partitions
        return count

    def _run(self) -> None:
        try:
            while batch := self._take():
                self._write(batch)
        finally:
            self._end()

    def _take(self) -> list[_Sent]:
        """Wait for records; return the first of them, nothing when closed or dead."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            batch: list[_Sent] = []
            size = 0
            while self._queue and len(batch) < _BATCH_RECORDS and size < _BATCH_BYTES:
                batch.append(self._queue.popleft())
                size += len(batch[-1].row.body)
            self._queued_bytes -= size
            self._changed.notify_all()
            return batch

    def _write(self, batch: Sequence[_Sent]) -> None:
        try:
            offsets = self._bus.append_rows([(sent.topic, sent.partition, sent.row) for sent in batch])
        except TransportError as error:
            self._fail(batch, error)
        else:
            self._acknowledge(batch, offsets)

    def _fail(self, batch: Sequence[_Sent], error: TransportError) -> None:
        """Give an error to a batch and to all that waits behind it, and take no more."""
        with self._changed:
            self._error, self._closing = error, True
            failed = [*batch, *self._queue]
            self._queue.clear()
        self._acknowledge(failed, [error] * len(failed))

    def _acknowledge(self, batch: Sequence[_Sent], results: Sequence[int | TransportError]) -> None:
        for sent, result in zip(batch, results, strict=True):
            if sent.on_ack is not None:
                sent.on_ack(result)
        with self._changed:
            self._acknowledged += len(batch)
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            if self._error is None:
                self._error = TransportError("closed", "this producer was closed")
            self._changed.notify_all()
