"""Rows of loops: what a set of readings says together, and what it does not."""

import pytest

from ingest.coolant.loops import LoopConfig, LoopMemory

SECOND = 1_000_000


def reading(point, value, *, loop="TCS", role="measured", quality="good", **values):
    return {"point": point, "value": value, "loop": loop, "role": role, "quality": quality, **values}


def air(celsius, humidity, *, component="a", **values):
    return [
        reading("air_temperature", celsius, loop=None, component=component, **values),
        reading("air_humidity", humidity, loop=None, component=component, **values),
    ]


def one(readings, now_us=SECOND, power_watts=None, **config):
    (row,) = LoopMemory(LoopConfig(**config), "bms").rows(readings, now_us, power_watts)
    return row


LOOP = [
    reading("supply_temperature", 32.0),
    reading("return_temperature", 42.0),
    reading("flow", 50.0),
]


def test_heat_is_that_of_the_coolant_in_the_loop():
    assert one(LOOP)["heat_removed_kilowatts"] == pytest.approx(33.55, abs=0.02)
    assert one(LOOP, coolant="water")["heat_removed_kilowatts"] == pytest.approx(34.66, abs=0.02)
    facility = [{**row, "loop": "FWS"} for row in LOOP]
    assert one(facility)["coolant"] == "water"


def test_the_balance_is_of_the_share_that_goes_into_the_liquid():
    assert one(LOOP, power_watts={"": 35_000.0})["balance_ratio"] == pytest.approx(0.9585, abs=0.001)
    row = one(LOOP, power_watts={"": 35_000.0}, liquid_share=0.8)
    assert row["balance_ratio"] == pytest.approx(0.9585 / 0.8, abs=0.001)
    assert "balance_ratio" not in one(LOOP, power_watts={"": 0.0})


def test_a_spare_probe_is_taken_where_the_first_is_bad():
    spare = [reading("supply_temperature", 30.0, quality="bad"), reading("supply_temperature", 31.0), *LOOP]
    assert one(spare)["supply_celsius"] == 31.0


def test_what_shall_be_is_not_what_is():
    assert one([reading("flow", 90.0, role="setpoint"), *LOOP])["flow_liters_per_minute"] == 50.0


def test_a_pump_is_timed_from_when_it_was_first_seen_running():
    memory = LoopMemory(LoopConfig(), "modbus")
    running = [*LOOP, reading("pump_speed", 0.0), reading("pump_speed", 40.0)]
    stopped = [*LOOP, reading("pump_speed", 0.0)]
    times = [(running, 10), (running, 50), (stopped, 60), (running, 70), (running, 75)]
    found = [memory.rows(rows, at * SECOND)[0]["pump_running_seconds"] for rows, at in times]
    assert found == [0.0, 40.0, 0.0, 0.0, 5.0]
    assert one(LOOP)["pump_running_seconds"] is None


def test_the_margin_is_that_over_the_wettest_air_beside_the_unit():
    row = one([*LOOP, *air(25, 50), *air(27, 60, component="b")])
    assert row["dew_margin_celsius"] == pytest.approx(32 - 18.571, abs=0.001)


def test_air_of_another_unit_counts_where_there_is_none_of_its_own():
    mine = [{**row, "equipment": "rack-1"} for row in LOOP]
    row = one([*mine, *air(10, 100, equipment="room")])
    assert row["dew_margin_celsius"] == pytest.approx(22.0, abs=0.001)
    frost = [*mine, *air(10, 100, equipment="room"), reading("dew_point", 0.0, loop=None, equipment="rack-1")]
    assert one(frost)["dew_margin_celsius"] == 32.0


def test_temperature_and_humidity_of_two_places_make_no_dew_point():
    two = [air(25, 50)[0], air(25, 50, component="b")[1]]
    assert one([*LOOP, *two])["dew_margin_celsius"] is None


def test_humidity_that_no_air_has_makes_no_dew_point():
    assert one([*LOOP, *air(25, 0)])["dew_point_celsius"] is None
