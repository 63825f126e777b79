"""Coolant loops and the air and power beside them: readings, and what devices and detectors say.

Points and loops: DMTF Redfish schema bundle 2025.4 (CoolantConnector, CoolingLoop, Pump, Filter, Reservoir,
LeakDetector, EnvironmentMetrics); NVIDIA DSX Exchange, point types of the BMS contract.
"""

from dataclasses import dataclass
from datetime import timedelta

from contract.stream import Column, Stream, counter, gauge, state, text, time
from contract.streams.envelope import EQUIPMENT


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that is read at a place of a loop: the unit it is kept in, and what can be true of it."""

    unit: str | None
    """None: it is a state, not a number."""
    low: float = 0.0
    high: float = 0.0


_TEMPERATURE = Point("Celsius", -50, 150)
_PRESSURE = Point("kPa", -101, 5_000)  # gauge pressure: no lower than a vacuum
_FLOW = Point("L/min", -50_000, 50_000)  # a CDU moves hundreds to thousands; negative is backwards
_PERCENT = Point("percent", 0, 100)

POINTS = {
    "supply_temperature": _TEMPERATURE,
    "return_temperature": _TEMPERATURE,
    "delta_temperature": Point("Celsius", -100, 100),
    "liquid_temperature": _TEMPERATURE,
    "flow": _FLOW,
    "supply_pressure": _PRESSURE,
    "return_pressure": _PRESSURE,
    "delta_pressure": _PRESSURE,
    "liquid_pressure": _PRESSURE,
    "heat_removed": Point("kW", -10_000, 50_000),
    "valve_position": _PERCENT,
    "pump_speed": _PERCENT,
    "pump_rotation": Point("rpm", 0, 100_000),
    "pump_inlet_pressure": _PRESSURE,
    "filter_delta_pressure": _PRESSURE,
    "service_time": Point("hours", 0, 1_000_000),
    "reservoir_level": _PERCENT,
    "reservoir_pressure": _PRESSURE,
    "coolant_level": _PERCENT,
    "coolant_ph": Point("pH", 0, 14),
    "coolant_conductivity": Point("uS/cm", 0, 1_000_000),
    "coolant_turbidity": Point("NTU", 0, 100_000),
    "air_temperature": _TEMPERATURE,
    "air_humidity": _PERCENT,
    "dew_point": Point("Celsius", -100, 100),
    "dew_margin": Point("Celsius", -150, 250),
    "fan_speed": _PERCENT,
    "leak": Point(None),
    "status": Point(None),
}
"""Every point there is. `leak` is a detector's row, `status` a part's own word about itself; neither has a value."""

UNITS = tuple(dict.fromkeys(point.unit for point in POINTS.values() if point.unit is not None))

LOOPS = ("FWS", "TCS", "RowTCS", "rack", "coldplate")
"""DMTF CoolingLoop, CoolingLoopType: facility water, technology cooling, that of a row; and ours: a rack's manifold,
the cold plates of a server."""

ROLES = ("measured", "setpoint", "request")
"""Setpoint: what the device steers to. Request: what somebody outside asks of it, and it may not do."""

QUALITIES = ("good", "bad", "stale", "unknown")
"""Good: the source vouches for it. Bad: it says that it cannot, or the value cannot be true. Stale: it is old. Unknown:
the source does not say."""

LEAK_STATES = ("leak", "suspect", "sensor_fault", "dry", "absent")
"""Suspect: a detector says leak and that it is not fit to say so, or says something nobody knows. No data is a fault
of the sensor, never dry."""

HEALTHS = ("ok", "warning", "critical")

PROTOCOLS = ("redfish", "modbus", "bms")

_PLACE = (
    text(
        "component",
        "The part of the unit: `Pumps/2`, a connector, a detector, a sensor; null for the unit itself.",
        max_length=255,
    ),
    text("label", "What the unit calls the part.", max_length=255),
    state("loop", LOOPS, "The loop it stands in; null where it is in none, or nobody says."),
)

_ORIGIN = (
    state("protocol", PROTOCOLS, "How it was read.", required=True),
    text("source_uri", "Where: a Redfish address, a register, a topic.", max_length=1_024),
)

_HEALTH = state("health", HEALTHS, "What the device says of this part.")


def _limit(name: str, doc: str) -> Column:
    return gauge(name, "float64", doc)


COOLANT_READINGS = Stream(
    name="coolant_readings",
    family="coolant",
    version=1,
    key="equipment",
    partitions=6,
    interval=timedelta(seconds=10),
    rows_per_second=1_500,
    doc="One row per point per reading. Readings of one thing at two places that disagree are two rows.",
    sort_by=("equipment", "ts"),
    columns=[
        *EQUIPMENT,
        *_PLACE,
        state("point", tuple(POINTS), "What is read.", required=True),
        state("role", ROLES, "Whether it is so or shall be so.", required=True),
        gauge("value", "float64", "In `unit`; null where the device gives none, or one that cannot be true."),
        state("unit", UNITS, "Decided by the point, whatever the device counts in."),
        state("quality", QUALITIES, "How far the value can be trusted.", required=True),
        state("leak_state", LEAK_STATES, "For `leak`: what the detector says."),
        state(
            "leak_before",
            ("leak", "suspect", "dry"),
            "For `leak`: what it said last while it could be believed; still holds when the sensor is lost.",
        ),
        _HEALTH,
        text("device_state", "The state in the device's own word.", max_length=64),
        text("detail", "What the device said beside it.", max_length=1_024),
        _limit("setpoint_value", "What the device steers this to, in `unit`; null where it does not."),
        _limit("rated_value", "What the part is built for, in `unit`."),
        _limit("lower_critical", "The device's own limit, in `unit`."),
        _limit("lower_caution", "The device's own limit, in `unit`."),
        _limit("upper_caution", "The device's own limit, in `unit`."),
        _limit("upper_critical", "The device's own limit, in `unit`."),
        *_ORIGIN,
    ],
)

COOLANT_EVENTS = Stream(
    name="coolant_events",
    family="coolant",
    version=1,
    key="equipment",
    partitions=6,
    interval=None,
    rows_per_second=5,
    doc="One row per change of a detector, a valve or a part, and per thing that a device tells of itself.",
    sort_by=("equipment", "ts"),
    sparse=True,
    columns=[
        *EQUIPMENT,
        *_PLACE,
        state(
            "event",
            ("leak_changed", "health_changed", "valve_changed", "condition", "condition_cleared"),
            "What happened. Condition: a message that stands; told when it comes and when it goes.",
            required=True,
        ),
        state("leak_state", LEAK_STATES, "For `leak_changed`: what it is now."),
        text("state", "The state now, in the device's own word.", max_length=64),
        text("state_before", "The state before; null at the first look.", max_length=64),
        _HEALTH,
        text("message", "Key of the message in its registry: `PumpFailed`.", max_length=255),
        text("registry", "That registry: `Environmental`.", max_length=64),
        text("detail", "What the device said.", max_length=1_024),
        time("device_ts", "When the device says it was, by its own clock."),
        state(
            "reaction",
            ("none", "force_off", "graceful_shutdown"),
            "What the device does by itself about a leak.",
        ),
        gauge("reaction_delay_seconds", "float64", "After how long.", valid=(0, 86_400)),
        *_ORIGIN,
    ],
)

POWER_READINGS = Stream(
    name="power_readings",
    family="coolant",
    version=1,
    key="equipment",
    partitions=6,
    interval=timedelta(seconds=10),
    rows_per_second=300,
    doc="One row per meter per reading: what a unit, a rack or a bus draws.",
    sort_by=("equipment", "ts"),
    columns=[
        *EQUIPMENT,
        text("component", "The meter; null for the unit as a whole.", max_length=255),
        text("label", "What the unit calls it.", max_length=255),
        gauge("power_watts", "float64", "Active power.", valid=(-1e8, 1e8)),
        gauge("apparent_volt_amperes", "float64", "Apparent power.", valid=(0, 1e8)),
        counter("energy_kilowatt_hours", "Since the meter was set to zero.", type="float64"),
        gauge("voltage_volts", "float64", "Voltage.", valid=(-1e5, 1e5)),
        gauge("current_amperes", "float64", "Current.", valid=(-1e6, 1e6)),
        gauge("frequency_hertz", "float64", "Frequency.", valid=(0, 1_000)),
        gauge("power_factor_ratio", "float64", "Active over apparent power.", valid=(-1, 1)),
        state("quality", QUALITIES, "How far the values can be trusted.", required=True),
        *_ORIGIN,
    ],
)

COOLANTS = ("water", "pg20", "pg25", "pg30")
"""Water, and propylene glycol in water by percent of volume."""

COOLANT_LOOPS = Stream(
    name="coolant_loops",
    family="coolant",
    version=1,
    key="equipment",
    partitions=6,
    interval=timedelta(seconds=10),
    rows_per_second=150,
    doc="One row per loop per reading: what its points say together, which none of them says alone.",
    sort_by=("equipment", "ts"),
    columns=[
        *EQUIPMENT,
        state("loop", LOOPS, "The loop.", required=True),
        gauge(
            "supply_celsius", "float64", "Coolant towards the heat; of several probes the first that is good."
        ),
        gauge("return_celsius", "float64", "Coolant from the heat."),
        gauge("flow_liters_per_minute", "float64", "Flow."),
        gauge("delta_pressure_kpa", "float64", "Supply over return pressure."),
        gauge("pump_percent", "float64", "Speed of the fastest pump.", valid=(0, 100)),
        gauge(
            "pump_running_seconds",
            "float64",
            "How long a pump has been seen running; 0: none runs; null: nobody says.",
            valid=(0, 1e9),
        ),
        gauge("dew_point_celsius", "float64", "Of the wettest air beside it."),
        gauge("dew_margin_celsius", "float64", "Supply over dew point: at 0 water condenses on the pipes."),
        state("coolant", COOLANTS, "What the configuration says is in it."),
        gauge("heat_removed_kilowatts", "float64", "Flow x density x specific heat x (return - supply)."),
        gauge(
            "power_kilowatts",
            "float64",
            "What it has to cool, as the meters of it say; null where it has none.",
        ),
        gauge(
            "balance_ratio",
            "float64",
            "Heat removed over the liquid's share of the power; null where either is not known.",
        ),
        state("protocol", PROTOCOLS, "How it was read.", required=True),
    ],
)

STREAMS = (COOLANT_READINGS, COOLANT_EVENTS, POWER_READINGS, COOLANT_LOOPS)
