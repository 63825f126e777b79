"""Messages that cannot become rows: they become rows of `dead_letters`, through the bus like everything else.

A dead letter is an event of source `sink/{log}/{partition}` whose sequence is the rejected offset, so that a
repeat after a crash is dropped like any other repeat. It is acknowledged before the rejected offset is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from analytics.parquet import Reached, nothing
from contract.bus.protocols import Bus, Message, Producer, Record
from contract.codec import Event, encode_event, encode_events
from contract.errors import HallwatchError, LogTruncated, TransportError
from contract.reader import DeadLetter
from contract.stream import MAX_TEXT_BYTES, Stream
from contract.streams.self import DEAD_LETTERS

KEPT_BYTES = 4_194_304
"""Of a rejected body: base64 makes a third more of it, and the result must fit into a message."""

_JSON_BYTES = 65_536


class DeadLetterWriter:
    """Publishes dead letters; a producer that failed is replaced by the next call."""

    def __init__(self, bus: Bus, *, synthetic: bool, reached: Reached = nothing) -> None:
        self._bus = bus
        self._synthetic = synthetic
        self._reached = reached
        self._producer: Producer | None = None

    def publish(self, stream: Stream, log: str, letters: Sequence[DeadLetter]) -> None:
        """Send in offset order; all are durable on the bus when this returns. Raises TransportError."""
        self._send(
            letter_record(stream, log, letter.message, letter.error, synthetic=self._synthetic)
            for letter in sorted(letters, key=lambda letter: letter.message.offset)
        )

    def publish_gap(self, stream: Stream, log: str, gap: LogTruncated, now_us: int) -> None:
        """Tell of messages that retention took before they were read. Raises TransportError."""
        missing = Message(stream.topic, gap.partition, gap.wanted, now_us, "", {}, b"")
        self._send([letter_record(stream, log, missing, gap, synthetic=self._synthetic)])

    def _send(self, records: Iterable[Record]) -> None:
        self._reached("letters_begin")
        if self._producer is None:
            self._producer = self._bus.producer()
        try:
            for record in records:
                self._producer.send(DEAD_LETTERS.topic, DEAD_LETTERS.partition_of(record.key), record)
            self._producer.flush()
        except TransportError:
            self.close()
            raise
        self._reached("letters_published")

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


def letter_record(
    stream: Stream, log: str, message: Message, error: HallwatchError, *, synthetic: bool
) -> Record:
    """Return the record that tells of one rejected message."""
    headers = orjson.dumps(dict(message.headers)).decode()
    detail = str(error)
    if len(message.body) > KEPT_BYTES:
        detail = f"{detail} (the first {KEPT_BYTES} of {len(message.body)} bytes are kept)"
    row: dict[str, list[Any]] = {
        "ts": [message.received_us],
        "synthetic": [synthetic],
        "stream": [stream.name],
        "topic": [message.topic],
        "log": [log],
        "partition": [message.partition],
        "offset": [message.offset],
        "reason": [error.reason],
        "detail": [detail[:2000]],
        "headers": [headers if len(headers.encode()) <= MAX_TEXT_BYTES else None],
        "body": [message.body[:KEPT_BYTES]],
    }
    event = Event(
        source=f"sink/{log}/{message.partition}",
        epoch=log,
        sequence=message.offset,
        table=DEAD_LETTERS.table(row),
    )
    if len(message.body) > _JSON_BYTES:
        return encode_events(DEAD_LETTERS, [event], stream.name)
    return encode_event(DEAD_LETTERS, event, stream.name)
