"""Where a runner puts its events: straight on the bus of this machine, through a spool, or on standard output.

A put is durable when it returns, together with the cursor that says how far the collector had read its device.
"""

from __future__ import annotations

import base64
import fcntl
import math
import os
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

import orjson

from contract.backoff import backoff_seconds
from contract.bus.local import LocalBus
from contract.bus.protocols import AckCallback, Bus, Consumer, Message, Producer, Record, TopicPartition
from contract.clock import SYSTEM_CLOCK, Clock
from contract.codec import ARROW_TYPE, parse_arrow
from contract.errors import ConfigError, TransportError
from contract.log import Log

_SPOOL = TopicPartition("spool", 0)
"""One partition, so that the bus gets the events in the order in which they were put."""

_TOPIC_HEADER, _PARTITION_HEADER = "spool-topic", "spool-partition"
_SHOWN_HEADERS = ("ce_source", "ce_epoch", "ce_sequence", "content-type")

_IDLE_SECONDS = 0.2
"""The forwarder looks around this often when nothing wakes it."""

_IN_FLIGHT = 10_000
_TRIM_EVERY_SECONDS, _TRIM_EVERY_MESSAGES = 0.5, 5_000
_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.1, 30.0
_STOP_SECONDS = 5.0

_log = Log("ingest.spool")


class Outgoing(NamedTuple):
    """A record and the partition it belongs to."""

    topic: str
    partition: int
    record: Record


class Outlet(Protocol):
    """Takes events. Any number of threads may put at once; one source's events keep their order."""

    def put(self, records: Sequence[Outgoing], cursor: tuple[str, bytes] | None = None) -> None:
        """Store records and a named cursor, all or nothing, durable on return.

        Raises TransportError; what was not stored is to be put again.
        """
        ...

    def cursor(self, name: str) -> bytes | None:
        """Return what was last stored under this name."""
        ...

    def depth(self) -> int:
        """Return how many events are stored and not known to be on the bus."""
        ...

    def close(self) -> None: ...


class DirectOutlet:
    """Writes the bus of this machine itself; the bus stays open."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus

    def put(self, records: Sequence[Outgoing], cursor: tuple[str, bytes] | None = None) -> None:
        self._bus.append(records, dict([cursor] if cursor else []))

    def cursor(self, name: str) -> bytes | None:
        return self._bus.cursor(name)

    def depth(self) -> int:
        return 0

    def close(self) -> None:
        """Leave everything as it is: nothing waits here."""


class SpoolOutlet:
    """Keeps events in a local log and forwards them in order, whether the bus is there or not.

    The log begins at the lowest event that is not acknowledged: that is all it remembers of the bus. After a
    failure or a restart everything from there is sent again; readers drop the repeats by sequence. The bus stays
    open. Forwarding is a thread, so `clock` must be one that runs by itself.
    """

    def __init__(
        self,
        path: Path,
        bus: Bus,
        *,
        max_bytes: int = 2_000_000_000,
        fsync: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        ack_timeout_seconds: float = 60.0,
    ) -> None:
        """Start forwarding what an earlier run left.

        Raises ConfigError(in_use) when another process holds the spool, TransportError when it cannot be opened.
        """
        self._max_bytes = max_bytes
        self._held = _hold(path)
        try:
            self._spool = LocalBus(
                path, fsync=fsync, clock=clock, retention_hours=math.inf, retention_bytes=math.inf
            )
            self._spool.create_topic(_SPOOL.topic, 1)
        except TransportError:
            os.close(self._held)
            raise
        self._reader = self._spool.consumer("")
        self._forwarder = _Forwarder(self._spool, bus, clock, ack_timeout_seconds)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._forwarder.run, args=(self._stop,), name="spool-forwarder", daemon=True
        )
        self._thread.start()

    @property
    def failures(self) -> Counter[str]:
        """How often forwarding failed, by reason of the TransportError."""
        return self._forwarder.failures

    @property
    def refused(self) -> int:
        """Events that the bus can never take because of their size: the only ones that are passed over."""
        return self._forwarder.refused

    def put(self, records: Sequence[Outgoing], cursor: tuple[str, bytes] | None = None) -> None:
        """Store records; raises also TransportError(full) when the bus was away for too long."""
        if not self._thread.is_alive():
            raise TransportError("closed", "this spool forwards no more")
        size = sum(len(outgoing.record.body) for outgoing in records)
        if self._spool.used_bytes() + size > self._max_bytes:
            raise TransportError(
                "full", f"the spool holds its {self._max_bytes} bytes; the bus takes nothing"
            )
        self._spool.append([(*_SPOOL, _wrap(o)) for o in records], dict([cursor] if cursor else []))
        self._forwarder.wake.set()

    def cursor(self, name: str) -> bytes | None:
        return self._spool.cursor(name)

    def depth(self) -> int:
        return self._reader.end_offsets([_SPOOL])[_SPOOL] - self._forwarder.lowest

    def close(self) -> None:
        """Stop forwarding, after a few seconds at most; what was not forwarded stays for the next start."""
        self._stop.set()
        self._forwarder.wake.set()
        self._thread.join(2 * _STOP_SECONDS)
        self._reader.close()
        self._spool.close()
        os.close(self._held)


class _Forwarder:
    """Moves messages from the spool to the bus, one producer after the other."""

    def __init__(self, spool: LocalBus, bus: Bus, clock: Clock, ack_timeout_seconds: float) -> None:
        self._spool, self._bus, self._clock = spool, bus, clock
        self._ack_timeout_seconds = ack_timeout_seconds
        with closing(spool.consumer("")) as reader:
            self._trimmed = self.lowest = reader.begin_offsets([_SPOOL])[_SPOOL]
        self._trim_at = self._progress_at = clock.monotonic()
        self.wake = threading.Event()
        self.failures: Counter[str] = Counter()
        self.refused = 0

    def run(self, stop: threading.Event) -> None:
        """Forward until stopped; after a failure wait, longer each time that nothing came through."""
        failures = 0
        while not stop.is_set():
            before = self.lowest
            try:
                self._forward(stop)
            except TransportError as error:
                self.failures[error.reason] += 1
                failures = 1 if self.lowest > before else failures + 1
                delay = backoff_seconds(
                    failures, first_seconds=_FIRST_RETRY_SECONDS, longest_seconds=_LONGEST_RETRY_SECONDS
                )
                _log.warning(
                    "forwarding_failed", reason=error.reason, error=error, retry_seconds=round(delay, 1)
                )
                self._clock.wait(stop, delay)

    def _forward(self, stop: threading.Event) -> None:
        flight = _Flight(self.lowest, self.wake)
        self._progress_at = self._clock.monotonic()
        try:
            with closing(self._bus.producer()) as producer, closing(self._spool.consumer("")) as reader:
                reader.assign([_SPOOL])
                reader.seek(_SPOOL, flight.lowest)
                while not stop.is_set():
                    self._feed(reader, producer, flight)
        finally:
            self.lowest = flight.lowest
        self._trim()

    def _feed(self, reader: Consumer, producer: Producer, flight: _Flight) -> None:
        messages = reader.poll(0, _IN_FLIGHT - flight.size)
        for message in messages:
            self._send(producer, message, flight)
        if not messages:
            self._clock.wait(self.wake, _IDLE_SECONDS)
            self.wake.clear()
        if flight.error is not None:
            raise flight.error
        now = self._clock.monotonic()
        if flight.lowest > self.lowest or not flight.size:
            self.lowest, self._progress_at = flight.lowest, now
        elif now - self._progress_at > self._ack_timeout_seconds:
            raise TransportError("timeout", f"nothing was acknowledged in {self._ack_timeout_seconds} s")
        if now >= self._trim_at or self.lowest - self._trimmed >= _TRIM_EVERY_MESSAGES:
            self._trim_at = now + _TRIM_EVERY_SECONDS
            self._trim()

    def _send(self, producer: Producer, message: Message, flight: _Flight) -> None:
        topic, partition, record = _unwrap(message)
        try:
            producer.send(topic, partition, record, flight.expect(message.offset))
        except TransportError as error:
            if error.reason != "too_large":
                raise
            # It would hold up everything behind it for ever. Readers see the hole in its source's sequence.
            self.refused += 1
            flight.acknowledge(message.offset, error=None)
            _log.error("event_refused", topic=topic, error=error)

    def _trim(self) -> None:
        if self.lowest > self._trimmed:
            self._spool.trim(_SPOOL, self.lowest)
            self._trimmed = self.lowest


class _Flight:
    """What one producer was given, and the lowest offset of it that is not acknowledged."""

    def __init__(self, lowest: int, wake: threading.Event) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._acknowledged: set[int] = set()
        self._next = lowest
        self.lowest = lowest
        self.error: TransportError | None = None

    @property
    def size(self) -> int:
        return self._next - self.lowest

    def expect(self, offset: int) -> AckCallback:
        """Return the call-back of a message that is about to be sent."""
        self._next = offset + 1
        return lambda result: self.acknowledge(offset, result if isinstance(result, TransportError) else None)

    def acknowledge(self, offset: int, error: TransportError | None) -> None:
        """Note that a message needs no more care, or why its producer must be replaced."""
        with self._lock:
            if error is not None:
                self.error = self.error or error
            else:
                self._acknowledged.add(offset)
            while self.lowest in self._acknowledged:
                self._acknowledged.remove(self.lowest)
                self.lowest += 1
        self._wake.set()


class StdoutOutlet:
    """Prints one JSON line per event: for looking at what a collector sends. Nothing is kept."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._cursors: dict[str, bytes] = {}

    def put(self, records: Sequence[Outgoing], cursor: tuple[str, bytes] | None = None) -> None:
        lines = "".join(_line(outgoing) for outgoing in records)
        with self._lock:
            try:
                self._stream.write(lines)
                self._stream.flush()
            except OSError as error:
                raise TransportError("closed", f"standard output: {error.strerror}") from error
            self._cursors.update([cursor] if cursor else [])

    def cursor(self, name: str) -> bytes | None:
        return self._cursors.get(name)

    def depth(self) -> int:
        return 0

    def close(self) -> None:
        """Leave the stream open: it is not ours."""


def _line(outgoing: Outgoing) -> str:
    record = outgoing.record
    shown = {name: record.headers[name] for name in _SHOWN_HEADERS if name in record.headers}
    if record.headers.get("content-type") == ARROW_TYPE:
        body = parse_arrow(record.body).to_pydict()
    else:
        body = orjson.loads(record.body)
    document = {"topic": outgoing.topic, "partition": outgoing.partition, "headers": shown, "body": body}
    return orjson.dumps(document, default=_plain, option=orjson.OPT_APPEND_NEWLINE).decode()


def _plain(value: object) -> str:
    """Show blobs as the JSON body does."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value))


def _wrap(outgoing: Outgoing) -> Record:
    record = outgoing.record
    place = {_TOPIC_HEADER: outgoing.topic, _PARTITION_HEADER: str(outgoing.partition)}
    return Record(key=record.key, headers={**record.headers, **place}, body=record.body)


def _unwrap(message: Message) -> Outgoing:
    headers = dict(message.headers)
    topic, partition = headers.pop(_TOPIC_HEADER), int(headers.pop(_PARTITION_HEADER))
    return Outgoing(topic, partition, Record(key=message.key, headers=headers, body=message.body))


def _hold(path: Path) -> int:
    """Lock the spool's folder against another process; return the descriptor that holds it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / "forwarder.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise TransportError("unreachable", f"{path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError("in_use", f"{path}: another process forwards this spool; name another") from error
    return descriptor
