"""Recorded kernel logs: `NAME.log`, or another of LOG_SUFFIXES, whose lines come as far apart as they were written."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.clock import Clock
from hallwatch.recordings.recording import Table
from ingest.gpu.kernel_log import MAX_LINES
from ingest.kernel.follow.entry import is_entry, parse_entry
from ingest.kernel.formats import parse_line
from ingest.kernel.line import KernelLine
from ingest.kernel.parser import KernelParser

LOG_SUFFIXES = (".log", ".syslog", ".dmesg", ".kmsg", ".json", ".jsonl", ".txt")

LONGEST_PAUSE_SECONDS = 300.0
"""Longer ones of a log are shortened to it: longer than any two lines of one fault are apart."""

PACE_SECONDS, LONGEST_UNTIMED_SECONDS = 0.1, 600.0
"""How far apart lines without times come, and how long all of a log may take at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecording:
    """A kernel log, by the second at which each line is written."""

    name: str
    instance: str
    """The file's suffix: tells apart several logs of one host."""
    seconds: tuple[float, ...]
    lines: tuple[bytes, ...]
    shortened: bool
    """A pause was longer than LONGEST_PAUSE_SECONDS."""

    noun = "log"
    polled = False

    @property
    def last_seconds(self) -> float:
        return self.seconds[-1]

    @property
    def notes(self) -> Sequence[str]:
        if not self.shortened:
            return ()
        return (
            f"Pauses of more than {LONGEST_PAUSE_SECONDS / 60:.0f} minutes in logs were shortened to that.",
        )

    @contextmanager
    def play(self, folder: Path, clock: Clock, *, mapped: bool) -> Iterator[LogWriter]:
        del clock, mapped
        yield LogWriter(self, folder)


def read_log(entry: Path) -> LogRecording | None:
    """Read a kernel log; None for a file that is none: no line of it has a time or says anything."""
    if entry.suffix not in LOG_SUFFIXES or not entry.is_file():
        return None
    lines = tuple(line for line in entry.read_bytes().split(b"\n") if line.strip())
    read = [_message(line, journal=is_entry(lines[0])) for line in lines]
    times = [None if found is None or found.ts_us is None else found.ts_us / 1e6 for found in read]
    if not any(at is not None for at in times) and not _says_anything(read):
        return None
    seconds, shortened = _paced(times)
    return LogRecording(
        name=entry.stem, instance=entry.suffix[1:], seconds=tuple(seconds), lines=lines, shortened=shortened
    )


def _message(line: bytes, *, journal: bool) -> KernelLine | None:
    """Return the message of a line; its time only tells how far it is from others."""
    return parse_entry(line) if journal else parse_line(line, boot_us=0, now_us=time.time_ns() // 1000)


def _says_anything(messages: Iterable[KernelLine | None]) -> bool:
    parser = KernelParser()
    parser.feed([message for message in messages if message is not None], 0)
    found = parser.events(0)
    return bool(found.gpu or found.fabric)


def _paced(times: Sequence[float | None]) -> tuple[list[float], bool]:
    """Return when each line comes, and whether a pause was shortened; time never goes back.

    A line without a time comes with the one before it. Where no line has one, all come at one pace.
    """
    if all(at is None for at in times):
        pace = min(PACE_SECONDS, LONGEST_UNTIMED_SECONDS / len(times))
        return [number * pace for number in range(len(times))], False
    seconds: list[float] = []
    elapsed, before, shortened = 0.0, None, False
    for at in times:
        if at is not None:
            pause = 0.0 if before is None else max(0.0, at - before)
            shortened |= pause > LONGEST_PAUSE_SECONDS
            elapsed += min(pause, LONGEST_PAUSE_SECONDS)
            before = at if before is None else max(before, at)
        seconds.append(elapsed)
    return seconds, shortened


class LogWriter:
    """Writes a recorded log into a file, as its host did."""

    def __init__(self, recording: LogRecording, folder: Path) -> None:
        self.path = folder / f"{recording.name}.{recording.instance}"
        self._recording = recording
        self._written = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.path.touch()

    @property
    def tables(self) -> Sequence[Table]:
        return (
            {
                "collector": "gpu-kernel-log",
                "host": self._recording.name,
                "instance": self._recording.instance,
                "source": "file",
                "path": f"{self.path.parent.name}/{self.path.name}",
                "start": "beginning",
                "times": "reading",  # the replay has a clock of its own
            },
        )

    @property
    def due_seconds(self) -> float:
        """When the next line comes; infinite behind the last one."""
        seconds = self._recording.seconds
        return seconds[self._written] if self._written < len(seconds) else math.inf

    def show(self, elapsed_seconds: float) -> None:
        """Add the lines that came until now, but no more than a collector reads at once: time waits for the rest."""
        end = min(bisect_right(self._recording.seconds, elapsed_seconds), self._written + MAX_LINES)
        if end > self._written:
            with self.path.open("ab") as log:
                log.write(b"\n".join(self._recording.lines[self._written : end]) + b"\n")
            self._written = end
