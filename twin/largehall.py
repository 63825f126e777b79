"""A large hall in motion: cooling, chips, network, jobs and trust coupled by what flows between them.

Devices write down what happens to them; nothing else does, and no handle. `take_happened` hands that to whoever plays their collectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin.chips import Chips
from twin.loops import LEAK_SENSED_LITERS, RESERVOIR_LITERS, Loops
from twin.network import Network
from twin.plan import GPU_BUSES
from twin.site import GPUS_PER_HOST, PORTS_PER_HOST, Site
from twin.tasks import Tasks
from twin.telemetry import Telemetry
from twin.trust import Trust
from twin.workload import Flags

if TYPE_CHECKING:
    from twin.handles.handle import Handle

STEP_SECONDS = 1.0
BOOT_SECONDS = 90.0
WARM_UP_SECONDS = 180
METER_SECONDS = 30.0  # meters of feeds average over about half a minute
LEAK_REACTION_SECONDS = 15.0  # how long a rack's controller waits before it forces its hosts off
# Wear of a memory stack: corrected errors, a replaced row, no row left, an error that is not contained.
WEAR_STAGES = (
    (40, 63, "info", "row remapper"),
    (150, 64, "fatal", "row remapper failed"),
    (220, 95, "fatal", "uncontained"),
)
AER_PER_SECOND = 8.0
_CHIPS, _LOOPS, _NETWORK, _TASKS, _TRUST, _TELEMETRY, _DEVICES = range(201, 208)


class Happening(NamedTuple):
    """A row that a device's collector writes: the stream, the host or the equipment, and the columns."""

    stream: str
    key: str
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An entity that a handle may strike; `index` is its position among its kind."""

    kind: str
    entity: str
    index: int


class LargeHall:
    """Every device of a site as arrays in its order. The same site and the same steps give the same hall."""

    def __init__(self, site: Site) -> None:
        def rng(what: int) -> np.random.Generator:
            return np.random.default_rng([site.seed, what])

        self.site = site
        self.elapsed_seconds = 0.0
        self.loops = Loops(site, rng(_LOOPS))
        self.chips = Chips(site, rng(_CHIPS))
        self.network = Network(site, rng(_NETWORK))
        self.tasks = Tasks(site, rng(_TASKS))
        self.trust = Trust(site, rng(_TRUST))
        self.telemetry = Telemetry(site, rng(_TELEMETRY))
        self.cuts: set[str] = set()
        """Couplings that do not act, of: coolant, throttle, network, jobs."""
        self._rng = rng(_DEVICES)
        self._happened: list[Happening] = []
        gpus, hosts = len(site.gpus), len(site.hosts)
        self.wear_per_second = np.zeros(gpus)
        self.corrected_errors = self._rng.poisson(0.05, gpus)
        self._worn_from = self.corrected_errors.copy()
        self._wear_stage = np.zeros(gpus, np.int64)
        self.uncorrected_errors = np.zeros(gpus, np.int64)
        self.pcie_dying = np.zeros(gpus, np.bool_)
        self.pcie_errors = np.zeros(gpus, np.int64)
        self.pcie_replays = self._rng.integers(0, 12, gpus)
        self.hung = np.zeros(gpus, np.bool_)
        self.last_xid = np.zeros(gpus, np.int64)
        self.nvlink_up = np.ones(gpus, np.bool_)
        self.nvlink_errors = np.zeros(gpus, np.int64)
        self.powered = np.ones(hosts, np.bool_)
        self.metered_watts = np.zeros(hosts)
        """What the GPUs of each host draw, as the meters of its rack average it."""
        self.booting_seconds = np.zeros(hosts)
        self.uptime_seconds = self._rng.uniform(5, 60, hosts) * 86_400
        self.leak_state = ["dry"] * len(site.racks)
        self._leak_seconds = np.zeros(len(site.racks))
        self._told_active = self.network.active.copy()
        self._told_installed = self.network.installed.copy()
        self._told_hung = self.hung.copy()
        self._told_nvlink = self.nvlink_up.copy()
        self._names: dict[str, tuple[str, ...]] = {
            "gpu": site.gpus,
            "host": site.hosts,
            "port": site.ports,
            "rack": site.racks,
            "cdu": site.cdus,
            "job": tuple(job.name for job in site.jobs),
            "hall": (site.hall,),
        }
        self.advance(WARM_UP_SECONDS)
        self.elapsed_seconds = 0.0
        self._happened.clear()

    @property
    def entity_names(self) -> Mapping[str, tuple[str, ...]]:
        """The names of every kind of entity, in the order of its array."""
        return self._names

    @property
    def host_up(self) -> Flags:
        """Hosts whose kernel runs."""
        up: Flags = self.powered & (self.booting_seconds <= 0)
        return up

    @property
    def gpu_up(self) -> Flags:
        """GPUs that a driver can use."""
        up: Flags = self.chips.present & ~self.hung & np.repeat(self.host_up, GPUS_PER_HOST)
        return up

    def targets(self, handle: Handle) -> list[Target]:
        """Return what a handle may strike, in an order that depends on positions alone."""
        names = self._names[handle.entity_kind]
        return [
            Target(kind=handle.entity_kind, entity=name, index=index)
            for index, name in enumerate(names)
            if handle.strikes(self, index)
        ]

    def advance(self, seconds: float) -> None:
        """Move the hall forward, in steps of at most a second."""
        if not seconds > 0:
            raise ValueError(f"time only moves forward, not by {seconds} s")
        steps = int(np.ceil(seconds / STEP_SECONDS))
        for _ in range(steps):
            self._step(seconds / steps)

    def happen(self, stream: str, key: str, **row: Any) -> None:
        """Let a device write down what happened to it."""
        self._happened.append(Happening(stream, key, row))

    def take_happened(self) -> list[Happening]:
        """Return what was written down since the last call, in order."""
        happened, self._happened = self._happened, []
        return happened

    def reboot(self, host: int) -> None:
        """Restart a host: its GPUs are reset, its job stops, the kernel gets another boot id."""
        self.booting_seconds[host] = BOOT_SECONDS
        self.uptime_seconds[host] = 0.0

    def _step(self, seconds: float) -> None:
        self.elapsed_seconds += seconds
        site, loops, chips = self.site, self.loops, self.chips
        self._boot(seconds)
        self._wear(seconds)
        speed = np.ones(len(site.gpus)) if "throttle" in self.cuts else chips.speed
        slowness = self.network.slowness()
        if "network" in self.cuts:
            slowness = np.ones(len(slowness))
        usable = self.gpu_up & self.nvlink_up
        if "jobs" in self.cuts:
            usable = np.ones(len(usable), np.bool_)
        work = self.tasks.advance(seconds, speed, usable, slowness)
        chips.powered = np.repeat(self.powered, GPUS_PER_HOST)
        cooling = loops.rated_cooling() if "coolant" in self.cuts else loops.cooling()
        chips.advance(seconds, np.where(self.gpu_up, work, 0.0), *cooling)
        watts = chips.power_watts.reshape(-1, GPUS_PER_HOST).sum(axis=1)
        self.metered_watts += (watts - self.metered_watts) * -np.expm1(-seconds / METER_SECONDS)
        loops.advance(seconds, watts)
        self.network.advance(seconds, np.where(self.gpu_up, 0.7 * self.tasks.communicating, 0.0))
        self._watch_gpus()
        self._watch_links()
        self._watch_leaks(seconds)

    def _boot(self, seconds: float) -> None:
        waits = self.powered & (self.booting_seconds > 0)
        self.booting_seconds = np.where(waits, self.booting_seconds - seconds, self.booting_seconds)
        self.uptime_seconds += seconds
        for host in np.flatnonzero(waits & (self.booting_seconds <= 0)).tolist():
            before = self.trust.boot(host)
            self.uptime_seconds[host] = 0.0
            self._reset_counters(host)
            name = self.site.hosts[host]
            self.happen(
                "host_events",
                name,
                event="reboot",
                severity="info",
                boot_id=self.trust.boot_ids[host],
                previous_boot_id=before,
            )
            self.happen(
                "gpu_events", name, event="reset", evidence="kernel_log", severity="info", occurrences=1
            )

    def _reset_counters(self, host: int) -> None:
        """Set back what the drivers of a host count since they were loaded."""
        gpus = slice(host * GPUS_PER_HOST, (host + 1) * GPUS_PER_HOST)
        self._worn_from[gpus] -= self.corrected_errors[gpus]
        for counter in (self.corrected_errors, self.uncorrected_errors, self.last_xid):
            counter[gpus] = 0
        self.pcie_errors[gpus] = self.pcie_replays[gpus] = 0
        self.chips.energy_joules[gpus] = 0.0
        self.network.reset(slice(host * PORTS_PER_HOST, (host + 1) * PORTS_PER_HOST))

    def _wear(self, seconds: float) -> None:
        """Count corrected errors and, where a GPU has worn, go on to its next stage; let dying PCIe links retry."""
        self.corrected_errors += self._rng.poisson(self.wear_per_second * seconds)
        worn = self.corrected_errors - self._worn_from
        stages = np.array([threshold for threshold, *_ in WEAR_STAGES])
        reached = np.searchsorted(stages, worn, side="right")
        for gpu in np.flatnonzero((reached > self._wear_stage) & self.gpu_up).tolist():
            _, code, severity, detail = WEAR_STAGES[self._wear_stage[gpu]]
            self._wear_stage[gpu] += 1
            self.xid(gpu, code, severity, detail)
            if code == 95:
                self.uncorrected_errors[gpu] += 1
                self.crash_job(gpu)
        aer = self._rng.poisson(np.where(self.pcie_dying & self.chips.present, AER_PER_SECOND * seconds, 0.0))
        self.pcie_errors += aer
        self.pcie_replays += aer
        for gpu in np.flatnonzero(aer).tolist():
            self.happen(
                "host_events",
                self.site.hosts[gpu // GPUS_PER_HOST],
                event="pcie_aer",
                severity="corrected",
                device=bus_id(gpu).lower()[4:],
                device_class="gpu",
                occurrences=int(aer[gpu]),
                boot_id=self.trust.boot_ids[gpu // GPUS_PER_HOST],
            )

    @property
    def remap_pending(self) -> Flags:
        """GPUs with a memory row that waits for a reset to be replaced."""
        pending: Flags = self._wear_stage >= 1
        return pending

    @property
    def remap_failed(self) -> Flags:
        """GPUs with a memory row that could not be replaced."""
        failed: Flags = self._wear_stage >= 2
        return failed

    def xid(self, gpu: int, code: int, severity: str, detail: str) -> None:
        """Let the kernel of a GPU's host print an Xid."""
        self.last_xid[gpu] = code
        self.happen(
            "gpu_events",
            self.site.hosts[gpu // GPUS_PER_HOST],
            event="xid",
            gpu_uuid=self.site.gpus[gpu],
            gpu_index=gpu % GPUS_PER_HOST,
            pci_bus_id=bus_id(gpu),
            code=code,
            evidence="kernel_log",
            occurrences=1,
            detail=detail,
            severity=severity,
            **{"class": XID_CLASSES[code][0], "action": XID_CLASSES[code][1]},
        )

    def crash_job(self, gpu: int) -> None:
        """End the job that holds a GPU, as an error in its memory does."""
        job = self.tasks.job_of_gpu[gpu]
        if job >= 0:
            self.tasks.crashed[job] = True

    def lose_gpu(self, gpu: int) -> None:
        """Let a GPU fall off its bus."""
        if self.chips.present[gpu]:
            self.chips.present[gpu] = False
            self.xid(gpu, 79, "fatal", "GPU has fallen off the bus.")
            self.happen(
                "host_events",
                self.site.hosts[gpu // GPUS_PER_HOST],
                event="device_missing",
                severity="fatal",
                device=bus_id(gpu).lower()[4:],
                device_class="gpu",
                boot_id=self.trust.boot_ids[gpu // GPUS_PER_HOST],
            )

    def _watch_gpus(self) -> None:
        """Let the driver tell of GPUs whose system processor hangs and of NVLinks that broke."""
        for gpu in np.flatnonzero(self.hung & ~self._told_hung).tolist():
            self.xid(gpu, 119, "fatal", "Timeout waiting for RPC from GSP!")
        for gpu in np.flatnonzero(self._told_nvlink & ~self.nvlink_up).tolist():
            self.nvlink_errors[gpu] += 1
            self.xid(gpu, 74, "fatal", "NVLink: fatal error detected")
        self._told_hung, self._told_nvlink = self.hung.copy(), self.nvlink_up.copy()

    def _watch_links(self) -> None:
        """Let the collector of ports tell of links that went down or came up, as two looks differ."""
        active = self.network.active
        up = np.repeat(self.host_up, PORTS_PER_HOST)
        for port in np.flatnonzero((active != self._told_active) & up).tolist():
            self.happen(
                "fabric_events",
                self.site.hosts[port // PORTS_PER_HOST],
                event="link_up" if active[port] else "link_down",
                nic=self.site.nic(port),
                port=1,
                port_id=self.site.ports[port],
                evidence="sysfs",
                severity="info" if active[port] else "nonfatal",
                occurrences=1,
                driver=self.site.driver(port),
                **{"class": "link"},
            )
        self._told_active = np.where(up, active, self._told_active)
        for port in np.flatnonzero(self._told_installed & ~self.network.installed & up).tolist():
            self.happen(
                "fabric_events",
                self.site.hosts[port // PORTS_PER_HOST],
                event="unrecoverable",
                nic=self.site.nic(port),
                evidence="kernel_log",
                severity="fatal",
                occurrences=1,
                driver=self.site.driver(port),
                **{"class": "hardware"},
            )
        self._told_installed = np.where(up, self.network.installed, self._told_installed)

    def _watch_leaks(self, seconds: float) -> None:
        """Let the rope under each rack speak when it is wet, and its controller shut the rack off after a while."""
        wet = self.loops.leaked_liters >= LEAK_SENSED_LITERS
        self._leak_seconds = np.where(wet, self._leak_seconds + seconds, 0.0)
        for rack in np.flatnonzero(wet).tolist():
            if self.leak_state[rack] == "dry" and not self.telemetry.frozen[self.site.cdu_of_rack[rack]]:
                self.leak_state[rack] = "leak"
                self._tell_leak(rack, "leak", "dry")
            if self._leak_seconds[rack] >= LEAK_REACTION_SECONDS and self.loops.rack_opening[rack] > 0.01:
                self.loops.rack_opening[rack] = 0.01
                self.loops.leak_liters_per_minute[rack] = 0.0
                hosts = self.site.rack_of_host == rack
                self.powered[hosts] = False
                self.happen(
                    "coolant_events",
                    self.unit_of_rack(rack),
                    component=f"Valves/{self.site.racks[rack]}",
                    loop="rack",
                    event="valve_changed",
                    state="Closed",
                    state_before="Open",
                    health="ok",
                    protocol="redfish",
                )

    def dry(self, rack: int) -> None:
        """Mop up under a rack, open its valve and switch its hosts on again."""
        self.loops.leak_liters_per_minute[rack] = self.loops.leaked_liters[rack] = 0.0
        self.loops.rack_opening[rack] = 1.0
        for host in np.flatnonzero((self.site.rack_of_host == rack) & ~self.powered).tolist():
            self.powered[host] = True
            self.reboot(host)
        if self.leak_state[rack] != "dry":
            self.leak_state[rack] = "dry"
            self._tell_leak(rack, "dry", "leak")
        cdu = self.site.cdu_of_rack[rack]
        if cdu >= 0:
            self.loops.reservoir_liters[cdu] = RESERVOIR_LITERS

    def unit_of_rack(self, rack: int) -> str:
        """Return the equipment that reads a rack's manifold: the coolant unit that feeds it."""
        return self.site.cdus[int(self.site.cdu_of_rack[rack])]

    def _tell_leak(self, rack: int, now: str, before: str) -> None:
        self.happen(
            "coolant_events",
            self.unit_of_rack(rack),
            component=f"LeakDetectors/{self.site.racks[rack]}",
            loop="rack",
            event="leak_changed",
            leak_state=now,
            state="Critical" if now == "leak" else "OK",
            state_before="Critical" if before == "leak" else "OK",
            health="critical" if now == "leak" else "ok",
            reaction="force_off",
            reaction_delay_seconds=LEAK_REACTION_SECONDS,
            protocol="redfish",
        )


XID_CLASSES = {
    63: ("hardware", "reset_gpu"),
    64: ("hardware", "reset_gpu"),
    74: ("link", "reset_gpu"),
    79: ("hardware", "restart_host"),
    95: ("hardware", "reset_gpu"),
    119: ("driver", "reset_gpu"),
}
"""NVIDIA Xid catalog: whose trouble a code is, and what it asks for."""


def bus_id(gpu: int) -> str:
    """Return the PCI address of a GPU, as an eight-way host numbers them."""
    return f"00000000:{GPU_BUSES[gpu % GPUS_PER_HOST]}:00.0"
