"""The physics of the views: the same as the collectors', for every coolant, and by the map of the hall."""

import pytest

from analytics.testing import SinkRig
from contract.streams.coolant import COOLANT_LOOPS, COOLANT_READINGS, COOLANTS, POWER_READINGS
from contract.streams.self import DEAD_LETTERS
from contract.streams.topology import INVENTORY
from ingest.coolant.physics import dew_point_celsius, heat_kilowatts


class Hall(SinkRig):
    """A rig for streams of coolant."""

    def __init__(self, folder):
        super().__init__(
            folder, streams=(COOLANT_READINGS, COOLANT_LOOPS, POWER_READINGS, INVENTORY, DEAD_LETTERS)
        )
        self.events = 0

    def tell(self, stream, equipment, rows, **values):
        self.events += 1
        self.send(
            self.events,
            stream=stream,
            key=equipment,
            rows=rows,
            ts=[self.clock.now_us()] * rows,
            quality="good",
            protocol="bms",
            **values,
        )

    def read(self, equipment, loop=None, *, component=None, role="measured", **points):
        self.tell(
            COOLANT_READINGS,
            equipment,
            len(points),
            loop=loop,
            component=component,
            role=role,
            point=list(points),
            value=list(points.values()),
        )

    def settle(self):
        self.drain(self.sink())


@pytest.fixture
def hall(tmp_path):
    return Hall(tmp_path)


def loop(hall, equipment="rack-1", name="rack", supply=20.0, back=40.0, flow=60.0, **values):
    hall.read(equipment, name, supply_temperature=supply, return_temperature=back, flow=flow, **values)


@pytest.mark.parametrize(("supply", "back"), [(0.5, 12.0), (20.0, 40.0), (33.0, 45.0), (40.0, 38.0)])
def test_the_heat_of_every_coolant_is_what_collectors_compute(hall, supply, back):
    loop(hall, supply=supply, back=back)
    hall.settle()
    found = dict(hall.rows("SELECT coolant, heat_kilowatts FROM heat_balance"))
    expected = {coolant: heat_kilowatts(coolant, 60.0, supply, back) for coolant in COOLANTS}
    assert found == pytest.approx(expected, rel=1e-9)


def test_dew_points_are_what_collectors_compute(hall):
    loop(hall, supply=25.0)
    hall.read("rack-1", component="door", air_temperature=27.0, air_humidity=60.0)
    hall.settle()
    [(dew, margin, own)] = hall.rows(
        "SELECT dew_point_celsius, dew_margin_celsius, is_own_air FROM dew_margin"
    )
    assert dew == pytest.approx(dew_point_celsius(27.0, 60.0), rel=1e-9)
    assert (margin, own) == (pytest.approx(25.0 - dew), True)


def test_a_unit_without_air_is_judged_by_the_wettest_of_the_hall(hall):
    loop(hall, supply=25.0)
    hall.read("room", component="a", air_temperature=25.0, air_humidity=50.0)
    hall.read("room", component="b", air_temperature=27.0, air_humidity=60.0)
    hall.settle()
    assert hall.rows("SELECT round(dew_point_celsius, 3), is_own_air FROM dew_margin") == [(18.571, False)]


def test_temperature_and_humidity_of_two_probes_are_no_air(hall):
    loop(hall)
    hall.read("rack-1", component="a", air_temperature=25.0)
    hall.read("rack-1", component="b", air_humidity=50.0)
    hall.settle()
    assert hall.rows("SELECT dew_margin_celsius FROM dew_margin") == [(None,)]


def test_what_a_device_gives_as_dew_point_counts_where_nothing_better_is_there(hall):
    loop(hall, supply=20.0)
    hall.read("rack-1", dew_point=12.5)
    hall.settle()
    assert hall.rows("SELECT dew_margin_celsius FROM dew_margin") == [(7.5,)]


def test_a_rack_is_balanced_with_its_own_meters_and_a_unit_with_those_of_its_racks(hall):
    hall.send(
        0,
        stream=INVENTORY,
        key="hall-1",
        rows=3,
        ts=[hall.clock.now_us()] * 3,
        asset=["cdu-1", "rack-1", "rack-2"],
        kind=["cdu", "rack", "rack"],
        parent=["hall-1", "row", "row"],
        cdu=[None, "cdu-1", "cdu-1"],
        state="active",
    )
    loop(hall)
    loop(hall, "cdu-1", "TCS", flow=120.0)
    hall.tell(POWER_READINGS, "rack-1", 2, component=["a", "b"], power_watts=[40_000.0, 45_000.0])
    hall.tell(POWER_READINGS, "rack-2", 1, power_watts=[90_000.0])
    hall.tell(POWER_READINGS, "cdu-1", 1, power_watts=[3_000.0])
    hall.settle()
    found = hall.rows(
        "SELECT equipment, power_kilowatts, round(balance_ratio, 3) FROM heat_balance WHERE coolant = 'pg25' ORDER BY 1"
    )
    heat = heat_kilowatts("pg25", 60.0, 20.0, 40.0)
    assert found == [("cdu-1", 175.0, round(2 * heat / 175, 3)), ("rack-1", 85.0, round(heat / 85, 3))]


def test_setpoints_and_what_is_not_trusted_are_no_measurements(hall):
    loop(hall)
    hall.read("rack-1", "rack", role="setpoint", supply_temperature=99.0)
    hall.tell(COOLANT_READINGS, "rack-1", 1, loop="rack", role="measured", point="flow", value=[999.0])
    hall.send(
        99, stream=COOLANT_READINGS, key="rack-1", rows=1, ts=[hall.clock.now_us()], loop="rack",
        role="measured", point="flow", value=[5.0], quality="bad", protocol="bms",
    )  # fmt: skip
    hall.settle()
    assert hall.rows("SELECT DISTINCT supply_celsius, flow_liters_per_minute FROM heat_balance") == [
        (20.0, (60.0 + 999.0) / 2)
    ]


def test_the_coolant_that_the_configuration_names_is_marked(hall):
    loop(hall)
    hall.send(
        50, stream=COOLANT_LOOPS, key="rack-1", rows=1, ts=[hall.clock.now_us()], loop="rack",
        coolant="pg30", protocol="bms",
    )  # fmt: skip
    hall.settle()
    assert hall.rows("SELECT coolant FROM heat_balance WHERE is_stated") == [("pg30",)]
