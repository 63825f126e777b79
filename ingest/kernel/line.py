"""One message of a kernel log, whatever the log looked like."""

from __future__ import annotations

from typing import NamedTuple

KERNEL = 0
"""The facility that only the kernel writes: user space that asks for it is given `user` (Linux ABI dev-kmsg)."""

USER = 1

DAEMON = 3


class KernelLine(NamedTuple):
    """A message without what its log put in front of it."""

    ts_us: int | None
    """Wall clock, microseconds UTC; None where the log has none."""
    text: str
    """The message, without time, host and the tag `kernel:`; any other tag is left in it."""
    facility: int | None
    """Syslog facility; 0 = kernel; None = the format does not say."""
    severity: int | None
    """Syslog level, 0 (emergency) to 7 (debug)."""
