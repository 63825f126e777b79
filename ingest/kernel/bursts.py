"""Repeats gathered: the first is told at once, the rest as counts at growing intervals."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

SHORTEST_US = 10_000_000
LONGEST_US = 320_000_000
MAX_OPEN = 256
"""Different repeats that are told apart at one time; what comes beyond is counted together by event."""

MAX_OCCURRENCES = 1_000_000  # what the column holds

_OWN = ("event", "evidence", "severity", "class", "driver_version")
"""Columns that rows of one key share even where the key is only the event."""


@dataclass(slots=True)
class _Burst:
    row: Row
    """The latest row, to be told with the count."""
    told_us: int
    last_us: int
    interval_us: int = SHORTEST_US
    waiting: int = 0
    first_us: int = 0
    """When the first of those waiting was."""


class Bursts:
    """Rows by key. Times are of the log, or of the reading where the log has none."""

    def __init__(self) -> None:
        self._open: dict[Hashable, _Burst] = {}

    def add(self, key: tuple[Any, ...], row: Row) -> Iterator[Row]:
        """Take one occurrence; yield the rows to tell now. `row` has its time in `ts`."""
        at_us = row["ts"]
        burst = self._open.get(key)
        if burst is None and len(self._open) >= MAX_OPEN:
            key, row = (row["event"],), {name: row[name] for name in ("ts", *_OWN) if name in row}
            row["detail"] = "more kinds of this than are told apart"
            burst = self._open.get(key)
        if burst is None:
            self._open[key] = _Burst(row=row, told_us=at_us, last_us=at_us)
            yield row | {"occurrences": 1}
            return
        silent_us = abs(at_us - burst.last_us)
        if burst.waiting and silent_us >= burst.interval_us:
            yield self._told(burst)
        if silent_us >= LONGEST_US:
            burst.interval_us = SHORTEST_US
        burst.row, burst.last_us = row, at_us
        burst.first_us = burst.first_us if burst.waiting else at_us
        burst.waiting += 1
        if abs(at_us - burst.told_us) >= burst.interval_us or burst.waiting >= MAX_OCCURRENCES:
            yield self._told(burst)

    def due(self, now_us: int, *, final: bool = False) -> Iterator[Row]:
        """Yield the counts that have waited long enough, or all; forget what no longer repeats."""
        for key, burst in list(self._open.items()):
            if burst.waiting and (final or abs(now_us - burst.told_us) >= burst.interval_us):
                yield self._told(burst)
            if not burst.waiting and abs(now_us - burst.last_us) >= LONGEST_US:
                del self._open[key]

    def end(self, concerns: Callable[[Row], bool]) -> Iterator[Row]:
        """Yield what waits of the rows concerned, and let the next of them be told at once."""
        for key, burst in list(self._open.items()):
            if concerns(burst.row):
                if burst.waiting:
                    yield self._told(burst)
                del self._open[key]

    def dump(self) -> list[Any]:
        """Return what must survive a restart, as JSON can hold it."""
        return [
            [list(key), b.row, b.told_us, b.last_us, b.interval_us, b.waiting, b.first_us]  # type: ignore[call-overload]
            for key, b in self._open.items()
        ]

    def load(self, saved: list[Any]) -> None:
        """Take up what was dumped. Raises ValueError or TypeError where it is something else."""
        self._open = {
            tuple(key): _Burst(dict(row), int(told), int(last), int(interval), int(waiting), int(first))
            for key, row, told, last, interval, waiting, first in saved[: MAX_OPEN + 16]
        }

    @staticmethod
    def _told(burst: _Burst) -> Row:
        row = burst.row | {"ts": burst.last_us, "occurrences": min(burst.waiting, MAX_OCCURRENCES)}
        if burst.waiting > 1:
            row["first_ts"] = burst.first_us
        burst.told_us, burst.waiting = burst.last_us, 0
        burst.interval_us = min(burst.interval_us * 2, LONGEST_US)
        return row
