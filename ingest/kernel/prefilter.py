"""Which messages of a log can matter: told by how they begin or by a word in them, before anything else is read.

In a log file the words are searched for in whole chunks. That costs a hundredth of a pattern tried on each line, and
nearly all lines of a log are about something else.
"""

from __future__ import annotations

from typing import NamedTuple

from ingest.kernel.nic import PREFIXES, WORDS

STARTS = (
    "NVRM: ",
    "nvidia-nvswitch",
    "amdgpu ",
    "NEURON_HW_ERR=",
    "neuron",
    "detected NVSwitch ",
    *PREFIXES,
)

_LINK_WORD, _CARRIER_WORD, _WATCHDOG_WORD = WORDS

_SEARCHED = tuple(word.encode() for word in (*STARTS, *WORDS))


class FoundLines(NamedTuple):
    """What a search through a chunk found."""

    lines: list[bytes]
    """Those that may matter, in order and without their ends."""
    others: int
    """How many lines between them and behind them do not."""
    size_bytes: int
    """How much of the chunk both are."""


def is_relevant(text: str) -> bool:
    """Tell whether a message can matter."""
    return text.startswith(STARTS) or _LINK_WORD in text or _CARRIER_WORD in text or _WATCHDOG_WORD in text


def relevant_lines(chunk: bytes, most: int | None = None) -> FoundLines:
    """Search a chunk for the lines whose message can matter, as far as there are at most so many.

    Every line with a relevant message is found, whatever its log put in front of it; others may be among them. The
    last line is taken as whole, whether the chunk ends with a line's end or not.
    """
    starts: set[int] = set()
    for word in _SEARCHED:
        at = chunk.find(word)
        while at >= 0:
            starts.add(chunk.rfind(b"\n", 0, at) + 1)
            end = chunk.find(b"\n", at)
            at = chunk.find(word, end) if end >= 0 else -1
    chosen = sorted(starts)
    if most is not None and len(chosen) > most:
        chunk = chunk[: chosen[most]]
    lines = []
    for start in chosen[:most]:
        end = chunk.find(b"\n", start)
        lines.append(chunk[start:] if end < 0 else chunk[start:end])
    count = chunk.count(b"\n") + (not chunk.endswith(b"\n") and bool(chunk))
    return FoundLines(lines, count - len(lines), len(chunk))


def all_lines(chunk: bytes, most: int | None = None) -> FoundLines:
    """Take every line for one that can matter, of a log in which messages are not written as they are."""
    lines = chunk.split(b"\n")
    if not lines[-1]:
        lines.pop()
    lines = lines[:most]
    return FoundLines(lines, 0, min(sum(map(len, lines)) + len(lines), len(chunk)))
