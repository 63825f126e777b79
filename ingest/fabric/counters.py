"""Counters of RDMA ports: which file holds which column, in which unit, and where a counter stops.

The table beside this file says it. A counter of InfiniBand's performance management does not wrap: at the most its
width holds it stops, and looks like a counter of which nothing happens (IBTA, PortCounters).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ingest.sysfs import KernelTree

MAX_COUNT = 2**63 - 1
"""What a column holds."""

_BYTES_PER_WORD = 4
_LONGEST_LIFESPAN_MS = 10_000  # the most the kernel lets it be set to (Linux infiniband/core/sysfs.c)


class CounterFile(NamedTuple):
    """One file of a folder of counters."""

    column: str
    factor: int
    ceilings: frozenset[int]
    """Contents at which it has stopped."""


def _read_table() -> dict[str, dict[str, CounterFile]]:
    lines = Path(__file__).with_name("counters.tsv").read_text(encoding="utf-8").splitlines()
    table: dict[str, dict[str, CounterFile]] = {}
    for line in lines[1:]:
        folder, file, column, unit, bits, _source = line.split("\t")
        factor = _BYTES_PER_WORD if unit == "word" else 1
        ceilings = frozenset(2 ** int(width) - 1 for width in bits.split())
        table.setdefault(folder, {})[file] = CounterFile(column, factor, ceilings)
    return table


COUNTERS = _read_table()
"""By folder of a port, `device` being the device's own, and by file."""

_OF_PORT = ("counters", "counters_ext", "hw_counters")


def read_counters(tree: KernelTree, device: str, port: str) -> tuple[dict[str, int], list[str]]:
    """Return the counters of a port by column, and those columns that have stopped at their width.

    What cannot be read is left out, whatever the reason. Where an old kernel has a counter twice, the wider counts.
    """
    values: dict[str, int] = {}
    stopped: set[str] = set()
    for table, folder in (
        ("device", f"{device}/hw_counters"),
        *((name, f"{port}/{name}") for name in _OF_PORT),
    ):
        known = COUNTERS[table]
        for file in tree.names(folder) or ():
            if file not in known:
                continue
            counter = known[file]
            number = tree.number(f"{folder}/{file}")
            if number is None:
                continue
            stopped.discard(counter.column)
            if number in counter.ceilings:
                stopped.add(counter.column)
            if 0 <= number * counter.factor <= MAX_COUNT:
                values[counter.column] = number * counter.factor
            else:
                values.pop(counter.column, None)
    return values, sorted(stopped)


def read_lifespan_us(tree: KernelTree, port: str) -> int:
    """Return how long the driver answers with the values it read last; 0 where it does not say."""
    milliseconds = tree.number(f"{port}/hw_counters/lifespan") or 0
    return min(max(milliseconds, 0), _LONGEST_LIFESPAN_MS) * 1_000
