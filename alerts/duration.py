"""Durations as people write them: `45s`, `1m30s`, `24h`. Inside, whole microseconds."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: object) -> int:
    """Return microseconds; raise ValueError where a number has no unit or the unit is unknown."""
    if not isinstance(text, str) or not text or _PART.sub("", text):
        raise ValueError(f"a duration is written like 45s, 1m30s or 24h, not {text!r}")
    return sum(round(float(number) * _UNITS[unit]) for number, unit in _PART.findall(text))


def format_duration(us: int) -> str:
    """Return the shortest text that `parse_duration` reads back."""
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, us = divmod(us, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


Duration = Annotated[int, BeforeValidator(parse_duration)]
"""A field of a rule: written as text, held as microseconds."""
