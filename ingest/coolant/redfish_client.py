"""Asking a Redfish service: one session, one connection, documents of bounded size, all within one deadline.

DMTF DSP0266 (Redfish specification 1.20), "Security details": sessions, X-Auth-Token, basic authentication.
"""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import orjson
from pydantic import AfterValidator, Field, model_validator

from contract.clock import Clock
from contract.errors import CollectError, ConfigError
from contract.log import Log
from ingest.collector import EquipmentConfig
from ingest.coolant.loops import LoopConfig
from ingest.http import Answer, SiteClient, Url

_log = Log("ingest")

ROOT = "/redfish/v1/"
SESSIONS = "/redfish/v1/SessionService/Sessions"

MISSING = frozenset({404, 410})

_PATH = re.compile(r"/(?!/)[!-~]{0,1023}", re.ASCII)
"""An address on the same server, and nothing that could end a line of the request."""

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_SECRET_BYTES = 4_096


def _check_base(text: str) -> str:
    if urlsplit(text).path not in ("", "/") or urlsplit(text).query:
        raise ValueError("only scheme, host and port belong here: the rest is Redfish's")
    return text


class RedfishConfig(EquipmentConfig, LoopConfig):
    """A Redfish service."""

    url: Annotated[Url, AfterValidator(_check_base)] = Field(
        description="Where the service is, like `https://10.0.40.11`."
    )
    timeout_seconds: float = Field(
        default=8, gt=0, le=600, description="A reading that takes longer is ended with what was read."
    )
    ca_file: Path | None = Field(
        default=None,
        description="Certificates that the service is checked with (PEM); else the machine's.",
    )
    username: str | None = Field(
        default=None, max_length=255, description="User who logs in; a role that may only read is enough."
    )
    password_file: Path | None = Field(default=None, description="File that holds the password.")
    auth: Literal["session", "basic"] = Field(
        default="session",
        description="`session`: one session, kept and closed at the end; `basic`: the password with each request.",
    )
    plain_password: bool = Field(
        default=False, description="Send the password without TLS, too; on this machine itself it always is."
    )
    cited_sensors: bool = Field(
        default=True,
        description="Read the sensors that readings come from as well: their limits, and whether they agree.",
    )
    max_document_bytes: int = Field(default=1_048_576, gt=0, description="A larger document is an error.")
    max_reading_bytes: int = Field(
        default=33_554_432, gt=0, description="A reading takes no more than so much in all."
    )
    max_documents: int = Field(
        default=1_000, gt=0, le=20_000, description="A reading asks for no more than so many."
    )

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file belong together")
        url = urlsplit(self.url)
        plain = url.scheme == "http" and url.hostname not in _LOOPBACK
        if self.username is not None and plain and not self.plain_password:
            raise ValueError(
                "plain_password: the password would be sent without TLS; use https, or set it true"
            )
        return self


class NotThere(CollectError):
    """The service has no document at that address."""

    def __init__(self, address: str) -> None:
        super().__init__("bad_status", f"{address}: there is no such document")


class RedfishClient:
    """Reads documents of one service. Not safe for two threads."""

    def __init__(self, config: RedfishConfig, clock: Clock) -> None:
        """Raise ConfigError where a file of the configuration cannot be read."""
        self._site = SiteClient(
            config.url,
            timeout_seconds=config.timeout_seconds,
            max_bytes=config.max_document_bytes,
            clock=clock,
            tls=_tls(config),
        )
        self._where = config.url.rstrip("/")
        self._user = config.username
        self._password = "" if config.password_file is None else _read_secret(config.password_file)
        self._basic = config.auth == "basic"
        self._max_bytes = config.max_reading_bytes
        self._bytes = 0
        self._token: str | None = None
        self.session: str | None = None
        """Address of the session that is open, so that a later process can close what this one leaves behind."""
        self.left_behind: str | None = None
        """A session of an earlier process, closed as soon as there is a new one."""
        self.refused = 0
        """Times no session was to be had since the start of the round, and the password went along instead."""

        self._renewed = False
        """Whether a new session was opened in this round: one that refuses its own tokens gets no more of them."""

    def start(self) -> None:
        """Begin a round: from now on everything must be over within the timeout."""
        self._site.start()
        self.refused = self._bytes = 0
        self._renewed = False

    def get(self, path: str) -> dict[str, Any]:
        """Return a document.

        Raises NotThere, or CollectError: unreachable, timeout, too_large, unreadable, bad_status.
        """
        if self._bytes > self._max_bytes:
            raise CollectError(
                "too_large", f"{self._where}: more than {self._max_bytes} bytes in one reading"
            )
        answer = self._site.ask("GET", path, self._credentials())
        if answer.status == 401 and self._token is not None and not self._renewed:
            self._renewed = True
            self._forget_session()  # it expired, or the service restarted
            answer = self._site.ask("GET", path, self._credentials())
        self._bytes += len(answer.body)
        if answer.status in MISSING:
            raise NotThere(self._where + path)
        if answer.status != 200:
            raise CollectError("bad_status", f"{self._where}{path}: status {answer.status} where 200 belongs")
        return self._document(path, answer)

    def close(self) -> None:
        """Close the session and the connection; one that is gone already is closed, too."""
        try:
            if self.session is not None:
                self._site.start()
                self._end(self.session)
        finally:
            self._forget_session()
            self._site.close()

    def _document(self, path: str, answer: Answer) -> dict[str, Any]:
        try:
            document = orjson.loads(answer.body)  # refuses what is nested deeper than 1,024 levels
        except orjson.JSONDecodeError as error:
            raise CollectError("unreadable", f"{self._where}{path}: no JSON: {error}") from error
        if not isinstance(document, dict):
            raise CollectError("unreadable", f"{self._where}{path}: no JSON object")
        return document

    def _credentials(self) -> Mapping[str, str]:
        if self._user is None:
            return {}
        if not self._basic and self._token is None and not self.refused:
            self._log_in()
        if self._token is not None:
            return {"X-Auth-Token": self._token}
        pair = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    def _log_in(self) -> None:
        """Open a session; where the service has none to give, go on without.

        Its sessions may be used up by others who never close theirs, for as long as those last.
        """
        body = orjson.dumps({"UserName": self._user, "Password": self._password})
        answer = self._site.ask("POST", SESSIONS, {"Content-Type": "application/json"}, body)
        token = answer.headers.get("x-auth-token")
        if answer.status in (401, 403):
            raise CollectError(
                "bad_status", f"{self._where}: status {answer.status}: the password is refused"
            )
        if answer.status not in (200, 201, 204) or not token:
            self.refused += 1
            return
        self._token, self.session = token, _path_of(answer.headers.get("location", ""))
        if self.left_behind not in (None, self.session):
            self._end(str(self.left_behind))
        self.left_behind = None

    def _end(self, session: str) -> None:
        """Delete a session; a service that does not take it lets it expire by itself."""
        try:
            answer = self._site.ask("DELETE", session, self._credentials())
        except CollectError as error:
            _log.warning("session_left_open", service=self._where, reason=error.reason, error=str(error))
            return
        if answer.status not in (200, 202, 204, 401, 404):
            _log.warning("session_left_open", service=self._where, status=answer.status)

    def _forget_session(self) -> None:
        self._token = self.session = None


def checked_path(link: object) -> str | None:
    """Return the address that a link of a document names on the same server; None where it names none."""
    if not isinstance(link, str):
        return None
    path = link.partition("#")[0]
    return path if _PATH.fullmatch(path) else None


def _path_of(location: str) -> str | None:
    """Return the path of a Location header, which may be a whole address."""
    return checked_path(urlsplit(location).path if "://" in location else location)


def _tls(config: RedfishConfig) -> ssl.SSLContext | None:
    if not config.url.startswith("https:") or config.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(config.ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("unreadable", f"ca_file {config.ca_file}: {error}") from error


def _read_secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_SECRET_BYTES).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("unreadable", f"password_file {path}: {error}") from error
