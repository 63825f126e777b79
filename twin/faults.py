"""What can go wrong in the hall, and what only looks like it: one entry per kind.

A kind draws its magnitude, changes the hall while it lasts, and knows when a page or a log first shows it.
It says what is physically so; whether that deserves an alert is for others to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from twin.cdu import LEAKING_DETECTOR
from twin.hall import Hall
from twin.sensors import Readings
from twin.syslog import xid

if TYPE_CHECKING:
    from twin.devices import Devices

Magnitude: TypeAlias = Mapping[str, float | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Positions in the plan; `gpu` is the first of the host where the whole host is meant, and stands for its NIC."""

    host: int
    gpu: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind:
    """How one kind of injection acts: `begin` once, `hold` at every step from then on until it ends."""

    kind: Literal["fault", "decoy"]
    entity: Literal["gpu", "nic", "port", "host", "dimm", "detector", "cdu", "guest"]
    draw: Callable[[np.random.Generator], dict[str, float | str]] = lambda _rng: {}
    shows: Callable[[Hall, Readings, Target], bool] = lambda _hall, _readings, _target: True
    """Whether a device shows it; what is in the log is shown at once."""
    begin: Callable[[Hall, Target, Magnitude], None] = lambda _hall, _target, _magnitude: None
    hold: Callable[[Hall, Target, Magnitude, float], None] = lambda _hall, _target, _magnitude, _age: None


def clear(hall: Hall) -> None:
    """Undo what lasts only as long as an injection holds it; called before every step."""
    hall.plate[:] = 1.0
    hall.answers[:] = ["serve"] * len(hall.answers)
    if hall.devices is not None:
        for service in hall.devices.services.values():
            service.hangs = False


def _devices(hall: Hall) -> Devices:
    if hall.devices is None:
        raise ValueError("this hall has nothing but GPUs")
    return hall.devices


def _nic(hall: Hall, target: Target) -> int:
    return target.gpu % hall.plan.gpus_per_host


def _cdu(hall: Hall, target: Target) -> str:
    return hall.plan.hosts[target.host].cdu


# -- thermal: the coolant no longer reaches one cold plate (a kinked hose, a clogged quick-disconnect) ---


def _draw_thermal(rng: np.random.Generator) -> dict[str, float | str]:
    # From seven times the healthy resistance on, even the waiting phases of a job hold the GPU at its limit;
    # up to ten an idle GPU stays below it. Losing the flow takes seconds.
    return {"resistance_factor": float(rng.uniform(7.0, 10.0)), "ramp_seconds": float(rng.uniform(1.0, 4.0))}


def _hold_thermal(hall: Hall, target: Target, magnitude: Magnitude, age_seconds: float) -> None:
    reached = min(1.0, age_seconds / float(magnitude["ramp_seconds"]))
    hall.plate[target.gpu] = 1.0 + (float(magnitude["resistance_factor"]) - 1.0) * reached


# -- xid79: the GPU no longer answers on PCIe; its job dies on every host -------------------------------


def _begin_xid79(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    hall.present[target.gpu] = False
    hall.last_xid[target.gpu] = 79
    hall.workload.running[hall.workload.job_of_gpu[target.gpu]] = False
    bus_id = hall.plan.gpus[target.gpu].pci_bus_id
    hall.print(
        target.host,
        xid(bus_id, 79, "GPU has fallen off the bus."),
        f"NVRM: GPU {bus_id[4:].lower()}: GPU has fallen off the bus.",
        "NVRM: A GPU crash dump has been created. If possible, please run",
        "NVRM: nvidia-bug-report.sh as root to collect this data before",
        "NVRM: the NVIDIA kernel module is unloaded.",
        xid(bus_id, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
    )


# -- nvlink: one link of a GPU fails; the exporter's gauge shows only the code that came last -----------


def _draw_nvlink(rng: np.random.Generator) -> dict[str, float | str]:
    return {"link": float(rng.integers(18))}


def _begin_nvlink(hall: Hall, target: Target, magnitude: Magnitude) -> None:
    hall.last_xid[target.gpu] = 154
    hall.workload.running[hall.workload.job_of_gpu[target.gpu]] = False
    bus_id = hall.plan.gpus[target.gpu].pci_bus_id
    registers = "(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"
    hall.print(
        target.host,
        xid(bus_id, 74, f"NVLink: fatal error detected on link {magnitude['link']:.0f}{registers}"),
        xid(bus_id, 154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
    )


# -- nic: the firmware of a network card no longer answers its driver ------------------------------------


def _begin_nic(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    nic = hall.plan.hosts[target.host].nics[target.gpu % hall.plan.gpus_per_host]
    hall.print(
        target.host,
        f"mlx5_core {nic.pci_bus_id}: poll_health:825:(pid 0): device's health compromised - reached miss count",
    )


# -- nic-notices: a cable is put in, a slot says that it gives enough ------------------------------------


def _begin_notices(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    nic = hall.plan.hosts[target.host].nics[target.gpu % hall.plan.gpus_per_host]
    hall.print(
        target.host,
        f"mlx5_core {nic.pci_bus_id}: PCIe slot advertised sufficient power (75W).",
        f"mlx5_core {nic.pci_bus_id}: Port module event: module 0, Cable plugged",
    )


# -- forged-xid: a program writes into the log what only the driver can know ----------------------------


def _begin_forged(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    bus_id = hall.plan.gpus[target.gpu].pci_bus_id
    hall.print(target.host, xid(bus_id, 79, "GPU has fallen off the bus."), tag="train.py[31337]")


# -- link-down: the cable of a port is cut ----------------------------------------------------------------


def _begin_link_down(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    _devices(hall).ports[target.host].set_link(_nic(hall, target), up=False)


# -- link-blip: a link trains again, once, and makes no more errors than any link does ----------------------


def _draw_blip(rng: np.random.Generator) -> dict[str, float | str]:
    return {"symbol_errors": float(rng.integers(1, 3))}


def _begin_blip(hall: Hall, target: Target, magnitude: Magnitude) -> None:
    ports = _devices(hall).ports[target.host]
    ports.flap(_nic(hall, target))
    ports.add_errors(_nic(hall, target), int(magnitude["symbol_errors"]))


# -- memory-lost, memory-mended: a module loses data; another has an error that is corrected ----------------


def _begin_memory_lost(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    machine = _devices(hall).machines[target.host]
    machine.uncorrected_errors(machine.dimms[_nic(hall, target)])


def _begin_memory_mended(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    machine = _devices(hall).machines[target.host]
    machine.corrected_errors(machine.dimms[_nic(hall, target)])


# -- leak: coolant runs out under a coolant unit ---------------------------------------------------------


def _draw_leak(rng: np.random.Generator) -> dict[str, float | str]:
    return {"liters_per_minute": float(rng.uniform(0.1, 1.0))}


def _begin_leak(hall: Hall, target: Target, magnitude: Magnitude) -> None:
    unit = _devices(hall).cdus[_cdu(hall, target)]
    unit.leak(LEAKING_DETECTOR, float(magnitude["liters_per_minute"]))


# -- unit-hangs: the controller of a coolant unit does not answer for a while; its pumps run on -------------


def _draw_hang(rng: np.random.Generator) -> dict[str, float | str]:
    return {"lasts_seconds": float(rng.uniform(4.0, 8.0))}


def _hold_hang(hall: Hall, target: Target, _magnitude: Magnitude, _age_seconds: float) -> None:
    _devices(hall).services[_cdu(hall, target)].hangs = True


# -- debug-guest: a confidential machine is started so that its memory can be read ---------------------------


def _begin_debug(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    _devices(hall).agents.states[target.host] = "debug"


# -- firmware-update: newer firmware of a secure processor, and with it another key and certificate ----------


def _begin_update(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    _devices(hall).agents.states[target.host] = "new_firmware"


# -- silent-host: the exporter, or the whole host, stops answering --------------------------------------


def _draw_silent(rng: np.random.Generator) -> dict[str, float | str]:
    return {"manner": str(rng.choice(["hang", "refuse"]))}


def _hold_silent(hall: Hall, target: Target, magnitude: Magnitude, _age_seconds: float) -> None:
    hall.answers[target.host] = "hang" if magnitude["manner"] == "hang" else "refuse"


# -- job-start: every GPU of an idle host goes to full load at once -------------------------------------


def _begin_job(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    hall.workload.running[hall.workload.job_of_gpu[target.gpu]] = True


# -- exporter-restart: the exporter is updated; what only it remembers is gone --------------------------


def _draw_restart(rng: np.random.Generator) -> dict[str, float | str]:
    return {"lasts_seconds": float(rng.uniform(3.0, 6.0))}


def _begin_restart(hall: Hall, target: Target, _magnitude: Magnitude) -> None:
    count = hall.plan.gpus_per_host
    hall.last_xid[target.host * count : (target.host + 1) * count] = 0


def _hold_restart(hall: Hall, target: Target, _magnitude: Magnitude, _age_seconds: float) -> None:
    hall.answers[target.host] = "refuse"


def _is_not_serving(hall: Hall, _readings: Readings, target: Target) -> bool:
    return hall.answers[target.host] != "serve"


KINDS: Mapping[str, FaultKind] = {
    "thermal": FaultKind(
        kind="fault",
        entity="gpu",
        draw=_draw_thermal,
        hold=_hold_thermal,
        shows=lambda _hall, readings, target: bool(readings["margin_celsius"][target.gpu] <= 0),
    ),
    "xid79": FaultKind(
        kind="fault",
        entity="gpu",
        begin=_begin_xid79,
        shows=lambda _hall, readings, target: bool(readings["last_xid"][target.gpu] == 79),
    ),
    "silent-host": FaultKind(
        kind="fault",
        entity="host",
        draw=_draw_silent,
        hold=_hold_silent,
        shows=_is_not_serving,
    ),
    "nvlink": FaultKind(
        kind="fault",
        entity="gpu",
        draw=_draw_nvlink,
        begin=_begin_nvlink,
    ),
    "nic": FaultKind(
        kind="fault",
        entity="nic",
        begin=_begin_nic,
    ),
    "link-down": FaultKind(
        kind="fault",
        entity="port",
        begin=_begin_link_down,
    ),
    "memory-lost": FaultKind(
        kind="fault",
        entity="dimm",
        begin=_begin_memory_lost,
    ),
    "leak": FaultKind(
        kind="fault",
        entity="detector",
        draw=_draw_leak,
        begin=_begin_leak,
    ),
    "debug-guest": FaultKind(
        kind="fault",
        entity="guest",
        begin=_begin_debug,
    ),
    "link-blip": FaultKind(
        kind="decoy",
        entity="port",
        draw=_draw_blip,
        begin=_begin_blip,
    ),
    "memory-mended": FaultKind(
        kind="decoy",
        entity="dimm",
        begin=_begin_memory_mended,
    ),
    "unit-hangs": FaultKind(
        kind="decoy",
        entity="cdu",
        draw=_draw_hang,
        hold=_hold_hang,
        shows=lambda hall, _readings, target: _devices(hall).services[_cdu(hall, target)].hangs,
    ),
    "firmware-update": FaultKind(
        kind="decoy",
        entity="guest",
        begin=_begin_update,
    ),
    "job-start": FaultKind(
        kind="decoy",
        entity="host",
        begin=_begin_job,
        shows=lambda _hall, readings, target: bool(readings["utilization_percent"][target.gpu] > 0),
    ),
    "exporter-restart": FaultKind(
        kind="decoy",
        entity="host",
        draw=_draw_restart,
        begin=_begin_restart,
        hold=_hold_restart,
        shows=_is_not_serving,
    ),
    "nic-notices": FaultKind(
        kind="decoy",
        entity="nic",
        begin=_begin_notices,
    ),
    "forged-xid": FaultKind(
        kind="decoy",
        entity="gpu",
        begin=_begin_forged,
    ),
}
"""Every kind by the name it has in scenarios and labels. One with `lasts_seconds` ends by itself."""
