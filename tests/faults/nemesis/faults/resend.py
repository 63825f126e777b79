"""Everything is sent again to a sink that is not the one that stored it: only the lake can know that it has it."""

from __future__ import annotations

from random import Random

from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig


def strike(rig: Rig, random: Random) -> None:
    rig.arm("spool", "acknowledged", random.randint(1, 4))
    rig.await_death("spool")
    ends = rig.bus_ends()
    rig.wait("the sink stores what came", lambda: rig.has_stored(ends))
    rig.kill("sink")


FAULTS = [Fault(name="resend_to_another_sink", strike=strike)]
