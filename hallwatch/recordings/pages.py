"""Recorded exporter pages: `NAME.prom`, held for the whole replay, or `NAME/SECONDS.prom`, each shown from then on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from typing_extensions import override

from contract.clock import Clock
from hallwatch.recordings.recording import Table, on_loopback, read_timed, shown_at


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRecording:
    """The pages of one exporter, by the second from which each is shown."""

    name: str
    seconds: tuple[float, ...]
    pages: tuple[bytes, ...]

    noun = "device"
    polled = True
    notes = ()

    @property
    def last_seconds(self) -> float:
        return self.seconds[-1]

    def page(self, elapsed_seconds: float) -> bytes | None:
        """Return the page shown now; None before the first."""
        at = shown_at(self.seconds, elapsed_seconds)
        return None if at is None else self.pages[at]

    @contextmanager
    def play(self, folder: Path, clock: Clock, *, mapped: bool) -> Iterator[PageServer]:
        """Serve the pages on a loopback port."""
        del folder
        with serve(self, clock) as url:
            yield PageServer(self.name, url, mapped=mapped)


def read_pages(entry: Path) -> PageRecording | None:
    """Read the pages of an exporter; None for anything else."""
    timed = read_timed(entry, ".prom")
    if not timed:
        return None
    name = entry.name.removesuffix(".prom")
    pages = tuple(path.read_bytes() for path in timed.values())
    return PageRecording(name=name, seconds=tuple(timed), pages=pages)


class PageServer:
    """Pages that a server shows by the clock it was given."""

    due_seconds = math.inf

    def __init__(self, name: str, url: str, *, mapped: bool) -> None:
        self.tables: Sequence[Table] = (
            {
                "collector": "gpu-dcgm",
                "host": name,
                "url": url,
                "interval_seconds": 1,
                "host_from_label": not mapped,
            },
        )

    def show(self, elapsed_seconds: float) -> None:
        """Nothing to do: the server looks at the clock."""


@contextmanager
def serve(recording: PageRecording, clock: Clock) -> Iterator[str]:
    """Serve a recording on a loopback port by the given clock; yield its URL."""
    with on_loopback(_handler(recording, clock, clock.monotonic())) as url:
        yield f"{url}/metrics"


def _handler(recording: PageRecording, clock: Clock, began: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet an answer: two would wait for an acknowledgement that is delayed

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

    return Handler
