"""What every rule says, whatever its kind. A kind adds its own fields in its own file."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from alerts.duration import Duration
from alerts.expression import ExpressionError, checker
from contract.config import StrictConfig
from contract.stream import ColumnKind, Stream
from contract.streams import STREAMS

DERIVED = frozenset({"alerts", "notifications", "dead_letters"})
"""Written by the pipeline about itself; a rule on them could feed on its own output."""

Severity = Literal["info", "minor", "major", "critical"]

Problem = tuple[str, str]
"""A field and what is wrong with it."""


class Expected(StrictConfig):
    """One transition that a test of a rule waits for."""

    at: Duration
    firing: str | None = None
    ended: str | None = None
    reason: Literal["cleared", "superseded", "expired", "operator"] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Expected:
        if (self.firing is None) == (self.ended is None):
            raise ValueError("name the entity under `firing` or under `ended`")
        if (self.ended is None) != (self.reason is None):
            raise ValueError("an end has a `reason`, and only an end")
        return self


class RuleTest(StrictConfig):
    """Rows in, transitions out, and nothing else."""

    test: str
    rows: tuple[dict[str, Any], ...]
    until: Duration | None = None
    expect: tuple[Expected, ...]


class Rule(StrictConfig):
    """The fields that all kinds share."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=False)

    words: ClassVar[frozenset[str]] = frozenset({"entity"})
    """What a summary may name beside the stream's columns."""

    rule: str = Field(pattern=r"^[a-z][a-z0-9-]{1,62}$", description="Name of the rule, unique in the set.")
    kind: str = Field(default="threshold", description="How it watches.")
    on: str = Field(description="The stream it watches.")
    entity: str | tuple[str, ...] = Field(description="Column, or columns, that name what is watched.")
    severity: Severity = Field(description="How bad it is.")
    owner: str = Field(min_length=1, max_length=255, description="Who is to act.")
    runbook: str | None = Field(default=None, description="Page that says how; docs/runbooks/{rule}.md.")
    summary: str = Field(min_length=1, max_length=1_000, description="First sentence; {column} is filled in.")
    notify: bool = Field(default=True, description="false: recorded, nobody is told.")
    tests: tuple[RuleTest, ...] = ()

    @field_validator("summary")
    @classmethod
    def _is_template(cls, text: str) -> str:
        Template(text)
        return text

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.entity,) if isinstance(self.entity, str) else self.entity

    @property
    def page(self) -> str:
        return self.runbook or f"docs/runbooks/{self.rule}.md"

    def streams(self) -> tuple[str, ...]:
        """Return the streams it reads."""
        return (self.on,)

    def conditions(self) -> dict[str, str]:
        """Return its conditions on the rows of `on`, by field."""
        return {}

    def problems(self) -> Iterator[Problem]:
        """Yield everything that the types alone do not find."""
        for name in self.streams():
            if name not in STREAMS:
                yield "on", f"there is no stream {name!r}"
            elif name in DERIVED:
                yield "on", f"{name} is written from alerts: a rule on it could feed on itself"
        stream = STREAMS.get(self.on)
        if stream is None or stream.name in DERIVED:
            return
        for column in self.columns:
            yield from column_problems("entity", stream, column)
        for field, text in self.conditions().items():
            try:
                checker().check(stream, text)
            except ExpressionError as error:
                yield field, str(error)
        known = {*stream.by_name, *self.words}
        for word in Template(self.summary).words():
            if word not in known:
                yield (
                    "summary",
                    f"{{{word}}} is neither a column of {stream.name} nor one of {sorted(self.words)}",
                )


def column_problems(field: str, stream: Stream, name: str) -> Iterator[Problem]:
    """Yield why a column cannot name an entity."""
    column = stream.by_name.get(name)
    if column is None:
        yield field, f"{stream.name} has no column {name!r}"
    elif column.kind not in (ColumnKind.TEXT, ColumnKind.STATE, ColumnKind.GAUGE):
        yield field, f"{name} is a {column.kind}: it cannot name an entity"


class Template:
    """A sentence with `{word}` where a value belongs."""

    def __init__(self, text: str) -> None:
        """Raise ValueError where braces do not match or ask for a format."""
        self._parts: list[tuple[str, str | None]] = []
        for part, word, form, conversion in string.Formatter().parse(text):
            if form or conversion or word == "":
                raise ValueError(f"write {{column}} and nothing else in braces, not {text!r}")
            self._parts.append((part, word))

    def words(self) -> list[str]:
        return [word for _, word in self._parts if word is not None]

    def fill(self, values: Mapping[str, Any]) -> str:
        """Return the sentence; what is not known is called unknown."""
        return "".join(
            part if word is None else part + _worded(values.get(word)) for part, word in self._parts
        )


def _worded(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:g}" if isinstance(value, float) else str(value)
