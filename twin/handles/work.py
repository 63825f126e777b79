"""Work on the hall that was announced, and the jobs on it."""

# ruff: noqa: ARG001 - every act is given what any of them needs
from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from twin.handles.handle import Handle, Move, switched, turn_of
from twin.handles.where import running_job, training_job
from twin.largehall import LargeHall

WAVE_EFFECTS = ("reboot", "host_down", "telemetry_gap", "gpu_reset", "link_down", "attestation_missing")
"""What restarts of hosts may do, in the words of the stream `maintenance`."""

NOTICE_SECONDS = 10.0
_WINDOW_SECONDS = 1_800.0


def announce(hall: LargeHall, rack: int, seconds: float, effects: Iterable[str]) -> None:
    """Announce work on a rack from now on."""
    hall.telemetry.windows += [
        {
            "window_id": f"w{len(hall.telemetry.windows)}-{rack}-{round(hall.elapsed_seconds)}-{effect}",
            "seconds": seconds,
            "scope_kind": "rack",
            "scope": hall.site.racks[rack],
            "effect": effect,
        }
        for effect in effects
    ]


def _plan_wave(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    announce(hall, rack, _WINDOW_SECONDS, WAVE_EFFECTS)


def _plan_upgrade(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    announce(hall, rack, _WINDOW_SECONDS, (*WAVE_EFFECTS, "firmware_change", "measurement_change"))


def _host_in_turn(hall: LargeHall, rack: int, age: float, every_seconds: float) -> int | None:
    hosts = np.flatnonzero(hall.site.rack_of_host == rack)
    turn = turn_of(len(hosts), age - NOTICE_SECONDS, every_seconds)
    return None if turn is None else int(hosts[turn])


def _reboot_in_turn(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    host = _host_in_turn(hall, rack, age, magnitude)
    if host is not None:
        hall.reboot(host)


def _upgrade_in_turn(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    host = _host_in_turn(hall, rack, age, magnitude)
    if host is not None:
        hall.trust.snp_version[host] += 1
        hall.reboot(host)


_STALL = switched(lambda hall: hall.tasks.saves_stall, True, back=False)


def _stall_saves(hall: LargeHall, job: int, magnitude: float, age: float) -> None:
    _STALL.begin(hall, job, magnitude, age)
    hall.tasks.save_now(job)


HANDLES = (
    Handle(
        name="reboot-wave",
        entity_kind="rack",
        what="hosts restart in turn within a window",
        low=30.0,
        high=90.0,
        unit="s between",
        move=Move(begin=_plan_wave, hold=_reboot_in_turn),
    ),
    Handle(
        name="firmware-upgrade",
        entity_kind="rack",
        what="hosts get newer firmware in turn within a window",
        low=30.0,
        high=90.0,
        unit="s between",
        move=Move(begin=_plan_upgrade, hold=_upgrade_in_turn),
    ),
    Handle(
        name="job-stop",
        entity_kind="job",
        what="a job is taken back, and started again at the end",
        move=switched(lambda hall: hall.tasks.wanted, False, back=True),
        strikes=running_job,
    ),
    Handle(
        name="checkpoint-stall",
        entity_kind="job",
        what="storage takes no checkpoint",
        move=Move(begin=_stall_saves, end=_STALL.end),
        strikes=training_job,
    ),
)
