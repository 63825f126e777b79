"""What the shipped rules of a family say to readings of its collectors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from alerts.evaluator import Evaluator
from alerts.ruleset import RuleSet, check_rules
from alerts.testing import Feed, judge
from contract.testing import START_US
from ingest.collector import Reading
from ingest.testing import clean

RULES = Path(__file__).resolve().parents[2] / "alerts/rules"

Told = tuple[float, str, str, str]
"""Seconds since START_US, firing or ended, the rule, the entity."""


def told(family: str, readings: Iterable[tuple[float, Reading]], *, until: float = 0) -> list[Told]:
    """Return what the rules of a family's file say, in order of time."""
    feed = Feed()
    messages = [
        feed.row(rows.stream.name, at, **_told_values(row))
        for at, reading in readings
        for rows in reading.rows
        for row in clean(rows)[0]
    ]
    drafts = judge(
        Evaluator(check_rules([RULES / f"{family}.yaml"]), "test"), messages, until=until, every=10
    )
    return sorted(((d.ts_us - START_US) / 1e6, d.transition, d.rule.rule, d.entity) for d in drafts)


@cache
def _rules(family: str) -> RuleSet:
    return check_rules([RULES / f"{family}.yaml"])


def _told_values(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in row.items() if value is not None and name not in ("ts", "synthetic")
    }
