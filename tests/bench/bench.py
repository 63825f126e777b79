"""One measured figure, and how figures are kept honest: ratios within one run, beside a baseline."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One line of the table; `baseline` is the same figure of the bare loop in the same run."""

    name: str
    value: float
    unit: str
    baseline: float | None
    goal: str
    holds: bool


def median_ratio(
    measured: Callable[[], float], bare: Callable[[], float], rounds: int = 5
) -> tuple[float, float, float]:
    """Run both in turn; return the medians of each and of their ratios, pair by pair.

    A pair shares the machine's mood, so the ratio holds where the two absolute figures wander.
    """
    pairs: Sequence[tuple[float, float]] = [(measured(), bare()) for _ in range(rounds)]
    ours, theirs = zip(*pairs, strict=True)
    return statistics.median(ours), statistics.median(theirs), statistics.median(a / b for a, b in pairs)
