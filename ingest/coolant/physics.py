"""What coolants carry and when air gives up its water. The views compute the same: the tests hold them together.

Properties of water and propylene glycol, 0 to 45 degrees Celsius: table in the Airedale DeltaChill manual, page 53;
the polynomials stay within 0.005 kJ/(kg K) and 0.2 kg/m3 of it. Dew point: Magnus, with the constants of
Sonntag 1990 for water.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAGNUS_A, MAGNUS_B_CELSIUS = 17.62, 243.12


@dataclass(frozen=True, slots=True)
class Coolant:
    """Polynomials of the temperature in degrees Celsius, constant first."""

    specific_heat: tuple[float, float, float]
    """kJ/(kg K)."""
    density: tuple[float, float, float]
    """kg/m3."""


PROPERTIES = {
    "water": Coolant((4.2085, -0.001821, 0.0000273), (999.92, 0.01408, -0.005167)),
    "pg20": Coolant((3.9273, 0.002255, 0.0), (1025.81, -0.2881, -0.002576)),
    "pg25": Coolant((3.861, 0.00248, 0.0), (1031.0, -0.316, -0.00256)),
    "pg30": Coolant((3.792, 0.0028, 0.0), (1036.23, -0.3403, -0.002636)),
}


def heat_kilowatts(
    coolant: str, liters_per_minute: float, supply_celsius: float, return_celsius: float
) -> float:
    """Return the heat that a flow carries away, negative where it comes back colder.

    The flow is metered on the supply side, so the density is that at supply; the specific heat is that at the mean.
    """
    properties = PROPERTIES[coolant]
    density = _at(properties.density, supply_celsius)
    specific_heat = _at(properties.specific_heat, (supply_celsius + return_celsius) / 2)
    return liters_per_minute / 60_000 * density * specific_heat * (return_celsius - supply_celsius)


def dew_point_celsius(air_celsius: float, humidity_percent: float) -> float | None:
    """Return the temperature at which air of this humidity is wet; None where there is no such air."""
    if not 0 < humidity_percent <= 100 or air_celsius <= -MAGNUS_B_CELSIUS:
        return None
    share = math.log(humidity_percent / 100) + MAGNUS_A * air_celsius / (MAGNUS_B_CELSIUS + air_celsius)
    return MAGNUS_B_CELSIUS * share / (MAGNUS_A - share)


def _at(polynomial: tuple[float, float, float], celsius: float) -> float:
    constant, linear, square = polynomial
    return constant + celsius * (linear + celsius * square)
