"""Names and numbers written short: `h[1-3,7]` for hosts, `0-3,6` for GPUs and ranks. Slurm hostlist(3)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

MAX_NAMES = 20_000
MAX_NUMBERS = 1_024

_MAX_TEXT = 262_144
_NAME = re.compile(r"[^\s/@\[\],]{0,200}")
_TERM = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"([^\[\]]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand_hosts(text: str) -> list[str]:
    """Return the names that a list stands for, in its order.

    Raises ValueError for what is no list, and for more than `MAX_NAMES` names, before any of them is made.
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(f"a list of hosts of {len(text)} characters")
    names: list[str] = []
    terms = _TERM.findall(text)
    if ",".join(terms) != text:
        raise ValueError(f"{text[:80]!r} is no list of hosts")
    for term in terms:
        names += _expand_term(term, MAX_NAMES - len(names))
    return names


def expand_numbers(text: str, most: int = MAX_NUMBERS) -> list[int]:
    """Return the numbers of `0-3,6`, sorted, each once; raise ValueError for what is none, or more than `most`."""
    numbers: set[int] = set()
    for low, high in _ranges(text):
        if high - low + 1 + len(numbers) > most:
            raise ValueError(f"more than {most} numbers in {text[:80]!r}")
        numbers.update(range(low, high + 1))
    return sorted(numbers)


def write_numbers(numbers: Iterable[int]) -> str:
    """Return sorted numbers written short."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _expand_term(term: str, most: int) -> list[str]:
    choices: list[list[str]] = []
    total = 1
    for match in _PIECE.finditer(term):
        fixed, brackets = match[1], match[2]
        if not _NAME.fullmatch(fixed):
            raise ValueError(f"{fixed[:80]!r} is no part of a host's name")
        choices.append([fixed])
        if brackets is not None:
            choices.append(_padded(brackets, most))
            total *= len(choices[-1])
        if total > most:
            raise ValueError(f"more than {MAX_NAMES} hosts in {term[:80]!r}")
    names = ["".join(parts) for parts in product(*choices)]
    if not all(0 < len(name) <= 255 for name in names):
        raise ValueError(f"{term[:80]!r} makes no names of hosts")
    return names


def _padded(text: str, most: int) -> list[str]:
    """Return the numbers of `01-03,7` as they are written, with their zeros."""
    numbers: list[str] = []
    for part in text.split(","):
        [(low, high)] = _ranges(part)
        if high - low + 1 + len(numbers) > most:
            raise ValueError(f"more than {MAX_NAMES} hosts in {text[:80]!r}")
        width = len(part.split("-")[0].strip())
        numbers += [f"{number:0{width}d}" for number in range(low, high + 1)]
    return numbers


def _ranges(text: str) -> list[tuple[int, int]]:
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part[:80]!r} where a number or a range like 0-3 belongs")
        low, high = int(match[1]), int(match[2] or match[1])
        if high < low:
            raise ValueError(f"{part!r} runs backwards")
        ranges.append((low, high))
    return ranges
