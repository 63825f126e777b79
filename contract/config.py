"""Configuration: one TOML file and the environment, into frozen models that refuse unknown keys.

An environment variable overrides a key of the file: `HALLWATCH_BUS__PATH` is `path` in `[bus]`.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from typing_extensions import override

from contract.errors import ConfigError

PREFIX = "HALLWATCH_"
NAME_PATTERN = r"^[^\s/@]+$"
"""Source names are `collector@host/instance`, so no part may hold a separator."""


class StrictConfig(BaseModel):
    """Base of all configuration: frozen, and an unknown key is an error that names it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    _file_folder: Path = PrivateAttr(default=Path())

    @property
    def file_folder(self) -> Path:
        """What relative paths count from: the file's own folder."""
        return self._file_folder

    def anchored(self, folder: Path) -> Self:
        """Return a copy whose relative paths, and those of its sections, count from a folder."""

        def at(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(at(item) for item in value)
            if isinstance(value, StrictConfig):
                return value.anchored(folder)
            return folder / value if isinstance(value, Path) else value

        copy = self.model_copy(update={key: at(value) for key, value in self})
        copy._file_folder = folder  # noqa: SLF001 - of this class
        return copy

    def unused(self) -> frozenset[str]:
        """Return keys that mean nothing beside the values of others."""
        return frozenset()


class HallSection(StrictConfig):
    """The hall itself."""

    name: str = Field(
        pattern=NAME_PATTERN, max_length=100, description="Name of the hall: no spaces, no / and no @."
    )
    synthetic: bool = Field(
        default=False, description="Rows come from the twin; rows that disagree are refused."
    )
    inventory: Path | None = Field(default=None, description="The map of the hall, a YAML file.")


class BusSection(StrictConfig):
    """Where events travel."""

    kind: Literal["local", "kafka"] = Field(
        default="local", description="`local`: one SQLite file on this machine; `kafka`: a cluster."
    )
    path: Path = Field(default=Path("bus"), description="local: folder of the log.")
    fsync: bool = Field(default=True, description="local: survive power loss, not only a process's death.")
    retention_hours: float = Field(default=72, gt=0, description="Older messages are deleted.")
    retention_bytes: int = Field(
        default=20_000_000_000, gt=0, description="local: the oldest messages above this size are deleted."
    )
    servers: str | None = Field(
        default=None,
        pattern=r"^[^\s,]+:\d+(,[^\s,]+:\d+)*$",
        description="kafka: some brokers, as host:port,host:port.",
    )
    replication_factor: int = Field(
        default=1, ge=1, description="kafka: copies of topics that are made; all but one must acknowledge."
    )
    ca_file: Path | None = Field(
        default=None, description="kafka: certificates that brokers are checked with (PEM); turns TLS on."
    )
    certificate_file: Path | None = Field(
        default=None, description="kafka: certificate that proves who this is (PEM)."
    )
    key_file: Path | None = Field(default=None, description="kafka: its private key (PEM).")
    username: str | None = Field(
        default=None, description="kafka: user who logs in instead (SCRAM-SHA-512 over TLS)."
    )
    password_file: Path | None = Field(default=None, description="kafka: file that holds the password.")
    group_instance_id: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._-]+$",
        max_length=200,
        description="kafka: lasting name of this process within its group: a quick restart moves no partition.",
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        """Refuse keys of the other kind, and halves of what belongs together."""
        if foreign := sorted(self.model_fields_set & self.unused()):
            raise ValueError(f"{', '.join(foreign)}: not for kind = {self.kind!r}")
        if self.kind == "kafka":
            self._check_kafka()
        return self

    def _check_kafka(self) -> None:
        if self.servers is None:
            raise ValueError("servers: missing; name some brokers, as host:port")
        for one, other in (("certificate_file", "key_file"), ("username", "password_file")):
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ValueError(f"{one} and {other} belong together")
        if self.username is not None and self.certificate_file is not None:
            raise ValueError("username and certificate_file: one of them says who this is, not both")
        if self.ca_file is None and (self.username or self.certificate_file):
            raise ValueError("ca_file: missing; without TLS nobody may log in")

    @override
    def unused(self) -> frozenset[str]:
        local, kafka = _LOCAL_KEYS, frozenset(type(self).model_fields) - _LOCAL_KEYS - _SHARED_KEYS
        return local if self.kind == "kafka" else kafka

    @property
    def place(self) -> str:
        """Say in a few words which bus this is."""
        return str(self.path) if self.servers is None else self.servers


_LOCAL_KEYS = frozenset({"path", "fsync", "retention_bytes"})
_SHARED_KEYS = frozenset({"kind", "retention_hours"})


class LakeSection(StrictConfig):
    """Where rows end up."""

    path: Path = Field(default=Path("lake"), description="Folder of the Delta tables, one per stream.")
    flush_seconds: float = Field(default=5, gt=0, description="A file is written at least this often.")
    sparse_flush_seconds: float = Field(default=30, gt=0, description="The same for streams of few rows.")
    flush_rows: int = Field(
        default=400_000, gt=0, description="A file is written when this many rows are gathered."
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="Port of the sink's own metrics; 0 = none."
    )


class EngineSection(StrictConfig):
    """The alert engine."""

    path: Path = Field(
        default=Path("engine"), description="Folder of the journal, the snapshots and the signing key."
    )
    rules: tuple[Path, ...] = Field(
        default=(), description="Rule files or folders; empty = the shipped rules."
    )
    notifiers: tuple[dict[str, Any], ...] = Field(
        default=({"notifier": "stdout"},),
        description="Who is told; each table names its notifier, the rest is its own.",
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="Port of the engine's own metrics; 0 = none."
    )


class IngestSection(StrictConfig):
    """The collectors of this machine."""

    path: Path = Field(default=Path("ingest"), description="Folder of cursors and spools.")
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="Port of the runner's own metrics; 0 = none."
    )
    collectors: tuple[dict[str, Any], ...] = Field(
        default=(), description="One table per collector: `collector` names it, the rest is its own."
    )


class Config(StrictConfig):
    """Everything, by section."""

    hall: HallSection
    bus: BusSection = BusSection()
    lake: LakeSection = LakeSection()
    ingest: IngestSection = IngestSection()
    engine: EngineSection = EngineSection()


_Model = TypeVar("_Model", bound=BaseModel)


def load_config(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read a configuration file; relative paths in it count from its folder.

    Raises ConfigError naming the file and the key.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            "unreadable", f"{path}: {error.strerror}; name another file with --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("invalid", f"{path}: not TOML: {error}") from error
    variables = _override(values, environment)
    config = parse_model(Config, values, " and ".join([str(path), *variables]))
    return config.anchored(path.resolve().parent)


def parse_model(model: type[_Model], values: Mapping[str, Any], where: str) -> _Model:
    """Validate values; turn pydantic's report into one ConfigError that a person can act on."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines, reason = [], "invalid"
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"]) or "(top)"
            if problem["type"] == "extra_forbidden":
                reason = "unknown_key"
                lines.append(f"{where}: unknown key {key!r}")
            else:
                lines.append(f"{where}: {key}: {_words(problem)}")
        raise ConfigError(reason, "\n".join(lines)) from error


def _words(problem: Mapping[str, Any]) -> str:
    match problem["type"]:
        case "missing":
            return "missing"
        case "model_type" | "dict_type":
            return "a table belongs here, [in brackets]"
        case "string_pattern_mismatch":
            return f"{problem['input']!r} does not match {problem['ctx']['pattern']}"
        case _:
            return str(problem["msg"]).removeprefix("Value error, ")


def _override(values: dict[str, Any], environment: Mapping[str, str]) -> list[str]:
    """Put variables over keys; return which were there, for whoever looks for a mistake in the file alone."""
    used = []
    for variable, value in environment.items():
        if not variable.startswith(PREFIX) or "__" not in variable:
            continue
        section, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        target = values.setdefault(section, {})
        if isinstance(target, dict):
            target[key] = value
            used.append(variable)
    return used
