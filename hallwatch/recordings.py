"""Recordings of devices: what is in a folder, and serving it as the devices would.

`FOLDER/NAME.prom` is one exporter page, held for the whole replay. `FOLDER/NAME/SECONDS.prom` are the pages of one
exporter, each shown from that many seconds after the start. `FOLDER/NAME.log` (or another of LOG_SUFFIXES) is a
kernel log, whose lines come as far apart as they were written. NAME becomes the host. `FOLDER/inventory.yaml`,
where there is one, is the map of that hall. Every other file is named as not playable.
"""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from typing_extensions import override

from contract.clock import Clock
from contract.config import NAME_PATTERN
from contract.errors import ConfigError
from ingest.gpu.kernel_log import MAX_LINES
from ingest.kernel.follow.entry import is_entry, parse_entry
from ingest.kernel.formats import parse_line
from ingest.kernel.line import KernelLine
from ingest.kernel.parser import KernelParser
from ingest.topology.hallfile import read_hall_file

INVENTORY = "inventory.yaml"
LOG_SUFFIXES = (".log", ".syslog", ".dmesg", ".kmsg", ".json", ".jsonl", ".txt")

LONGEST_PAUSE_SECONDS = 300.0
"""Longer ones of a log are shortened to it: longer than any two lines of one fault are apart."""

PACE_SECONDS, LONGEST_UNTIMED_SECONDS = 0.1, 600.0
"""How far apart lines without times come, and how long all of a log may take at most."""

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s?\.prom", re.ASCII)
_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The pages of one exporter, by the second from which each is shown."""

    name: str
    seconds: tuple[float, ...]
    pages: tuple[bytes, ...]

    def page(self, elapsed_seconds: float) -> bytes | None:
        """Return the page shown now; None before the first."""
        at = bisect_right(self.seconds, elapsed_seconds)
        return self.pages[at - 1] if at else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedHall:
    """All recordings of a folder."""

    recordings: tuple[Recording, ...]
    logs: tuple[LogRecording, ...]
    inventory: Path | None
    not_playable: tuple[str, ...]
    name: str = "replay"
    synthetic: bool = False
    """What the map says of the hall, where there is one."""

    @property
    def seconds(self) -> float:
        """When the last page is shown for the first time, or the last line written."""
        pages = [recording.seconds[-1] for recording in self.recordings]
        return max([*pages, *(log.seconds[-1] for log in self.logs)])


def read_recordings(folder: Path) -> RecordedHall:
    """Look through a folder; raise ConfigError where nothing in it can be played or its map has a mistake."""
    recordings: dict[str, Recording] = {}
    logs: list[LogRecording] = []
    other = []
    for entry in _entries(folder):
        recording = _read(entry)
        log = _read_log(entry)
        if recording is not None and _is_host(recording.name) and recording.name not in recordings:
            recordings[recording.name] = recording
        elif log is not None and _is_host(log.name):
            logs.append(log)
        elif entry.name != INVENTORY:
            other.append(entry.name + "/" * entry.is_dir())
    if not recordings and not logs:
        raise ConfigError(
            "missing",
            f"{folder} holds no NAME.prom, no NAME/SECONDS.prom and no kernel log NAME.log: nothing to play"
            + (f"; there is {', '.join(other)}" if other else ""),
        )
    inventory = folder / INVENTORY
    hall = read_hall_file(inventory) if inventory.exists() else None
    return RecordedHall(
        recordings=tuple(recordings.values()),
        logs=tuple(logs),
        inventory=inventory if hall is not None else None,
        not_playable=tuple(other),
        name=hall.hall if hall is not None else "replay",
        synthetic=hall.synthetic if hall is not None else False,
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError("unreadable", f"{folder}: {error.strerror}") from error


def _read(entry: Path) -> Recording | None:
    if entry.is_dir():
        pages = _pages(entry)
        return (
            Recording(name=entry.name, seconds=tuple(pages), pages=tuple(pages.values())) if pages else None
        )
    if entry.suffix == ".prom":
        return Recording(name=entry.stem, seconds=(0.0,), pages=(entry.read_bytes(),))
    return None


def _read_log(entry: Path) -> LogRecording | None:
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


def _is_host(name: str) -> bool:
    """Tell whether a recording's name can be a host's: a file from elsewhere may have any."""
    return bool(_NAME.match(name)) and name.isprintable()


def _pages(folder: Path) -> dict[float, bytes]:
    named = [(match, path) for path in folder.iterdir() if (match := _SECONDS.fullmatch(path.name))]
    return {
        float(match[1]): path.read_bytes()
        for match, path in sorted(named, key=lambda pair: float(pair[0][1]))
    }


class LogWriter:
    """Writes a recorded log into a file, as its host did."""

    def __init__(self, recording: LogRecording, folder: Path) -> None:
        self.path = folder / f"{recording.name}.{recording.instance}"
        self._recording = recording
        self._written = 0
        folder.mkdir(exist_ok=True)
        self.path.touch()

    @property
    def due_seconds(self) -> float:
        """When the next line comes; infinite behind the last one."""
        seconds = self._recording.seconds
        return seconds[self._written] if self._written < len(seconds) else math.inf

    def write_until(self, elapsed_seconds: float) -> None:
        """Add the lines that came until now, but no more than a collector reads at once: time waits for the rest."""
        end = min(bisect_right(self._recording.seconds, elapsed_seconds), self._written + MAX_LINES)
        if end > self._written:
            with self.path.open("ab") as log:
                log.write(b"\n".join(self._recording.lines[self._written : end]) + b"\n")
            self._written = end


@contextmanager
def serve(recordings: Sequence[Recording], clock: Clock) -> Iterator[dict[str, str]]:
    """Serve every recording on a loopback port by the given clock; yield the URLs by name."""
    began = clock.monotonic()
    servers = [_server(recording, clock, began) for recording in recordings]
    threads = [
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True) for server in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield {
            recording.name: f"http://127.0.0.1:{server.server_address[1]}/metrics"
            for recording, server in zip(recordings, servers, strict=True)
        }
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _server(recording: Recording, clock: Clock, began: float) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            page = recording.page(clock.monotonic() - began)
            self.send_response(200 if page is not None else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            self.wfile.write(page or b"")

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet: the collector tells how each scrape went."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)
