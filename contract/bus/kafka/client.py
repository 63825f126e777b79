"""Clients of a cluster: how a configuration sets them up, what their errors mean, and why they could not connect."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

# The client is a hundred times slower where the first is missing, and cannot write zstd without the second.
import crc32c as _crc32c  # noqa: F401
import kafka
import zstandard as _zstandard  # noqa: F401
from kafka import errors
from kafka.net.compat import KafkaNetClient
from typing_extensions import override

from contract.config import BusSection
from contract.errors import ConfigError, TransportError
from contract.log import Log

CONNECT_SECONDS = 5.0
"""A cluster that lets nobody in for so long is unreachable."""

REQUEST_SECONDS = 5.0

_SETTINGS: dict[str, Any] = {
    "client_id": "hallwatch",
    "bootstrap_timeout_ms": round(CONNECT_SECONDS * 1000),
    # By default a client looks for a broker that came back only every 30 s.
    "reconnect_backoff_max_ms": 1000,
}

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (errors.AuthorizationError, "denied"),
    (errors.SaslAuthenticationFailedError, "denied"),
    (errors.UnknownTopicOrPartitionError, "no_topic"),
    (errors.MessageSizeTooLargeError, "too_large"),
    (errors.RecordListTooLargeError, "too_large"),
)

_PASSING = (
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.LeaderNotAvailableError,
    errors.NotCoordinatorError,
    errors.NotLeaderForPartitionError,
)
"""What a broker says while a cluster settles: after its first start, or while a leader moves."""

_AGAIN_SECONDS = 0.2

_Answer = TypeVar("_Answer")
_log = Log("bus.kafka")


def client_settings(section: BusSection) -> dict[str, Any]:
    """Return what every client of this cluster is made with; raise ConfigError for a file that cannot be read."""
    assert section.servers is not None  # noqa: S101 - the section saw to it
    settings = _SETTINGS | {"bootstrap_servers": section.servers.split(","), "security_protocol": "PLAINTEXT"}
    if section.ca_file is None:
        return settings
    settings |= {"security_protocol": "SSL", "ssl_cafile": _readable(section.ca_file)}
    if section.certificate_file is not None and section.key_file is not None:
        settings["ssl_certfile"] = _readable(section.certificate_file)
        settings["ssl_keyfile"] = _readable(section.key_file)
    if section.username is not None and section.password_file is not None:
        settings |= {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": section.username,
            "sasl_plain_password": _read(section.password_file).strip(),
        }
    return settings


def _readable(path: Path) -> str:
    _read(path)
    return str(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("unreadable", f"[bus] {path}: {error}") from error


def transport_error(error: Exception, doing: str) -> TransportError:
    """Return what an error of the client means."""
    text = _words(error)
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "unreachable")
    if "AuthorizationFailed" in text:
        reason = "denied"  # some come as the text of another error
    return TransportError(reason, f"{doing}: {text}")


def _words(error: Exception) -> str:
    name = type(error).__name__.removesuffix("Error")
    text = ", ".join(map(str, error.args)) if error.args else ""
    return f"{name}: {text}" if text else name


class _Ear(logging.Handler):
    """Listens to the client's own log: only there it says why it cannot connect.

    What it hears goes to our log as a detail; a failure that matters comes back as an error anyway.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._failures: deque[tuple[float, str]] = deque(maxlen=20)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        # Not the last word, which says only that there was no time left.
        if record.name == "kafka.net.manager" and record.msg.startswith("Connection failed"):
            self._failures.append((record.created, record.getMessage()))
        _log.debug("client", logger=record.name, message=record.getMessage())

    def heard_since(self, seconds: float) -> str:
        """Return what kept clients from connecting since a time of the system's clock."""
        return next((text for at, text in reversed(self._failures) if at >= seconds), "")


_EAR = _Ear()
_client_log = logging.getLogger("kafka")
_client_log.handlers[:] = [_EAR]
_client_log.propagate = False


def connect(make: Callable[..., _Answer], settings: dict[str, Any]) -> _Answer:
    """Make a client; raise TransportError with the cause where that fails."""
    began = time.time()
    opened: list[KafkaNetClient] = []

    def open_network(**values: Any) -> KafkaNetClient:
        opened.append(KafkaNetClient(**values))
        return opened[-1]

    try:
        return make(**settings, kafka_client=open_network)
    except (errors.KafkaError, OSError) as error:
        for network in opened:
            # A client that comes to nothing leaves its thread and its sockets behind.
            network.close()
        servers = ",".join(settings["bootstrap_servers"])
        cause = _EAR.heard_since(began) or _words(error)
        hint = "" if settings["security_protocol"] == "PLAINTEXT" else _LOGIN_HINT
        reason = "denied" if "uthentication" in cause else "unreachable"
        raise TransportError(
            reason, f"no broker of {servers} let us in for {CONNECT_SECONDS:.0f} s: {cause}{hint}"
        ) from error


_LOGIN_HINT = (
    " (a broker that does not like our user, password or certificate often just hangs up; its log says why)"
)


class Admin:
    """Asks the cluster. Its client is made when it is needed, and again when it failed. Any thread may ask."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings | {"request_timeout_ms": round(REQUEST_SECONDS * 1000)}
        self._lock = threading.Lock()
        self._client: Any = None
        self._closed = False

    def ask(self, doing: str, question: Callable[[Any], _Answer]) -> _Answer:
        """Return the answer to a question that is put to an admin client; raise TransportError."""
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            client, fresh = self._open()
            try:
                return question(client)
            except _PASSING as error:
                self._drop(client)
                if time.monotonic() > deadline:
                    raise transport_error(error, doing) from error
                time.sleep(_AGAIN_SECONDS)
            except errors.KafkaError as error:
                answered = isinstance(error, errors.BrokerResponseError | errors.KafkaTimeoutError)
                if not answered or isinstance(error, errors.RequestTimedOutError):
                    self._drop(client)
                # A client whose broker was away refuses at once, also when the broker is back: a new one may not.
                if answered or fresh:
                    raise transport_error(error, doing) from error
            except RuntimeError:
                # What kafka-python says where another thread dropped this client meanwhile.
                if self._holds(client):
                    raise

    def _open(self) -> tuple[Any, bool]:
        """Return a client, and whether it was made just now."""
        with self._lock:
            if self._closed:
                raise TransportError("closed", "this bus was closed")
            if self._client is not None:
                return self._client, False
            self._client = connect(kafka.KafkaAdminClient, self._settings)
            return self._client, True

    def _holds(self, client: Any) -> bool:
        with self._lock:
            return self._client is client

    def _drop(self, client: Any) -> None:
        with self._lock:
            if self._client is client:
                self._client = None
        client.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()
