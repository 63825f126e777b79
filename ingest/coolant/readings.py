"""Rows of `coolant_readings`, with what cannot be true made null."""

from __future__ import annotations

import math
from typing import Any

from contract.streams.coolant import POINTS

Row = dict[str, Any]

_WORST_FIRST = ("bad", "stale", "unknown", "good")


def reading(point: str, value: object, *, quality: str = "good", **columns: Any) -> Row:
    """Return a row; `value` is in the unit of the point.

    A value that is no number, or that cannot be true of the point, becomes null and its quality bad.
    """
    known = POINTS[point]
    row: Row = {"point": point, "role": "measured", "quality": quality, "unit": known.unit, **columns}
    if known.unit is None:
        return row
    row["value"] = number = as_number(value)
    if number is None or not known.low <= number <= known.high:
        row["value"], row["quality"] = None, "bad"
    return row


def as_number(value: object) -> float | None:
    """Return a finite number as it came; None for all else: a text is none, and neither is true or false."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def worse(one: str, other: str) -> str:
    """Return which of two qualities counts."""
    return min(one, other, key=_WORST_FIRST.index)


def text_of(value: object, longest: int = 255) -> str | None:
    """Return a text, cut to a number of bytes."""
    if not isinstance(value, str):
        return None
    return value.encode("utf-8", "replace")[:longest].decode("utf-8", "ignore")
