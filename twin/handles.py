"""What can be changed in a large hall: by name, the one quantity that a fault or a piece of work moves.

A handle writes no event: what devices and collectors then tell follows from the hall. It moves what it struck and puts
that back; it may be held for any time, and `hold` is called once a step.
"""

# ruff: noqa: ARG001 - every act is given what any of them needs
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from twin.largehall import LargeHall, Target
from twin.site import GPUS_PER_HOST, PORTS_PER_HOST

Magnitude: TypeAlias = float
"""How strong, in the unit of its handle."""

Act: TypeAlias = Callable[[LargeHall, int, float, float], None]
"""Change a hall at an index: magnitude, and seconds since it began."""

Where: TypeAlias = Callable[[LargeHall, int], bool]


def _nothing(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    """Change nothing."""


def _anywhere(hall: LargeHall, at: int) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One quantity of the physics that can be moved, and within which range of magnitudes."""

    name: str
    entity_kind: str
    what: str
    low: float = 1.0
    high: float = 1.0
    unit: str = ""
    on_begin: Act = _nothing
    on_hold: Act = _nothing
    on_end: Act = _nothing
    strikes: Where = _anywhere
    """Whether the entity at an index of its kind has what this handle moves."""

    def draw(self, rng: np.random.Generator) -> Magnitude:
        """Draw a magnitude of its range."""
        return float(rng.uniform(self.low, self.high))

    def begin(self, hall: LargeHall, target: Target, magnitude: Magnitude) -> None:
        """Start to act."""
        self.on_begin(hall, target.index, magnitude, 0.0)

    def hold(self, hall: LargeHall, target: Target, magnitude: Magnitude, age_seconds: float) -> None:
        """Go on acting; for what grows, flaps or comes in waves."""
        self.on_hold(hall, target.index, magnitude, age_seconds)

    def end(self, hall: LargeHall, target: Target, magnitude: Magnitude, age_seconds: float = 0.0) -> None:
        """Put back what was moved; what broke for good is replaced."""
        self.on_end(hall, target.index, magnitude, age_seconds)


def _grown(magnitude: float, age: float, over_seconds: float) -> float:
    return magnitude * min(1.0, age / over_seconds)


# -- where ------------------------------------------------------------------------------------------


def _liquid_rack(hall: LargeHall, rack: int) -> bool:
    return bool(hall.site.cdu_of_rack[rack] >= 0)


def _busy_rack(hall: LargeHall, rack: int) -> bool:
    gpus = np.repeat(hall.site.rack_of_host == rack, GPUS_PER_HOST)
    return bool(hall.tasks.busy[gpus].mean() > 0.5)


def _liquid_busy_host(hall: LargeHall, host: int) -> bool:
    return _liquid_rack(hall, int(hall.site.rack_of_host[host])) and _busy_host(hall, host)


def _busy_host(hall: LargeHall, host: int) -> bool:
    return bool(hall.tasks.busy[host * GPUS_PER_HOST])


def _busy_gpu(hall: LargeHall, gpu: int) -> bool:
    return bool(hall.tasks.busy[gpu])


def _busy_port(hall: LargeHall, port: int) -> bool:
    return _busy_host(hall, port // PORTS_PER_HOST)


def _snp(hall: LargeHall, host: int) -> bool:
    return hall.site.confidential[host] == "snp"


def _confidential(hall: LargeHall, host: int) -> bool:
    return hall.site.confidential[host] != "none"


def _running_job(hall: LargeHall, job: int) -> bool:
    return bool(hall.tasks.running[job])


def _training_job(hall: LargeHall, job: int) -> bool:
    return hall.site.jobs[job].role == "train" and bool(hall.tasks.running[job])


# -- cooling ----------------------------------------------------------------------------------------


def _pump(hall: LargeHall, cdu: int, magnitude: float, age: float) -> None:
    hall.loops.pump_efficiency[cdu] = 1.0 - _grown(magnitude, age, 20.0)


def _pump_whole(hall: LargeHall, cdu: int, magnitude: float, age: float) -> None:
    hall.loops.pump_efficiency[cdu] = 1.0


def _foul(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.loops.plate_opening[host] = 1.0 - _grown(magnitude, age, 30.0)


def _clean(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.loops.plate_opening[host] = 1.0


def _throttle_rack(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hall.loops.rack_opening[rack] = 1.0 - _grown(magnitude, age, 10.0)


def _open_rack(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hall.loops.rack_opening[rack] = 1.0


def _warm_water(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.loops.facility_offset_kelvin = _grown(magnitude, age, 90.0)


def _cool_water(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.loops.facility_offset_kelvin = 0.0


def _leak(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hall.loops.leak_liters_per_minute[rack] = magnitude


def _mop(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hall.dry(rack)


def _humid(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.loops.room_humidity = 0.38 + _grown(magnitude, age, 60.0)


def _dry_air(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.loops.room_humidity = 0.38


# -- network ----------------------------------------------------------------------------------------


def _dim(hall: LargeHall, port: int, magnitude: float, age: float) -> None:
    hall.network.attenuation_decibel[port] = max(
        hall.network.attenuation_decibel[port], _grown(magnitude, age, 60.0)
    )


def _polish(hall: LargeHall, port: int, magnitude: float, age: float) -> None:
    hall.network.attenuation_decibel[port] = 0.2


def _flap(hall: LargeHall, port: int, magnitude: float, age: float) -> None:
    hall.network.connected[port] = age % magnitude >= 3.0


def _unplug(hall: LargeHall, port: int, magnitude: float, age: float) -> None:
    hall.network.connected[port] = False


def _plug(hall: LargeHall, port: int, magnitude: float, age: float) -> None:
    hall.network.connected[port] = True


def _break_nic(hall: LargeHall, port: int, magnitude: float, age: float) -> None:
    hall.network.installed[port] = False


def _replace_nic(hall: LargeHall, port: int, magnitude: float, age: float) -> None:
    hall.network.installed[port] = True


# -- GPUs -------------------------------------------------------------------------------------------


def _wear(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.wear_per_second[gpu] = magnitude


def _no_wear(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.wear_per_second[gpu] = 0.0


def _die(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.pcie_dying[gpu] = True
    if age >= magnitude:
        hall.lose_gpu(gpu)


def _revive(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.pcie_dying[gpu] = False
    if not hall.chips.present[gpu]:
        hall.chips.present[gpu] = True
        hall.reboot(gpu // GPUS_PER_HOST)


def _hang(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.hung[gpu] = True


def _unhang(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.hung[gpu] = False


def _cap(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hosts = np.repeat(hall.site.rack_of_host == rack, GPUS_PER_HOST)
    hall.chips.rack_cap_watts[rack] = magnitude * hall.chips.board["limit_watts"][hosts].sum()


def _uncap(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hall.chips.rack_cap_watts[rack] = np.inf


def _slow(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.chips.clock_ratio[gpu] = 1.0 - magnitude


def _fast(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.chips.clock_ratio[gpu] = 1.0


def _break_nvlink(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.nvlink_up[gpu] = False


def _mend_nvlink(hall: LargeHall, gpu: int, magnitude: float, age: float) -> None:
    hall.nvlink_up[gpu] = True


# -- hosts and trust --------------------------------------------------------------------------------


def _boot_unproven(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.silent[host] = True
    hall.reboot(host)


def _prove(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.silent[host] = False


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


def _host_flag(name: str, value: bool) -> Act:
    def act(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
        getattr(hall.trust, name)[host] = value

    return act


def _age_evidence(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.age_seconds[host] = magnitude


def _fresh_evidence(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.trust.age_seconds[host] = 0.0


def _power_off(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.powered[host] = False


def _power_on(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.powered[host] = True
    hall.reboot(host)


# -- collectors -------------------------------------------------------------------------------------


def _collector(name: str, value: bool) -> Act:
    def act(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
        getattr(hall.telemetry, name)[at] = value

    return act


def _skip(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.skips[host] += round(magnitude)


def _restart_collectors(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.starts[host] += 1


def _restart_in_turn(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    host = int(age // magnitude)
    if age % magnitude < 1.0 and host < len(hall.site.hosts):
        hall.telemetry.starts[host] += 1


def _hold_partition(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.telemetry.held_partition = round(magnitude)


def _release_partition(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    hall.telemetry.held_partition = -1


def _step_clock(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.clock_offset_seconds[host] += magnitude


def _set_clock(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.clock_offset_seconds[host] -= magnitude


def _coarsen(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.coarse_celsius[host] = round(magnitude)


def _refine(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    hall.telemetry.coarse_celsius[host] = 1.0


# -- work and jobs ----------------------------------------------------------------------------------


def _announce(hall: LargeHall, rack: int, seconds: float, effects: tuple[str, ...]) -> None:
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


_WAVE = ("reboot", "host_down", "telemetry_gap", "gpu_reset", "link_down", "attestation_missing")


def _plan_wave(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    _announce(hall, rack, 1_800.0, _WAVE)


def _plan_upgrade(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    _announce(hall, rack, 1_800.0, (*_WAVE, "firmware_change", "measurement_change"))


def _reboot_in_turn(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hosts = np.flatnonzero(hall.site.rack_of_host == rack)
    turn = int((age - 10.0) // magnitude)
    if age >= 10.0 and (age - 10.0) % magnitude < 1.0 and turn < len(hosts):
        hall.reboot(int(hosts[turn]))


def _upgrade_in_turn(hall: LargeHall, rack: int, magnitude: float, age: float) -> None:
    hosts = np.flatnonzero(hall.site.rack_of_host == rack)
    turn = int((age - 10.0) // magnitude)
    if age >= 10.0 and (age - 10.0) % magnitude < 1.0 and turn < len(hosts):
        hall.trust.snp_version[hosts[turn]] += 1
    _reboot_in_turn(hall, rack, magnitude, age)


def _plan_boot(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    _announce(hall, int(hall.site.rack_of_host[host]), 600.0, _WAVE)


def _boot_after_notice(hall: LargeHall, host: int, magnitude: float, age: float) -> None:
    if 10.0 <= age < 11.0:
        hall.reboot(host)


def _want(value: bool) -> Act:
    def act(hall: LargeHall, job: int, magnitude: float, age: float) -> None:
        hall.tasks.wanted[job] = value

    return act


def _stall_saves(hall: LargeHall, job: int, magnitude: float, age: float) -> None:
    hall.tasks.saves_stall[job] = True
    hall.tasks.save_now(job)


def _free_saves(hall: LargeHall, job: int, magnitude: float, age: float) -> None:
    hall.tasks.saves_stall[job] = False


_TABLE = (
    Handle(
        name="pump-efficiency",
        entity_kind="cdu",
        what="a worn pump turns slower",
        low=0.45,
        high=0.85,
        unit="share lost",
        on_hold=_pump,
        on_end=_pump_whole,
    ),
    Handle(
        name="plate-fouling",
        entity_kind="host",
        what="the plates of a host let less through",
        low=0.6,
        high=0.9,
        unit="share lost",
        on_hold=_foul,
        on_end=_clean,
        strikes=_liquid_busy_host,
    ),
    Handle(
        name="rack-valve",
        entity_kind="rack",
        what="the valve of a rack closes",
        low=0.5,
        high=0.85,
        unit="share lost",
        on_hold=_throttle_rack,
        on_end=_open_rack,
        strikes=_liquid_rack,
    ),
    Handle(
        name="facility-supply",
        entity_kind="hall",
        what="facility water becomes warmer",
        low=12.0,
        high=20.0,
        unit="K",
        on_hold=_warm_water,
        on_end=_cool_water,
    ),
    Handle(
        name="leak-rate",
        entity_kind="rack",
        what="a hose of a rack drips or runs",
        low=0.1,
        high=2.0,
        unit="L/min",
        on_begin=_leak,
        on_end=_mop,
        strikes=_liquid_rack,
    ),
    Handle(
        name="room-humidity",
        entity_kind="hall",
        what="the air becomes wetter",
        low=0.45,
        high=0.6,
        unit="share",
        on_hold=_humid,
        on_end=_dry_air,
    ),
    Handle(
        name="optic-attenuation",
        entity_kind="port",
        what="an optic is dirty",
        low=4.8,
        high=6.5,
        unit="dB",
        on_hold=_dim,
        on_end=_polish,
        strikes=_busy_port,
    ),
    Handle(
        name="link-flap",
        entity_kind="port",
        what="a link loses its light again and again",
        low=30.0,
        high=120.0,
        unit="s between",
        on_hold=_flap,
        on_end=_plug,
        strikes=_busy_port,
    ),
    Handle(
        name="link-state",
        entity_kind="port",
        what="a link has no light",
        on_begin=_unplug,
        on_end=_plug,
        strikes=_busy_port,
    ),
    Handle(
        name="nic-failure",
        entity_kind="port",
        what="a network card dies",
        on_begin=_break_nic,
        on_end=_replace_nic,
        strikes=_busy_port,
    ),
    Handle(
        name="hbm-wear",
        entity_kind="gpu",
        what="a memory stack wears out",
        low=0.5,
        high=3.0,
        unit="errors/s",
        on_begin=_wear,
        on_end=_no_wear,
        strikes=_busy_gpu,
    ),
    Handle(
        name="gpu-presence",
        entity_kind="gpu",
        what="a GPU falls off its bus, after errors on it",
        low=10.0,
        high=60.0,
        unit="s of errors",
        on_hold=_die,
        on_end=_revive,
        strikes=_busy_gpu,
    ),
    Handle(
        name="gsp-hang",
        entity_kind="gpu",
        what="the system processor of a GPU hangs",
        on_begin=_hang,
        on_end=_unhang,
        strikes=_busy_gpu,
    ),
    Handle(
        name="nvlink-failure",
        entity_kind="gpu",
        what="an NVLink breaks",
        on_begin=_break_nvlink,
        on_end=_mend_nvlink,
        strikes=_busy_gpu,
    ),
    Handle(
        name="gpu-clock",
        entity_kind="gpu",
        what="a GPU runs slower than the others",
        low=0.15,
        high=0.5,
        unit="share lost",
        on_begin=_slow,
        on_end=_fast,
        strikes=_busy_gpu,
    ),
    Handle(
        name="rack-power-cap",
        entity_kind="rack",
        what="a rack may draw less",
        low=0.4,
        high=0.65,
        unit="share of its limits",
        on_begin=_cap,
        on_end=_uncap,
        strikes=_busy_rack,
    ),
    Handle(
        name="host-power",
        entity_kind="host",
        what="a host has no power",
        on_begin=_power_off,
        on_end=_power_on,
    ),
    Handle(
        name="boot-unplanned",
        entity_kind="host",
        what="a host restarts and no longer proves itself",
        on_begin=_boot_unproven,
        on_end=_prove,
        strikes=_confidential,
    ),
    Handle(
        name="boot-planned",
        entity_kind="host",
        what="a host restarts within a window",
        on_begin=_plan_boot,
        on_hold=_boot_after_notice,
    ),
    Handle(
        name="tcb-version",
        entity_kind="host",
        what="a host restarts with older firmware",
        low=2.0,
        high=6.0,
        unit="versions",
        on_begin=_downgrade,
        on_end=_upgrade_again,
        strikes=_snp,
    ),
    Handle(
        name="host-data",
        entity_kind="host",
        what="what the host bound to a guest changes",
        on_begin=_other_host_data,
        on_end=_expected_host_data,
        strikes=_snp,
    ),
    Handle(
        name="evidence-replay",
        entity_kind="host",
        what="a host hands in the same evidence again",
        on_begin=_host_flag("replays", True),
        on_end=_host_flag("replays", False),
        strikes=_confidential,
    ),
    Handle(
        name="evidence-forgery",
        entity_kind="host",
        what="evidence is signed by nobody",
        on_begin=_host_flag("forges", True),
        on_end=_host_flag("forges", False),
        strikes=_confidential,
    ),
    Handle(
        name="evidence-age",
        entity_kind="host",
        what="evidence is handed in late",
        low=400.0,
        high=4_000.0,
        unit="s",
        on_begin=_age_evidence,
        on_end=_fresh_evidence,
        strikes=_confidential,
    ),
    Handle(
        name="chip-id",
        entity_kind="host",
        what="another processor answers",
        on_begin=_other_chip,
        strikes=_snp,
    ),
    Handle(
        name="debug-bit",
        entity_kind="host",
        what="a guest allows a debugger",
        on_begin=_host_flag("debug", True),
        on_end=_host_flag("debug", False),
        strikes=_confidential,
    ),
    Handle(
        name="gpu-cc-mode",
        entity_kind="host",
        what="GPUs leave confidential mode",
        on_begin=_host_flag("gpu_mode_on", False),
        on_end=_host_flag("gpu_mode_on", True),
        strikes=_snp,
    ),
    Handle(
        name="collector-clone",
        entity_kind="host",
        what="somebody writes as this host",
        on_begin=_collector("cloned", True),
        on_end=_collector("cloned", False),
    ),
    Handle(
        name="sequence-double",
        entity_kind="host",
        what="every event comes twice",
        on_begin=_collector("doubled", True),
        on_end=_collector("doubled", False),
    ),
    Handle(
        name="sequence-hole",
        entity_kind="host",
        what="events are taken out on the way",
        low=1.0,
        high=20.0,
        unit="events",
        on_begin=_skip,
    ),
    Handle(
        name="frozen-sensor",
        entity_kind="cdu",
        what="a coolant unit repeats its last values",
        on_begin=_collector("frozen", True),
        on_end=_collector("frozen", False),
    ),
    Handle(
        name="collector-silence",
        entity_kind="host",
        what="the collectors of a host are dead",
        on_begin=_collector("silent", True),
        on_end=_collector("silent", False),
    ),
    Handle(
        name="reboot-wave",
        entity_kind="rack",
        what="hosts restart in turn within a window",
        low=30.0,
        high=90.0,
        unit="s between",
        on_begin=_plan_wave,
        on_hold=_reboot_in_turn,
    ),
    Handle(
        name="firmware-upgrade",
        entity_kind="rack",
        what="hosts get newer firmware in turn within a window",
        low=30.0,
        high=90.0,
        unit="s between",
        on_begin=_plan_upgrade,
        on_hold=_upgrade_in_turn,
    ),
    Handle(
        name="job-stop",
        entity_kind="job",
        what="a job is taken back, and started again at the end",
        on_begin=_want(False),
        on_end=_want(True),
        strikes=_running_job,
    ),
    Handle(
        name="checkpoint-stall",
        entity_kind="job",
        what="storage takes no checkpoint",
        on_begin=_stall_saves,
        on_end=_free_saves,
        strikes=_training_job,
    ),
    Handle(
        name="ntp-step",
        entity_kind="host",
        what="a clock is set",
        low=-0.04,
        high=0.04,
        unit="s",
        on_begin=_step_clock,
        on_end=_set_clock,
    ),
    Handle(
        name="collector-restart",
        entity_kind="host",
        what="the collectors of a host start again",
        on_begin=_restart_collectors,
    ),
    Handle(
        name="collector-rolling-restart",
        entity_kind="hall",
        what="collectors start again, host by host",
        low=1.0,
        high=5.0,
        unit="s between",
        on_hold=_restart_in_turn,
    ),
    Handle(
        name="late-partition",
        entity_kind="hall",
        what="a partition of gpu_samples comes late",
        low=0.0,
        high=23.0,
        unit="its number",
        on_begin=_hold_partition,
        on_end=_release_partition,
    ),
    Handle(
        name="coarse-quantisation",
        entity_kind="host",
        what="temperatures come in larger steps",
        low=2.0,
        high=5.0,
        unit="K",
        on_begin=_coarsen,
        on_end=_refine,
    ),
)

HANDLES: Mapping[str, Handle] = {handle.name: handle for handle in _TABLE}
"""Every handle by its name."""
