"""Recorded Redfish services: `NAME.redfish/` or `NAME/SECONDS.redfish/` holds the documents of one, as mockups do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from typing_extensions import override

from contract.clock import Clock
from contract.errors import CollectError
from hallwatch.recordings.recording import Table, on_loopback, read_timed, shown_at
from ingest.coolant.redfish_client import NotThere
from ingest.coolant.redfish_folder import RedfishFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecording:
    """The documents of one service, by the second from which each set is shown."""

    name: str
    seconds: tuple[float, ...]
    folders: tuple[RedfishFolder, ...]

    noun = "Redfish service"
    polled = True
    notes = ()

    @property
    def last_seconds(self) -> float:
        return self.seconds[-1]

    @contextmanager
    def play(self, folder: Path, clock: Clock, *, mapped: bool) -> Iterator[ServicePlayer]:
        """Serve the documents on a loopback port."""
        del folder, mapped
        with on_loopback(_handler(self, clock, clock.monotonic())) as url:
            yield ServicePlayer(self.name, url)


def read_services(entry: Path) -> ServiceRecording | None:
    """Read the documents of a service; None for anything else."""
    timed: dict[float, RedfishFolder] = {}
    for at, path in read_timed(entry, ".redfish").items():
        try:
            timed[at] = RedfishFolder(path)
        except CollectError:
            return None
    if not timed:
        return None
    name = entry.name.removesuffix(".redfish")
    return ServiceRecording(name=name, seconds=tuple(timed), folders=tuple(timed.values()))


class ServicePlayer:
    """Documents that a server shows by the clock it was given."""

    due_seconds = math.inf

    def __init__(self, name: str, url: str) -> None:
        self.tables: Sequence[Table] = (
            {"collector": "coolant-redfish", "equipment": name, "url": url, "interval_seconds": 1},
        )

    def show(self, elapsed_seconds: float) -> None:
        """Nothing to do: the server looks at the clock."""


def _handler(recording: ServiceRecording, clock: Clock, began: float) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # one packet an answer: two would wait for an acknowledgement that is delayed

        def do_GET(self) -> None:
            at = shown_at(recording.seconds, clock.monotonic() - began)
            try:
                found = None if at is None else recording.folders[at].get(self.path.partition("?")[0])
            except NotThere:
                found = None
            body = b"" if found is None else json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet: the collector tells how each request went."""

    return Handler
