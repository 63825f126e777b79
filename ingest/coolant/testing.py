"""Redfish collectors for tests, and the rows they give."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contract.clock import Clock
from contract.config import HallSection
from contract.streams.coolant import COOLANT_READINGS
from contract.testing import FakeClock
from ingest.collector import Context, Reading
from ingest.coolant.redfish import RedfishCollector
from ingest.coolant.redfish_client import RedfishConfig
from ingest.testing import rows_of

ROOT = "/redfish/v1"
_LOOPBACK = "127.0.0.1"


def fake_redfish(url: str, *, clock: Clock | None = None, **settings: Any) -> RedfishCollector:
    """Return a collector of the unit `cdu-1`."""
    config = RedfishConfig(collector="coolant-redfish", equipment="cdu-1", url=url, **settings)
    return RedfishCollector(config, Context(hall=HallSection(name="test"), clock=clock or FakeClock()))


def links(**named: str) -> dict[str, Any]:
    """Return a document that holds nothing but links below the root of the service."""
    return {name: {"@odata.id": f"{ROOT}/{path}"} for name, path in named.items()}


def members(*paths: str) -> dict[str, Any]:
    """Return a collection."""
    return {"Members": [{"@odata.id": f"{ROOT}/{path}"} for path in paths]}


def below(documents: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any] | None]:
    """Return what finds documents by their path below the root of the service."""
    return lambda path: documents.get(path.removeprefix(ROOT).lstrip("/"))


def folder(path: Path) -> Callable[[str], Mapping[str, Any] | None]:
    """Return what finds the documents of a mockup, as DMTF lays one out: a folder per resource with an index.json."""

    def find(resource: str) -> Mapping[str, Any] | None:
        file = path / resource.removeprefix(ROOT).lstrip("/") / "index.json"
        document: Mapping[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
        return document

    return find


def points(reading: Reading) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the rows of `coolant_readings` by component, point and role; fail where two have one name."""
    rows = rows_of(reading, COOLANT_READINGS)
    named = {(row["component"], row["point"], row["role"]): row for row in rows}
    assert len(named) == len(rows)
    return named


class SpoiltServer:
    """Takes connections on a port of its own and treats each request as `answer` does, in a thread per connection."""

    def __init__(self, answer: Callable[[socket.socket, bytes], None]) -> None:
        self._answer = answer
        self._listener = socket.create_server((_LOOPBACK, 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{_LOOPBACK}:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Cut all connections and wait for the threads."""
        for held in (self._listener, *self._open):
            with contextlib.suppress(OSError):  # it may be closed already
                held.shutdown(socket.SHUT_RDWR)
            held.close()
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client gave up, or the test is over
            while request := connection.recv(65_536):
                self._answer(connection, request)


def drip(connection: socket.socket, _request: bytes) -> None:
    """Answer byte by byte, for ever."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def pour(connection: socket.socket, _request: bytes) -> None:
    """Answer with a document that has no end."""
    connection.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"Members": [')
    while True:
        connection.sendall(b'{"@odata.id": "/redfish/v1/Chassis/1"},' * 1_000)


def nest(connection: socket.socket, _request: bytes) -> None:
    """Answer with a document that is 10,000 levels deep."""
    body = b'{"Links":' * 10_000 + b"{}" + b"}" * 10_000
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def forget(connection: socket.socket, request: bytes) -> None:
    """Give a token to whoever asks for one, know none of them a moment later, and hang up."""
    if request.startswith(b"POST"):
        head = (
            b"HTTP/1.1 201 Created\r\nX-Auth-Token: t\r\nLocation: /redfish/v1/SessionService/Sessions/1\r\n"
        )
    else:
        head = b"HTTP/1.1 401 Unauthorized\r\n"
    connection.sendall(head + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
    connection.shutdown(socket.SHUT_RDWR)


def refused_url() -> str:
    """Return an address where nobody listens."""
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return f"http://{_LOOPBACK}:{probe.getsockname()[1]}"
