"""A process that stands still and then goes on as if nothing had happened, alone or after another took its place."""

from __future__ import annotations

from functools import partial
from random import Random

from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig


def freeze(role: str, rig: Rig, random: Random) -> None:
    rig.go_on(random.uniform(0.0, 0.5))
    with rig.frozen(role):
        rig.go_on(rig.times.frozen)


def overtake(rig: Rig, random: Random) -> None:
    """The sink wakes with rows in its hands that a rival has stored meanwhile."""
    with rig.held("sink", random.choice(("rows_written", "file_synced"))):
        rig.start("rival")
        stored = rig.commits()
        rig.wait("the rival stores", lambda: rig.commits() > stored + 2)
        rig.go_on(rig.times.frozen / 2)
    rig.go_on(rig.times.slow)
    rig.stop("rival")


FAULTS = [
    Fault(name="freeze_direct", strike=partial(freeze, "direct"), buses=("local",)),
    Fault(name="freeze_spool", strike=partial(freeze, "spool")),
    Fault(name="freeze_sink", strike=partial(freeze, "sink")),
    Fault(name="freeze_engine", strike=partial(freeze, "engine")),
    Fault(name="overtaken_sink", strike=overtake),
]
