"""What happens less often than readings do."""

from __future__ import annotations


class Due:
    """Tells when something is due that happens less often than readings."""

    def __init__(self, seconds: float) -> None:
        self._period_us = round(seconds * 1_000_000)
        self._last_us: int | None = None

    def at(self, now_us: int) -> bool:
        """Return whether it is due; then it is done. Half a second early is on time."""
        if self._last_us is not None and 0 <= now_us - self._last_us < self._period_us - 500_000:
            return False
        self._last_us = now_us
        return True
