"""What a fault is: a name, where it applies, and how it strikes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.faults.nemesis.rig import Rig


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Strikes a system that works; when `strike` returns, everything must come back by itself.

    `strike` sees to it that somebody felt the fault, and raises NotStruckError where nobody did.
    """

    name: str
    strike: Callable[[Rig, Random], None]
    buses: tuple[str, ...] = ("local", "kafka")
    mounts: bool = False
    """It needs disks of its own."""
    deadly: tuple[str, ...] = ()
    """Roles that may end with an error, as long as their next start goes on."""
