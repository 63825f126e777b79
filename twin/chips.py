"""Power and heat of every GPU of a large hall: two kinds of board, on cold plates and under heat sinks.

work -> power -> plate or sink -> die, memory -> margin -> clock
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from twin import physics
from twin.site import GPUS_PER_HOST, Site
from twin.workload import Flags, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What a kind of board is made for; resistances are those at rated flow."""

    limit_watts: float
    idle_watts: float
    busy_watts: float
    sink_kelvin_per_watt: float
    die_kelvin_per_watt: float
    memory_kelvin: float
    """Memory over its die when idle."""


# Rising from 26 to 30 degrees idle and to 58-66 under load, as air-cooled boards do in production (Acme trace).
AIR = Board(
    limit_watts=700.0,
    idle_watts=75.0,
    busy_watts=700.0,
    sink_kelvin_per_watt=0.034,
    die_kelvin_per_watt=0.018,
    memory_kelvin=10.0,
)
# 1.1 kW on a plate: 28 K over the coolant at rated flow.
LIQUID = Board(
    limit_watts=1_100.0,
    idle_watts=140.0,
    busy_watts=930.0,
    sink_kelvin_per_watt=0.016,
    die_kelvin_per_watt=0.012,
    memory_kelvin=9.0,
)
AIR_MODEL, LIQUID_MODEL = "NVIDIA H100 80GB HBM3", "NVIDIA B300 SXM6 AC"
SINK_SECONDS, DIE_SECONDS, MEMORY_SECONDS = 12.0, 3.0, 20.0
BRAKE_STEP = 0.02  # the brake lets go slowly, so that a rack does not swing about its cap


class Chips:
    """The GPUs of a hall, host by host; what handles change are its plain arrays."""

    def __init__(self, site: Site, rng: np.random.Generator) -> None:
        count = len(site.gpus)
        liquid = np.repeat(site.liquid, GPUS_PER_HOST)
        self._site = site
        self._host = site.host_of_gpu
        self._rack = site.rack_of_host[self._host]
        self.board = {
            field.name: np.where(liquid, getattr(LIQUID, field.name), getattr(AIR, field.name))
            for field in fields(Board)
        }
        self._contact = physics.spread(rng, count)
        self._silicon = physics.spread(rng, count)
        self.clock_ratio = np.ones(count)
        """Of the highest clock that this GPU runs at: below 1 it is a straggler, hot or not."""
        self.present = np.ones(count, np.bool_)
        self.powered = np.ones(count, np.bool_)
        self.rack_cap_watts = np.full(len(site.racks), np.inf)
        self.sink_celsius = np.full(count, 30.0)
        self.die_celsius = np.full(count, 32.0)
        self.memory_celsius = np.full(count, 42.0)
        self.power_watts = self.board["idle_watts"].copy()
        self.speed = np.ones(count)
        self.capped = np.zeros(count, np.bool_)
        self.software_thermal = np.zeros(count, np.bool_)
        self.hardware_thermal = np.zeros(count, np.bool_)
        self._brake = np.ones(len(site.racks))
        self.energy_joules = rng.uniform(2, 20, count) * 86_400 * 400

    @property
    def braked(self) -> Flags:
        """GPUs whose clock is held down from outside the board, to save power."""
        braked: Flags = self._brake[self._rack] < 1.0
        return braked

    @property
    def margin_kelvin(self) -> Floats:
        """Kelvins left to the operating limit."""
        return physics.margin(self.die_celsius, self.power_watts * 700.0 / self.board["limit_watts"])

    def advance(
        self, seconds: float, work: Floats, inlet_celsius: Floats, rise_kelvin: Floats, resistance: Floats
    ) -> None:
        """Draw power for `work`, 0 to 1 per GPU, and move the heat; the last three are per host."""
        board = self.board
        on = self.present & self.powered
        busy = np.where(on, board["busy_watts"] * work * self._silicon, 0.0)
        idle = np.where(on, board["idle_watts"], 0.0)
        self._slow_down(idle, busy)
        self.power_watts = idle + busy * np.power(self.speed, physics.CLOCK_POWER_EXPONENT)
        self.energy_joules += self.power_watts * seconds
        host = self._host
        coolant = (inlet_celsius + 0.5 * rise_kelvin)[host]
        sink = coolant + self.power_watts * board["sink_kelvin_per_watt"] * self._contact * resistance[host]
        self.sink_celsius += (sink - self.sink_celsius) * -np.expm1(-seconds / SINK_SECONDS)
        die = self.sink_celsius + self.power_watts * board["die_kelvin_per_watt"] * self._contact
        self.die_celsius += (die - self.die_celsius) * -np.expm1(-seconds / DIE_SECONDS)
        share = self.power_watts / board["limit_watts"]
        memory = self.die_celsius + np.where(on, board["memory_kelvin"] * (1.1 - 0.6 * share), 0.0)
        self.memory_celsius += (memory - self.memory_celsius) * -np.expm1(-seconds / MEMORY_SECONDS)

    def _slow_down(self, idle: Floats, busy: Floats) -> None:
        margin = self.margin_kelvin
        headroom = self.board["limit_watts"] - idle
        board = np.power(headroom / np.maximum(busy, headroom), 1.0 / physics.CLOCK_POWER_EXPONENT)
        thermal = physics.speed_within_thermal_limit(margin)
        self.capped, self.software_thermal = board < 1.0, thermal < 1.0
        self.hardware_thermal = physics.hardware_slowdown(self.hardware_thermal, margin)
        hardware = np.where(self.hardware_thermal, physics.HARDWARE_SPEED, 1.0)
        self._pull_brake(idle, busy)
        self.speed = np.minimum.reduce([board, thermal, hardware, self._brake[self._rack], self.clock_ratio])

    def _pull_brake(self, idle: Floats, busy: Floats) -> None:
        """Hold each rack below its cap: at once down, step by step up again."""
        racks = len(self._brake)
        still = np.bincount(self._rack, idle, racks)
        wanted = np.bincount(self._rack, busy, racks)
        room = np.maximum(self.rack_cap_watts - still, 0.0)
        share = np.where(wanted > room, room / np.maximum(wanted, 1.0), 1.0)
        allowed = np.clip(np.power(share, 1.0 / physics.CLOCK_POWER_EXPONENT), 0.25, 1.0)
        self._brake = np.minimum(allowed, self._brake + BRAKE_STEP)
