"""Records of MQTT messages: lines of a file, in the two forms in which such records are kept."""

from __future__ import annotations

import csv
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from contract.errors import CollectError

MAX_LINE_BYTES = 65_536
MAX_READ_BYTES = 8_388_608
MAX_MESSAGES = 10_000
"""What one reading takes at most: a backlog is worked off reading by reading."""

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


class RecordFollower:
    """Reads a growing file of messages, line by line, never beyond what is due.

    A line is `offset,topic,payload` with a Go duration and a JSON text, where `{{timestamp_ms}}` stands for the time of
    sending (NVIDIA DSX Exchange, examples of its MQTT client), or a JSON object with `topic` and `payload`
    (mosquitto_sub `-F %j`).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0
        self.start_us: int | None = None

    def past(self) -> list[Message]:
        """Return what was read before the place where it goes on: for who has forgotten it."""
        messages: list[Message] = []
        try:
            with self._path.open("rb") as file:
                while file.tell() < self.offset and (line := file.readline(MAX_LINE_BYTES)):
                    if b"/Metadata/" in line and (message := self.parse(line)) is not None:
                        messages.append(message)
        except OSError as error:
            raise CollectError("unreachable", f"{self._path}: {error.strerror}") from error
        return messages

    def read(self, now_us: int) -> tuple[list[Message], Counter[str]]:
        """Return the messages that have come by now, and what was no message, by reason; raise CollectError."""
        rejected: Counter[str] = Counter()
        messages: list[Message] = []
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self.offset:
                    rejected["record_replaced"] += 1
                    self.offset, self.start_us = 0, None
                file.seek(self.offset)
                content = file.read(MAX_READ_BYTES)
        except OSError as error:
            raise CollectError("unreachable", f"{self._path}: {error.strerror}") from error
        if self.start_us is None and content:
            self.start_us = now_us
        self._lines(content, now_us, messages, rejected)
        return messages, rejected

    def _lines(self, content: bytes, now_us: int, messages: list[Message], rejected: Counter[str]) -> None:
        at = 0
        while len(messages) < MAX_MESSAGES:
            end = content.find(b"\n", at)
            if end < 0:
                if len(content) - at > MAX_LINE_BYTES:
                    rejected["too_long"] += 1  # its rest comes as a line that is none
                    self.offset += len(content) - at
                return
            line = content[at:end]
            if line.strip() and not line.startswith(_HEADER):
                message = None if len(line) > MAX_LINE_BYTES else self.parse(line)
                if message is None:
                    rejected["unreadable"] += 1
                elif message.due_us is not None and (self.start_us or 0) + message.due_us > now_us:
                    return
                else:
                    messages.append(message)
            self.offset += end + 1 - at
            at = end + 1

    def parse(self, line: bytes) -> Message | None:
        """Return the message of a line; None where it is none."""
        try:
            text = line.decode()
            if text.startswith("{"):
                found = orjson.loads(text)
                return _message(found["topic"], found["payload"], None)
            offset, topic, payload = next(csv.reader([text.rstrip("\r\n")], strict=True))
            due_us = _microseconds(offset)
            sent_ms = ((self.start_us or 0) + due_us) // 1000
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
    follower = RecordFollower(path)
    try:
        with path.open("rb") as file:
            first = file.readline(MAX_LINE_BYTES)
            if first.startswith(_HEADER):
                first = file.readline(MAX_LINE_BYTES)
            file.seek(max(0, file.seek(0, 2) - MAX_LINE_BYTES))
            last = file.read(MAX_LINE_BYTES).rstrip().rpartition(b"\n")[2]
    except OSError:
        return None
    messages = [follower.parse(line) for line in (first, last)]
    if any(message is None or not message.topic.startswith("BMS/") for message in messages):
        return None
    return max((message.due_us or 0) / 1e6 for message in messages if message is not None)
