"""The state of a hall of GPUs, moved forward by any step of time; faults reach in here, sensors read here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from twin import physics
from twin.plan import Draw, Plan
from twin.syslog import KERNEL, Message
from twin.workload import Activity, Floats, Workload

if TYPE_CHECKING:
    from twin.devices import Devices

Answer: TypeAlias = Literal["serve", "hang", "refuse"]
"""What the exporter of a host does with a request."""

_WARM_UP_SECONDS = 60.0  # several time constants of every mass: the hall opens in its steady state


class Hall:
    """Every GPU of a plan as arrays in plan order, and the exporter process and the log of every host.

    The same plan and the same sequence of steps give the same hall.
    """

    def __init__(self, plan: Plan) -> None:
        count = len(plan.gpus)
        silicon = Draw.SILICON.generator(plan.seed)
        self.rng = Draw.NOISE.generator(plan.seed)
        self.plan = plan
        self.workload = Workload(plan)
        self.answers: list[Answer] = ["serve"] * len(plan.hosts)
        self.devices: Devices | None = None
        """What stands beside the GPUs, where the hall has it."""
        self._printed: list[list[Message]] = [[] for _ in plan.hosts]

        cdus = dict.fromkeys(host.cdu for host in plan.hosts)
        loops = {cdu: silicon.uniform(*physics.COOLANT_CELSIUS) for cdu in cdus}
        self.coolant_celsius = np.repeat([loops[host.cdu] for host in plan.hosts], plan.gpus_per_host)
        self.contact = physics.spread(silicon, count)
        self.plate = np.ones(count)
        self._silicon = physics.spread(silicon, count)
        self._idle_silicon = physics.spread(silicon, count)

        self.present = np.ones(count, np.bool_)
        self.last_xid = np.zeros(count, np.int64)
        self.pcie_replays = np.where(silicon.random(count) < 0.3, silicon.integers(0, 16, count), 0)
        self.corrected_errors = np.where(silicon.random(count) < 0.02, silicon.integers(1, 40, count), 0)
        self._error_rate = np.where(self.corrected_errors > 0, 2.0 / 3600, 0.0)  # per second: a few an hour
        self.remapped_rows = (silicon.random(count) < 0.01).astype(np.int64)

        self.die_celsius = self.coolant_celsius + 2.0
        self.hbm_celsius = self.coolant_celsius + 8.0
        self.die_watts = np.zeros(count)
        self.speed = np.ones(count)
        self.power_capped = np.zeros(count, np.bool_)
        self.software_slowdown = np.zeros(count, np.bool_)
        self.hardware_slowdown = np.zeros(count, np.bool_)
        # The drivers were loaded days to weeks ago.
        self.energy_joules = silicon.uniform(2, 20, count) * 86_400 * 400
        self.advance(_WARM_UP_SECONDS)

    @property
    def margin(self) -> Floats:
        """Kelvins left to the operating limit."""
        return physics.margin(self.die_celsius, self.die_watts)

    def print(self, host: int, *texts: str, tag: str = KERNEL) -> None:
        """Let the kernel of a host, or a program of it, write into its log."""
        self._printed[host] += [Message(text, tag) for text in texts]

    def take_printed(self) -> list[list[Message]]:
        """Return what every host has written since the last call, in plan order."""
        printed, self._printed = self._printed, [[] for _ in self._printed]
        return printed

    def advance(self, seconds: float) -> None:
        """Move every GPU forward; power and activity are then means over the whole step."""
        if not seconds > 0:
            raise ValueError(f"time only moves forward, not by {seconds} s")
        count = math.ceil(seconds / physics.SUBSTEP_SECONDS)
        parts = [self._substep(seconds / count) for _ in range(count)]
        activities = [activity for activity, _ in parts]
        self.power_watts: Floats = np.mean([watts for _, watts in parts], axis=0)
        self.activity = Activity(
            running=activities[-1].running,
            computing=np.mean([activity.computing for activity in activities], axis=0),
            communicating=np.mean([activity.communicating for activity in activities], axis=0),
            saving=np.mean([activity.saving for activity in activities], axis=0),
        )
        self.energy_joules = self.energy_joules + self.power_watts * seconds
        self.corrected_errors = self.corrected_errors + self.rng.poisson(self._error_rate * seconds)

    def _substep(self, seconds: float) -> tuple[Activity, Floats]:
        activity = self.workload.advance(seconds, self.speed)
        die, hbm = physics.demand(activity, self.workload.intensity * self._silicon * self.present)
        die_idle = physics.DIE_IDLE_WATTS * self._idle_silicon
        self._slow_down(physics.speed_within_board_limit(die_idle + physics.HBM_IDLE_WATTS, die, hbm))
        self.die_watts = die_idle + die * np.power(self.speed, physics.CLOCK_POWER_EXPONENT)
        hbm_watts = physics.HBM_IDLE_WATTS + hbm * self.speed
        from_die, from_hbm = physics.heat_flow(
            self.die_celsius, self.hbm_celsius, self.coolant_celsius, self.contact, self.plate
        )
        self.die_celsius += seconds * (self.die_watts - from_die) / physics.DIE_JOULES_PER_KELVIN
        self.hbm_celsius += seconds * (hbm_watts - from_hbm) / physics.HBM_JOULES_PER_KELVIN
        return activity, self.die_watts + hbm_watts

    def _slow_down(self, capped: Floats) -> None:
        margin = self.margin
        thermal = physics.speed_within_thermal_limit(margin)
        self.power_capped = capped < 1.0
        self.software_slowdown = thermal < 1.0
        self.hardware_slowdown = physics.hardware_slowdown(self.hardware_slowdown, margin)
        hardware = np.where(self.hardware_slowdown, physics.HARDWARE_SPEED, 1.0)
        self.speed = np.minimum(capped, np.minimum(thermal, hardware))
