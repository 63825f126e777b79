"""Collectors: who is silent, imitated, doubled, late or set wrong."""

# ruff: noqa: ARG001 - every act is given what any of them needs
from __future__ import annotations

from twin.handles.handle import Handle, Move, set_by, switched, turn_of
from twin.largehall import LargeHall


def _skip(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.skips[host] += round(magnitude)


def _restart(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.starts[host] += 1


def _restart_in_turn(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    host = turn_of(len(hall.site.hosts), age, magnitude)
    if host is not None:
        hall.telemetry.starts[host] += 1


def _hold_partition(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.telemetry.held_partition = round(magnitude)


def _release_partition(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.telemetry.held_partition = -1


def _set_clock(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.clock_offset_seconds[host] += magnitude


def _set_clock_back(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.clock_offset_seconds[host] -= magnitude


HANDLES = (
    Handle(
        name="collector-clone",
        entity_kind="host",
        what="somebody writes as this host",
        move=switched(lambda hall: hall.telemetry.cloned, True, back=False),
    ),
    Handle(
        name="sequence-double",
        entity_kind="host",
        what="every event comes twice",
        move=switched(lambda hall: hall.telemetry.doubled, True, back=False),
    ),
    Handle(
        name="sequence-hole",
        entity_kind="host",
        what="events are taken out on the way",
        low=1.0,
        high=20.0,
        unit="events",
        move=Move(begin=_skip),
    ),
    Handle(
        name="frozen-sensor",
        entity_kind="cdu",
        what="a coolant unit repeats its last values",
        move=switched(lambda hall: hall.telemetry.frozen, True, back=False),
    ),
    Handle(
        name="collector-silence",
        entity_kind="host",
        what="the collectors of a host are dead",
        move=switched(lambda hall: hall.telemetry.silent, True, back=False),
    ),
    Handle(
        name="collector-restart",
        entity_kind="host",
        what="the collectors of a host start again",
        move=Move(begin=_restart),
    ),
    Handle(
        name="collector-rolling-restart",
        entity_kind="hall",
        what="collectors start again, host by host",
        low=1.0,
        high=5.0,
        unit="s between",
        move=Move(hold=_restart_in_turn),
    ),
    Handle(
        name="late-partition",
        entity_kind="hall",
        what="a partition of gpu_samples comes late",
        low=0.0,
        high=23.0,
        unit="its number",
        move=Move(begin=_hold_partition, end=_release_partition),
    ),
    Handle(
        name="ntp-step",
        entity_kind="host",
        what="a clock is set",
        low=-0.04,
        high=0.04,
        unit="s",
        move=Move(begin=_set_clock, end=_set_clock_back),
    ),
    Handle(
        name="coarse-quantisation",
        entity_kind="host",
        what="temperatures come in larger steps",
        low=2.0,
        high=5.0,
        unit="K",
        move=set_by(
            lambda hall: hall.telemetry.coarse_celsius, lambda _hall, magnitude: round(magnitude), 1.0
        ),
    ),
)
