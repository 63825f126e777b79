"""A coolant distribution unit: pumps move coolant, coolant carries heat, and a Redfish service shows what its sensors read.

    pump speeds -> flow -> heat carried away -> return temperature
                     ^
    restriction, worn pumps, what leaked

Documents are laid out as DMTF's mockup of a CDU lays them out (Redfish schema bundle 2025.4); what stands in them is
read from the state at the moment of the request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias

from twin.redfish import Service

WATTS_PER_LITER_PER_MINUTE_KELVIN = (
    66.8  # 25 % propylene glycol at 25 to 40 degrees (Airedale Deltachill manual, p. 53)
)
FACILITY_WATTS_PER_LITER_PER_MINUTE_KELVIN = 69.4  # water
LITERS_PER_MINUTE_PER_KILOWATT = (
    1.35  # sized so by a vendor's reference design; racks in production move 1.0 to 1.4
)
LOOP_MINUTES = 0.8  # what is in the loop passes once in so long at rated flow
DELTA_PRESSURE_KPA = 90.0  # at rated flow; a unit in production shows 90
STATIC_PRESSURE_KPA = 235.0  # on the return side of that unit
FILTER_KPA = 6.0  # a filter in service shows 5.5 to 6.2
RATED_PERCENT = 45.0  # speed of both pumps at rated flow
SPEED_PERCENT_PER_SECOND = 3.0  # how fast a pump changes its speed
ROTATION_RPM_PER_PERCENT = 100.0
SUPPLY_SECONDS = 20.0  # how fast the heat exchanger follows
APPROACH_KELVIN = 4.0  # supply of the loop over that of the facility at rated heat; nameplates say 3 to 5
FACILITY_KELVIN = 10.0  # what the facility's water warms up by
RESERVOIR_LITERS = 40.0
SUBSTEP_SECONDS = 0.5

DetectorState: TypeAlias = Literal["OK", "Warning", "Critical", "Unavailable", "Absent"]

LEAKING_DETECTOR = "Tray"
LEAKING_DETECTOR_PATH = f"CDUs/1/LeakDetectors/{LEAKING_DETECTOR}"
"""The detector under the unit, and where its service has it, below the equipment."""

_ROOT = "/redfish/v1"
_UNIT = f"{_ROOT}/ThermalEquipment/CDUs/1"
_CHASSIS = f"{_ROOT}/Chassis/CDU"

Document = dict[str, Any]


@dataclass(slots=True)
class Pump:
    """One of the pumps in parallel."""

    duty_percent: float = RATED_PERCENT
    """What the controller asks of it."""
    capacity_ratio: float = 1.0
    """What it makes of that: 1 new, 0 dead."""

    @property
    def speed_percent(self) -> float:
        return self.duty_percent * self.capacity_ratio


@dataclass(slots=True)
class Detector:
    """A leak detector as it sees itself."""

    state: DetectorState = "OK"
    enabled: bool = True


@dataclass(slots=True)
class Cdu:
    """The state of one unit; `heat_kilowatts` and `facility_celsius` are for others to drive."""

    name: str
    rated_kilowatts: float
    setpoint_celsius: float = 32.0
    facility_celsius: float = 22.0
    facility_running: bool = True
    heat_kilowatts: float = 0.0
    air_celsius: float = 25.0
    air_humidity_percent: float = 35.0
    detectors: dict[str, Detector] = field(
        default_factory=lambda: {LEAKING_DETECTOR: Detector(), "Overflow": Detector()}
    )
    pumps: tuple[Pump, ...] = field(default_factory=lambda: (Pump(), Pump()))
    open_ratio: float = 1.0
    """What is left of the way through the loop: 1 free, 0 shut."""
    clog_ratio: float = 1.0
    leak_liters_per_minute: float = 0.0
    level_percent: float = 82.0
    supply_celsius: float = math.nan
    return_celsius: float = math.nan
    service_hours: float = 3_571.0
    _random: Random = field(default_factory=Random)

    def __post_init__(self) -> None:
        self._random.seed(self.name)
        self.supply_celsius = self.return_celsius = self.setpoint_celsius

    @property
    def rated_liters_per_minute(self) -> float:
        return LITERS_PER_MINUTE_PER_KILOWATT * self.rated_kilowatts

    @property
    def flow_ratio(self) -> float:
        """Flow over rated flow: what the heat of the plates behind this unit depends on."""
        speed = sum(pump.speed_percent for pump in self.pumps) / (RATED_PERCENT * len(self.pumps))
        dry = min(1.0, self.level_percent / 10.0)  # below a tenth the pumps draw air
        return speed * self.open_ratio * dry

    @property
    def flow_liters_per_minute(self) -> float:
        return self.rated_liters_per_minute * self.flow_ratio

    @property
    def removed_kilowatts(self) -> float:
        """Return the heat that the flow carries at this moment."""
        kelvin = self.return_celsius - self.supply_celsius
        return WATTS_PER_LITER_PER_MINUTE_KELVIN * self.flow_liters_per_minute * kelvin / 1_000

    def advance(self, seconds: float) -> None:
        """Move the unit forward."""
        count = max(1, math.ceil(seconds / SUBSTEP_SECONDS))
        for _ in range(count):
            self._substep(seconds / count)

    def leak(self, detector: str, liters_per_minute: float = 0.3, state: DetectorState = "Critical") -> None:
        """Let coolant run out under a detector."""
        self.detectors[detector].state = state
        self.leak_liters_per_minute = liters_per_minute

    def lose_detector(self, detector: str) -> None:
        """Let a detector's cable come off."""
        self.detectors[detector].state = "Unavailable"

    def degrade_pump(self, number: int, capacity_ratio: float) -> None:
        """Let a pump, counted from 1, make less of its duty."""
        self.pumps[number - 1].capacity_ratio = capacity_ratio

    def restrict(self, open_ratio: float) -> None:
        """Let something stand in the way of the flow."""
        self.open_ratio = open_ratio

    def mend(self) -> None:
        """Repair everything, and fill up what leaked."""
        for detector in self.detectors.values():
            detector.state, detector.enabled = "OK", True
        for pump in self.pumps:
            pump.capacity_ratio = 1.0
        self.open_ratio = self.clog_ratio = 1.0
        self.leak_liters_per_minute, self.level_percent = 0.0, 82.0
        self.facility_running = True

    def noisy(self, value: float, spread: float, digits: int = 1) -> float:
        """Return a value as a sensor shows it."""
        return round(value + self._random.uniform(-spread, spread), digits)

    def _substep(self, seconds: float) -> None:
        step = SPEED_PERCENT_PER_SECOND * seconds
        lacking = (1.0 - self.flow_ratio) * RATED_PERCENT
        for pump in self.pumps:
            pump.duty_percent = min(100.0, max(20.0, pump.duty_percent + max(-step, min(step, lacking))))
        flow = self.flow_liters_per_minute
        hot_liters = LOOP_MINUTES / 2 * self.rated_liters_per_minute
        joules_per_kelvin = hot_liters * WATTS_PER_LITER_PER_MINUTE_KELVIN * 60
        carried = WATTS_PER_LITER_PER_MINUTE_KELVIN * flow * (self.return_celsius - self.supply_celsius)
        self.return_celsius += seconds * (1_000 * self.heat_kilowatts - carried) / joules_per_kelvin
        approach = APPROACH_KELVIN * self.heat_kilowatts / self.rated_kilowatts
        target = max(self.setpoint_celsius, self.facility_celsius + approach)
        if not self.facility_running:
            target = self.return_celsius
        self.supply_celsius += (target - self.supply_celsius) * min(1.0, seconds / SUPPLY_SECONDS)
        lost = self.leak_liters_per_minute * seconds / 60
        self.level_percent = max(0.0, self.level_percent - 100 * lost / RESERVOIR_LITERS)
        self.service_hours += seconds / 3_600


def serve_cdu(cdu: Cdu, users: Mapping[str, str] | None = None) -> Service:
    """Return the unit's Redfish service, to be put on a port by RedfishServers."""
    made = _documents(cdu)

    def find(path: str) -> Document | None:
        make = made.get(path)
        return None if make is None else {"@odata.id": path, **make()}

    return Service(find, users=users)


def _documents(cdu: Cdu) -> dict[str, Callable[[], Document]]:
    """Return what makes each document."""
    pumps = range(1, len(cdu.pumps) + 1)
    made: dict[str, Callable[[], Document]] = {
        _ROOT: lambda: {
            "RedfishVersion": "1.20.0",
            "ThermalEquipment": _link(f"{_ROOT}/ThermalEquipment"),
            "Chassis": _link(f"{_ROOT}/Chassis"),
            "SessionService": _link(f"{_ROOT}/SessionService"),
        },
        f"{_ROOT}/SessionService": lambda: {
            "ServiceEnabled": True,
            "Sessions": _link(f"{_ROOT}/SessionService/Sessions"),
        },
        f"{_ROOT}/ThermalEquipment": lambda: {"CDUs": _link(f"{_ROOT}/ThermalEquipment/CDUs")},
        f"{_ROOT}/ThermalEquipment/CDUs": lambda: _collection([_UNIT]),
        f"{_ROOT}/Chassis": lambda: _collection([_CHASSIS]),
        _CHASSIS: lambda: {"Name": cdu.name, "LeakDetectors": _link(f"{_CHASSIS}/LeakDetectors")},
        f"{_CHASSIS}/LeakDetectors": lambda: _collection([f"{_CHASSIS}/LeakDetectors/{n}" for n in cdu.detectors]),
        _UNIT: lambda: _unit(cdu),
        f"{_UNIT}/Pumps": lambda: _collection([f"{_UNIT}/Pumps/{n}" for n in pumps]),
        f"{_UNIT}/Filters": lambda: _collection([f"{_UNIT}/Filters/1"]),
        f"{_UNIT}/Filters/1": lambda: _filter(cdu),
        f"{_UNIT}/Reservoirs": lambda: _collection([f"{_UNIT}/Reservoirs/1"]),
        f"{_UNIT}/Reservoirs/1": lambda: _reservoir(cdu),
        f"{_UNIT}/EnvironmentMetrics": lambda: _environment(cdu),
        f"{_UNIT}/LeakDetection": lambda: _leak_detection(cdu),
        f"{_UNIT}/PrimaryCoolantConnectors": lambda: _collection([f"{_UNIT}/PrimaryCoolantConnectors/1"]),
        f"{_UNIT}/PrimaryCoolantConnectors/1": lambda: _primary(cdu),
        f"{_UNIT}/SecondaryCoolantConnectors": lambda: _collection([f"{_UNIT}/SecondaryCoolantConnectors/1"]),
        f"{_UNIT}/SecondaryCoolantConnectors/1": lambda: _secondary(cdu),
    }  # fmt: skip
    made |= {f"{_UNIT}/Pumps/{n}": _maker(_pump, cdu, n) for n in pumps}
    made |= {f"{_CHASSIS}/LeakDetectors/{n}": _maker(_detector, cdu, n) for n in cdu.detectors}
    return made


def _maker(make: Callable[[Cdu, Any], Document], cdu: Cdu, which: object) -> Callable[[], Document]:
    return lambda: make(cdu, which)


def _unit(cdu: Cdu) -> Document:
    parts = (
        "PrimaryCoolantConnectors", "SecondaryCoolantConnectors", "Pumps", "Filters", "Reservoirs",
        "EnvironmentMetrics", "LeakDetection",
    )  # fmt: skip
    return {
        "Name": cdu.name,
        "EquipmentType": "CDU",
        "Status": _status("Enabled", "OK"),
        "Links": {"Chassis": [_link(_CHASSIS)]},
        **{part: _link(f"{_UNIT}/{part}") for part in parts},
    }


def _secondary(cdu: Cdu) -> Document:
    pressure = DELTA_PRESSURE_KPA * cdu.flow_ratio**2 / max(0.05, cdu.open_ratio) ** 2
    return {
        "Name": "To the racks",
        "Status": _status("Enabled", "OK"),
        "RatedFlowLitersPerMinute": round(cdu.rated_liters_per_minute, 1),
        "FlowLitersPerMinute": {"Reading": max(0.0, cdu.noisy(cdu.flow_liters_per_minute, 0.3))},
        "SupplyTemperatureCelsius": {"Reading": cdu.noisy(cdu.supply_celsius, 0.1)},
        "SupplyTemperatureControlCelsius": {"SetPoint": cdu.setpoint_celsius, "ControlMode": "Automatic"},
        "ReturnTemperatureCelsius": {"Reading": cdu.noisy(cdu.return_celsius, 0.1)},
        "DeltaTemperatureCelsius": {"Reading": round(cdu.return_celsius - cdu.supply_celsius, 1)},
        "SupplyPressurekPa": {"Reading": cdu.noisy(STATIC_PRESSURE_KPA + pressure, 0.5)},
        "ReturnPressurekPa": {"Reading": cdu.noisy(STATIC_PRESSURE_KPA, 0.5)},
        "DeltaPressurekPa": {"Reading": cdu.noisy(pressure, 0.5)},
        "HeatRemovedkW": {"Reading": round(cdu.removed_kilowatts, 2)},
    }


def _primary(cdu: Cdu) -> Document:
    running = cdu.facility_running
    watts_per_kelvin = FACILITY_WATTS_PER_LITER_PER_MINUTE_KELVIN * FACILITY_KELVIN
    flow = 1_000 * cdu.removed_kilowatts / watts_per_kelvin if running else 0.0
    return {
        "Name": "From the facility",
        "Status": _status("Enabled", "OK"),
        "FlowLitersPerMinute": {"Reading": round(max(0.0, flow), 1)},
        "SupplyTemperatureCelsius": {"Reading": cdu.noisy(cdu.facility_celsius, 0.1)},
        "ReturnTemperatureCelsius": {"Reading": cdu.noisy(cdu.facility_celsius + FACILITY_KELVIN * running, 0.1)},
        "HeatRemovedkW": {"Reading": round(cdu.removed_kilowatts * running, 2)},
    }  # fmt: skip


def _pump(cdu: Cdu, number: int) -> Document:
    pump = cdu.pumps[number - 1]
    dead = pump.capacity_ratio <= 0
    status = _status("UnavailableOffline", "Critical") if dead else _status("Enabled", "OK")
    if dead:
        status["Conditions"] = [
            {
                "MessageId": "Environmental.1.2.PumpFailed",
                "Message": f"Pump '{number}' has failed.",
                "MessageArgs": [str(number)],
                "Severity": "Critical",
                "OriginOfCondition": _link(f"{_UNIT}/Pumps/{number}"),
            }
        ]
    return {
        "Name": f"Pump {number}",
        "PumpType": "Liquid",
        "Status": status,
        "ServiceHours": round(cdu.service_hours),
        "PumpSpeedPercent": {
            "Reading": round(pump.speed_percent, 1),
            "SpeedRPM": round(ROTATION_RPM_PER_PERCENT * pump.speed_percent),
        },
        "SpeedControlPercent": {"SetPoint": round(pump.duty_percent, 1), "ControlMode": "Automatic"},
    }


def _filter(cdu: Cdu) -> Document:
    pressure = FILTER_KPA * cdu.clog_ratio * cdu.flow_ratio**1.8
    return {
        "Name": "Loop filter",
        "Status": _status("Enabled", "OK"),
        "ServiceHours": round(cdu.service_hours),
        "RatedServiceHours": 10_000,
        "DeltaLiquidPressurekPa": {"Reading": cdu.noisy(pressure, 0.1)},
    }


def _reservoir(cdu: Cdu) -> Document:
    return {
        "Name": "Reservoir",
        "Status": _status("Enabled", "OK"),
        "CapacityLiters": RESERVOIR_LITERS,
        "FluidLevelPercent": {"Reading": round(cdu.level_percent, 1)},
    }


def _environment(cdu: Cdu) -> Document:
    return {
        "Name": "Air at the unit",
        "TemperatureCelsius": {"Reading": cdu.noisy(cdu.air_celsius, 0.1)},
        "HumidityPercent": {"Reading": cdu.noisy(cdu.air_humidity_percent, 0.3)},
        "PowerWatts": {"Reading": round(sum(4.0 * pump.speed_percent**1.5 for pump in cdu.pumps))},
    }


def _leak_detection(cdu: Cdu) -> Document:
    detectors = [
        {
            "DataSourceUri": f"{_CHASSIS}/LeakDetectors/{name}",
            "DeviceName": f"{name} detector",
            "DetectorState": detector.state,
        }
        for name, detector in cdu.detectors.items()
    ]
    group = {"GroupName": "Detectors of the unit", "Detectors": detectors}
    return {"Name": "Leak detection", "Status": _status("Enabled", "OK"), "LeakDetectorGroups": [group]}


def _detector(cdu: Cdu, name: str) -> Document:
    detector = cdu.detectors[name]
    return {
        "Id": name,
        "Name": f"{name} detector",
        "LeakDetectorType": "Moisture",
        "DetectorState": detector.state,
        "CriticalReactionType": "None",
        "Status": _status("Enabled" if detector.enabled else "Disabled", "OK"),
    }


def _status(state: str, health: str) -> Document:
    return {"State": state, "Health": health}


def _link(path: str) -> Document:
    return {"@odata.id": path}


def _collection(paths: Sequence[str]) -> Document:
    return {"Members@odata.count": len(paths), "Members": [_link(path) for path in paths]}
