"""Published registers and computed cases of the capture folder: words of 32 bits, the AALC unit, coolants, dew points."""

import csv
import json

import pytest

from contract.clock import SystemClock
from contract.config import HallSection
from contract.streams.coolant import COOLANT_EVENTS, COOLANT_READINGS, POWER_READINGS
from ingest.collector import Context
from ingest.coolant.modbus import ModbusCollector, ModbusConfig
from ingest.coolant.modbus_map import PointEntry, decode_value, find_map, read_map
from ingest.coolant.physics import PROPERTIES, _at, dew_point_celsius
from twin.modbus_unit import ModbusUnit

KEPT_IN = {"W": 0.001, "": 1}
"""Factor to the unit of the readings; the others are kept as they are."""

RAW = {
    "rpu_coolant_flow": 752,
    "rpu_coolant_inlet_pressure": 65_036,  # -50.0 kPa
    "rpu_coolant_inlet_temp": 300,
    "hex_water_inlet_temp": 400,
    "cooling_capacity": 50_542,
    "mb_humidity": 41,
    "pump_pwm_duty": 60,
}
"""What a test unit says; every other register says 1."""


@pytest.fixture
def coolant(vectors):
    return vectors / "coolant"


@pytest.fixture
def registers(coolant):
    with (coolant / "modbus" / "aalc_rpu_registers.csv").open() as file:
        return {row["name"]: row for row in csv.DictReader(file)}


@pytest.fixture
def aalc(registers):
    with ModbusUnit(unit_id=12) as unit:
        for name, row in registers.items():
            unit.holding[int(row["address_hex"], 16)] = RAW.get(name, 1)
        yield unit


def read(unit):
    config = ModbusConfig(
        collector="coolant-modbus", equipment="rpu", address="127.0.0.1", port=unit.port, map="meta-aalc-rpu"
    )
    collector = ModbusCollector(config, Context(hall=HallSection(name="test"), clock=SystemClock()))
    reading = collector.collect(1)
    collector.close()
    assert reading.rejected == {}
    return reading


def rows(reading, stream):
    found = []
    for part in reading.rows:
        if part.stream is stream:
            found += [
                dict(zip(part.columns, row, strict=True)) for row in zip(*part.columns.values(), strict=True)
            ]
    return found


def by_address(reading):
    return {int(row["source_uri"].rpartition("/")[2]): row for row in rows(reading, COOLANT_READINGS)}


@pytest.mark.parametrize("order", ["ABCD", "CDAB", "BADC", "DCBA"])
def test_every_case_of_a_float_is_decoded(coolant, order):
    cases = json.loads((coolant / "modbus" / "decode_cases.json").read_text())["float32"]
    entry = PointEntry(name="p", address=0, type="float32", point="flow", unit="L/min")
    assert len(cases) == 5
    for case in cases:
        assert decode_value(entry, case[order], order) == case["value"]


def test_every_case_of_a_short_integer_is_decoded(coolant):
    cases = json.loads((coolant / "modbus" / "decode_cases.json").read_text())["int16"]
    entry = PointEntry(
        name="p", address=0, type="int16", point="flow", unit="L/min", missing=(0xFFFF, 0x8000)
    )
    assert [decode_value(entry, [case["raw"]], "ABCD") for case in cases] == [-20, None, None]
    assert [case["value"] for case in cases] == [-20, None, None]


def test_the_map_knows_every_published_register_and_no_other(registers):
    found = read_map(find_map("meta-aalc-rpu"))
    published = {int(row["address_hex"], 16): name for name, row in registers.items()}
    assert {entry.address for entry in found.points} == published.keys()
    for entry in found.points:
        if entry.point != "leak":
            assert entry.name == published[entry.address]


def test_every_published_register_is_read_to_its_value(aalc, registers):
    reading = read(aalc)
    readings = by_address(reading)
    meters = {
        (row["component"], name): value
        for row in rows(reading, POWER_READINGS)
        for name, value in row.items()
        if name in ("power_watts", "voltage_volts") and value is not None
    }
    compared = 0
    for name, row in registers.items():
        raw, scale = RAW.get(name, 1), float(row["scale"] or 0.01)  # 0.01 V: plat_modbus.c of OpenBIC
        expected = (raw - 65_536 if raw > 65_000 else raw) * scale
        reading_row = readings.get(int(row["address_hex"], 16), {})
        if reading_row.get("value") is not None:
            factor = KEPT_IN.get(row["unit"], 1)
            assert reading_row["value"] == pytest.approx(expected * factor), name
        elif reading_row.get("point") == "status":
            assert reading_row["device_state"] in (f"{expected:g}", f"{expected:g} V", "leaked"), name
        elif reading_row.get("point") == "leak":
            continue
        else:
            meter = {"rpu_power": ("rpu", "power_watts"), "aalc_total_power": (None, "power_watts")}
            assert meters[meter.get(name, ("rpu", "voltage_volts"))] == pytest.approx(expected), name
        compared += 1
    assert compared == len(registers) - 1  # the leak bits have a test of their own


def test_the_bits_of_the_leak_register_are_detectors(aalc):
    aalc.holding[0x9202] = 0b0001_0000_0001_0101
    reading = read(aalc)
    states = {
        row["component"]: row["leak_state"]
        for row in rows(reading, COOLANT_READINGS)
        if row["point"] == "leak"
    }
    assert states == {
        "chassis0": "leak",
        "chassis1": "dry",
        "chassis2": "leak",
        "chassis3": "dry",
        "cdu": "leak",
        "rack": "leak",
    }
    assert len(rows(reading, COOLANT_EVENTS)) == 4


def test_a_flow_that_could_not_be_read_is_none(aalc):
    aalc.holding[0x9000] = 0xFFFF
    row = by_address(read(aalc))[0x9000]
    assert (row["value"], row["quality"]) == (None, "bad")


def test_a_power_beyond_its_register_is_none_and_not_negative(aalc):
    aalc.holding[0x9005] = 33_000  # 3300.0 W in 16 signed bits
    meters = {row["component"]: row for row in rows(read(aalc), POWER_READINGS)}
    assert (meters["rpu"]["power_watts"], meters["rpu"]["quality"]) == (None, "bad")


def test_a_cooling_capacity_beyond_its_register_is_made_whole(aalc):
    aalc.holding |= {0x9000: 1_000, 0x9112: 420, 0x9002: 300, 0x9011: int(67.21 * 100 * 12) & 0xFFFF}
    assert by_address(read(aalc))[0x9011]["value"] == pytest.approx(80.652, abs=0.0015)


def test_one_broken_sensor_of_the_unit_costs_one_register(aalc):
    aalc.exceptions[0x9112] = 4
    config = ModbusConfig(
        collector="coolant-modbus", equipment="rpu", address="127.0.0.1", port=aalc.port, map="meta-aalc-rpu"
    )
    collector = ModbusCollector(config, Context(hall=HallSection(name="test"), clock=SystemClock()))
    reading = collector.collect(1)
    collector.close()
    assert reading.rejected == {"device_failure": 1}
    assert by_address(reading)[0x9112]["quality"] == "bad"
    assert by_address(reading)[0x9001]["quality"] == "good"


def test_coolants_are_within_the_rounding_of_the_published_table(coolant):
    with (coolant / "oracle" / "propylene_glycol_properties.csv").open() as file:
        table = list(csv.DictReader(file))
    for row in table:
        celsius = float(row["temp_c"])
        for name, properties in PROPERTIES.items():
            heat = _at(properties.specific_heat, celsius)
            assert heat == pytest.approx(float(row[f"cp_{name}"]), abs=0.0055), (name, celsius)
            density = _at(properties.density, celsius)
            assert density == pytest.approx(float(row[f"rho_{name}"]), abs=0.2), (name, celsius)


def test_every_dew_point_is_computed(coolant):
    cases = json.loads((coolant / "oracle" / "dew_point.json").read_text())["cases"]
    assert len(cases) == 9
    for case in cases:
        assert dew_point_celsius(case["t_c"], case["rh"]) == pytest.approx(case["dew_c"], abs=0.001)
