"""No room: disks that are full at a chosen step, files that may not grow, folders that are read-only."""

from __future__ import annotations

import resource
from functools import partial
from random import Random

from tests.faults.nemesis import disk
from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig


def fill(place: str, rig: Rig, random: Random) -> None:
    """Fill a disk at any moment."""
    rig.go_on(random.uniform(0.0, 0.5))
    disk.fill(rig.disk(place))
    rig.go_on(rig.times.slow)
    disk.make_room(rig.disk(place))


def fill_at(role: str, step: str, place: str, rig: Rig, random: Random) -> None:
    """Fill a disk just before a process needs room on it."""
    rig.arm(role, step, random.randint(1, 3), fills=place)
    rig.wait(f"{role} comes to {step}", (rig.disk(place) / disk.BALLAST).exists)
    rig.go_on(rig.times.slow)
    disk.make_room(rig.disk(place))


def limit(role: str, rig: Rig, random: Random) -> None:
    """Let no file of a process grow beyond a few bytes: its writes stop half-way, wherever it writes."""
    rig.go_on(random.uniform(0.0, 0.5))
    limits = resource.prlimit(rig.pid(role), resource.RLIMIT_FSIZE)
    # The log of the process itself must have room.
    resource.prlimit(rig.pid(role), resource.RLIMIT_FSIZE, (random.randint(1_000, 20_000), limits[1]))
    rig.go_on(rig.times.slow)
    if rig.runs(role):
        resource.prlimit(rig.pid(role), resource.RLIMIT_FSIZE, limits)


def forbid(place: str, restarted: str, rig: Rig, random: Random) -> None:
    """Make a folder read-only under those that use it, and kill one so that it must open everything anew."""
    disk.forbid_writing(rig.disk(place))
    rig.go_on(random.uniform(0.2, 0.8))
    rig.kill(restarted)
    rig.start(restarted)
    rig.go_on(rig.times.slow)
    disk.allow_writing(rig.disk(place))


FAULTS = [
    Fault(name="full_lake", strike=partial(fill, "lake"), mounts=True),
    Fault(name="full_lake_at_write", strike=partial(fill_at, "sink", "polled", "lake"), mounts=True),
    Fault(name="full_lake_at_commit", strike=partial(fill_at, "sink", "commit_begins", "lake"), mounts=True),
    Fault(
        name="full_lake_at_snapshot", strike=partial(fill_at, "sink", "snapshot_written", "lake"), mounts=True
    ),
    Fault(name="full_bus", strike=partial(fill, "bus"), buses=("local",), mounts=True, deadly=True),
    Fault(
        name="full_bus_at_letters",
        strike=partial(fill_at, "spool", "sending", "bus"),
        buses=("local",),
        mounts=True,
        deadly=True,
    ),
    Fault(name="full_spool", strike=partial(fill, "spool"), mounts=True, deadly=True),
    Fault(
        name="full_journal_at_commit",
        strike=partial(fill_at, "engine", "before_commit", "engine"),
        mounts=True,
        deadly=True,
    ),
    Fault(
        name="full_journal_at_mark",
        strike=partial(fill_at, "engine", "published", "engine"),
        mounts=True,
        deadly=True,
    ),
    Fault(name="small_files_direct", strike=partial(limit, "direct"), buses=("local",), deadly=True),
    Fault(name="small_files_spool", strike=partial(limit, "spool"), deadly=True),
    Fault(name="small_files_sink", strike=partial(limit, "sink"), deadly=True),
    Fault(name="small_files_engine", strike=partial(limit, "engine"), deadly=True),
    Fault(name="read_only_lake", strike=partial(forbid, "lake", "sink"), mounts=True, deadly=True),
    Fault(name="read_only_journal", strike=partial(forbid, "engine", "engine"), mounts=True, deadly=True),
    Fault(name="read_only_spool", strike=partial(forbid, "spool", "spool"), mounts=True, deadly=True),
]
