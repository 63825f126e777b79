"""Clocks that jump by an hour, either way, and back."""

from __future__ import annotations

from functools import partial
from random import Random

from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig

HOUR_SECONDS = 3_600.0


def jump(role: str, seconds: float, rig: Rig, random: Random) -> None:
    rig.skew(role, seconds)
    try:
        rig.go_on(rig.times.slow + random.uniform(0.0, 0.5))
        rig.await_felt(role, "skewed")
    finally:
        rig.skew(role, 0.0)


FAULTS = [
    Fault(
        name=f"clock_{role}_{word}",
        strike=partial(jump, role, seconds),
        buses=("local",) if role == "direct" else ("local", "kafka"),
    )
    for role in ("direct", "spool", "sink", "engine")
    for word, seconds in (("back", -HOUR_SECONDS), ("ahead", HOUR_SECONDS))
]
