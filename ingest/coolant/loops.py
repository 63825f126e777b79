"""Rows of `coolant_loops` out of rows of `coolant_readings`: every collector of coolant can say both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from contract.config import StrictConfig
from ingest.coolant.physics import dew_point_celsius, heat_kilowatts

Row = Mapping[str, Any]
Key = tuple[str, str]
"""Equipment and loop."""

CoolantName = Literal["water", "pg20", "pg25", "pg30"]

_PLAIN = {
    "supply_temperature": "supply_celsius",
    "return_temperature": "return_celsius",
    "flow": "flow_liters_per_minute",
    "delta_pressure": "delta_pressure_kpa",
    "supply_pressure": "supply_kpa",
    "return_pressure": "return_kpa",
}
"""Points that are taken as they are, by their name in the row; of several probes the first that is good."""

_BETWEEN = ("pump_rotation", "supply_kpa", "return_kpa")
"""Needed on the way; no columns."""


class LoopConfig(StrictConfig):
    """What no device says about its loops."""

    coolant: CoolantName = Field(
        default="pg25", description="What is in the loops: water, or propylene glycol by percent of volume."
    )
    liquid_share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the power that goes into the liquid, the rest into the air.",
    )


class LoopMemory:
    """Puts the readings of one look together, loop by loop, and remembers since when pumps run."""

    def __init__(self, config: LoopConfig, protocol: str) -> None:
        self._config = config
        self._protocol = protocol
        self._running_since_us: dict[Key, int] = {}

    def rows(
        self, readings: Iterable[Row], now_us: int, power_watts: Mapping[str, float] | None = None
    ) -> list[dict[str, Any]]:
        """Return one row per loop that says anything.

        `power_watts` is what the loop has to cool, by equipment; a reading without `equipment` is of "". Setpoints,
        and what is not to be trusted, are as if they were not there. A loop without air of its own is judged by the
        wettest there is.
        """
        loops: dict[Key, dict[str, Any]] = {}
        air: dict[str, list[Row]] = defaultdict(list)
        for reading in readings:
            if reading.get("value") is None or reading["role"] != "measured" or reading["quality"] != "good":
                continue
            equipment, loop = reading.get("equipment", ""), reading.get("loop")
            if reading["point"] in ("air_temperature", "air_humidity", "dew_point"):
                air[equipment].append(reading)
            elif loop is not None:
                _add(loops.setdefault((equipment, loop), {}), reading)
        dew_points = {equipment: _wettest(found) for equipment, found in air.items()}
        anywhere = max((dew for dew in dew_points.values() if dew is not None), default=None)
        rows = []
        for key, points in loops.items():
            own = dew_points.get(key[0])
            watts = (power_watts or {}).get(key[0])
            rows.append(self._row(key, points, now_us, anywhere if own is None else own, watts))
        return rows

    def _row(
        self, key: Key, row: dict[str, Any], now_us: int, dew_point: float | None, watts: float | None
    ) -> dict[str, Any]:
        equipment, loop = key
        supply = row.get("supply_celsius")
        row |= {
            "loop": loop,
            "protocol": self._protocol,
            "coolant": "water" if loop == "FWS" else self._config.coolant,
            "pump_running_seconds": self._running(key, row, now_us),
            "dew_point_celsius": dew_point,
            "dew_margin_celsius": None if supply is None or dew_point is None else supply - dew_point,
            "power_kilowatts": None if watts is None else watts / 1000,
        }
        if "supply_kpa" in row and "return_kpa" in row:
            row.setdefault("delta_pressure_kpa", row["supply_kpa"] - row["return_kpa"])
        for name in _BETWEEN:
            row.pop(name, None)
        if equipment:
            row["equipment"] = equipment
        if {"supply_celsius", "return_celsius", "flow_liters_per_minute"} <= row.keys():
            self._balance(row)
        return row

    def _balance(self, row: dict[str, Any]) -> None:
        row["heat_removed_kilowatts"] = heat = heat_kilowatts(
            row["coolant"],
            row["flow_liters_per_minute"],
            row["supply_celsius"],
            row["return_celsius"],
        )
        power = row["power_kilowatts"]
        if power:
            row["balance_ratio"] = heat / (self._config.liquid_share * power)

    def _running(self, key: Key, row: Row, now_us: int) -> float | None:
        speeds = [row[name] for name in ("pump_percent", "pump_rotation") if name in row]
        if not speeds:
            return None
        if max(speeds) <= 0:
            self._running_since_us.pop(key, None)
            return 0.0
        since_us = min(self._running_since_us.setdefault(key, now_us), now_us)
        return (now_us - since_us) / 1e6


def _add(row: dict[str, Any], reading: Row) -> None:
    point, value = reading["point"], reading["value"]
    if point in _PLAIN:
        row.setdefault(_PLAIN[point], value)
    elif point == "pump_speed":
        row["pump_percent"] = max(value, row.get("pump_percent", 0.0))
    elif point == "pump_rotation":
        row["pump_rotation"] = max(value, row.get("pump_rotation", 0.0))


def _wettest(air: Iterable[Row]) -> float | None:
    """Return the highest dew point: of probes that say both temperature and humidity at one place, else as read."""
    places: dict[Any, dict[str, float]] = defaultdict(dict)
    read = []
    for reading in air:
        if reading["point"] == "dew_point":
            read.append(reading["value"])
        else:
            places[reading.get("component")].setdefault(reading["point"], reading["value"])
    computed = [
        dew_point_celsius(place["air_temperature"], place["air_humidity"])
        for place in places.values()
        if len(place) == 2
    ]
    return max((dew for dew in computed or read if dew is not None), default=None)
