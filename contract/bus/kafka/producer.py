"""The producer on a cluster: bounded in flight, ended by its first failure, and never silent.

kafka-python's producer (seen with 3.0.12) queues without limit, is dead for good after one error that cannot be
retried, and after its delivery timeout neither delivers nor fails what it holds. So the limits are kept here, that
timeout is never reached, and hearing nothing for a while is a failure of ours.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import kafka
from kafka import errors

from contract.bus.kafka.client import connect, transport_error
from contract.bus.kafka.topics import MAX_BATCH_BYTES
from contract.bus.local_tables import MAX_HEADER_BYTES
from contract.bus.protocols import AckCallback, Record
from contract.codec import MAX_BODY_BYTES
from contract.errors import TransportError
from contract.log import Log

if TYPE_CHECKING:
    from contract.bus.kafka.bus import KafkaBus

_SETTINGS: dict[str, Any] = {
    "acks": "all",
    "enable_idempotence": True,
    "compression_type": "zstd",
    "linger_ms": 20,
    "batch_size": 131_072,
    "max_request_size": MAX_BATCH_BYTES,
    # Eleven days: our own time-out comes first.
    "delivery_timeout_ms": 1_000_000_000,
    "request_timeout_ms": 10_000,
    "max_block_ms": 10_000,
    "allow_auto_create_topics": False,
    "metrics_enabled": False,
}

_FLIGHT_RECORDS, _FLIGHT_BYTES = 10_000, 64 * 2**20
_CLOSE_SECONDS = 5.0
_NOBODY = -1
"""Nobody waits: so few are never in flight."""
_LOOK_AGAIN_SECONDS, _ALMOST_SECONDS = 0.05, 0.002
"""How often one who waits looks by itself, and how often when it can only be a moment."""
_LOOK_SECONDS = 0.5
"""How often a producer looks whether the cluster still answers."""

_log = Log("bus.kafka")


class _Topic(NamedTuple):
    """What is the same for all records of a topic."""

    partitions: int
    refuse: Callable[[Exception], None]
    """What a record that was not written calls."""


class _Passenger:
    """A record in flight. One object and no more: the collector of cycles walks over all that wait."""

    __slots__ = ("_producer", "number", "on_ack", "size")

    def __init__(self, producer: KafkaProducer, number: int, size: int, on_ack: AckCallback | None) -> None:
        self._producer, self.number, self.size, self.on_ack = producer, number, size, on_ack

    def __call__(self, metadata: Any) -> None:
        self._producer.land(self, metadata.offset)


class KafkaProducer:
    """Sends through a client of its own. Any thread may send; call-backs run on the client's thread."""

    def __init__(self, bus: KafkaBus, settings: dict[str, Any], ack_timeout_seconds: float) -> None:
        """Connect; raises TransportError with the cause where that fails."""
        self._bus = bus
        self._ack_timeout_seconds = ack_timeout_seconds
        self._topics: dict[str, _Topic] = {}
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        """Held by those who send. The client's thread takes no lock for a record: two threads that meet in one
        cost more than all else that is done here."""
        self._flight: dict[int, _Passenger] = {}
        """Each record that was sent and not acknowledged, by its number, in order."""
        self._answering: set[int] = set()
        """Records that are out of the flight and whose call-back has not returned."""
        self._landed: deque[int] = deque()
        """Sizes of records that are no longer in flight, and are still counted in `_flight_bytes`."""
        self._flight_bytes = 0
        self._sent = 0
        self._wake_at = _NOBODY
        """With how many records in flight those who wait want to be woken."""
        self._heard_at = time.monotonic()
        self._closing = False
        self._error: TransportError | None = None
        self._client = connect(kafka.KafkaProducer, settings | _SETTINGS)
        self._watch = threading.Thread(target=self._look, name="kafka-producer-watch", daemon=True)
        self._watch.start()

    def send(self, topic: str, partition: int, record: Record, on_ack: AckCallback | None = None) -> None:
        known = self._topic(topic)
        if not 0 <= partition < known.partitions:
            raise TransportError("no_topic", f"there is no partition {topic}/{partition}")
        key, headers, size = _encode(record)
        passenger = self._board(on_ack, size)
        try:
            future = self._client.send(
                topic, value=record.body, key=key, headers=headers, partition=partition
            )
        except (errors.KafkaError, ValueError) as error:
            raise self._fail(transport_error(error, f"sending to {topic}/{partition}")) from error
        except RuntimeError as error:
            # A client that was cut off meanwhile, by the watch or by another's failure, says so in this way.
            if (ended := self._ended()) is None:
                raise
            raise ended from error
        future.add_callback(passenger)
        future.add_errback(known.refuse)

    def flush(self, timeout_seconds: float = 30.0) -> None:
        goal = self._sent
        if not self._await(0, lambda: self._is_answered(goal), timeout_seconds):
            raise TransportError("timeout", f"not everything was written in {timeout_seconds} s")
        if self._error is not None:
            raise self._error.with_traceback(None)

    def close(self) -> None:
        """Write what was sent, for at most 5 s; the rest fails."""
        self._closing = True
        self._await(0, lambda: self._is_answered(self._sent), _CLOSE_SECONDS)
        self._fail(TransportError("closed", "this producer was closed"))
        self._watch.join(_CLOSE_SECONDS)

    def _board(self, on_ack: AckCallback | None, size: int) -> _Passenger:
        """Take a record in as soon as there is room."""
        with self._sending:
            if self._is_full():
                # Until a quarter of it has landed: to wake for each record would cost more than to send it.
                self._await(len(self._flight) * 3 // 4, lambda: self._closing or not self._is_full())
            if error := self._unusable():
                raise error
            if not self._flight:
                self._heard_at = time.monotonic()
            passenger = _Passenger(self, self._sent, size, on_ack)
            self._flight[self._sent] = passenger
            self._sent += 1
            self._flight_bytes += size
        if self._error is not None:
            # It failed in between, and may have answered for all in flight before this one was.
            self._flight.pop(passenger.number, None)
            raise self._error.with_traceback(None)
        return passenger

    def _await(self, in_flight: int, is_done: Callable[[], bool], timeout_seconds: float = math.inf) -> bool:
        """Wait until something is done or this producer has ended; it is looked at with so many in flight.

        Return False after the time. It is looked at now and then as well: others may send all the while.
        """
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not (is_done() or self._error):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._wake_at = max(self._wake_at, in_flight)
                # Where few enough are in flight already, a call-back is about to return.
                pause = _LOOK_AGAIN_SECONDS if len(self._flight) > in_flight else _ALMOST_SECONDS
                self._changed.wait(min(left, pause))
        return True

    def _is_answered(self, goal: int) -> bool:
        """Return whether the call-backs of all records up to a number have returned."""
        # In this order: whoever takes one out of the flight notes it as answered for before.
        return min(list(self._flight) + list(self._answering), default=goal) >= goal

    def _is_full(self) -> bool:
        while self._landed:
            self._flight_bytes -= self._landed.popleft()
        return len(self._flight) >= _FLIGHT_RECORDS or self._flight_bytes >= _FLIGHT_BYTES

    def _unusable(self) -> TransportError | None:
        if self._error is not None and self._error.reason == "too_large":
            # The reason is that of an earlier record; of this one it would say that it may be left out.
            return TransportError("closed", f"this producer has failed: {self._error}")
        if self._error is not None:
            return self._error.with_traceback(None)
        if self._closing:
            return TransportError("closed", "this producer was closed")
        return None

    def _ended(self) -> TransportError | None:
        with self._changed:
            return self._unusable()

    def _topic(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        if known is None:
            partitions = self._bus.describe(topic).partitions
            known = self._topics[topic] = _Topic(partitions, partial(self._refuse, topic))
        return known

    def land(self, passenger: _Passenger, offset: int) -> None:
        """Acknowledge one record, unless the producer has failed before."""
        number = passenger.number
        self._answering.add(number)
        # Whoever takes it out of the flight answers for it; taking out is atomic.
        if self._flight.pop(number, None) is not None:
            if passenger.on_ack is not None:
                passenger.on_ack(offset)
            self._landed.append(passenger.size)
            self._heard_at = time.monotonic()
        self._answering.discard(number)
        if len(self._flight) <= self._wake_at:
            with self._changed:
                # Whoever waits on says so again.
                self._wake_at = _NOBODY
                self._changed.notify_all()

    def _refuse(self, topic: str, error: Exception) -> None:
        self._fail(transport_error(error, f"writing to {topic}"))

    def _fail(self, error: TransportError) -> TransportError:
        """Give an error to all that is in flight, and take no more; return the first error there was."""
        with self._changed:
            if self._error is not None:
                return self._error.with_traceback(None)
            self._error, self._closing = error, True
            self._changed.notify_all()
        for number in list(self._flight):
            passenger = self._flight.pop(number, None)
            if passenger is not None and passenger.on_ack is not None:
                passenger.on_ack(error)
        # Not here: this may be the client's own thread, and a client that is cut off takes its time to end.
        threading.Thread(target=self._abandon, name="kafka-producer-close", daemon=True).start()
        return error

    def _abandon(self) -> None:
        try:
            self._client.close(timeout=0)
        except errors.KafkaError as error:
            # It closes nothing while records wait: left alone, it would write them after those of its successor.
            # There is no public way to cut it off.
            self._client._sender.force_close()  # noqa: SLF001
            self._client._closed = True  # noqa: SLF001
            _log.debug("producer_cut_off", error=error)

    def _look(self) -> None:
        """Fail when the cluster is silent for too long."""
        with self._changed:
            while self._error is None:
                self._changed.wait(_LOOK_SECONDS)
                silent = time.monotonic() - self._heard_at
                if self._flight and silent > self._ack_timeout_seconds:
                    break
            if self._error is not None:
                return
        self._fail(TransportError("timeout", f"nothing was acknowledged in {self._ack_timeout_seconds} s"))


def _encode(record: Record) -> tuple[bytes, list[tuple[str, bytes]], int]:
    """Return a record's key and headers, and how many bytes it has in all; raise TransportError(too_large)."""
    key = record.key.encode()
    headers = [(name, value.encode()) for name, value in record.headers.items()]
    if len(record.body) > MAX_BODY_BYTES:
        raise TransportError("too_large", f"a body of {len(record.body)} bytes, at most {MAX_BODY_BYTES}")
    size = len(key)
    for name, value in headers:
        size += len(name) + len(value)
    if size > MAX_HEADER_BYTES:
        raise TransportError("too_large", f"key and headers of {size} bytes, at most {MAX_HEADER_BYTES}")
    return key, headers, size + len(record.body)
