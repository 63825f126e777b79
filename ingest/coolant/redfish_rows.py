"""Readings out of the documents of a Redfish service.

Properties and units: DMTF Redfish schema bundle 2025.4 (CoolantConnector 1.3, Pump 1.2, Filter 1.1, Reservoir 1.0,
CoolingLoop 1.0, EnvironmentMetrics 1.5, Sensor 1.12, Resource 1.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contract.streams.coolant import POINTS
from ingest.coolant.readings import Row, as_number, reading, text_of, worse
from ingest.coolant.redfish_client import checked_path
from ingest.coolant.redfish_walk import READINGS, Found, Task

_SETPOINTS = {
    "connector": {
        "FlowControlLitersPerMinute": "flow",
        "SupplyTemperatureControlCelsius": "supply_temperature",
        "ReturnTemperatureControlCelsius": "return_temperature",
        "DeltaTemperatureControlCelsius": "delta_temperature",
        "DeltaPressureControlkPa": "delta_pressure",
        "ValvePositionControlPercent": "valve_position",
    },
    "pump": {"SpeedControlPercent": "pump_speed"},
}

_RATED = {"flow": "RatedFlowLitersPerMinute", "service_time": "RatedServiceHours"}

_LEVEL_STATES = {"reservoir_level": "FluidLevelStatus", "coolant_level": "CoolantLevelStatus"}
"""A level that is told in words where there is no gauge."""

_LOOP_TYPES = {"FWS": "FWS", "TCS": "TCS", "RowTCS": "RowTCS"}
"""CoolingLoop, CoolingLoopType."""

_CHASSIS = "/redfish/v1/Chassis/"

_HEALTHS = {"OK": "ok", "Warning": "warning", "Critical": "critical"}

_STATE_QUALITY = {
    None: "good",
    "Enabled": "good",
    "StandbySpare": "good",
    "StandbyOffline": "unknown",
    "Starting": "unknown",
    "InTest": "unknown",
    "Quiesced": "unknown",
    "Degraded": "unknown",
    "Updating": "stale",
}
"""How far the readings of a part in that state can be trusted (Resource, State); in others, not at all."""

_SENSOR_UNITS = {
    "Temperature": ("Celsius", 1.0),
    "LiquidFlowLPM": ("L/min", 1.0),
    "LiquidFlow": ("L/min", 60.0),  # L/s
    "PressurekPa": ("kPa", 1.0),
    "PressurePa": ("kPa", 0.001),
    "Pressure": ("kPa", 0.001),  # Pa
    "Heat": ("kW", 1.0),
    "Humidity": ("percent", 1.0),
    "Percent": ("percent", 1.0),
    "Valve": ("percent", 1.0),
    "Rotational": ("rpm", 1.0),
}
"""What a Sensor's ReadingType is kept in, and the factor. ReadingUnits is not needed: "C" and "Cel" both occur, and
some services leave it out."""

_LIMITS = {
    "lower_critical": "LowerCritical",
    "lower_caution": "LowerCaution",
    "upper_caution": "UpperCaution",
    "upper_critical": "UpperCritical",
}

_AGREE_RATIO, _AGREE_LEAST = 0.05, 1.0
"""An excerpt and its sensor are read a moment apart: so much apart they still say the same."""


class RowMaker:
    """Turns the documents of one walk into rows."""

    def __init__(self, found: Found) -> None:
        self.rejected: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self._owners = found.owners
        self._documents = sorted(found.documents, key=lambda pair: pair[0].owner in found.owners)
        self._sensors = {task.path: document for task, document in found.documents if task.kind == "sensor"}
        self._told: set[tuple[object, ...]] = set()

    def readings(self) -> list[Row]:
        """Return rows of `coolant_readings`, but those of leak detectors."""
        rows = [row for task, document in self._documents for row in self._of(task, document)]
        for row in rows:
            given = row.pop("_given", None)
            self.rejected["implausible"] += given is not None and row["value"] is None
        return rows

    def power(self) -> Iterator[Row]:
        """Yield rows of `power_readings`."""
        for task, document in self._documents:
            if task.kind != "environment":
                continue
            watts, energy = (_value(document.get(name)) for name in ("PowerWatts", "EnergykWh"))
            if watts is None and energy is None:
                continue
            yield {
                "component": component_of(task.path),
                "label": text_of(document.get("Name")),
                "power_watts": as_number(watts),
                "energy_kilowatt_hours": as_number(energy),
                "quality": "good",
                "protocol": "redfish",
                "source_uri": task.path,
            }

    def _of(self, task: Task, document: Mapping[str, Any]) -> Iterator[Row]:
        if task.kind not in READINGS and task.kind != "unit":
            return
        place = _place(task, document)
        state = state_of(document)
        quality = _STATE_QUALITY.get(state, "bad")
        if task.kind != "environment":
            yield reading(
                "status", None, quality="good", **place, device_state=state, detail=_complaint(document),
                source_uri=task.path,
            )  # fmt: skip
        steered = {}
        for name, point in _SETPOINTS.get(task.kind, {}).items():
            control = document.get(name)
            if isinstance(control, dict) and as_number(control.get("SetPoint")) is not None:
                mode = text_of(control.get("ControlMode"), 64)
                row = reading(
                    point, control["SetPoint"], **place, role="setpoint", device_state=mode,
                    quality="unknown" if mode == "Disabled" else "good", source_uri=f"{task.path}#/{name}",
                )  # fmt: skip
                if mode != "Disabled":
                    steered[point] = row["value"]
                yield row
        for name, point in READINGS.get(task.kind, {}).items():
            if name in document and not self._repeats(task, name, document[name]):
                for row in self._measured(task, document, name, point, quality, place):
                    yield row | {"setpoint_value": steered.get(point)}
            elif (words := document.get(_LEVEL_STATES.get(point, ""))) is not None:
                row = reading(point, None, **place, device_state=text_of(words, 64), source_uri=task.path)
                yield row | {"quality": quality}
        speed = document.get("PumpSpeedPercent")
        if isinstance(speed, dict) and "SpeedRPM" in speed:
            uri = f"{task.path}#/PumpSpeedPercent/SpeedRPM"
            yield reading("pump_rotation", speed["SpeedRPM"], quality=quality, **place, source_uri=uri)

    def _measured(
        self,
        task: Task,
        document: Mapping[str, Any],
        name: str,
        point: str,
        quality: str,
        place: Mapping[str, Any],
    ) -> Iterator[Row]:
        """Yield what a property says, and what its sensor says where that is something else."""
        value = _value(document[name])
        row = reading(point, value, quality=quality, **place, source_uri=f"{task.path}#/{name}", _given=value)
        if point in _RATED:
            row["rated_value"] = as_number(document.get(_RATED[point]))
        sensor = self._sensor(document[name], point)
        if sensor is None:
            yield row
            return
        row["quality"] = worse(row["quality"], sensor["quality"])
        row |= {limit: sensor[limit] for limit in _LIMITS}
        if not _agree(row["value"], sensor["value"]):
            row["detail"] = f"{sensor['component']} says {sensor['value']}"
            row["quality"] = worse(row["quality"], "unknown")
            if (key := (sensor["component"], point)) not in self._told:
                self._told.add(key)
                sensor |= {"loop": row["loop"], "quality": worse(sensor["quality"], "unknown")}
                yield sensor
        yield row

    def _sensor(self, excerpt: object, point: str) -> Row | None:
        """Return the row of the sensor that a reading comes from, where it was read and fits."""
        path = checked_path(excerpt.get("DataSourceUri")) if isinstance(excerpt, dict) else None
        document = self._sensors.get(path or "")
        if path is None or document is None:
            return None
        unit, factor = _SENSOR_UNITS.get(str(document.get("ReadingType")), (None, 1.0))
        if unit != POINTS[point].unit:
            self.rejected["wrong_sensor"] += 1
            return None
        thresholds = document.get("Thresholds")
        limits = {
            limit: _scaled(_value(thresholds.get(theirs)), factor) if isinstance(thresholds, dict) else None
            for limit, theirs in _LIMITS.items()
        }
        value, state = document.get("Reading"), state_of(document)
        return reading(
            point, _scaled(value, factor), quality=_STATE_QUALITY.get(state, "bad"), **limits,
            component=component_of(path), label=text_of(document.get("Name"), 255), device_state=text_of(state, 64),
            health=health_of(document), protocol="redfish", source_uri=path, _given=value,
        )  # fmt: skip

    def _repeats(self, task: Task, name: str, excerpt: object) -> bool:
        """Tell whether the environment of a chassis only says once more what that of its unit said.

        The temperature of a server is that of its processors, not of the air.
        """
        own = task.owner.startswith(_CHASSIS) and task.owner.rstrip("/") not in self._owners
        if task.kind == "environment" and own and name == "TemperatureCelsius":
            return True
        if task.kind != "environment" or not isinstance(excerpt, dict) or "DataSourceUri" not in excerpt:
            return False
        key = (name, str(excerpt["DataSourceUri"]), str(excerpt.get("Reading")))
        self.skipped["repeated"] += key in self._told
        repeats = key in self._told
        self._told.add(key)
        return repeats


def component_of(path: str) -> str:
    """Return the name of the part at an address: without what all addresses begin with."""
    return path.strip("/").removeprefix("redfish/v1/").removeprefix("ThermalEquipment/")[:255]


def state_of(document: Mapping[str, Any]) -> str | None:
    """Return Status.State."""
    status = document.get("Status")
    return text_of(status.get("State"), 64) if isinstance(status, dict) else None


def health_of(document: Mapping[str, Any]) -> str | None:
    """Return Status.Health in our words."""
    status = document.get("Status")
    return _HEALTHS.get(str(status.get("Health"))) if isinstance(status, dict) else None


def conditions_of(document: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Return what stands in Status.Conditions and is a complaint."""
    status = document.get("Status")
    found = status.get("Conditions") if isinstance(status, dict) else None
    for condition in (found if isinstance(found, list) else [])[:64]:
        if isinstance(condition, dict) and condition.get("Severity") in ("Warning", "Critical"):
            yield condition


def _place(task: Task, document: Mapping[str, Any]) -> dict[str, Any]:
    loop = task.loop or _LOOP_TYPES.get(str(document.get("CoolingLoopType")))
    return {
        "component": component_of(task.path),
        "label": text_of(document.get("Name"), 255),
        "loop": loop,
        "health": health_of(document),
        "protocol": "redfish",
    }


def _complaint(document: Mapping[str, Any]) -> str | None:
    """Return the worst of what a part complains of."""
    worst = sorted(
        conditions_of(document), key=lambda condition: str(condition["Severity"])
    )  # Critical first
    return text_of(worst[0].get("Message"), 1_024) if worst else None


def _value(excerpt: object) -> object:
    return excerpt.get("Reading") if isinstance(excerpt, dict) else excerpt


def _scaled(value: object, factor: float) -> float | None:
    number = as_number(value)
    return None if number is None else number * factor


def _agree(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= max(_AGREE_LEAST, _AGREE_RATIO * max(abs(one), abs(other)))
