"""Recordings of devices: what is in a folder, and serving it on loopback as the devices would.

`FOLDER/NAME.prom` is one exporter page, held for the whole replay. `FOLDER/NAME/SECONDS.prom` are the pages of one
exporter, each shown from that many seconds after the start; NAME becomes the host. `FOLDER/inventory.yaml`, where
there is one, is the map of that hall. Every other file is named as not playable.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from typing_extensions import override

from contract.clock import Clock
from contract.config import NAME_PATTERN
from contract.errors import ConfigError
from ingest.topology.hallfile import read_hall_file

INVENTORY = "inventory.yaml"
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
class RecordedHall:
    """All recordings of a folder."""

    recordings: tuple[Recording, ...]
    inventory: Path | None
    not_playable: tuple[str, ...]
    name: str = "replay"
    synthetic: bool = False
    """What the map says of the hall, where there is one."""

    @property
    def seconds(self) -> float:
        """When the last page is shown for the first time."""
        return max(recording.seconds[-1] for recording in self.recordings)


def read_recordings(folder: Path) -> RecordedHall:
    """Look through a folder; raise ConfigError where nothing in it can be played or its map has a mistake."""
    recordings: dict[str, Recording] = {}
    other = []
    for entry in _entries(folder):
        recording = _read(entry)
        if recording is not None and _is_host(recording.name) and recording.name not in recordings:
            recordings[recording.name] = recording
        elif entry.name != INVENTORY:
            other.append(entry.name + "/" * entry.is_dir())
    if not recordings:
        raise ConfigError(
            "missing",
            f"{folder} holds no NAME.prom and no NAME/SECONDS.prom: nothing to play"
            + (f"; there is {', '.join(other)}" if other else ""),
        )
    playable, inventory = tuple(recordings.values()), folder / INVENTORY
    if not inventory.exists():
        return RecordedHall(recordings=playable, inventory=None, not_playable=tuple(other))
    hall = read_hall_file(inventory)
    return RecordedHall(
        recordings=playable,
        inventory=inventory,
        not_playable=tuple(other),
        name=hall.hall,
        synthetic=hall.synthetic,
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


def _is_host(name: str) -> bool:
    """Tell whether a recording's name can be a host's: a file from elsewhere may have any."""
    return bool(_NAME.match(name)) and name.isprintable()


def _pages(folder: Path) -> dict[float, bytes]:
    named = [(match, path) for path in folder.iterdir() if (match := _SECONDS.fullmatch(path.name))]
    return {
        float(match[1]): path.read_bytes()
        for match, path in sorted(named, key=lambda pair: float(pair[0][1]))
    }


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
