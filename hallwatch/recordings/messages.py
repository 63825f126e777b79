"""Recorded messages of a building: `NAME.csv` or `NAME.jsonl` of MQTT messages in the contract of DSX Exchange."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.clock import Clock
from hallwatch.recordings.recording import Table
from ingest.coolant.bms_record import record_seconds

MESSAGE_SUFFIXES = (".csv", ".jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecording:
    """A record of messages; the collector itself plays it at the pace of its offsets."""

    name: str
    path: Path
    last_seconds: float

    noun = "building record"
    polled = True
    notes = ()

    @contextmanager
    def play(self, folder: Path, clock: Clock, *, mapped: bool) -> Iterator[MessagePlayer]:
        del clock, mapped
        yield MessagePlayer(self, folder)


def read_messages(entry: Path) -> MessageRecording | None:
    """Read a record of messages; None for anything else."""
    if entry.suffix not in MESSAGE_SUFFIXES or not entry.is_file():
        return None
    seconds = record_seconds(entry)
    return None if seconds is None else MessageRecording(name=entry.stem, path=entry, last_seconds=seconds)


class MessagePlayer:
    """A copy of the record."""

    due_seconds = math.inf

    def __init__(self, recording: MessageRecording, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / recording.path.name
        shutil.copyfile(recording.path, copy)
        self.tables: Sequence[Table] = (
            {"collector": "coolant-bms", "instance": recording.name, "path": f"{folder.name}/{copy.name}"},
        )

    def show(self, elapsed_seconds: float) -> None:
        """Nothing to do: what is due stands in the record."""
