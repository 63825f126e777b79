"""A receiver of notifications that is slow, refuses, or is behind a network that spoils connections."""

from __future__ import annotations

from functools import partial
from random import Random

from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.proxy import MODES, Mode
from tests.faults.nemesis.rig import Rig


def slow(rig: Rig, random: Random) -> None:
    """Answers come after the notifier has stopped waiting for them."""
    rig.receiver.delay_seconds = random.uniform(1.2, 2.0)
    try:
        answer_someone(rig)
    finally:
        rig.receiver.delay_seconds = 0.0


def refuse(rig: Rig, random: Random) -> None:
    rig.receiver.status = random.choice((429, 500, 503))
    try:
        answer_someone(rig)
    finally:
        rig.receiver.status = 200


def spoil(mode: Mode, rig: Rig, random: Random) -> None:
    rig.spoil(rig.proxy, mode, "engine and receiver", random)


def answer_someone(rig: Rig) -> None:
    """Let the receiver be as it is for a while, and until it has answered so."""
    answered = len(rig.receiver.paths)
    rig.go_on(rig.times.slow)
    rig.await_strike("the receiver answers", lambda: len(rig.receiver.paths) > answered)


FAULTS = [
    Fault(name="receiver_slow", strike=slow),
    Fault(name="receiver_refuses", strike=refuse),
    *(Fault(name=f"receiver_{mode}", strike=partial(spoil, mode)) for mode in MODES),
]
