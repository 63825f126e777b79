"""An exporter over HTTP: it serves, hangs, refuses and comes back at the same address."""

import socket
import threading

import httpx
import pytest

from contract.errors import ConfigError
from twin.server import Exporters


@pytest.fixture
def exporters():
    with Exporters(2, lambda host: f"page of {host}\n".encode()) as running:
        yield running


@pytest.fixture
def client():
    with httpx.Client(timeout=5) as http:
        yield http


def test_each_host_serves_its_own_page(exporters, client):
    answers = [client.get(url) for url in exporters.urls]
    assert [answer.text for answer in answers] == ["page of 0\n", "page of 1\n"]
    assert answers[0].headers["content-type"] == "text/plain; charset=utf-8"
    assert client.get(exporters.urls[0].replace("/metrics", "/health")).text == "OK"


def test_an_unknown_path_or_method_is_an_error_of_the_client(exporters, client):
    assert client.get(exporters.urls[0].replace("/metrics", "/nothing")).status_code == 404
    assert client.post(exporters.urls[0]).status_code == 405


def test_a_connection_is_kept_until_the_client_or_the_end_of_the_exporter_closes_it(exporters):
    with connect(exporters.urls[0]) as connection:
        for _ in range(3):
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
            assert connection.recv(4096).endswith(b"page of 0\n")
        exporters.follow(["refuse", "serve"])
        assert_is_over(connection)


@pytest.mark.parametrize("request_line", [b"HTTP/1.0\r\n", b"HTTP/1.1\r\nConnection: close\r\n"])
def test_a_client_that_wants_one_answer_gets_one(exporters, request_line):
    with connect(exporters.urls[0]) as connection:
        connection.sendall(b"GET /metrics " + request_line + b"\r\n")
        assert connection.recv(4096).endswith(b"page of 0\n")
        assert_is_over(connection)


def test_a_restarted_exporter_refuses_and_returns_at_the_same_address(exporters, client):
    url = exporters.urls[0]
    exporters.follow(["refuse", "serve"])
    with pytest.raises(httpx.ConnectError):
        client.get(url)
    assert client.get(exporters.urls[1]).text == "page of 1\n"
    exporters.follow(["serve", "serve"])
    assert exporters.urls[0] == url
    assert client.get(url).text == "page of 0\n"


def test_a_hanging_exporter_accepts_and_never_answers(exporters, client):
    assert client.get(exporters.urls[0]).status_code == 200
    exporters.follow(["hang", "serve"])
    with pytest.raises(httpx.ReadTimeout):
        client.get(exporters.urls[0], timeout=0.3)
    assert client.get(exporters.urls[1]).text == "page of 1\n"
    exporters.follow(["serve", "serve"])
    assert client.get(exporters.urls[0]).text == "page of 0\n"


def test_what_is_no_request_ends_the_connection_and_nothing_else(exporters, client):
    with connect(exporters.urls[0]) as connection:
        connection.sendall(b"x" * 200_000)
        assert_is_over(connection)
    assert client.get(exporters.urls[0]).text == "page of 0\n"


def test_a_base_port_is_the_address_of_the_first_host(client):
    with Exporters(1, lambda _host: b"") as other:
        free = httpx.URL(other.urls[0]).port or 0
    with Exporters(1, lambda _host: b"again", base_port=free) as running:
        assert running.urls == [f"http://127.0.0.1:{free}/metrics"]
        assert client.get(running.urls[0]).text == "again"


def test_a_port_in_use_is_an_error_at_the_start():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        exporters = Exporters(1, lambda _host: b"", base_port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match="Address already in use; choose others") as caught:
            exporters.__enter__()
    assert caught.value.reason == "in_use"


def test_two_twins_never_share_a_port_and_one_may_follow_the_other(client):
    with Exporters(1, lambda _host: b"first") as first:
        port = int(first.urls[0].rpartition(":")[2].partition("/")[0])
        assert client.get(first.urls[0]).content == b"first"
        for answer in ("serve", "refuse", "hang"):
            first.follow([answer])
            with pytest.raises(ConfigError, match="--base-port"), Exporters(1, lambda _host: b"", port):
                raise AssertionError
        first.follow(["serve"])
    with Exporters(1, lambda _host: b"second", port) as second:
        assert client.get(second.urls[0]).content == b"second"


def test_closing_leaves_no_thread_behind():
    before = threading.active_count()
    with Exporters(1, lambda _host: b""):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def connect(url):
    address = httpx.URL(url)
    return socket.create_connection((address.host, address.port), timeout=5)


def assert_is_over(connection):
    """The other side has closed, by an orderly end or by a reset."""
    try:
        assert connection.recv(4096) == b""
    except ConnectionResetError:
        return
