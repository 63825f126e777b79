"""Figures as the kernel writes them, none of them larger than a row can hold."""

from __future__ import annotations

import re

from ingest.sysfs import KernelTree

_COUNT = re.compile(r"[0-9]{1,15}", re.ASCII)
"""More would be three hundred years of microseconds, or the all-ones answer of a device that is gone."""


def to_count(text: str | None) -> int | None:
    """Return a whole number from 0 on; None where it is none, or no number that can be true."""
    return int(text) if text is not None and _COUNT.fullmatch(text) else None


def to_float(text: str) -> float | None:
    """Return a decimal number; None where it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def read_count(tree: KernelTree, path: str) -> int | None:
    """Return the whole number from 0 on that a file holds."""
    number = tree.number(path)
    return None if number is None else to_count(str(number))
