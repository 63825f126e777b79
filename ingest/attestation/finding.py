"""Findings: what a check saw that is not as it should be. Codes, severities and effects are tables, one per kind."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SEVERITIES = ("critical", "high", "medium", "low", "info")
"""Worst first."""

_LONGEST = 256


class Effect(enum.StrEnum):
    """Which of the three outcomes a finding touches."""

    FORGED = "forged"
    UNKNOWN = "unknown"
    """Nothing vouches for the evidence: a product or root that is not supported, a signer outside its time."""
    UNCHECKED = "unchecked"
    """Something that the check needs was not there."""
    VIOLATED = "violated"
    NOTE = "note"
    """Worth telling; decides nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One typed result of a check."""

    code: str
    severity: str
    effect: Effect
    expected: str = ""
    got: str = ""
    words: str = ""
    """What it means, for people."""


class Refused(Exception):
    """Ends a step with one finding, where what follows in it would make no sense."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.code)
        self.finding = finding


class NotApplicable(Exception):
    """Ends a step that does not concern this evidence; says why."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings that a kind of evidence can have: makes them, with what the table says of each."""

    rows: dict[str, tuple[str, Effect, str]]

    @classmethod
    def read(cls, *files: str) -> Findings:
        """Read tables beside this file: tab-separated code, severity, effect and words under a header."""
        rows: dict[str, tuple[str, Effect, str]] = {}
        for file in files:
            rows |= _table(file)
        return cls(rows)

    def make(self, code: str, *, expected: object = "", got: object = "") -> Finding:
        """Make the finding of a code, its texts cut to a bounded length."""
        severity, effect, words = self.rows[code]
        return Finding(
            code=code,
            severity=severity,
            effect=effect,
            words=words,
            expected=_shown(expected),
            got=_shown(got),
        )


def worst(findings: tuple[Finding, ...]) -> str | None:
    """Return the worst severity; None where there is no finding."""
    return min((one.severity for one in findings), key=SEVERITIES.index, default=None)


@cache
def _table(file: str) -> dict[str, tuple[str, Effect, str]]:
    lines = Path(__file__).with_name(file).read_text(encoding="utf-8").splitlines()
    rows: dict[str, tuple[str, Effect, str]] = {}
    for line in lines[1:]:
        code, severity, effect, words = line.split("\t")
        if severity not in SEVERITIES or code in rows:
            raise ValueError(f"{file}: {line!r}")
        rows[code] = (severity, Effect(effect), words)
    return rows


def _shown(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
