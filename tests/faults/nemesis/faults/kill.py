"""kill -9 at every step of collector, spool, sink and engine."""

from __future__ import annotations

from functools import partial
from random import Random

from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.faults.poison import poison_once
from tests.faults.nemesis.rig import Rig

STEPS = {
    "direct": ("read", "putting", "put"),
    "spool": ("putting", "put", "sending", "acknowledged", "trimming"),
    "sink": (
        "polled",
        "rows_written",
        "file_synced",
        "letters_begin",
        "letters_published",
        "commit_begins",
        "committed",
        "commit_synced",
        "snapshot_written",
        "snapshot_named",
        "checkpoint_written",
    ),
    "engine": (
        "before_commit",
        "expiring",
        "after_commit",
        "published",
        "notifying",
        "notified",
        "reported",
        "during_snapshot",
    ),
}
_RARE = (
    "letters_begin",
    "letters_published",
    "snapshot_written",
    "snapshot_named",
    "checkpoint_written",
    "expiring",
    "during_snapshot",
)


def strike(role: str, step: str, rig: Rig, random: Random) -> None:
    rig.arm(role, step, 1 if step in _RARE else random.randint(1, 4))
    if step.startswith("letters"):
        poison_once(rig, random)
    rig.await_death(role)


FAULTS = [
    Fault(
        name=f"kill_{role}_{step}",
        strike=partial(strike, role, step),
        buses=("local",) if role == "direct" else ("local", "kafka"),
    )
    for role, steps in STEPS.items()
    for step in steps
]
