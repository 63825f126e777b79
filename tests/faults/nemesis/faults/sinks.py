"""Two sinks at once: they share the partitions or fight for them, and come and go while the other writes."""

from __future__ import annotations

from random import Random

from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig


def two(rig: Rig, random: Random) -> None:
    rig.start("rival")
    rig.go_on(rig.times.slow + random.uniform(0.0, 1.0))
    rig.await_felt("rival", "committed")
    rig.stop("rival")


def join_while_flushing(rig: Rig, random: Random) -> None:
    """A rival comes while the sink is in a commit, and takes what is being written."""
    with rig.held("sink", random.choice(("rows_written", "file_synced", "commit_begins"))):
        rig.start("rival")
        rig.go_on(rig.times.slow)
    rig.go_on(rig.times.slow)
    rig.await_felt("rival", "committed")
    rig.kill("rival")


def leave_while_flushing(rig: Rig, random: Random) -> None:
    """The rival dies in its own commit; what it had comes back to the sink."""
    rig.start("rival")
    rig.arm("rival", random.choice(("file_synced", "commit_begins", "committed")), random.randint(1, 2))
    rig.await_death("rival")


FAULTS = [
    Fault(name="two_sinks", strike=two),
    Fault(name="sink_joins_in_flush", strike=join_while_flushing),
    Fault(name="sink_dies_in_flush", strike=leave_while_flushing),
]
