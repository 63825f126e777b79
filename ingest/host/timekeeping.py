"""How right the clock of a host is: what the kernel knows of it, or what chrony does."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

MAX_ANSWER_BYTES = 4_096

_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000  # adjtimex(2)
_TIME_ERROR = 5
_CHRONY_FIELDS = 14


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """What a time service says of the clock it keeps."""

    source: str
    synchronised: bool
    offset_seconds: float | None = None
    """Positive: the clock is ahead of its time source."""
    estimated_error_seconds: float | None = None
    maximum_error_seconds: float | None = None

    def columns(self) -> dict[str, Any]:
        """Return columns of a host's row."""
        return {
            "clock_source": self.source,
            "clock_synchronised": self.synchronised,
            "clock_offset_seconds": self.offset_seconds,
            "clock_estimated_error_seconds": self.estimated_error_seconds,
            "clock_maximum_error_seconds": self.maximum_error_seconds,
        }


class Timekeeper(Protocol):
    """Whom to ask about the clock."""

    def state(self) -> ClockState | None:
        """Return what is known; None where nobody answers."""
        ...


class _Timex(ctypes.Structure):
    """`struct timex` (adjtimex(2))."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *(
            (name, ctypes.c_long)
            for name in ("constant", "precision", "tolerance", "seconds", "part", "tick")
        ),
        ("rest", ctypes.c_byte * 128),
    )


class KernelClock:
    """Asks the kernel by adjtimex(2), which anybody may as long as nothing is to be changed."""

    def state(self) -> ClockState | None:
        adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
        if adjtimex is None:
            return None
        timex = _Timex()
        answer = adjtimex(ctypes.byref(timex))
        if answer < 0:  # a container's filter of system calls may refuse
            return None
        per_second = 1_000_000_000 if timex.status & _STA_NANO else 1_000_000
        return ClockState(
            source="kernel",
            synchronised=answer != _TIME_ERROR and not timex.status & _STA_UNSYNC,
            offset_seconds=-timex.offset / per_second,  # the kernel keeps what is still to be added
            estimated_error_seconds=timex.esterror / 1_000_000,
            maximum_error_seconds=timex.maxerror / 1_000_000,
        )


class Chrony:
    """Asks `chronyc -c tracking`, whose fields are those of chronyc(1), tracking, separated by commas."""

    def __init__(self, program: Path, *, timeout_seconds: float) -> None:
        self._program = program
        self._timeout_seconds = timeout_seconds

    def state(self) -> ClockState | None:
        try:
            done = subprocess.run(
                [str(self._program), "-c", "tracking"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self._timeout_seconds,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return parse_tracking(done.stdout[:MAX_ANSWER_BYTES].decode("ascii", "replace"))


def parse_tracking(line: str) -> ClockState | None:
    """Read an answer of `chronyc -c tracking`; None where it is none.

    Its system time is positive where the clock is slow.
    """
    fields = line.strip().split(",")
    if len(fields) != _CHRONY_FIELDS:
        return None
    try:
        slow, rms, delay, dispersion = (float(fields[at]) for at in (4, 6, 10, 11))
    except ValueError:
        return None
    return ClockState(
        source="chrony",
        synchronised=fields[13] != "Not synchronised",
        offset_seconds=-slow,
        estimated_error_seconds=rms,
        maximum_error_seconds=abs(slow) + delay / 2 + dispersion,
    )
