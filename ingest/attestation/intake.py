"""The collector that takes evidence in, judges it, and keeps it."""

from __future__ import annotations

import base64
import hashlib
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import orjson
from pydantic import Field, field_validator, model_validator

from contract.config import NAME_PATTERN
from contract.errors import CollectError, ConfigError, ContractError
from contract.log import Log
from contract.streams.attestation import ATTESTATION_EVIDENCE, ATTESTATION_RESULTS
from ingest.attestation.collateral import read_collateral
from ingest.attestation.drop import DropFolder, Dropped, Identity, is_host
from ingest.attestation.evidence import MAX_EVIDENCE_BYTES, Evidence, read_evidence
from ingest.attestation.policy import baseline, read_policy
from ingest.attestation.receiver import Receiver, read_token, server_context
from ingest.attestation.roots import shipped_roots, with_twin_roots
from ingest.attestation.seen import FirstSeen
from ingest.attestation.steps import VERIFIERS, Setting, Verification, detect
from ingest.collector import CollectorConfig, Context, Reading, Rows, collector

_READING_BYTES = 4_194_304
"""One reading takes no more once it has so much: its rows of one host are one message."""

_ARCHIVED = 2_048
"""Digests of evidence that was archived last: what comes again is judged again and kept once."""

_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})

_log = Log("ingest.attestation")


class AttestImportConfig(CollectorConfig):
    """A folder that evidence is dropped into."""

    folder: Path = Field(description="Where evidence appears: `HOST/FILE`, or `FILE` with `host` below.")
    host: str | None = Field(
        default=None,
        pattern=NAME_PATTERN,
        max_length=255,
        description="The host of evidence that lies in the folder itself and does not name one.",
    )
    policy: Path | None = Field(
        default=None, description="What is allowed; otherwise the baseline that is shipped."
    )
    collateral: Path | None = Field(
        default=None,
        description="Folder of certificates and revocation lists that do not come with the evidence.",
    )
    roots: Path | None = Field(
        default=None,
        description="Folder of the twin's roots, for a hall that is synthetic; otherwise the vendors'.",
    )
    at: Literal["now", "evidence"] = Field(
        default="now",
        description="The time that certificates are judged at. `evidence`: the evidence's own, for archives; where it "
        "has none, that of its file.",
    )
    max_evidence_bytes: int = Field(
        default=MAX_EVIDENCE_BYTES, gt=0, le=MAX_EVIDENCE_BYTES, description="A larger file is set aside."
    )
    quiet_seconds: float = Field(
        default=2,
        ge=0,
        le=3600,
        description="A file is whole when it has not changed for so long, or when its name ends in `.evidence`.",
    )
    keep_hours: float = Field(
        default=24, ge=0, le=8760, description="How long files stay in `taken/` and `set-aside/`."
    )
    listen: str | None = Field(
        default=None,
        pattern=r"^(\[[0-9a-fA-F:]+\]|[^\s:]+):\d{1,5}$",
        description="Take evidence by HTTP too, like `127.0.0.1:8183`: `POST /evidence/HOST`.",
    )
    request_seconds: float = Field(
        default=10, gt=0, le=600, description="A request that takes longer is cut, whatever it does."
    )
    token_file: Path | None = Field(
        default=None, description="File of a token that senders show: `Authorization: Bearer TOKEN`."
    )
    certificate: Path | None = Field(default=None, description="The receiver's certificate chain, PEM: TLS.")
    key: Path | None = Field(default=None, description="Its private key, PEM.")
    client_ca: Path | None = Field(
        default=None,
        description="Senders must have a certificate of this authority, PEM, that names their host: mutual TLS.",
    )
    interval_seconds: float = Field(
        default=2, gt=0, le=3600, description="Time from one reading to the next."
    )

    @field_validator("listen")
    @classmethod
    def _is_port(cls, listen: str | None) -> str | None:
        if listen is not None and int(listen.rpartition(":")[2]) > 65_535:
            raise ValueError("a port is at most 65535")
        return listen

    @model_validator(mode="after")
    def _is_safe(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("`certificate` and `key` belong together")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("`client_ca` needs `certificate` and `key`: mutual TLS is TLS")
        secured = self.certificate is not None and (self.client_ca is not None or self.token_file is not None)
        if self.listen is not None and self.address[0] not in _LOOPBACK and not secured:
            raise ValueError(
                "`listen` beyond this machine needs `certificate` and `key`, and `client_ca` or `token_file`"
            )
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The address to listen on."""
        host, _, port = (self.listen or "127.0.0.1:0").rpartition(":")
        return host.strip("[]"), int(port)


@collector("attest-import", AttestImportConfig, (ATTESTATION_RESULTS, ATTESTATION_EVIDENCE), consumes=True)
class AttestImportCollector:
    """Reads attestation evidence that others fetch: from a folder it appears in, and by HTTP.

    ```toml
    [[ingest.collectors]]
    collector = "attest-import"
    folder = "/var/lib/hallwatch/evidence"
    listen = "127.0.0.1:8183"
    ```

    It reads every kind that `hallwatch attest verify` knows, binary, as text or in a parcel; each file becomes a row of
    `attestation_results`, and its bytes one of `attestation_evidence`, once by digest. What comes by HTTP is a file in
    the folder before it is acknowledged.

    It needs to read, write and rename in the folder, and no privilege beside: give it a user of its own. A listener
    beyond this machine needs TLS, and a token or certificates of its senders.

    A poll costs the machines whose evidence it is nothing: nobody is asked. It costs us one look into the folder, and
    some milliseconds of one core for each file; a reading ends after half its timeout, the rest waits its turn.

    A half-written file waits. What is too large, no plain file, of no known kind or of no host, or what no row can hold,
    goes to `set-aside/`, with the reason beside it and in `collector_status`. A report that comes again in a new wrapping
    is as old as when it came first. A file is in one place at any time, and its place is stored with its
    rows: kill it when you like, no evidence is lost or told twice. Where the folder is gone, the reading fails; where
    evidence stops coming, rules tell, not the collector.
    """

    def __init__(self, config: AttestImportConfig, context: Context) -> None:
        self._config = config
        self._clock = context.clock
        self._policy = read_policy(config.policy) if config.policy else baseline()
        self._roots = (
            with_twin_roots(config.roots, synthetic=context.hall.synthetic)
            if config.roots
            else shipped_roots()
        )
        self._drop = DropFolder(
            config.folder,
            max_bytes=config.max_evidence_bytes,
            quiet_seconds=config.quiet_seconds,
            keep_hours=config.keep_hours,
            clock=context.clock,
        )
        self._archived: dict[bytes, None] = {}
        self._new: list[bytes] = []
        self._seen = FirstSeen()
        self._receiver = _receiver(config)
        self._is_queued = True

    @property
    def port(self) -> int | None:
        """The port of the receiver; None where there is none."""
        return self._receiver.port if self._receiver else None

    def collect(self, now_us: int) -> Reading:
        if self._is_queued:
            self._drop.settle()
        else:
            self._forget()
        self._is_queued, self._new = False, []
        return self._take(now_us)

    def _forget(self) -> None:
        """Take back a reading whose rows were not queued: all of it is read again."""
        self._drop.forget()
        for digest in self._new:
            self._archived.pop(digest, None)

    def _take(self, now_us: int) -> Reading:
        until = self._clock.monotonic() + self._config.timeout_seconds / 2
        kept: tuple[bytes, ...] | None = None
        results: list[dict[str, Any]] = []
        archive: list[dict[str, Any]] = []
        size = 0
        for dropped in self._drop.take(until):
            kept = self._collateral() if kept is None else kept
            row = self._judge(dropped, kept, now_us)
            if row is not None:
                results.append(row)
                archive += self._archive(dropped, row)
                size += len(dropped.body)
            if size >= _READING_BYTES:
                break
        both = ((ATTESTATION_RESULTS, results), (ATTESTATION_EVIDENCE, archive))
        return Reading(
            rows=[Rows.gather(stream, rows) for stream, rows in both if rows], rejected=self._rejected()
        )

    def cursor(self) -> bytes:
        self._is_queued = True  # it is asked for when all rows of the reading are queued with it
        return orjson.dumps(
            {
                "folder": str(self._config.folder),
                "handed_out": {name: list(identity) for name, identity in self._drop.handed_out.items()},
                "archived": base64.b64encode(b"".join(self._archived)).decode(),
                "first_seen": self._seen.dump(),
            }
        )

    def restore(self, cursor: bytes) -> None:
        try:
            kept = orjson.loads(cursor)
            digests = base64.b64decode(kept["archived"])
            self._seen.load(kept.get("first_seen", ""))
            handed_out = {name: Identity(*identity) for name, identity in kept["handed_out"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        self._archived = dict.fromkeys(digests[at : at + 32] for at in range(0, len(digests), 32))
        if kept.get("folder") == str(self._config.folder):
            self._drop.restore(handed_out)

    def close(self) -> None:
        if self._receiver is not None:
            self._receiver.close()

    def _collateral(self) -> tuple[bytes, ...]:
        try:
            return read_collateral(self._config.collateral) if self._config.collateral else ()
        except ConfigError as error:
            raise CollectError("unreadable", str(error)) from error

    def _judge(self, dropped: Dropped, kept: tuple[bytes, ...], now_us: int) -> dict[str, Any] | None:
        """Return the row of a file; None where it was set aside."""
        try:
            evidence = read_evidence(
                dropped.body, dropped.name, taken_us=dropped.identity.modified_ns // 1000
            )
        except CollectError as error:
            self._drop.set_aside(dropped, error.reason, str(error))
            return None
        kind = evidence.kind if evidence.kind in VERIFIERS.all() else detect(evidence)
        host = dropped.host or evidence.host or self._config.host
        if kind is None:
            self._drop.set_aside(dropped, "unknown_kind", "no evidence of a kind that is known here")
            return None
        if host is None or not is_host(host):
            self._drop.set_aside(
                dropped, "no_host", "put it into a folder named after its host, or configure `host`"
            )
            return None
        try:
            found = self._verify(kind, evidence, kept, now_us, dropped.identity.modified_ns // 1000)
            row = {**found.row(), "host": host}
            _check(row, now_us)
        except ContractError as error:
            self._drop.set_aside(dropped, error.reason, str(error))
            return None
        except Exception as error:  # noqa: BLE001 - a defect that one file shows must not hold up all behind it
            _log.error(
                "defect", evidence=evidence.digest, traceback="".join(traceback.format_exception(error))
            )
            self._drop.set_aside(dropped, "defect", f"{type(error).__name__}: {error}")
            return None
        return row

    def _verify(
        self, kind: str, evidence: Evidence, kept: tuple[bytes, ...], now_us: int, file_us: int
    ) -> Verification:
        """Judge evidence, which is never younger than its file nor than its signed part where that was seen before."""
        verifier = VERIFIERS.all()[kind]
        at_us = self._time_us(kind, evidence, now_us)
        setting = Setting(at_us=at_us, roots=self._roots, policy=self._policy, kept=kept)
        found = verifier.verify(evidence, setting)
        # Only genuine evidence is remembered: anybody can make any number of others, until all else is forgotten.
        if self._config.at == "evidence" or found.verdict != "genuine":
            return found
        known_us = self._seen.note(found.digest, max(0, min(file_us, now_us)))
        if found.evidence_us is None or found.evidence_us <= known_us:
            return found
        return verifier.verify(replace(evidence, taken_us=known_us), setting)

    def _time_us(self, kind: str, evidence: Evidence, now_us: int) -> int:
        if self._config.at == "now":
            return now_us
        own = VERIFIERS.all()[kind].time_us(evidence)
        return own or evidence.taken_us or now_us

    def _archive(self, dropped: Dropped, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the row of the archive, unless the bytes are there already."""
        digest = hashlib.sha256(dropped.body).digest()
        known = digest in self._archived
        self._archived.pop(digest, None)
        self._archived[digest] = None
        if len(self._archived) > _ARCHIVED:
            del self._archived[next(iter(self._archived))]
        if not known:
            self._new.append(digest)
            yield {
                "host": row["host"],
                "digest": digest.hex(),
                "kind": row["kind"],
                "name": dropped.name[:255],
                "size_bytes": len(dropped.body),
                "evidence": dropped.body,
            }

    def _rejected(self) -> Counter[str]:
        refused, self._drop.refused = self._drop.refused, Counter()
        return refused + (self._receiver.counts() if self._receiver else Counter())


def _check(row: dict[str, Any], now_us: int) -> None:
    """Raise ContractError for a row that the stream would refuse, and with it all others of the reading."""
    columns = {"ts": now_us, "synthetic": True, **row}
    ATTESTATION_RESULTS.clean({name: [value] for name, value in columns.items()})


def _receiver(config: AttestImportConfig) -> Receiver | None:
    if config.listen is None:
        return None
    tls = None
    if config.certificate is not None and config.key is not None:
        tls = server_context(config.certificate, config.key, config.client_ca)
    return Receiver(
        config.folder,
        config.address,
        max_bytes=config.max_evidence_bytes,
        deadline_seconds=config.request_seconds,
        token=read_token(config.token_file) if config.token_file else None,
        tls=tls,
    )
