"""What stands in a hall beside its GPUs: the fabric's ports, the machines, coolant units and secure processors.

All are coupled to the hall by physics: units carry away what its GPUs take in and decide what reaches their plates;
ports send as much as jobs communicate. Each shows itself to the outside as the real device does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from twin import physics
from twin.agents import Agents
from twin.cdu import Cdu, serve_cdu
from twin.fabric_tree import FabricTree
from twin.hall import Hall
from twin.host_tree import HostTree
from twin.plan import Plan
from twin.redfish import Service
from twin.workload import Floats

FILES_SECONDS = 2.0
"""How often files of counters are written; the devices' own caches are of that order."""

EVIDENCE_SECONDS = 15.0
"""How often each host proves itself."""

HOST_WATTS = 2_600.0
"""Of a host without its GPUs: processors, memory, network cards, fans (DGX H100 data sheet: 10.2 kW at most)."""

_CORES_PER_SOCKET = 8  # enough to show a machine; each is some files
_WARM_UP_SECONDS = 600.0
_LOAD_RATIO = 0.4  # of what a port could send while its job communicates
_SLOWEST_FLOW = 0.05
_CONVECTION_EXPONENT = 0.8  # heat transfer to turbulent flow in a channel (Dittus-Boelter)


class Devices:
    """All of them, for one thread. `folder` receives what hosts show as files, and the evidence they hand in."""

    def __init__(self, plan: Plan, hall: Hall, folder: Path, now_us: int) -> None:
        self._plan = plan
        self._evidence_folder = folder / "evidence"
        homes = [folder / "hosts" / host.name for host in plan.hosts]
        self.machines = [
            HostTree(
                home,
                now_us,
                gpus=[gpu.pci_bus_id for gpu in host.gpus],
                nics=[nic.pci_bus_id for nic in host.nics],
                cores_per_socket=_CORES_PER_SOCKET,
            )
            for home, host in zip(homes, plan.hosts, strict=True)
        ]
        self.ports = [
            FabricTree(machine.sysfs, host) for machine, host in zip(self.machines, plan.hosts, strict=True)
        ]
        self.cdus = _draw_cdus(plan, hall)
        self.services: Mapping[str, Service] = {name: serve_cdu(cdu) for name, cdu in self.cdus.items()}
        self.agents = Agents(plan, now_us, every_seconds=EVIDENCE_SECONDS)
        self.agents.maker.write_root(folder / "roots")
        self._cdu_of_host = [host.cdu for host in plan.hosts]
        self._files_due = self._elapsed_seconds = self._files_at = 0.0
        self._heat_units(hall, _WARM_UP_SECONDS)

    def step(self, hall: Hall, seconds: float, now_us: int) -> None:
        """Move every device forward with the hall, and show it.

        To be called before the hall moves: it then feels the coolant of this step.
        """
        self._elapsed_seconds += seconds
        self._heat_units(hall, seconds)
        self._cool_plates(hall)
        if self._elapsed_seconds >= self._files_due:
            self._files_due = self._elapsed_seconds + FILES_SECONDS
            self._show_hosts(hall)
        self.agents.write(self._evidence_folder, now_us)

    def _heat_units(self, hall: Hall, seconds: float) -> None:
        """Let the units carry away what the hosts take in."""
        of_host = hall.power_watts.reshape(len(self._plan.hosts), -1).sum(axis=1) + HOST_WATTS
        for name, cdu in self.cdus.items():
            behind = [number for number, its in enumerate(self._cdu_of_host) if its == name]
            cdu.heat_kilowatts = float(of_host[behind].sum()) / 1_000
            cdu.advance(seconds)

    def _cool_plates(self, hall: Hall) -> None:
        """Let what the units give reach the plates: the less flows, the worse a plate gives off its heat."""
        cdus = [self.cdus[name] for name in self._cdu_of_host]
        flow = np.clip([cdu.flow_ratio for cdu in cdus], _SLOWEST_FLOW, 1.0)
        per_host = self._plan.gpus_per_host
        hall.coolant_celsius = np.repeat([cdu.supply_celsius for cdu in cdus], per_host)
        hall.plate = hall.plate * np.repeat(flow**-_CONVECTION_EXPONENT, per_host)

    def _show_hosts(self, hall: Hall) -> None:
        passed, self._files_at = self._elapsed_seconds - self._files_at, self._elapsed_seconds
        loads: Floats = (hall.activity.communicating * _LOAD_RATIO).reshape(len(self._plan.hosts), -1)
        busy = (hall.power_watts > 2 * physics.HBM_IDLE_WATTS).reshape(len(self._plan.hosts), -1)
        for host, machine in enumerate(self.machines):
            self.ports[host].step(passed, loads[host].tolist())
            machine.busy_ratio = 0.05 + 0.2 * float(busy[host].mean())
            machine.advance(passed)


def _draw_cdus(plan: Plan, hall: Hall) -> dict[str, Cdu]:
    """Return the units by name, each sized for its racks and set to the temperature that its hosts see."""
    cdus: dict[str, Cdu] = {}
    for number, host in enumerate(plan.hosts):
        behind = sum(other.cdu == host.cdu for other in plan.hosts)
        kilowatts = behind * (plan.gpus_per_host * physics.BOARD_LIMIT_WATTS + HOST_WATTS) / 1_000
        supply = float(hall.coolant_celsius[number * plan.gpus_per_host])
        cdus.setdefault(
            host.cdu,
            Cdu(name=host.cdu, rated_kilowatts=kilowatts, setpoint_celsius=round(supply, 1)),
        )
    return cdus
