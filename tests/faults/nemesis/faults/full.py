"""No room: disks that are full at a chosen step, files that may not grow, folders that are read-only."""

from __future__ import annotations

import resource
from contextlib import suppress
from functools import partial
from random import Random

from tests.faults.nemesis import disk
from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig

USERS = {"lake": "sink", "bus": "spool"}
"""Who writes each disk all the time."""

FULL = ("full", "unwritable")
READ_ONLY = ("unwritable", "unreachable")
"""What a role complains of; SQLite calls some failures on a full disk I/O errors."""

LIMITS = {
    "direct": (20_000, "cut_off"),
    "spool": (20_000, "cut_off"),
    # Smaller than any file of rows, for it must not only be the note of its position that fails.
    "sink": (4_000, "full"),
    "engine": (20_000, "cut_off"),
}
"""How large a file may become at most, in bytes, and what the role feels of that."""


def fill(place: str, rig: Rig, random: Random) -> None:
    """Fill a disk at any moment."""
    rig.go_on(random.uniform(0.0, 0.5))
    disk.fill(rig.disk(place))
    suffer(rig, USERS[place], place)


def fill_reused(place: str, rig: Rig, random: Random) -> None:
    """Fill a disk whose user may live on: a spool that is emptied all the time can need no more room than it has."""
    rig.go_on(random.uniform(0.0, 0.5))
    disk.fill(rig.disk(place))
    try:
        rig.go_on(rig.times.slow)
    finally:
        disk.make_room(rig.disk(place))


def fill_at(role: str, step: str, place: str, rig: Rig, random: Random) -> None:
    """Fill a disk just before a process needs room on it."""
    rig.arm(role, step, random.randint(1, 3), fills=place)
    rig.await_strike(f"{role} comes to {step}", (rig.disk(place) / disk.BALLAST).exists)
    suffer(rig, role, place)


def suffer(rig: Rig, role: str, place: str) -> None:
    """Leave a disk full for a while, and until a role feels it."""
    try:
        rig.go_on(rig.times.slow)
        rig.await_felt(role, *FULL)
    finally:
        disk.make_room(rig.disk(place))


def limit(role: str, rig: Rig, random: Random) -> None:
    """Let no file of a process grow beyond a few bytes: its writes stop half-way, wherever it writes."""
    most_bytes, felt = LIMITS[role]
    rig.go_on(random.uniform(0.0, 0.5))
    limits = resource.prlimit(rig.pid(role), resource.RLIMIT_FSIZE)
    resource.prlimit(rig.pid(role), resource.RLIMIT_FSIZE, (random.randint(1_000, most_bytes), limits[1]))
    try:
        rig.go_on(rig.times.slow)
        rig.await_felt(role, felt)
    finally:
        # It may be dead of it.
        with suppress(ProcessLookupError):
            resource.prlimit(rig.pid(role), resource.RLIMIT_FSIZE, limits)


def forbid(place: str, restarted: str, rig: Rig, random: Random) -> None:
    """Make a folder read-only under those that use it, and kill one so that it must open everything anew."""
    disk.forbid_writing(rig.disk(place))
    try:
        rig.go_on(random.uniform(0.2, 0.8))
        rig.kill(restarted, forgive=True)
        rig.start(restarted)
        rig.go_on(rig.times.slow)
        rig.await_felt(restarted, *READ_ONLY)
    finally:
        disk.allow_writing(rig.disk(place))


FAULTS = [
    Fault(name="full_lake", strike=partial(fill, "lake"), mounts=True),
    Fault(name="full_lake_at_write", strike=partial(fill_at, "sink", "polled", "lake"), mounts=True),
    Fault(name="full_lake_at_commit", strike=partial(fill_at, "sink", "commit_begins", "lake"), mounts=True),
    Fault(
        name="full_lake_at_snapshot", strike=partial(fill_at, "sink", "snapshot_written", "lake"), mounts=True
    ),
    Fault(
        name="full_bus",
        strike=partial(fill, "bus"),
        buses=("local",),
        mounts=True,
        deadly=("direct", "spool", "sink", "engine"),
    ),
    Fault(
        name="full_bus_at_send",
        strike=partial(fill_at, "spool", "sending", "bus"),
        buses=("local",),
        mounts=True,
        deadly=("direct", "spool", "sink", "engine"),
    ),
    Fault(name="full_spool", strike=partial(fill_reused, "spool"), mounts=True, deadly=("spool",)),
    Fault(
        name="full_journal_at_commit",
        strike=partial(fill_at, "engine", "before_commit", "engine"),
        mounts=True,
        deadly=("engine",),
    ),
    Fault(
        name="full_journal_at_mark",
        strike=partial(fill_at, "engine", "published", "engine"),
        mounts=True,
        deadly=("engine",),
    ),
    Fault(name="small_files_direct", strike=partial(limit, "direct"), buses=("local",), deadly=("direct",)),
    Fault(name="small_files_spool", strike=partial(limit, "spool"), deadly=("spool",)),
    Fault(name="small_files_sink", strike=partial(limit, "sink"), deadly=("sink",)),
    Fault(name="small_files_engine", strike=partial(limit, "engine"), deadly=("engine",)),
    Fault(name="read_only_lake", strike=partial(forbid, "lake", "sink"), mounts=True, deadly=("sink",)),
    Fault(
        name="read_only_journal", strike=partial(forbid, "engine", "engine"), mounts=True, deadly=("engine",)
    ),
    Fault(name="read_only_spool", strike=partial(forbid, "spool", "spool"), mounts=True, deadly=("spool",)),
]
