"""Redfish services on the loopback: documents behind sessions, each service on its own port, all on one thread.

What a service does with a request follows DMTF DSP0266 (Redfish specification), "Security details" and "Status codes".
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from contract.errors import ConfigError

_LOOPBACK = "127.0.0.1"
_MAX_BODY_BYTES = 65_536
_REASONS = {
    200: "OK", 201: "Created", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
    405: "Method Not Allowed", 503: "Service Unavailable",
}  # fmt: skip
_SESSIONS = "/redfish/v1/SessionService/Sessions"
_OPEN_TO_ALL = frozenset({"/redfish", "/redfish/v1"})

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Response:
    """What a service answers."""

    status: int
    document: Document | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Service:
    """One Redfish service: `find` returns the document at a path without a slash at its end, or None."""

    def __init__(
        self,
        find: Callable[[str], Document | None],
        *,
        users: Mapping[str, str] | None = None,
        max_sessions: int = 8,
    ) -> None:
        """`users`: passwords by name; none: everything is open to everybody."""
        self.find = find
        self.hangs = False
        """It takes requests and never answers."""
        self.sessions: dict[str, str] = {}
        """Tokens by the address of the session."""
        self.asked: list[str] = []
        """Every request, as `GET /redfish/v1`, oldest first; whoever reads it may empty it."""
        self.users = dict(users or {})
        self._max_sessions = max_sessions

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Answer one request; names of headers are in small letters."""
        path = path.partition("?")[0].rstrip("/")
        self.asked = [*self.asked[-9_999:], f"{method} {path}"]
        if (method, path) == ("POST", _SESSIONS):
            return self._log_in(body)
        if path not in _OPEN_TO_ALL and not self._knows(headers):
            return Response(401)
        if method == "DELETE":
            return Response(204 if self.sessions.pop(path, None) else 404)
        if method != "GET":
            return Response(405, headers={"Allow": "GET"})
        document = self._list_sessions() if path == _SESSIONS else self.find(path)
        return Response(404) if document is None else Response(200, document)

    def _log_in(self, body: bytes) -> Response:
        try:
            asked = json.loads(body)
        except ValueError:
            return Response(400)
        if not isinstance(asked, dict) or self.users.get(str(asked.get("UserName"))) != asked.get("Password"):
            return Response(401)
        if len(self.sessions) >= self._max_sessions:
            return Response(503)
        path, token = f"{_SESSIONS}/{secrets.token_hex(4)}", secrets.token_hex(16)
        self.sessions[path] = token
        return Response(201, {"@odata.id": path}, {"X-Auth-Token": token, "Location": path})

    def _list_sessions(self) -> Document:
        return {"@odata.id": _SESSIONS, "Members": [{"@odata.id": path} for path in self.sessions]}

    def _knows(self, headers: Mapping[str, str]) -> bool:
        if not self.users or headers.get("x-auth-token") in self.sessions.values():
            return True
        kind, _, pair = headers.get("authorization", "").partition(" ")
        try:
            name, _, password = base64.b64decode(pair, validate=True).decode().partition(":")
        except ValueError:
            return False
        return kind == "Basic" and name in self.users and self.users[name] == password


class RedfishServers:
    """Serves each service on a port of its own, as long as the context is open; `base_port` 0: any ports."""

    def __init__(
        self, services: Sequence[Service], base_port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.services = tuple(services)
        self._base_port = base_port
        self._tls = tls
        self._servers: list[asyncio.Server] = []
        self._closing = ExitStack()

    @property
    def urls(self) -> list[str]:
        """Where each service is, once the context is open."""
        scheme = "https" if self._tls else "http"
        return [f"{scheme}://{_LOOPBACK}:{s.sockets[0].getsockname()[1]}" for s in self._servers]

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            self._loop = opening.enter_context(closing(asyncio.new_event_loop()))
            self._thread = threading.Thread(target=self._loop.run_forever, name="redfish", daemon=True)
            self._thread.start()
            opening.callback(self._stop)
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
            self._closing = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    def _stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _listen(self) -> None:
        for number, service in enumerate(self.services):
            port = self._base_port + number if self._base_port else 0
            try:
                server = await asyncio.start_server(
                    partial(self._serve, service), _LOOPBACK, port, ssl=self._tls, backlog=64
                )
            except OSError as error:
                words = f"port {port} for a coolant unit of the twin: {error.strerror}; choose others"
                raise ConfigError("in_use", words) from error
            self._servers.append(server)

    async def _finish(self) -> None:
        for server in self._servers:
            server.close()
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await asyncio.sleep(0)  # transports close at the next turn of the loop

    async def _serve(
        self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            while await _answer(service, reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            pass  # the client left, or what it sent is no request: this connection is over either way
        except asyncio.CancelledError:
            pass  # the service closes
        finally:
            writer.close()


async def _answer(service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; return whether another may follow on this connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(min(int(headers.get("content-length", 0)), _MAX_BODY_BYTES))
    if service.hangs:
        while await reader.read(_MAX_BODY_BYTES):  # swallow what comes until the client gives up
            pass
        return False
    response = service.respond(method, path, headers, body)
    content = b"" if response.document is None else json.dumps(response.document).encode()
    told = {
        **response.headers,
        "OData-Version": "4.0",
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
    }
    status = f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
    fields = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    writer.write(f"{status}{fields}\r\n".encode() + content)
    await writer.drain()
    return headers.get("connection", "").lower() != "close"
