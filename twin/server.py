"""The exporters' HTTP servers: one address per host on loopback, one thread for all of them."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, closing
from functools import partial
from types import TracebackType
from typing import Any, Self

from contract.errors import ConfigError
from twin.hall import Answer

_LOOPBACK = "127.0.0.1"


class Exporters:
    """Serve `page(host position)` of every host on its own port, as long as the context is open.

    With `base_port` 0 the system chooses the ports. A port stays reserved while nobody listens on it,
    so that a refused connection is refused and a restarted exporter finds its place again.
    """

    def __init__(self, hosts: int, page: Callable[[int], bytes], base_port: int = 0) -> None:
        self._page = page
        self._base_port = base_port
        self._answers: list[Answer] = ["refuse"] * hosts
        self._reserved: list[socket.socket] = []
        self._listening: dict[int, asyncio.Server] = {}
        self._open: list[dict[asyncio.StreamWriter, asyncio.Future[None]]] = [{} for _ in range(hosts)]
        self._closing = ExitStack()

    @property
    def urls(self) -> list[str]:
        """Where each host's page is, once the context is open."""
        return [f"http://{_LOOPBACK}:{held.getsockname()[1]}/metrics" for held in self._reserved]

    def __enter__(self) -> Self:
        with ExitStack() as opening:
            for number in range(len(self._answers)):
                held = opening.enter_context(socket.socket())
                self._reserved.append(_reserve(held, self._base_port + number if self._base_port else 0))
            self._loop = opening.enter_context(closing(asyncio.new_event_loop()))
            self._thread = threading.Thread(target=self._loop.run_forever, name="exporters", daemon=True)
            self._thread.start()
            self._closing = opening.pop_all()
        self.follow(["serve"] * len(self._answers))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.follow(["refuse"] * len(self._answers))
        self._run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._closing.close()

    def follow(self, answers: Sequence[Answer]) -> None:
        """Make every exporter answer so from now on; returns when it does."""
        if list(answers) != self._answers:
            self._run(self._follow(answers))

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _follow(self, answers: Sequence[Answer]) -> None:
        for host, (before, after) in enumerate(zip(self._answers, answers, strict=True)):
            if before == after:
                continue
            self._answers[host] = after
            if after == "refuse":
                self._listening.pop(host).close()
            elif host not in self._listening:
                port = self._reserved[host].getsockname()[1]
                self._listening[host] = await asyncio.start_server(
                    partial(self._serve, host), _LOOPBACK, port, reuse_port=True
                )
            if before == "hang" or after == "refuse":
                await self._drop(host)

    async def _drop(self, host: int) -> None:
        """Cut every open connection, as the end of a process does."""
        left = list(self._open[host].values())
        for writer in self._open[host]:
            writer.transport.abort()
        await asyncio.gather(*left)

    async def _finish(self) -> None:
        """Let go of connections that were accepted while the last ones were being cut."""
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await asyncio.sleep(0)  # transports close at the next turn of the loop

    async def _serve(self, host: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self._open[host][writer] = self._loop.create_future()
        try:
            while await self._answer(host, reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # the client left, or what it sent is no request: this connection is over either way
        finally:
            del self._open[host][writer]
            left.set_result(None)
            writer.close()

    async def _answer(self, host: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request, or not, as the host's exporter does; return whether another may follow."""
        request = await reader.readuntil(b"\r\n\r\n")
        if self._answers[host] != "serve":
            while await reader.read(65_536):  # swallow what comes until the client gives up
                pass
            return False
        writer.write(self._respond(host, request))
        await writer.drain()
        return b"connection: close" not in request.lower() and b" HTTP/1.0\r\n" not in request

    def _respond(self, host: int, request: bytes) -> bytes:
        method, path, *_ = [*request.split(b" ", 2), b"", b""]
        if method != b"GET":
            return _response(b"405 Method Not Allowed", b"Method Not Allowed\n")
        match path.partition(b"?")[0]:
            case b"/metrics":
                return _response(b"200 OK", self._page(host))
            case b"/health":
                return _response(b"200 OK", b"OK")
            case _:
                return _response(b"404 Not Found", b"404 page not found\n")


def _reserve(held: socket.socket, port: int) -> socket.socket:
    """Bind a port without listening: connections are refused, and nobody else can take it."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        # Another twin would share its ports with us, and each answer would be of either hall: a socket that does
        # not share them finds out. What is left of closed connections takes no port.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((_LOOPBACK, port))
        held.bind((_LOOPBACK, port))
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        words = f"port {port} for an exporter of the twin: {error.strerror}; choose others with --base-port"
        raise ConfigError("in_use", words) from error
    return held


def _response(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body
