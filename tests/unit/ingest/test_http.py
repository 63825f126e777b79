"""Fetching pages from devices that misbehave."""

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from contract.clock import SystemClock
from contract.errors import CollectError
from ingest.http import PageClient

Answer = Callable[[socket.socket], None]


class Device:
    """A server on a port of its own that treats each connection as its answer says."""

    def __init__(self, answer: Answer) -> None:
        self.connections = 0
        self.requests: list[bytes] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/metrics"
        self._closing = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while request := connection.recv(65_536):
                self.requests.append(request)
                self._answer(connection)

    def close(self) -> None:
        """Cut everything and wait for every thread."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def device() -> Iterator[Callable[[Answer], Device]]:
    devices = []

    def start(answer: Answer) -> Device:
        devices.append(Device(answer))
        return devices[-1]

    yield start
    for made in devices:
        made.close()


def client(url: str, *, timeout_seconds: float = 5.0, max_bytes: int = 1_000_000) -> PageClient:
    return PageClient(url, timeout_seconds=timeout_seconds, max_bytes=max_bytes, clock=SystemClock())


def refusal(url: str, **options) -> CollectError:
    """Return the error that one request ends with."""
    with client(url, **options) as pages, pytest.raises(CollectError) as raised:
        pages.get()
    return raised.value


def say(text: str | bytes) -> Answer:
    content = text.encode() if isinstance(text, str) else text
    return lambda connection: connection.sendall(content)


def page(body: str, *headers: str, status: str = "200 OK") -> Answer:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return say("\r\n".join([*head, "", body]))


def drip(head: bytes, piece: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            time.sleep(0.05)
            connection.sendall(piece)

    return answer


def test_pages_come_over_one_kept_connection(device):
    server = device(page("a 1\n"))
    with client(server.url) as pages:
        for _ in range(3):
            fetched = pages.get()
            assert (fetched.body, fetched.whole) == (b"a 1\n", True)
    assert (server.connections, len(server.requests)) == (1, 3)
    assert server.requests[0].startswith(b"GET /metrics HTTP/1.1\r\n")


def test_a_chunked_page_is_whole_and_one_that_ends_with_the_connection_may_not_be(device):
    chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\na 1\n\r\n0\r\n\r\n"
    with client(device(say(chunked)).url) as pages:
        assert pages.get() == (b"a 1\n", True)

    def hang_up(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\na 1\nb 2")
        connection.shutdown(socket.SHUT_WR)

    with client(device(hang_up).url) as pages:
        assert pages.get() == (b"a 1\nb 2", False)


def test_nobody_listening_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    assert refusal(f"http://127.0.0.1:{port}/metrics").reason == "unreachable"


@pytest.mark.parametrize("status", ["500 Internal Server Error", "404 Not Found", "204 No Content"])
def test_any_status_but_200_is_an_error_and_the_next_page_is_good(device, status):
    answers = [page("no", status=status) if "204" not in status else say("HTTP/1.1 204 No Content\r\n\r\n")]

    def answer(connection: socket.socket) -> None:
        reply = answers.pop() if answers else page("a 1\n")
        reply(connection)

    server = device(answer)
    with client(server.url) as pages:
        with pytest.raises(CollectError) as raised:
            pages.get()
        assert raised.value.reason == "bad_status"
        assert pages.get().body == b"a 1\n"


def test_a_redirect_is_not_followed(device):
    other = device(page("a 1\n"))
    server = device(page("", f"Location: {other.url}", status="302 Found"))
    assert refusal(server.url).reason == "bad_status"
    assert other.connections == 0


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(say(""), id="says nothing"),
        pytest.param(drip(b"", b"H"), id="drips its first line"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"), id="drips headers"),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b"a"), id="drips its body"),
        pytest.param(
            drip(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"), id="drips chunks"
        ),
        pytest.param(
            drip(b"HTTP/1.1 102 Processing\r\n\r\n", b"HTTP/1.1 102 Processing\r\n\r\n"), id="processes"
        ),
        pytest.param(drip(b"HTTP/1.1 200 OK\r\n\r\n", b"a"), id="drips without a length"),
    ],
)
def test_a_device_that_is_slow_in_any_way_is_cut_off_at_the_timeout(device, answer):
    """Without a bound over the whole answer every drip would last as long as the device likes."""
    error = refusal(device(answer).url, timeout_seconds=0.4)
    assert error.reason == "timeout"


def test_the_time_begins_anew_with_each_request(device):
    def answer(connection: socket.socket) -> None:
        time.sleep(0.3)
        page("a 1\n")(connection)

    server = device(answer)
    with client(server.url, timeout_seconds=0.8) as pages:
        assert [pages.get().body for _ in range(4)] == [b"a 1\n"] * 4


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n",
    ],
)
def test_an_endless_page_ends_at_the_size_limit(device, head):
    chunk = b"10000\r\n" + b"a" * 65_536 + b"\r\n" if b"chunked" in head else b"a" * 65_536

    def answer(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(chunk)

    assert refusal(device(answer).url).reason == "too_large"


def test_endless_headers_end_too(device):
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while True:
            connection.sendall(b"a: " + b"b" * 60_000 + b"\r\n")

    assert refusal(device(answer).url).reason == "unreadable"


def test_a_page_cut_short_of_its_length_is_unreadable(device):
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na 1\n")
        connection.shutdown(socket.SHUT_WR)

    assert refusal(device(answer).url).reason == "unreadable"


@pytest.mark.parametrize(
    "nonsense", [b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"\x00\xff" * 50 + b"\r\n\r\n", b"HTTP/9.9 x\r\n\r\n"]
)
def test_what_is_not_http_is_unreadable(device, nonsense):
    assert refusal(device(say(nonsense)).url).reason == "unreadable"


def test_a_connection_closed_at_once_is_an_error(device):
    def answer(connection: socket.socket) -> None:
        connection.shutdown(socket.SHUT_RDWR)

    assert refusal(device(answer).url).reason == "unreadable"


def test_a_compressed_page_is_refused_unopened(device):
    bomb = gzip.compress(bytes(50_000_000))
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    assert refusal(device(say(head + bomb)).url).reason == "unreadable"


def test_a_device_that_restarts_is_found_again(device):
    """The kept connection is dead; the next request opens another."""

    def once(connection: socket.socket) -> None:
        page("a 1\n")(connection)
        connection.shutdown(socket.SHUT_RDWR)

    server = device(once)
    with client(server.url) as pages:
        assert pages.get().body == b"a 1\n"
        time.sleep(0.05)
        assert pages.get().body == b"a 1\n"
    assert server.connections == 2
