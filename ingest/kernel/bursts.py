"""Repeats gathered: the first is told at once, the rest as counts at growing intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import astuple, dataclass
from typing import Any

Row = dict[str, Any]
Key = tuple[Hashable, ...]

_SHORTEST_US, _LONGEST_US = 10_000_000, 320_000_000
"""From one count of a repeat to the next; each waits twice as long as the one before."""

MAX_OPEN = 128
"""Different repeats of one event and severity that are told apart at one time; what comes beyond is counted together,
so that no variety of harmless lines takes the place of a fatal one."""

MAX_OCCURRENCES = 1_000_000
"""A count is told before it is higher: what the columns hold."""

_COMMON = ("event", "evidence", "severity", "class", "action", "driver_version")
"""Columns that are kept of what is counted together."""


@dataclass(slots=True)
class _Burst:
    row: Row
    """The latest row, to be told with the count."""
    told_us: int
    last_us: int
    told_at_us: int
    """By the reader's clock, as `heard_at_us`: that of the log may be far away."""
    heard_at_us: int
    interval_us: int = _SHORTEST_US
    waiting: int = 0
    first_us: int = 0
    """When the first of those waiting was."""


class Bursts:
    """Rows by key. Lines are as far apart as their own times say; how long a count waits is the reader's time."""

    def __init__(self) -> None:
        self._open: dict[Key, _Burst] = {}
        self._kinds: Counter[Key] = Counter()

    def add(self, key: Key, row: Row, now_us: int) -> Iterator[Row]:
        """Take one occurrence; yield the rows to tell now. `row` has its time in `ts`."""
        at_us = row["ts"]
        burst = self._open.get(key)
        if burst is None and self._kinds[_kind(row)] >= MAX_OPEN:
            row = {name: row[name] for name in ("ts", *_COMMON) if name in row}
            row["detail"] = "more kinds of this than are told apart"
            key = tuple(map(row.get, _COMMON))
            burst = self._open.get(key)
        if burst is None:
            self._open[key] = _Burst(row, at_us, at_us, now_us, now_us)
            self._kinds[_kind(row)] += 1
            yield row | {"occurrences": 1}
            return
        silent_us = abs(at_us - burst.last_us)
        if burst.waiting and silent_us >= burst.interval_us:
            yield _tell(burst, now_us)
        if silent_us >= _LONGEST_US:
            burst.interval_us = _SHORTEST_US
        burst.row, burst.last_us, burst.heard_at_us = row, at_us, now_us
        burst.first_us = burst.first_us if burst.waiting else at_us
        burst.waiting += 1
        if abs(at_us - burst.told_us) >= burst.interval_us or burst.waiting >= MAX_OCCURRENCES:
            yield _tell(burst, now_us)

    def due(self, now_us: int, *, final: bool = False) -> Iterator[Row]:
        """Yield the counts that have waited long enough, or all; forget what no longer repeats."""
        for key, burst in list(self._open.items()):
            if burst.waiting and (final or abs(now_us - burst.told_at_us) >= burst.interval_us):
                yield _tell(burst, now_us)
            if not burst.waiting and abs(now_us - burst.heard_at_us) >= _LONGEST_US:
                self._forget(key)

    def end(self, concerns: Callable[[Row], bool], now_us: int) -> Iterator[Row]:
        """Yield what waits of the rows concerned, and let the next of them be told at once."""
        for key, burst in list(self._open.items()):
            if concerns(burst.row):
                if burst.waiting:
                    yield _tell(burst, now_us)
                self._forget(key)

    def dump(self) -> list[Any]:
        """Return what must survive a restart, as JSON can hold it."""
        return [[list(key), *astuple(burst)] for key, burst in self._open.items()]

    def load(self, saved: list[Any]) -> None:
        """Take up what was dumped. Raises ValueError or TypeError where it is something else."""
        self._open = {tuple(key): _Burst(dict(row), *map(int, numbers)) for key, row, *numbers in saved}
        self._kinds = Counter(_kind(burst.row) for burst in self._open.values())

    def _forget(self, key: Key) -> None:
        self._kinds[_kind(self._open.pop(key).row)] -= 1


def _kind(row: Row) -> Key:
    return row["event"], row.get("severity")


def _tell(burst: _Burst, now_us: int) -> Row:
    row = burst.row | {"ts": burst.last_us, "occurrences": min(burst.waiting, MAX_OCCURRENCES)}
    if burst.waiting > 1:
        row["first_ts"] = burst.first_us
    burst.told_us, burst.told_at_us, burst.waiting = burst.last_us, now_us, 0
    burst.interval_us = min(burst.interval_us * 2, _LONGEST_US)
    return row
