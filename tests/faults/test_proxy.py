"""The proxy spoils connections as it says, and counts it."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.faults.nemesis.proxy import LATENCY_SECONDS, SLOW_BYTES, Proxy

pytestmark = pytest.mark.faults

QUESTION = b"x" * (3 * SLOW_BYTES + 1)


class Echo(socketserver.ThreadingTCPServer):
    """Sends back what it gets, and keeps it."""

    daemon_threads = True

    def __init__(self) -> None:
        self.heard = b""
        super().__init__(("127.0.0.1", 0), EchoHandler)


class EchoHandler(socketserver.BaseRequestHandler):
    server: Echo

    def handle(self) -> None:
        while chunk := self.request.recv(65_536):
            self.server.heard += chunk
            self.request.sendall(chunk)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    proxy = Proxy()
    proxy.start(echo.server_address[1])
    yield proxy
    proxy.stop()


def ask(proxy: Proxy, patience_seconds: float = 30.0) -> bytes:
    """Return what comes back before the connection ends or patience does."""
    answer = b""
    with closing(socket.create_connection(("127.0.0.1", proxy.port))) as connection:
        connection.settimeout(patience_seconds)
        try:
            connection.sendall(QUESTION)
            while len(answer) < len(QUESTION) and (chunk := connection.recv(65_536)):
                answer += chunk
        except OSError:
            return answer
    return answer


@pytest.mark.parametrize("mode", ["pass", "latency", "slow_read"])
def test_what_is_only_slow_arrives_whole(proxy: Proxy, mode) -> None:
    proxy.set(mode)
    assert ask(proxy) == QUESTION
    assert (proxy.spoiled > 0) == (mode != "pass")


def test_a_cut_connection_brings_nothing_and_a_new_one_everything(proxy: Proxy, echo: Echo) -> None:
    proxy.set("cut")
    assert ask(proxy) == b""
    assert echo.heard == b""
    assert proxy.spoiled == 1
    proxy.set("pass")
    assert ask(proxy) == QUESTION


def test_a_black_hole_takes_everything_and_says_nothing(proxy: Proxy, echo: Echo) -> None:
    proxy.set("black_hole")
    assert ask(proxy, patience_seconds=2 * LATENCY_SECONDS) == b""
    assert echo.heard == b""
    assert proxy.spoiled > 0


def test_a_half_closed_connection_delivers_the_question_and_no_answer(proxy: Proxy, echo: Echo) -> None:
    proxy.set("half_close")
    assert ask(proxy) == b""
    assert echo.heard == QUESTION
    assert proxy.spoiled > 0
