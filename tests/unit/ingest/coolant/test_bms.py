"""The collector of a building's messages: records as they grow, points as their metadata says, values as they come."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.config import HallSection
from contract.errors import CollectError
from contract.streams.coolant import COOLANT_EVENTS, COOLANT_LOOPS, COOLANT_READINGS, POWER_READINGS
from contract.testing import FakeClock
from ingest.collector import Context
from ingest.coolant.bms import BmsCollector, BmsConfig
from ingest.coolant.bms_points import read_metadata
from ingest.coolant.bms_record import MAX_LINE_BYTES, MAX_MESSAGES, record_seconds
from ingest.testing import clean

FLOW = "Rack/RackLiquidFlow/site/rowE/rack02/energyValve/flow/feedback/value"
LEAK = "Rack/RackLeakDetect/site/rowE/rack02/leakStatus/state/rValue"
FAULT = "Rack/RackLeakSensorFault/site/rowE/rack02/leakStatus/deviceFail/enabled/rValue"
SOUND = "Sensor/Sound/site/rowE/environment/coldAisle/sound/sound01/feedback/value"
RACK = {"rackLocationId": "E02", "rackLocationName": "E02"}
YES_NO = [{"value": 0, "text": "NoLeak"}, {"value": 1, "text": "Leak"}]


class Building:
    """A record that grows, and the collector that follows it."""

    def __init__(self, folder):
        self.path = folder / "bms.jsonl"
        self.path.touch()
        self.clock = FakeClock()
        self.collector = self.start()

    def start(self):
        config = BmsConfig(collector="coolant-bms", path=self.path)
        return BmsCollector(config, Context(hall=HallSection(name="test"), clock=self.clock))

    def write(self, text):
        with self.path.open("a") as file:
            file.write(text)

    def metadata(self, point, **values):
        message = {"topic": f"BMS/v1/PUB/Metadata/{point}", "payload": {**RACK, **values}}
        self.write(json.dumps(message) + "\n")

    def value(self, point, value, *, quality=1, **more):
        payload = {"value": value, "timestamp": self.clock.now_us() // 1000, "quality": quality, **more}
        message = {"topic": f"BMS/v1/PUB/Value/{point}", "payload": json.dumps(payload), "qos": 0}
        self.write(json.dumps(message) + "\n")

    def collect(self):
        reading = self.collector.collect(self.clock.now_us())
        self.collector.cursor()  # as the runner does when it has the rows
        return reading

    def restart(self):
        """Begin again as another process would, with what this one kept."""
        cursor = self.collector.cursor()
        self.collector = self.start()
        self.collector.restore(cursor)

    def rows(self, stream=COOLANT_READINGS):
        return rows(self.collect(), stream)


def rows(reading, stream=COOLANT_READINGS):
    found = []
    for part in reading.rows:
        if part.stream is stream:
            cleaned, rejected = clean(part)
            assert not rejected
            found += [{name: value for name, value in row.items() if value is not None} for row in cleaned]
    return found


@pytest.fixture
def building(tmp_path):
    return Building(tmp_path)


def test_a_value_is_what_its_metadata_says(building):
    building.metadata(FLOW, engUnit="GPM")
    building.value(FLOW, 10.0)
    (row,) = building.rows()
    assert row["value"] == pytest.approx(37.85411784)
    assert (row["equipment"], row["loop"], row["point"], row["role"]) == ("E02", "rack", "flow", "measured")
    assert (row["component"], row["unit"], row["quality"]) == ("energyValve/flow", "L/min", "good")
    assert row["source_uri"] == f"BMS/v1/PUB/Value/{FLOW}"


@pytest.mark.parametrize(
    ("quality", "said"), [(0, "bad"), (2, "bad"), ("1", "bad"), (True, "bad"), (None, "unknown")]
)
def test_anything_but_a_quality_of_one_is_not_trusted(building, quality, said):
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, 50.0, quality=quality)
    reading = building.collect()
    (row,) = rows(reading)
    assert (row["value"], row["quality"]) == (50.0, said)
    assert rows(reading, COOLANT_LOOPS) == []


@pytest.mark.parametrize("value", [None, "On", True, 1e300, [1]])
def test_what_is_no_number_is_no_value(building, value):
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, value)
    (row,) = building.rows()
    assert "value" not in row
    assert row["quality"] == "bad"


def test_a_setpoint_is_told_from_a_measurement(building):
    other = FLOW.replace("feedback", "setpoint")
    building.metadata(FLOW, engUnit="LPM")
    building.metadata(other, engUnit="LPM", isSetpoint=True)
    building.value(other, 90.0)
    building.value(FLOW, 50.0)
    reading = building.collect()
    assert [row["role"] for row in rows(reading)] == ["setpoint", "measured"]
    assert rows(reading, COOLANT_LOOPS)[0]["flow_liters_per_minute"] == 50.0


def test_what_a_rack_draws_is_what_its_loop_has_to_cool(building):
    power = "Rack/RackPower/site/rowE/rack02/info/power/power/value"
    for point, unit, value in (
        (FLOW, "LPM", 50.0),
        (FLOW.replace("LiquidFlow", "LiquidSupplyTemperature"), "C", 32.0),
        (FLOW.replace("LiquidFlow", "LiquidReturnTemperature"), "C", 42.0),
        (power, "kW", 35.0),
    ):
        building.metadata(point, engUnit=unit)
        building.value(point, value)
    reading = building.collect()
    assert rows(reading, POWER_READINGS)[0]["power_watts"] == 35_000
    (loop,) = rows(reading, COOLANT_LOOPS)
    assert loop["balance_ratio"] == pytest.approx(0.9585, abs=0.001)


def test_a_leak_is_believed_only_from_a_detector_that_is_well(building):
    building.metadata(LEAK, stateText=YES_NO)
    building.metadata(FAULT, stateText=[{"value": 0, "text": "NoFault"}, {"value": 1, "text": "Fault"}])
    steps = [
        (LEAK, 0, "dry"),
        (LEAK, 1, "leak"),
        (FAULT, 1, "suspect"),
        (LEAK, 0, "sensor_fault"),
        (FAULT, 0, "dry"),
    ]
    for point, value, state in steps:
        building.value(point, value)
        reading = building.collect()
        assert [row["leak_state"] for row in rows(reading)] == [state]
        if state != "dry" or point == FAULT:
            assert [event["leak_state"] for event in rows(reading, COOLANT_EVENTS)] == [state]


def test_a_detector_without_data_is_never_dry(building):
    building.metadata(LEAK, stateText=YES_NO)
    for value, quality in ((None, 1), (0, 0), (7, 1)):
        building.value(LEAK, value, quality=quality)
        assert [row["leak_state"] for row in building.rows()] == ["sensor_fault"]


def test_a_point_that_falls_silent_is_stale_once_and_no_longer_in_its_loop(building):
    building.metadata(FLOW, engUnit="LPM")
    building.metadata(LEAK, stateText=YES_NO)
    building.value(FLOW, 50.0)
    building.value(LEAK, 1)
    building.collect()
    building.clock.advance(201)
    reading = building.collect()
    assert {(row["point"], row["quality"]) for row in rows(reading)} == {("flow", "stale"), ("leak", "stale")}
    lost = next(row for row in rows(reading) if row["point"] == "leak")
    assert (lost["leak_state"], lost["leak_before"]) == ("sensor_fault", "leak")
    assert rows(reading, COOLANT_LOOPS) == []
    assert building.rows() == []


def test_values_before_their_metadata_and_points_nothing_is_kept_of_are_counted(building):
    building.value(FLOW, 50.0)
    building.metadata(SOUND, engUnit="dB", objectId="env")
    building.value(SOUND, 66.0)
    building.write('{"topic": "other/topic", "payload": "1"}\n')
    reading = building.collect()
    assert reading.rejected == {"no_metadata": 1}
    assert reading.skipped == {"not_kept": 1, "other_topic": 1}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engUnit": "furlong"}, "unit 'furlong' of flow"),
        ({}, "unit 'None'"),
        ({"rackLocationId": 7}, "no unit"),
    ],
)
def test_metadata_of_another_form_is_refused(building, values, message):
    with pytest.raises(ValueError, match=message):
        read_metadata(FLOW, {**RACK, **values})
    building.metadata(FLOW, **values)
    assert building.collect().rejected == {"bad_metadata": 1}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "1s,topic",
        "soon,topic,{}",
        "1s,topic,{",
        '{"topic": 1, "payload": {}}',
        '{"topic": "BMS/v1/PUB/Value/x"}',
        "\x00" * 9,
        "[" * 5_000,
        '{"topic": "t", "payload": ' + "[" * 5_000,
        "x" * (MAX_LINE_BYTES + 1),
    ],
)
def test_a_line_that_is_no_message_is_counted_and_costs_no_other(building, line):
    building.metadata(FLOW, engUnit="LPM")
    building.write(line + "\n")
    building.value(FLOW, 50.0)
    reading = building.collect()
    assert reading.rejected == {"unreadable": 1}
    assert len(rows(reading)) == 1


def test_half_a_line_waits_for_its_other_half(building):
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, 50.0)
    whole = building.path.read_text()
    building.path.write_text(whole[:-20])
    assert building.rows() == []
    building.path.write_text(whole)
    assert len(building.rows()) == 1


def test_a_recorded_message_comes_when_its_offset_says(building):
    building.write("offset,topic,payload\n")
    for offset, point, payload in (
        ("0s", f"BMS/v1/PUB/Metadata/{FLOW}", {**RACK, "engUnit": "LPM"}),
        ("1m0.5s", f"BMS/v1/PUB/Value/{FLOW}", {"value": 50.0, "timestamp": 12345, "quality": 1}),
    ):
        text = json.dumps(payload).replace('"', '""').replace("12345", "{{timestamp_ms}}")
        building.write(f'{offset},{point},"{text}"\n')
    start_us = building.clock.now_us()
    assert building.rows() == []
    building.clock.advance(60)
    assert building.rows() == []
    building.clock.advance(1)
    (row,) = building.rows()
    assert row["ts"].timestamp() % 60 == 0.5
    assert building.collector.cursor() != b""
    assert building.collector._record.place.start_us == start_us


def test_a_record_is_known_by_its_messages_and_as_long_as_its_last_offset(building):
    assert record_seconds(building.path) is None
    building.metadata(FLOW, engUnit="LPM")
    assert record_seconds(building.path) == 0.0
    building.path.write_text("offset,topic,payload\n0s,BMS/v1/PUB/Value/x,1\n1m39.5s,BMS/v1/PUB/Value/x,2\n")
    assert record_seconds(building.path) == 99.5
    for other in ("a,b,c\n1,2,3\n", "[1]\n", "", '{"topic": "other", "payload": 1}\n'):
        building.path.write_text(other)
        assert record_seconds(building.path) is None
    assert record_seconds(building.path.parent) is None


def test_a_restart_goes_on_where_it_was_and_still_knows_its_points(building):
    building.metadata(FLOW, engUnit="LPM")
    building.metadata(LEAK, stateText=YES_NO)
    building.value(FLOW, 50.0)
    building.value(LEAK, 1)
    building.collect()
    building.restart()
    building.value(FLOW, 51.0)
    building.value(LEAK, None)
    found = building.rows()
    assert [row.get("value") for row in found] == [51.0, None]
    assert (found[1]["leak_state"], found[1]["leak_before"]) == ("sensor_fault", "leak")


@pytest.mark.parametrize("cursor", [b"", b"{", b"[]", b'{"offset": -5, "start_us": 1}', b'{"offset": "x"}'])
def test_a_memory_that_cannot_be_read_is_none(building, cursor):
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, 50.0)
    building.collector.restore(cursor)
    assert len(building.rows()) == 1


def test_a_record_that_became_shorter_is_read_from_its_beginning(building):
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, 50.0)
    building.value(FLOW, 50.0)
    building.collect()
    building.path.write_text("")
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, 60.0)
    reading = building.collect()
    assert reading.rejected == {"record_replaced": 1}
    assert [row["value"] for row in rows(reading)] == [60.0]


def test_a_backlog_is_worked_off_reading_by_reading(building):
    building.metadata(FLOW, engUnit="LPM")
    line = json.dumps({"topic": f"BMS/v1/PUB/Value/{FLOW}", "payload": {"value": 1, "quality": 1}}) + "\n"
    building.write(line * (MAX_MESSAGES + 10))
    assert [len(building.rows()), len(building.rows())] == [MAX_MESSAGES - 1, 11]


def test_a_record_that_is_not_there_is_an_error(building):
    building.path.unlink()
    with pytest.raises(CollectError) as raised:
        building.collect()
    assert raised.value.reason == "unreachable"


def test_a_clock_of_the_building_that_is_wrong_is_not_followed(building):
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, 50.0, timestamp=4_000_000_000_000)
    (row,) = building.rows()
    assert row["ts"].year == 2026


@pytest.mark.parametrize("timestamp", [1e306, -1e306, 1.7e308])
def test_a_time_that_is_no_time_costs_no_message(building, timestamp):
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, 50.0, timestamp=timestamp)
    building.value(FLOW, 51.0)
    assert [(row["value"], row["ts"].year) for row in building.rows()] == [(50.0, 2026), (51.0, 2026)]


def test_names_are_as_long_as_their_columns_in_bytes_whatever_their_letters(building):
    other = FLOW.replace("rack02", "ü" * 600)
    building.metadata(FLOW, engUnit="LPM", rackLocationId="ü" * 128)
    building.metadata(other, engUnit="LPM", rackLocationId="ü" * 127, rackLocationName="ö" * 200)
    building.value(FLOW, 50.0)
    building.value(other, 51.0)
    reading = building.collect()
    assert reading.rejected == {"bad_metadata": 1}
    (row,) = rows(reading)
    assert (row["equipment"], row["label"], row["value"]) == ("ü" * 127, "ö" * 127, 51.0)
    assert len(row["component"].encode()) in (254, 255)
    assert len(row["source_uri"].encode()) in (1_023, 1_024)


def test_a_reading_whose_rows_were_not_taken_is_made_again_with_its_news(building):
    building.metadata(LEAK, stateText=YES_NO)
    building.value(LEAK, 1)
    before = building.collector.cursor()
    for _ in range(2):
        reading = building.collector.collect(building.clock.now_us())  # and nobody asks for the cursor
        assert [row["leak_state"] for row in rows(reading)] == ["leak"]
        assert [event["leak_state"] for event in rows(reading, COOLANT_EVENTS)] == ["leak"]
    assert building.collector.cursor() != before
    assert building.collect().rows == []


def test_a_reading_that_fails_moves_nothing(building, monkeypatch):
    building.metadata(FLOW, engUnit="LPM")
    building.value(FLOW, 50.0)
    before = building.collector.cursor()
    with monkeypatch.context() as patch:
        patch.setattr("ingest.coolant.bms.reading", lambda *_args, **_columns: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            building.collect()
        assert building.collector.cursor() == before
    assert [row["value"] for row in building.rows()] == [50.0]


def test_a_restart_learns_again_from_both_ends_of_a_long_record_and_says_so(building, monkeypatch):
    middle, late = FLOW.replace("rack02", "rack03"), FLOW.replace("rack02", "rack04")
    for point, others in ((FLOW, 100), (middle, 90), (late, 10)):
        building.metadata(point, engUnit="LPM")
        building.write('{"topic": "other/topic", "payload": "1"}\n' * others)
    building.collect()
    monkeypatch.setattr("ingest.coolant.bms_record.MAX_PAST_BYTES", building.path.stat().st_size // 2)
    building.restart()
    for point in (FLOW, middle, late):
        building.value(point, 50.0)
    reading = building.collect()
    assert reading.rejected == {"no_metadata": 1, "past_cut": 1}
    assert [row["source_uri"].split("/")[8] for row in rows(reading)] == ["rack02", "rack04"]


def test_the_newest_metadata_of_a_point_counts_after_a_restart(building):
    for unit in ("GPM", "LPM"):
        building.metadata(FLOW, engUnit=unit)
    building.collect()
    building.restart()
    building.value(FLOW, 50.0)
    reading = building.collect()
    assert [row["value"] for row in rows(reading)] == [50.0]
    assert reading.rejected == {}


def test_learning_again_ends_when_its_time_is_over(building, monkeypatch):
    building.metadata(FLOW, engUnit="LPM")
    building.metadata(LEAK, stateText=YES_NO)
    building.collect()
    building.restart()
    monkeypatch.setattr(building.clock, "monotonic", iter(range(0, 1_000_000, 2)).__next__)
    building.value(FLOW, 50.0)
    assert building.collect().rejected == {"no_metadata": 1, "past_cut": 1}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "objectType",
        "engUnit",
        "processArea",
        "stateText",
        "isSetpoint",
        "rackLocationId",
        "objectId",
        "objectName",
    ]
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    metadata=st.dictionaries(KEYS, VALUES, max_size=5),
    payload=st.dictionaries(st.sampled_from(["value", "timestamp", "quality"]), VALUES, max_size=3) | VALUES,
    point=st.sampled_from([FLOW, LEAK, FAULT, SOUND, "CDU/LiquidFlow", "Rack", "a//b"]),
)
def test_whatever_a_building_says_becomes_rows_or_is_counted(tmp_path, metadata, payload, point):
    building = Building(tmp_path)
    building.path.write_text("")
    for kind, content in (("Metadata", {**RACK, "engUnit": "LPM", **metadata}), ("Value", payload)):
        building.write(json.dumps({"topic": f"BMS/v1/PUB/{kind}/{point}", "payload": content}) + "\n")
    reading = building.collect()
    for part in reading.rows:
        clean(part)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400))
def test_no_bytes_of_a_record_raise_anything(tmp_path, content):
    building = Building(tmp_path)
    building.path.write_bytes(content + b"\n")
    building.collect()
    building.clock.advance(1)
    building.collect()
