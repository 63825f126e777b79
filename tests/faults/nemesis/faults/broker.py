"""A broker that dies, stays away, hangs, or is behind a network that spoils connections."""

from __future__ import annotations

from functools import partial
from random import Random

from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.proxy import MODES, Mode
from tests.faults.nemesis.rig import Rig
from tests.suites.broker import Broker

AWAY = ("timeout", "unreachable")
"""What a producer says that has waited for an acknowledgement for too long."""


def broker_of(rig: Rig) -> Broker:
    assert rig.broker is not None
    return rig.broker


def kill(rig: Rig, random: Random) -> None:
    rig.go_on(random.uniform(0.0, 0.5))
    broker_of(rig).kill()
    broker_of(rig).start()


def restart(rig: Rig, random: Random) -> None:
    rig.go_on(random.uniform(0.0, 0.5))
    broker_of(rig).restart()


def stay_away(rig: Rig, random: Random) -> None:
    rig.go_on(random.uniform(0.0, 0.5))
    broker_of(rig).kill()
    rig.go_on(rig.times.away)
    broker_of(rig).start()


def stay_away_long(rig: Rig, random: Random) -> None:
    """Longer than a producer waits: what it had in flight is sent again by another."""
    rig.go_on(random.uniform(0.0, 0.5))
    broker_of(rig).kill()
    rig.go_on(rig.times.away_long)
    rig.await_felt("spool", *AWAY)
    broker_of(rig).start()


def hang(rig: Rig, random: Random) -> None:
    rig.go_on(random.uniform(0.0, 0.5))
    broker_of(rig).freeze()
    try:
        rig.go_on(rig.times.frozen)
        rig.await_felt("spool", *AWAY)
    finally:
        broker_of(rig).thaw()


def spoil(mode: Mode, rig: Rig, random: Random) -> None:
    rig.spoil(rig.link, mode, "broker and clients", random)


FAULTS = [
    Fault(name="broker_killed", strike=kill, buses=("kafka",)),
    Fault(name="broker_restarted", strike=restart, buses=("kafka",)),
    Fault(name="broker_away", strike=stay_away, buses=("kafka",)),
    Fault(name="broker_away_long", strike=stay_away_long, buses=("kafka",)),
    Fault(name="broker_hung", strike=hang, buses=("kafka",)),
    *(Fault(name=f"broker_{mode}", strike=partial(spoil, mode), buses=("kafka",)) for mode in MODES),
]
