"""Records of MQTT messages: lines of a file, in the two forms in which such records are kept."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from contract.clock import Clock
from contract.errors import CollectError

MAX_LINE_BYTES = 65_536
MAX_READ_BYTES = 8_388_608
MAX_MESSAGES = 10_000
"""What one reading takes at most: a backlog is worked off reading by reading."""

MAX_PAST_BYTES = 67_108_864
"""What is read again after a restart: half of it where the record begins, since a broker sends what it retains first."""

_HEADER = b"offset,topic,payload"
_TIMESTAMP = "{{timestamp_ms}}"
_OFFSET = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?(?:(\d{1,6}(?:\.\d{1,12})?)(ms|s))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a record."""

    topic: str
    payload: Any
    due_us: int | None
    """When it came, after the start of the record; None where the record does not say."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far a record was read, and when its first message came."""

    offset: int = 0
    start_us: int | None = None


class RecordFollower:
    """Reads a growing file of messages, line by line, never beyond what is due.

    It goes on from `place`, which whoever took the messages moves.

    A line is `offset,topic,payload` with a Go duration and a JSON text, where `{{timestamp_ms}}` stands for the time of
    sending (NVIDIA DSX Exchange, examples of its MQTT client), or a JSON object with `topic` and `payload`
    (mosquitto_sub `-F %j`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.place = Place()

    def past(self, clock: Clock, seconds: float, rejected: Counter[str]) -> Iterator[Message]:
        """Yield messages of metadata from before the place, oldest first: for who has forgotten them.

        Takes `MAX_PAST_BYTES` from the two ends and no longer than `seconds`; that something was left out is counted.
        Raises CollectError.
        """
        end, half = self.place.offset, MAX_PAST_BYTES // 2
        begins, is_cut = max(end - half, half), end > 2 * half
        try:
            with self._path.open("rb") as file:
                for first, last in ((0, half), (begins, end)):
                    deadline = clock.monotonic() + seconds / 2
                    file.seek(max(first - 1, 0))
                    if first:
                        file.readline(MAX_LINE_BYTES)  # the rest of a line that began before
                    while file.tell() < min(last, end) and (line := file.readline(MAX_LINE_BYTES)):
                        if clock.monotonic() > deadline:
                            is_cut = True
                            break
                        if b"/Metadata/" in line and (message := parse_message(line)) is not None:
                            yield message
        except OSError as error:
            raise CollectError("unreachable", f"{self._path}: {error.strerror}") from error
        rejected["past_cut"] += is_cut

    def read(self, now_us: int) -> tuple[list[Message], Counter[str], Place]:
        """Return the messages that have come by now, what was no message, by reason, and the place behind them.

        Raises CollectError.
        """
        rejected: Counter[str] = Counter()
        place = self.place
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < place.offset:
                    rejected["record_replaced"] += 1
                    place = Place()
                file.seek(place.offset)
                content = file.read(MAX_READ_BYTES)
        except OSError as error:
            raise CollectError("unreachable", f"{self._path}: {error.strerror}") from error
        if not content:
            return [], rejected, place
        start_us = now_us if place.start_us is None else place.start_us
        messages, taken_bytes = _take_due(content, start_us, now_us, rejected)
        return messages, rejected, Place(place.offset + taken_bytes, start_us)


def _take_due(
    content: bytes, start_us: int, now_us: int, rejected: Counter[str]
) -> tuple[list[Message], int]:
    """Return the messages of whole lines that are due, and how many bytes they and what was passed over take."""
    messages: list[Message] = []
    at = 0
    while len(messages) < MAX_MESSAGES:
        end = content.find(b"\n", at)
        if end < 0:
            if len(content) - at > MAX_LINE_BYTES:
                rejected["too_long"] += 1  # its rest comes as a line that is none
                at = len(content)
            break
        line = content[at:end]
        if line.strip() and not line.startswith(_HEADER):
            message = None if len(line) > MAX_LINE_BYTES else parse_message(line, start_us)
            if message is None:
                rejected["unreadable"] += 1
            elif message.due_us is not None and start_us + message.due_us > now_us:
                break
            else:
                messages.append(message)
        at = end + 1
    return messages, at


def parse_message(line: bytes, start_us: int = 0) -> Message | None:
    """Return the message of a line of a record that began then; None where it is none."""
    try:
        text = line.decode()
        if text.startswith("{"):
            found = orjson.loads(text)
            return _message(found["topic"], found["payload"], None)
        offset, topic, payload = next(csv.reader([text.rstrip("\r\n")], strict=True))
        due_us = _microseconds(offset)
        sent_ms = (start_us + due_us) // 1000
        return _message(topic, payload.replace(_TIMESTAMP, str(sent_ms)), due_us)
    except (ValueError, KeyError, TypeError, StopIteration, csv.Error):
        return None


def _message(topic: object, payload: object, due_us: int | None) -> Message:
    if not isinstance(topic, str):
        raise TypeError("a topic is a text")
    if isinstance(payload, str):
        payload = orjson.loads(payload)
    return Message(topic, payload, due_us)


def _microseconds(offset: str) -> int:
    match = _OFFSET.fullmatch(offset)
    if match is None or not offset:
        raise ValueError("no duration")
    hours, minutes, number, unit = match.groups()
    seconds = int(hours or 0) * 3600 + int(minutes or 0) * 60
    return round((seconds + float(number or 0) * (0.001 if unit == "ms" else 1)) * 1e6)


def record_seconds(path: Path) -> float | None:
    """Return when the last message of a record comes, in seconds after its first; None for a file that is no record.

    Messages that say no offset come at once.
    """
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_LINE_BYTES)
            if first.startswith(_HEADER):
                first = file.readline(MAX_LINE_BYTES)
            file.seek(max(0, file.seek(0, 2) - MAX_LINE_BYTES))
            last = file.read(MAX_LINE_BYTES).rstrip().rpartition(b"\n")[2]
    except OSError:
        return None
    messages = [parse_message(line) for line in (first, last)]
    if any(message is None or not message.topic.startswith("BMS/") for message in messages):
        return None
    return max((message.due_us or 0) / 1e6 for message in messages if message is not None)
