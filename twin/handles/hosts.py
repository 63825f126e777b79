"""Hosts: their power, their boots, and what they can prove."""

# ruff: noqa: ARG001 - every act is given what any of them needs
from __future__ import annotations

from twin.handles.handle import Handle, Move, set_by, switched
from twin.handles.where import confidential_host, snp_host
from twin.handles.work import NOTICE_SECONDS, WAVE_EFFECTS, announce
from twin.largehall import LargeHall

_SILENCE = switched(lambda hall: hall.trust.silent, True, back=False)


def _power_off(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.powered[host] = False


def _power_on(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.powered[host] = True
    hall.reboot(host)


def _boot_unproven(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    _SILENCE.begin(hall, host, magnitude, age)
    hall.reboot(host)


def _plan_boot(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    announce(hall, int(hall.site.rack_of_host[host]), 600.0, WAVE_EFFECTS)


def _boot_after_notice(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    if NOTICE_SECONDS <= age < NOTICE_SECONDS + 1.0:
        hall.reboot(host)


def _downgrade(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.snp_version[host] -= round(magnitude)
    hall.reboot(host)


def _upgrade_again(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.snp_version[host] += round(magnitude)
    hall.reboot(host)


def _other_host_data(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.host_data[host] = hall.trust.rng.bytes(32).hex()


def _expected_host_data(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.host_data[host] = hall.trust.expected_host_data


def _other_chip(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.chip_ids[host] = hall.trust.rng.bytes(64).hex()


HANDLES = (
    Handle(
        name="host-power",
        entity_kind="host",
        what="a host has no power",
        move=Move(begin=_power_off, end=_power_on),
    ),
    Handle(
        name="boot-unplanned",
        entity_kind="host",
        what="a host restarts and no longer proves itself",
        move=Move(begin=_boot_unproven, end=_SILENCE.end),
        strikes=confidential_host,
    ),
    Handle(
        name="boot-planned",
        entity_kind="host",
        what="a host restarts within a window",
        move=Move(begin=_plan_boot, hold=_boot_after_notice),
    ),
    Handle(
        name="tcb-version",
        entity_kind="host",
        what="a host restarts with older firmware",
        low=2.0,
        high=6.0,
        unit="versions",
        move=Move(begin=_downgrade, end=_upgrade_again),
        strikes=snp_host,
    ),
    Handle(
        name="host-data",
        entity_kind="host",
        what="what the host bound to a guest changes",
        move=Move(begin=_other_host_data, end=_expected_host_data),
        strikes=snp_host,
    ),
    Handle(
        name="evidence-replay",
        entity_kind="host",
        what="a host hands in the same evidence again",
        move=switched(lambda hall: hall.trust.replays, True, back=False),
        strikes=confidential_host,
    ),
    Handle(
        name="evidence-forgery",
        entity_kind="host",
        what="evidence is signed by nobody",
        move=switched(lambda hall: hall.trust.forges, True, back=False),
        strikes=confidential_host,
    ),
    Handle(
        name="evidence-age",
        entity_kind="host",
        what="evidence is handed in late",
        low=400.0,
        high=4_000.0,
        unit="s",
        move=set_by(lambda hall: hall.trust.age_seconds, lambda _hall, magnitude: magnitude, 0.0),
        strikes=confidential_host,
    ),
    Handle(
        name="chip-id",
        entity_kind="host",
        what="another processor answers",
        move=Move(begin=_other_chip),
        strikes=snp_host,
    ),
    Handle(
        name="debug-bit",
        entity_kind="host",
        what="a guest allows a debugger",
        move=switched(lambda hall: hall.trust.debug, True, back=False),
        strikes=confidential_host,
    ),
    Handle(
        name="gpu-cc-mode",
        entity_kind="host",
        what="GPUs leave confidential mode",
        move=switched(lambda hall: hall.trust.gpu_mode_on, False, back=True),
        strikes=snp_host,
    ),
)
