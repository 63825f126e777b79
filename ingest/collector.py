"""What a collector is: it asks one device and returns rows; everything else is the runner's.

A collector is one file in a subfolder of `ingest`: a configuration, and a class under `@collector`. Its docstring
becomes its page in `docs/collectors.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import Field

from contract.clock import Clock
from contract.config import NAME_PATTERN, HallSection, StrictConfig
from contract.registry import Registry
from contract.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of one stream of one tick: values by column, all of one length.

    The runner adds `synthetic`, and `ts` and `host` or `equipment` where they are not given: rows are of the time of the reading,
    unless they tell of something that was when they say.
    """

    stream: Stream
    columns: Mapping[str, list[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    @classmethod
    def gather(cls, stream: Stream, rows: Sequence[Mapping[str, Any]]) -> Rows:
        """Turn rows into columns; what a row does not name is null."""
        names = dict.fromkeys(name for row in rows for name in row)
        return cls(stream=stream, columns={name: [row.get(name) for row in rows] for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one look at a device gave."""

    rows: Sequence[Rows] = ()
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Pieces of the answer that could not be read, by reason out of a short list."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Pieces that were read and hold nothing to keep: blanks, other entities; by reason out of a short list."""


class Collector(Protocol):
    """Reads one device. Called from one thread, never twice at a time."""

    def collect(self, now_us: int) -> Reading:
        """Ask the device once; return within the configured timeout.

        `now_us` is the time of the rows. Raises CollectError where the device gives no usable answer.
        """
        ...

    def cursor(self) -> bytes:
        """Return what must be remembered across restarts; it is stored together with the rows of the reading.

        Asked for once all of them are queued: rows of a reading after which it is not asked for were not taken.
        """
        ...

    def restore(self, cursor: bytes) -> None:
        """Take up what an earlier process remembered; one that cannot be read is as good as none."""
        ...

    def close(self) -> None: ...


class CollectorConfig(StrictConfig):
    """What every collector's table in the configuration has."""

    subject_column: ClassVar[str] = ""
    """The column, and the key of the configuration, that says whom it reads; empty where that is the hall."""

    collector: str = Field(description="Name of the collector.")
    instance: str = Field(
        default="main",
        pattern=NAME_PATTERN,
        max_length=64,
        description="Tells apart several of one collector at one place.",
    )
    interval_seconds: float = Field(
        default=10, gt=0, le=3600, description="Time from one reading to the next."
    )
    timeout_seconds: float = Field(
        default=5, gt=0, le=600, description="A reading that takes longer has failed."
    )

    @property
    def subject(self) -> str:
        """The host or the equipment it reads; empty where it reads the hall itself."""
        return str(getattr(self, self.subject_column)) if self.subject_column else ""


class HostConfig(CollectorConfig):
    """The table of a collector that reads a host."""

    subject_column: ClassVar[str] = "host"

    host: str = Field(pattern=NAME_PATTERN, max_length=255, description="The host it reads.")


class EquipmentConfig(CollectorConfig):
    """The table of a collector that reads a unit of the building: a coolant unit, a meter."""

    subject_column: ClassVar[str] = "equipment"

    equipment: str = Field(
        pattern=NAME_PATTERN,
        max_length=255,
        description="The unit it reads, as the map of the hall names it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the runner gives every collector beside its configuration."""

    hall: HallSection
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A collector as the registry knows it."""

    name: str
    config: type[CollectorConfig]
    build: Callable[[Any, Context], Collector]
    streams: tuple[Stream, ...]
    doc: str
    consumes: bool = False
    """It takes away what it reads, so that nobody can only look."""


COLLECTORS: Registry[Registration] = Registry("ingest", in_subfolders=True)

_Build = TypeVar("_Build", bound=Callable[[Any, Context], Collector])


def collector(
    name: str, config: type[CollectorConfig], streams: Sequence[Stream], *, consumes: bool = False
) -> Callable[[_Build], _Build]:
    """Register a collector class under the name operators write; it is built with (config, context)."""

    def register(build: _Build) -> _Build:
        doc = build.__doc__ or ""
        registration = Registration(
            name=name, config=config, build=build, streams=tuple(streams), doc=doc, consumes=consumes
        )
        COLLECTORS.add(name, registration)
        return build

    return register
