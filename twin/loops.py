"""Coolant from the facility to the cold plates: pumps, flows, heat exchangers and temperatures, one array per place.

    pump -> flow of the CDU -> racks in parallel -> hosts in parallel -> cold plates
      facility water -> heat exchanger -> supply -> (+ heat / flow) -> return -> heat exchanger

Affinity laws: flow follows the speed, head its square. PG25: Airedale, Deltachill manual, fluid properties.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from twin.site import Site
from twin.workload import Floats

HOST_LITERS_PER_MINUTE = (
    13.0  # rated; 1.3 L/min per kW of a host of 10 kW (OCP OAI liquid cooling guidance: 1.25-2)
)
RATED_KILOPASCALS = 90.0  # over the racks at rated flow
PIPE_SHARE = 0.5  # head lost in pipes and exchanger, over that lost in the racks
SUPPLY_SETPOINT_CELSIUS = 30.0
RATED_RISE_KELVIN = 9.0
FACILITY_CELSIUS = 20.0
EFFECTIVENESS = 0.82  # of the heat exchanger at rated flows
RATED_PUMP_RPM = 6_450.0
LOOP_LITERS_PER_HOST = 6.0
SUPPLY_SECONDS = 15.0  # plates and valve of the heat exchanger
RESERVOIR_LITERS = 20.0
AIR_OVER_FACILITY_KELVIN = 5.0  # coils of the air handlers over the water that feeds them
LEAK_SENSED_LITERS = 0.3  # a rope must be wet over some length
ROOM_HUMIDITY = 0.38


def watts_per_flow_kelvin(celsius: Floats) -> Floats:
    """Return what PG25 carries, in watts per L/min and kelvin."""
    density = 1031.0 - 0.316 * celsius - 0.00256 * celsius**2
    return density * (3.861 + 0.00248 * celsius) / 60.0


class Loops:
    """The cooling of a hall; what handles change are its plain arrays."""

    def __init__(self, site: Site, rng: np.random.Generator) -> None:
        cdus, racks, hosts = len(site.cdus), len(site.racks), len(site.hosts)
        self._site = site
        self._host_cdu = site.cdu_of_rack[site.rack_of_host]
        self._wet_hosts = np.flatnonzero(self._host_cdu >= 0)
        self._hosts_per_rack = np.bincount(site.rack_of_host, minlength=racks).astype(float)
        self.facility_celsius = FACILITY_CELSIUS + float(rng.uniform(-1, 1))
        self.facility_offset_kelvin = 0.0
        self.room_humidity = ROOM_HUMIDITY
        self.pump_speed = rng.uniform(0.74, 0.82, cdus)
        self.pump_efficiency = np.ones(cdus)
        self.setpoint_celsius = SUPPLY_SETPOINT_CELSIUS + rng.uniform(-0.5, 0.5, cdus)
        self.rack_opening = np.ones(racks)
        self.plate_opening = np.ones(hosts)
        self.leak_liters_per_minute = np.zeros(racks)
        self.leaked_liters = np.zeros(racks)
        self.reservoir_liters = np.full(cdus, RESERVOIR_LITERS)
        self.supply_celsius = self.setpoint_celsius.copy()
        self.return_celsius = self.supply_celsius + 8.0
        self.exchanged_watts = np.zeros(cdus)
        self.host_heat_watts = np.zeros(hosts)
        self._share_out()

    @property
    def water_celsius(self) -> float:
        """Facility water towards the CDUs."""
        return self.facility_celsius + self.facility_offset_kelvin

    @property
    def air_celsius(self) -> float:
        """Air in front of the racks."""
        return self.water_celsius + AIR_OVER_FACILITY_KELVIN

    @property
    def dew_point_celsius(self) -> float:
        """Of the room, by the Magnus formula (a = 17.62, b = 243.12)."""
        air = self.air_celsius
        gamma = np.log(self.room_humidity) + 17.62 * air / (243.12 + air)
        return float(243.12 * gamma / (17.62 - gamma))

    def _share_out(self) -> None:
        """Find every flow: racks of a CDU and hosts of a rack are in parallel and share by their openings."""
        site, cdus = self._site, len(self._site.cdus)
        hosts = np.bincount(site.rack_of_host, self.plate_opening, len(site.racks))
        of_racks = self.rack_opening * hosts
        wet = site.cdu_of_rack >= 0
        of_cdu = np.bincount(site.cdu_of_rack[wet], of_racks[wet], cdus)
        rated = np.bincount(site.cdu_of_rack[wet], self._hosts_per_rack[wet], cdus)
        opening = np.maximum(of_cdu / rated, 1e-3)
        speed = self.pump_speed * self.pump_efficiency
        speed = speed * np.clip(
            self.reservoir_liters / (0.2 * RESERVOIR_LITERS), 0.02, 1.0
        )  # sucks air when low
        self.cdu_flow = (
            rated
            * HOST_LITERS_PER_MINUTE
            * speed
            / 0.78
            * np.sqrt((1 + PIPE_SHARE) / (1 / opening**2 + PIPE_SHARE))
        )
        self.delta_kilopascals = RATED_KILOPASCALS * np.square(
            self.cdu_flow / (rated * HOST_LITERS_PER_MINUTE * opening)
        )
        per_opening = self.cdu_flow / np.maximum(of_cdu, 1e-9)
        self.rack_flow = np.where(wet, of_racks * per_opening[site.cdu_of_rack], 0.0)
        self.host_flow = np.where(
            self._host_cdu >= 0,
            self.plate_opening
            * self.rack_opening[site.rack_of_host]
            * per_opening[np.maximum(self._host_cdu, 0)],
            0.0,
        )
        self._volume_liters = rated * LOOP_LITERS_PER_HOST

    def advance(self, seconds: float, host_watts: Floats) -> None:
        """Carry the heat that the cold plates of each host gave to the coolant, in watts, to the facility water."""
        self._share_out()
        self._leak(seconds)
        cdus = len(self._site.cdus)
        self.host_heat_watts = np.where(self._host_cdu >= 0, host_watts, 0.0)
        heat = np.bincount(self._host_cdu[self._wet_hosts], self.host_heat_watts[self._wet_hosts], cdus)
        mean = 0.5 * (self.supply_celsius + self.return_celsius)
        capacity = np.maximum(self.cdu_flow * watts_per_flow_kelvin(mean), 1.0)
        transport = 60.0 * self._volume_liters / np.maximum(self.cdu_flow, 0.1)
        goal = np.minimum(self.supply_celsius + heat / capacity, 150.0)
        self.return_celsius += (goal - self.return_celsius) * -np.expm1(-seconds / transport)
        over = np.maximum(self.return_celsius - self.water_celsius, 0.0)
        most = EFFECTIVENESS * over
        wanted = np.maximum(self.return_celsius - self.setpoint_celsius, 0.0)
        self.valve_percent = 100.0 * np.clip(wanted / np.maximum(most, 1e-6), 0.0, 1.0)
        cooled = self.return_celsius - np.minimum(wanted, most)
        self.supply_celsius += (cooled - self.supply_celsius) * -np.expm1(-seconds / SUPPLY_SECONDS)
        self.exchanged_watts = capacity * (self.return_celsius - self.supply_celsius)

    def _leak(self, seconds: float) -> None:
        lost = self.leak_liters_per_minute * seconds / 60.0
        self.leaked_liters += lost
        wet = self._site.cdu_of_rack >= 0
        taken = np.bincount(self._site.cdu_of_rack[wet], lost[wet], len(self._site.cdus))
        self.reservoir_liters = np.maximum(self.reservoir_liters - taken, 0.0)

    def cooling(self) -> tuple[Floats, Floats, Floats]:
        """Return per host what flows into its plates, how much warmer it leaves, and the resistance of the plates."""
        return self.plate_inlet_celsius(), self.coolant_rise_kelvin(), self.plate_resistance_ratio()

    def rated_cooling(self) -> tuple[Floats, Floats, Floats]:
        """Return the same of a cooling in which nothing ever changes."""
        hosts = len(self._host_cdu)
        air = FACILITY_CELSIUS + AIR_OVER_FACILITY_KELVIN
        inlet = np.where(self._host_cdu >= 0, SUPPLY_SETPOINT_CELSIUS, air)
        return inlet, np.where(self._host_cdu >= 0, RATED_RISE_KELVIN, 0.0), np.ones(hosts)

    def plate_inlet_celsius(self) -> Floats:
        """Return per host what flows into its plates, or the air before it."""
        inlet = self.supply_celsius[np.maximum(self._host_cdu, 0)] if len(self._site.cdus) else 0.0
        return np.where(self._host_cdu >= 0, inlet, self.air_celsius)

    def coolant_rise_kelvin(self) -> Floats:
        """Return per host how much warmer its coolant leaves than it came."""
        capacity = np.maximum(self.host_flow, 0.05) * float(watts_per_flow_kelvin(np.array(35.0)))
        return np.where(self._host_cdu >= 0, np.minimum(self.host_heat_watts / capacity, 90.0), 0.0)

    def plate_resistance_ratio(self) -> Floats:
        """Return per host the resistance of its plates over that at rated flow: the film grows as the flow falls."""
        flow = np.maximum(self.host_flow / HOST_LITERS_PER_MINUTE, 0.02)
        ratio = np.where(self._host_cdu >= 0, 0.4 + 0.6 * np.power(flow, -0.8), 1.0)
        return cast(Floats, ratio)
