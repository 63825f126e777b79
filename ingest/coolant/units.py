"""Units that devices count in, and what turns them into the unit a point is kept in."""

from __future__ import annotations

from contract.streams.coolant import POINTS

TO_UNIT: dict[str, dict[str, tuple[float, float]]] = {
    "Celsius": {"Celsius": (1, 0), "Fahrenheit": (5 / 9, -160 / 9), "kelvin": (1, -273.15)},
    "L/min": {"L/min": (1, 0), "L/s": (60, 0), "m3/h": (1000 / 60, 0), "gpm": (3.785411784, 0)},
    "kPa": {"kPa": (1, 0), "Pa": (0.001, 0), "bar": (100, 0), "psi": (6.894757293, 0)},
    "kW": {"kW": (1, 0), "W": (0.001, 0)},
    "percent": {"percent": (1, 0), "ratio": (100, 0)},
    "hours": {"hours": (1, 0), "minutes": (1 / 60, 0)},
}
"""By the unit that a point is kept in: the units it may be given in, as factor and offset."""


def units_of(point: str) -> dict[str, tuple[float, float]]:
    """Return the units that a point may be given in, as factor and offset; none where it is a state."""
    unit = POINTS[point].unit
    return {} if unit is None else TO_UNIT.get(unit, {unit: (1.0, 0.0)})
