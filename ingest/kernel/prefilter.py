"""Which lines of a log are worth reading: found by searching whole chunks for a few words, not by reading lines.

A search through memory costs a hundredth of a pattern tried on each line, and nearly all lines of a log are about
something else.
"""

from __future__ import annotations

_WORDS = (
    b"NVRM: ",
    b"nvidia-nvswitch",
    b"detected NVSwitch ",
    b"nvidia-peermem",
    b"amdgpu ",
    b"NEURON_HW_ERR=",
    b"mlx5_",
    b"infiniband ",
    b"efa ",
    b"efa:",
    b"NETDEV WATCHDOG",
    b" carrier",
    b"ink up",
    b"ink Up",
    b"ink is ",
    b"ink down",
    b"ink Down",
    b"ink DOWN",
    b"ink ACTIVE",
)
"""A line that the parser makes something of holds at least one; tests/unit/ingest/kernel keeps them together."""


def relevant_lines(chunk: bytes) -> tuple[list[bytes], int]:
    """Return the lines of a chunk that may matter, in order and without their ends, and how many others it has.

    A chunk ends with a line's end, or its last line is taken as whole.
    """
    starts: set[int] = set()
    for word in _WORDS:
        at = chunk.find(word)
        while at >= 0:
            starts.add(chunk.rfind(b"\n", 0, at) + 1)
            end = chunk.find(b"\n", at)
            at = chunk.find(word, end) if end >= 0 else -1
    lines = []
    for start in sorted(starts):
        end = chunk.find(b"\n", start)
        lines.append(chunk[start:] if end < 0 else chunk[start:end])
    count = chunk.count(b"\n") + (not chunk.endswith(b"\n") and bool(chunk))
    return lines, count - len(lines)
