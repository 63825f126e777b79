"""A writer of the local bus that does not let go: everybody else's writes fail, and are repeated."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from random import Random

from contract.bus.local import FILE_NAME
from tests.faults.nemesis.children import HOSTS
from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig


def strike(rig: Rig, random: Random) -> None:
    rig.go_on(random.uniform(0.0, 0.5))
    place = rig.disk("bus") / FILE_NAME
    with closing(sqlite3.connect(place, isolation_level=None, timeout=30)) as other:
        other.execute("BEGIN IMMEDIATE")
        rig.go_on(rig.times.locked)
        for role in HOSTS:
            rig.await_felt(role, "timeout")
        other.execute("ROLLBACK")


FAULTS = [Fault(name="locked_bus", strike=strike, buses=("local",))]
