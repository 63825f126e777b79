"""Error counters that are set back now and then: how much they rose, how many a window holds, what was told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SECOND_US = 1_000_000
DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600

TELL_AGAIN_US = 60 * SECOND_US
"""Corrected errors come in storms: the first is told at once, more of them once a minute."""

_BUCKETS = 144  # of a window: ten minutes of a day


def rise(before: int | None, now: int | None, *, reset: bool = False) -> int:
    """Return how much a counter rose; one that fell, or is known to have been reset, began at 0."""
    if before is None or now is None:
        return 0
    return now if reset or now < before else now - before


MAX_KEPT = 4_096
"""Devices remembered per host; more are remains of addresses that nobody has any more."""


@dataclass(slots=True)
class Window:
    """How many errors there were in the last while, to a hundredth of it."""

    span_seconds: int
    buckets: dict[int, int] = field(default_factory=dict)
    """Errors by when their bucket began, microseconds."""

    def add(self, count: int, now_us: int) -> None:
        width = self.span_seconds * SECOND_US // _BUCKETS
        at = now_us // width * width
        self.buckets[at] = self.buckets.get(at, 0) + count

    def total(self, now_us: int) -> int:
        """Return the sum; what a clock that was set back left in the future is of now."""
        later = sum(count for at, count in self.buckets.items() if at > now_us)
        oldest = now_us - self.span_seconds * SECOND_US
        self.buckets = {at: count for at, count in self.buckets.items() if oldest < at <= now_us}
        if later:
            self.add(later, now_us)
        return sum(self.buckets.values())


@dataclass(slots=True)
class ErrorCount:
    """One error counter of one device."""

    window: Window
    count: int | None = None
    """Last reading; None before the first."""
    untold: int = 0
    told_us: int = 0

    def see(self, count: int | None, now_us: int, *, reset: bool = False) -> int:
        """Take a reading; return by how much it rose. What cannot be read changes nothing."""
        rose = rise(self.count, count, reset=reset)
        self.count = count if count is not None else self.count
        self.untold += rose
        if rose:
            self.window.add(rose, now_us)
        return rose

    def tell(self, now_us: int, *, at_once: bool = False) -> int:
        """Return how many are to be told now, and count them as told."""
        if not self.untold or (not at_once and 0 <= now_us - self.told_us < TELL_AGAIN_US):
            return 0
        told, self.untold, self.told_us = self.untold, 0, now_us
        return told

    def restart(self) -> None:
        """Begin anew at 0: the machine did."""
        self.count = None if self.count is None else 0

    def dump(self) -> list[Any]:
        return [self.count, self.untold, self.told_us, list(self.window.buckets.items())]

    @classmethod
    def load(cls, span_seconds: int, saved: Any) -> ErrorCount:
        """Take a dumped one over; raise ValueError or TypeError where it is none."""
        count, untold, told_us, buckets = saved
        numbers = {int(at): int(number) for at, number in buckets}
        return cls(
            Window(span_seconds, numbers), None if count is None else int(count), int(untold), int(told_us)
        )
