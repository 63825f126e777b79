"""Fetching a page from a device under hard bounds, whatever the device does.

Built on httpcore, the engine of httpx: it lets every socket operation be cut at one deadline, which neither a server
that sends a byte a second nor one that drips its headers can move. The look-up of a host name is the resolver's:
give addresses, or names that resolve locally.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Annotated, Any, NamedTuple, Self
from urllib.parse import urlsplit

import httpcore
from pydantic import AfterValidator
from typing_extensions import override

from contract.clock import Clock
from contract.errors import CollectError


def _check_url(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("an address like http://10.0.0.7:9400/metrics belongs here")
    if url.port == 0 or not text.isascii() or any(character.isspace() for character in text):
        raise ValueError("no port 0, no spaces and no letters beyond ASCII: write them as %20 and xn--")
    if url.username is not None:
        raise ValueError("a user and a password in an address would be shown in errors; leave them out")
    return text


Url = Annotated[str, AfterValidator(_check_url)]
"""An address that can be asked."""


class Fetched(NamedTuple):
    """The body of an answer."""

    body: bytes
    whole: bool
    """The device said how long it is; else it may have been cut off."""


class PageClient:
    """Gets one address again and again over one kept connection."""

    def __init__(self, url: str, *, timeout_seconds: float, max_bytes: int, clock: Clock) -> None:
        self._url = url
        self._max_bytes = max_bytes
        self._deadline = _Deadline(timeout_seconds, clock)
        self._timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout_seconds)
        self._pool = httpcore.ConnectionPool(
            # Reading the machine's certificates takes a tenth of a second: only where they are needed.
            ssl_context=ssl.create_default_context() if url.startswith("https:") else None,
            max_connections=1,
            network_backend=_Backend(self._deadline),
        )

    def get(self) -> Fetched:
        """Return the body of a 200 answer.

        Raises CollectError: unreachable, timeout, bad_status (redirects too), too_large, unreadable.
        """
        self._deadline.start()
        with (
            _told(self._url),
            self._pool.stream(
                "GET",
                self._url,
                headers={"Accept": "text/plain", "Accept-Encoding": "identity"},
                extensions={"timeout": self._timeouts},
            ) as answer,
        ):
            if answer.status != 200:
                raise CollectError("bad_status", f"{self._url}: status {answer.status} where 200 belongs")
            names = {name.lower() for name, _ in answer.headers}
            body = _read_body(answer, self._max_bytes, self._url)
            return Fetched(body, b"content-length" in names or b"transfer-encoding" in names)

    def close(self) -> None:
        """Close the kept connection."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Answer(NamedTuple):
    """What a server said to a request; names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class SiteClient:
    """Asks many addresses of one server over one kept connection; all requests of a round share one deadline."""

    def __init__(
        self,
        base: str,
        *,
        timeout_seconds: float,
        max_bytes: int,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._base = base.rstrip("/")
        self._max_bytes = max_bytes
        self._deadline = _Deadline(timeout_seconds, clock)
        self._timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout_seconds)
        if tls is None and base.startswith("https:"):
            tls = ssl.create_default_context()
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls, max_connections=1, network_backend=_Backend(self._deadline)
        )

    def start(self) -> None:
        """Begin a round: from now on everything must be over within the timeout."""
        self._deadline.start()

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> Answer:
        """Send a request and return the whole answer, whatever its status.

        Raises CollectError: unreachable, timeout, too_large, unreadable.
        """
        url = self._base + path
        sent: dict[bytes | str, bytes | str] = {"Accept": "application/json", "Accept-Encoding": "identity"}
        sent.update(headers or {})
        with (
            _told(url),
            self._pool.stream(
                method, url, headers=sent, content=content, extensions={"timeout": self._timeouts}
            ) as answer,
        ):
            named = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers
            }
            return Answer(answer.status, named, _read_body(answer, self._max_bytes, url))

    def close(self) -> None:
        """Close the kept connection."""
        self._pool.close()


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turn what can go wrong with a connection into a CollectError that names the address."""
    try:
        yield
    except httpcore.TimeoutException as error:
        raise CollectError("timeout", f"{url}: no whole answer in time") from error
    except httpcore.NetworkError as error:
        raise CollectError("unreachable", f"{url}: {error}") from error
    except (httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
        raise CollectError("unreadable", f"{url}: {error}") from error


def _read_body(answer: httpcore.Response, max_bytes: int, url: str) -> bytes:
    encodings = [value.lower() for name, value in answer.headers if name.lower() == b"content-encoding"]
    if any(encoding != b"identity" for encoding in encodings):
        raise CollectError("unreadable", f"{url}: compressed although asked not to be")
    parts, size = [], 0
    for part in answer.iter_stream():
        size += len(part)
        if size > max_bytes:
            raise CollectError("too_large", f"{url}: more than {max_bytes} bytes")
        parts.append(part)
    return b"".join(parts)


class _Deadline:
    """The moment at which everything that belongs to one request ends."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self._end = 0.0

    def start(self) -> None:
        self._end = self._clock.monotonic() + self._seconds

    def left(self, timeout: float | None, error: type[httpcore.TimeoutException]) -> float:
        """Return how long one operation may take; raise `error` when the time is over."""
        left = self._end - self._clock.monotonic()
        if left <= 0:
            raise error("the time for the whole answer is over")
        return left if timeout is None else min(left, timeout)


class _Backend(httpcore.NetworkBackend):
    """Opens connections whose every operation ends at the deadline."""

    def __init__(self, deadline: _Deadline) -> None:
        self._deadline = deadline
        self._sockets = httpcore.SyncBackend()

    @override
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(timeout, httpcore.ConnectTimeout)
        stream = self._sockets.connect_tcp(host, port, left, local_address, socket_options)
        return _Stream(stream, self._deadline)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    @override
    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(timeout, httpcore.ReadTimeout))

    @override
    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._deadline.left(timeout, httpcore.WriteTimeout))

    @override
    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._deadline.left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._deadline)

    @override
    def close(self) -> None:
        self._stream.close()

    @override
    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
