"""The HTTP door of a drop folder: a body becomes a whole file there, and only then is it acknowledged.

Built for strangers: nothing is read before its size is known and allowed, no request lasts longer than its deadline
whatever it does, and no more than a few are served at a time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import ssl
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from contract.errors import CollectError, ConfigError
from contract.files import write_whole
from ingest.attestation.drop import OURS, WHOLE_SUFFIX, count_waiting

MOST_AT_ONCE = 16
MOST_WAITING = 1_000
"""Files in the folder above which nothing more is taken: the reader is behind, senders wait."""

_PATH = re.compile(r"/evidence/([A-Za-z0-9_-][A-Za-z0-9._-]{0,254})")
_MAX_TOKEN_BYTES = 4_096
_MIN_TOKEN_BYTES = 16


class Answer(NamedTuple):
    """Status of an answer and a sentence that says what to do."""

    status: int
    words: str


class Receiver:
    """Serves `POST /evidence/HOST` from a thread of its own until it is closed."""

    def __init__(
        self,
        folder: Path,
        address: tuple[str, int],
        *,
        max_bytes: int,
        deadline_seconds: float,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind the address; raise ConfigError(in_use) where it is not to be had."""
        self._desk = _Desk(folder, max_bytes, token)
        try:
            self._server = _Server(address, self._desk, deadline_seconds, tls)
        except OSError as error:
            raise ConfigError(
                "in_use", f"listen = {address[0]}:{address[1]}: {error.strerror or error}"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="receiver", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def counts(self) -> Counter[str]:
        """Return, and forget, how many requests were refused since the last call, by status."""
        return self._desk.counts()

    def close(self) -> None:
        """Take nothing more; what is in the folder stays."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Desk:
    """What is the same for every request: whom to believe, where to put what they bring."""

    def __init__(self, folder: Path, max_bytes: int, token: str | None) -> None:
        self._folder = folder
        self.max_bytes = max_bytes
        self._token = None if token is None else f"Bearer {token}".encode()
        self._room = 0
        self._refused: Counter[str] = Counter()
        self._lock = threading.Lock()

    def refuse(self, status: int) -> None:
        with self._lock:
            self._refused[f"http_{status}"] += 1

    def counts(self) -> Counter[str]:
        with self._lock:
            counts, self._refused = self._refused, Counter()
        return counts

    def check(self, path: str, headers: Any, names: frozenset[str] | None) -> Answer | None:
        """Return why a request is refused before its body is read; None where it is welcome.

        `names`: the hosts that the sender's certificate speaks for; None where none is asked for.
        """
        given = (headers.get("Authorization") or "").encode(errors="replace")
        if self._token is not None and not hmac.compare_digest(given, self._token):
            return Answer(401, "send the header Authorization: Bearer TOKEN")
        match = _PATH.fullmatch(path)
        if match is None or match[1] in OURS:
            return Answer(404, "post to /evidence/HOST")
        if names is not None and match[1] not in names:
            return Answer(403, "post for a host that your certificate names")
        length = headers.get("Content-Length") or ""
        if headers.get("Transfer-Encoding") or not re.fullmatch(r"[0-9]{1,12}", length):
            return Answer(411, "say how long the evidence is: Content-Length")
        if not 0 < int(length) <= self.max_bytes:
            return Answer(413, f"evidence has 1 to {self.max_bytes} bytes")
        if not self._has_room():
            return Answer(503, "too many wait; come again later")
        return None

    def store(self, path: str, body: bytes) -> Answer:
        """Put a body where the folder's reader finds it; return when it is durable."""
        match = _PATH.fullmatch(path)
        host = match[1] if match else ""
        digest = hashlib.sha256(body).hexdigest()
        try:
            try:
                self._write(self._folder / host, digest, body)
            except FileNotFoundError:  # an empty folder that was removed just now
                self._write(self._folder / host, digest, body)
        except OSError as error:
            return Answer(507, f"it could not be stored: {error.strerror}")
        return Answer(202, digest)

    def _write(self, folder: Path, digest: str, body: bytes) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        # A name of this thread's own: two may bring the same.
        part = folder / f".{digest}.{threading.get_ident()}"
        write_whole(part, body, 0o600)
        part.replace(folder / f"{digest}{WHOLE_SUFFIX}")

    def _has_room(self) -> bool:
        """Tell whether one more may wait; they are counted again only when so many came as there was room for."""
        with self._lock:
            if self._room <= 0:
                try:
                    self._room = MOST_WAITING - count_waiting(self._folder, MOST_WAITING)
                except CollectError:
                    return True  # storing meets the error again, and tells it
            self._room -= 1
            return self._room >= 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], desk: _Desk, deadline_seconds: float, tls: ssl.SSLContext | None
    ) -> None:
        self.desk = desk
        self.tls = tls
        self.deadline_seconds = deadline_seconds
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.desk.refuse(503)
            self.shutdown_request(request)

    @override
    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer: threading.Timer | None = None
        try:
            if self.tls is not None:  # before the timer: wrapping takes the socket out of the one it is given
                request = self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            request.settimeout(self.deadline_seconds)
            timer = threading.Timer(self.deadline_seconds, _cut, (request,))
            timer.daemon = True
            timer.start()
            if self.tls is not None:
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except OSError:
            self.desk.refuse(400)  # no handshake, or a client that the certificate authority does not know
            request.close()
        finally:
            if timer is not None:
                timer.cancel()
            self._free.release()

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Count a connection that broke: who it was says nothing."""
        self.desk.refuse(400)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        desk = self.server.desk
        refusal = desk.check(self.path, self.headers, _names(self.connection))
        if refusal is not None:
            self._answer(refusal)
            return
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            self._answer(Answer(408, "the evidence ended before its length"))
            return
        self._answer(desk.store(self.path, body))

    def _answer(self, answer: Answer) -> None:
        if answer.status >= 400:
            self.server.desk.refuse(answer.status)
        body = f"{answer.words}\n".encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    @override
    def version_string(self) -> str:
        return "hallwatch"

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet: refusals are counted."""


def _cut(request: socket.socket) -> None:
    """End a connection from outside its thread."""
    try:
        # Not the method of a TLS socket: that one takes its state away under the thread that reads.
        socket.socket.shutdown(request, socket.SHUT_RDWR)
    except OSError:
        return  # it has ended by itself


def _names(connection: socket.socket) -> frozenset[str] | None:
    """Return DNS names and common name of the client's certificate; None where clients need none."""
    if not isinstance(connection, ssl.SSLSocket) or connection.context.verify_mode is not ssl.CERT_REQUIRED:
        return None
    certificate: dict[str, Any] = connection.getpeercert() or {}
    subject = (part for parts in certificate.get("subject", ()) for part in parts)
    named = (*subject, *certificate.get("subjectAltName", ()))
    return frozenset(name for kind, name in named if kind in ("commonName", "DNS"))


def read_token(path: Path) -> str:
    """Return the token in a file; raise ConfigError where it is not there, too short or no plain text."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_TOKEN_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError("unreadable", f"{path}: {error.strerror}") from error
    if not _MIN_TOKEN_BYTES <= len(text) <= _MAX_TOKEN_BYTES or not text.isascii() or b"\n" in text:
        raise ConfigError("invalid", f"{path}: a token is one line of at least {_MIN_TOKEN_BYTES} letters")
    return text.decode()


def server_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """Return TLS 1.2 or later for a server, which asks clients for a certificate where `client_ca` is given.

    Raises ConfigError where a file cannot be used.
    """
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("unreadable", f"{certificate}, {key}, {client_ca}: {error}") from error
    return context
