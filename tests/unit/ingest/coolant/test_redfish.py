"""What a Redfish service says, as rows: readings, detectors, changes; and services that are odd or have no end."""

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import CollectError
from contract.streams.coolant import COOLANT_EVENTS, COOLANT_READINGS, POWER_READINGS
from ingest.coolant.leak import LOST_AFTER_US, MAX_DETECTORS
from ingest.coolant.redfish_folder import RedfishFolder
from ingest.coolant.redfish_walk import MAX_PAGES
from ingest.coolant.testing import ROOT, below, fake_redfish, links, members, points
from ingest.registry import read_table
from ingest.testing import rows_of
from twin.redfish import RedfishServers, Service

NOW = 1_790_000_000_000_000
TICK = 10_000_000
UNIT = "ThermalEquipment/CDUs/1"
WET = {
    "Id": "Tray",
    "Name": "Tray",
    "DetectorState": "Critical",
    "Status": {"State": "Enabled", "Health": "OK"},
}
DRY = WET | {"DetectorState": "OK"}


def unit(**parts):
    """Return the documents of a coolant unit that links the given parts, each of one member."""
    documents = {
        "": links(ThermalEquipment="ThermalEquipment"),
        "ThermalEquipment": links(CDUs="ThermalEquipment/CDUs"),
        "ThermalEquipment/CDUs": members(UNIT),
        UNIT: {"Name": "cdu", "Status": {"State": "Enabled", "Health": "OK"}}
        | links(**{p: f"{UNIT}/{p}" for p in parts}),
    }
    for name, part in parts.items():
        documents[f"{UNIT}/{name}"] = members(f"{UNIT}/{name}/1")
        documents[f"{UNIT}/{name}/1"] = part
    return documents


def with_detectors(**detectors):
    """Return the documents of a unit with these detectors by links."""
    documents = unit() | {f"{UNIT}/LeakDetection/LeakDetectors/{name}": d for name, d in detectors.items()}
    documents[UNIT] |= links(LeakDetection=f"{UNIT}/LeakDetection")
    documents[f"{UNIT}/LeakDetection"] = links(LeakDetectors=f"{UNIT}/LeakDetection/LeakDetectors")
    paths = [f"{UNIT}/LeakDetection/LeakDetectors/{name}" for name in detectors]
    documents[f"{UNIT}/LeakDetection/LeakDetectors"] = members(*paths)
    return documents


@pytest.fixture
def served():
    """Return what serves documents, which may be changed afterwards, and the collector that reads them."""
    open_ones = []

    def serve(documents, **config):
        service = Service(below(documents))
        servers = RedfishServers([service]).__enter__()
        collector = fake_redfish(servers.urls[0], **config)
        open_ones.append((servers, collector))
        return collector, service

    yield serve
    for servers, collector in open_ones:
        collector.close()
        servers.__exit__(None, None, None)


def leaks(reading):
    rows = [row for row in rows_of(reading, COOLANT_READINGS) if row["point"] == "leak"]
    return {row["component"].rpartition("/")[2]: row["leak_state"] for row in rows}


def sensor(kind, reading, **more):
    """Return a unit whose flow comes from a sensor, though its excerpt says nothing of the unit of measurement."""
    documents = unit(
        SecondaryCoolantConnectors={"FlowLitersPerMinute": {"Reading": 60, "DataSourceUri": f"{ROOT}/S"}}
    )
    documents["S"] = {"ReadingType": kind, "Reading": reading, **more}
    return documents


def test_a_table_of_the_configuration_is_read():
    registration, config = read_table(
        {"collector": "coolant-redfish", "equipment": "cdu-1", "url": "https://10.0.0.1"}, "here"
    )
    assert registration.doc
    assert config.subject == "cdu-1"


@pytest.mark.parametrize(
    ("kind", "reading"),
    [("LiquidFlowLPM", 60), ("LiquidFlow", 1.0)],
    ids=["litres a minute", "litres a second"],
)
def test_a_sensor_is_converted_by_its_type_whatever_unit_it_names(served, kind, reading):
    collector, _ = served(sensor(kind, reading, ReadingUnits="furlongs"))
    found = points(collector.collect(NOW))
    assert [row["value"] for key, row in found.items() if key[1] == "flow"] == [60]


def test_limits_are_converted_like_the_value(served):
    limits = {"UpperCritical": {"Reading": 2.0}, "LowerCaution": {"Reading": None}}
    collector, _ = served(sensor("LiquidFlow", 1.0, Thresholds=limits))
    (flow,) = [row for key, row in points(collector.collect(NOW)).items() if key[1] == "flow"]
    assert flow["upper_critical"] == 120
    assert "lower_caution" not in flow


def test_a_sensor_of_another_nature_is_counted_and_not_believed(served):
    collector, _ = served(sensor("Temperature", 20))
    reading = collector.collect(NOW)
    assert reading.rejected == {"wrong_sensor": 1}
    assert [row["quality"] for key, row in points(reading).items() if key[1] == "flow"] == ["good"]


@pytest.mark.parametrize(
    ("given", "value", "quality", "rejected"),
    [
        (41.5, 41.5, "good", {}),
        (None, None, "bad", {}),
        ("41.5", None, "bad", {"implausible": 1}),
        (True, None, "bad", {"implausible": 1}),
        (3_276.7, None, "bad", {"implausible": 1}),
        (10**400, None, "bad", {"unreadable": 1}),
    ],
)
def test_a_reading_that_cannot_be_true_is_null_and_bad_and_never_zero(
    served, given, value, quality, rejected
):
    documents = unit(SecondaryCoolantConnectors={"SupplyTemperatureCelsius": {"Reading": given}})
    collector, _ = served(documents)
    reading = collector.collect(NOW)
    assert reading.rejected == rejected
    if "unreadable" not in rejected:
        row = points(reading)["CDUs/1/SecondaryCoolantConnectors/1", "supply_temperature", "measured"]
        assert (row.get("value"), row["quality"], row["unit"], row["loop"]) == (
            value,
            quality,
            "Celsius",
            "TCS",
        )


@pytest.mark.parametrize(
    ("state", "quality"),
    [("Enabled", "good"), ("StandbySpare", "good"), ("StandbyOffline", "unknown"), ("Updating", "stale"),
     ("Disabled", "bad"), ("UnavailableOffline", "bad"), ("NoSuchState", "bad"), (None, "good")],
)  # fmt: skip
def test_a_reading_is_as_good_as_the_state_of_its_part(served, state, quality):
    collector, _ = served(unit(Pumps={"PumpSpeedPercent": {"Reading": 0}, "Status": {"State": state}}))
    row = points(collector.collect(NOW))["CDUs/1/Pumps/1", "pump_speed", "measured"]
    assert (row["value"], row["quality"]) == (0, quality)


def test_pages_of_a_collection_are_followed_to_the_last(served):
    documents = unit(Pumps={"PumpSpeedPercent": {"Reading": 40}})
    pages = [f"{UNIT}/Pumps{f'/page{n}' if n else ''}" for n in range(3)]
    for number, (page, after) in enumerate(zip(pages, [*pages[1:], None], strict=True)):
        documents[page] = members(f"{UNIT}/Pumps/{number}")
        documents[f"{UNIT}/Pumps/{number}"] = {"PumpSpeedPercent": {"Reading": 40 + number}}
        if after:
            documents[page]["Members@odata.nextLink"] = f"{ROOT}/{after}"
    collector, _ = served(documents)
    found = points(collector.collect(NOW))
    assert [row["value"] for key, row in found.items() if key[1] == "pump_speed"] == [40, 41, 42]


def test_pages_that_lead_in_a_circle_or_have_no_end_are_left(served):
    documents = unit(Pumps={"PumpSpeedPercent": {"Reading": 40}})
    documents[f"{UNIT}/Pumps"]["Members@odata.nextLink"] = f"{ROOT}/{UNIT}/Pumps"
    collector, service = served(documents)
    assert collector.collect(NOW).rejected == {}
    find = service.find

    def endless(path):
        if path.startswith(f"{ROOT}/{UNIT}/Pumps/page"):
            return {"Members": [], "Members@odata.nextLink": f"{path}0"}
        return find(path)

    documents[f"{UNIT}/Pumps"]["Members@odata.nextLink"] = f"{ROOT}/{UNIT}/Pumps/page"
    service.find = endless
    reading = collector.collect(NOW + 700_000_000)
    assert reading.rejected == {"too_many": 1}
    assert sum("/page" in line for line in service.asked) == MAX_PAGES


def test_a_collection_of_a_million_members_costs_no_more_requests_than_allowed(served):
    documents = unit(Pumps={})
    documents[f"{UNIT}/Pumps"] = members(*(f"{UNIT}/Pumps/{n}" for n in range(5_000)))
    collector, service = served(documents, max_documents=40)
    reading = collector.collect(NOW)
    assert len(service.asked) == 40
    assert reading.rejected["too_many"] > 0


def test_a_unit_that_has_ever_more_to_say_is_heard_up_to_a_bound(served):
    documents = unit(Pumps={})
    documents[f"{UNIT}/Pumps"] = members(*(f"{UNIT}/Pumps/{n}" for n in range(20)))
    documents |= {f"{UNIT}/Pumps/{n}": {"Oem": "x" * 10_000} for n in range(20)}
    collector, service = served(documents, max_reading_bytes=50_000)
    reading = collector.collect(NOW)
    assert reading.rejected["too_large"] > 10
    assert sum("/Pumps/" in line for line in service.asked) <= 5


def test_a_unit_that_lists_a_crowd_of_detectors_is_cut_at_a_bound(served):
    documents = with_detectors()
    crowd = [{"DeviceName": f"d{n}", "DetectorState": "OK"} for n in range(MAX_DETECTORS + 10)]
    documents[f"{UNIT}/LeakDetection"]["LeakDetectorGroups"] = [{"Detectors": crowd}]
    collector, _ = served(documents)
    assert len(leaks(collector.collect(NOW))) == MAX_DETECTORS


@pytest.mark.parametrize(
    "later", [700_000_000, -86_400_000_000], ids=["after ten minutes", "after a clock set back"]
)
def test_a_part_that_is_added_is_found_when_the_way_is_walked_anew(served, later):
    documents = unit(Pumps={"PumpSpeedPercent": {"Reading": 40}})
    collector, _ = served(documents)
    collector.collect(NOW)
    documents[f"{UNIT}/Pumps"] = members(f"{UNIT}/Pumps/1", f"{UNIT}/Pumps/2")
    documents[f"{UNIT}/Pumps/2"] = {"PumpSpeedPercent": {"Reading": 50}}
    assert ("CDUs/1/Pumps/2", "pump_speed", "measured") not in points(collector.collect(NOW + TICK))
    assert ("CDUs/1/Pumps/2", "pump_speed", "measured") in points(collector.collect(NOW + later))


def test_members_listed_twice_and_one_member_id_under_two_addresses(served):
    documents = unit(Pumps={"Id": "1", "PumpSpeedPercent": {"Reading": 40}})
    documents[f"{UNIT}/Pumps"] = members(f"{UNIT}/Pumps/1", f"{UNIT}/Pumps/1", f"{UNIT}/Pumps/2")
    documents[f"{UNIT}/Pumps/2"] = {"Id": "1", "PumpSpeedPercent": {"Reading": 50}}
    collector, _ = served(documents)
    found = points(collector.collect(NOW))
    assert {key[0]: row["value"] for key, row in found.items() if key[1] == "pump_speed"} == {
        "CDUs/1/Pumps/1": 40,
        "CDUs/1/Pumps/2": 50,
    }


def test_a_chassis_that_serves_only_its_thermal_subsystem_is_read(served):
    documents = {
        "": links(Chassis="Chassis"),
        "Chassis": members("Chassis/1"),
        "Chassis/1": links(ThermalSubsystem="Chassis/1/T", Thermal="Chassis/1/Thermal"),
        "Chassis/1/T": links(CoolantConnectors="Chassis/1/T/C"),
        "Chassis/1/T/C": members("Chassis/1/T/C/A"),
        "Chassis/1/T/C/A": {"SupplyTemperatureCelsius": {"Reading": 31}},
    }
    collector, service = served(documents)
    found = points(collector.collect(NOW))
    assert found["Chassis/1/T/C/A", "supply_temperature", "measured"]["loop"] == "coldplate"
    assert not any(line.endswith("/Thermal") for line in service.asked)


@pytest.mark.parametrize("documents", [{}, {"": {}}, {"": links(Chassis="Chassis"), "Chassis": members()}])
def test_a_service_without_coolant_is_a_failed_reading(served, documents):
    collector, _ = served(documents)
    with pytest.raises(CollectError) as caught:
        collector.collect(NOW)
    assert caught.value.reason in ("bad_status", "no_data")


def test_power_of_a_unit_goes_to_its_own_stream(served):
    documents = unit()
    documents[UNIT] |= links(EnvironmentMetrics=f"{UNIT}/E")
    documents[f"{UNIT}/E"] = {"PowerWatts": {"Reading": 812.5}, "EnergykWh": {"Reading": 4_000}}
    collector, _ = served(documents)
    (power,) = rows_of(collector.collect(NOW), POWER_READINGS)
    assert (power["power_watts"], power["energy_kilowatt_hours"]) == (812.5, 4_000)


def test_groups_and_links_that_tell_of_one_detector_are_one_and_the_worse_counts(served):
    documents = with_detectors(Tray=DRY)
    documents[f"{UNIT}/LeakDetection"]["LeakDetectorGroups"] = [
        {
            "Detectors": [
                {
                    "DataSourceUri": f"{ROOT}/Chassis/C/LeakDetectors/Tray",
                    "DeviceName": "Tray",
                    "DetectorState": "Critical",
                }
            ]
        }
    ]
    documents["Chassis/C/LeakDetectors/Tray"] = DRY
    collector, _ = served(documents)
    (row,) = [row for row in rows_of(collector.collect(NOW), COOLANT_READINGS) if row["point"] == "leak"]
    assert (row["leak_state"], row["device_state"]) == ("leak", "Critical")
    assert "says OK" in row["detail"]


def test_an_excerpt_that_quotes_a_detector_that_is_not_fit_makes_it_no_more_than_suspect(served):
    documents = with_detectors(Tray=WET | {"Status": {"State": "Disabled", "Health": "OK"}})
    address = f"{ROOT}/{UNIT}/LeakDetection/LeakDetectors/Tray"
    excerpt = {"DataSourceUri": address, "DeviceName": "Tray", "DetectorState": "Critical"}
    documents[f"{UNIT}/LeakDetection"]["LeakDetectorGroups"] = [{"Detectors": [excerpt]}]
    collector, _ = served(documents)
    assert leaks(collector.collect(NOW)) == {"Tray": "suspect"}


def test_two_detectors_of_one_id_and_two_names_are_two(served):
    documents = with_detectors(Tray=DRY)
    documents[f"{UNIT}/LeakDetection"]["LeakDetectorGroups"] = [
        {
            "Detectors": [
                {
                    "DataSourceUri": f"{ROOT}/Chassis/C/LeakDetectors/Tray",
                    "DeviceName": "Rear",
                    "DetectorState": "Critical",
                }
            ]
        }
    ]
    collector, _ = served(documents)
    assert sorted(leaks(collector.collect(NOW)).values()) == ["dry", "leak"]


def test_what_the_device_will_do_by_itself_about_a_leak_is_told(served):
    wet = WET | {"CriticalReactionType": "ForceOff", "ReactionDelaySeconds": 15}
    collector, _ = served(with_detectors(Tray=wet))
    (event,) = rows_of(collector.collect(NOW), COOLANT_EVENTS)
    assert (event["event"], event["leak_state"]) == ("leak_changed", "leak")
    assert (event["reaction"], event["reaction_delay_seconds"]) == ("force_off", 15)


def test_a_wet_detector_that_is_gone_stays_wet_in_memory_whatever_happens(served):
    documents = with_detectors(Tray=WET, Rear=DRY)
    collector, _ = served(documents)
    assert leaks(collector.collect(NOW)) == {"Tray": "leak", "Rear": "dry"}
    address = f"{UNIT}/LeakDetection/LeakDetectors/Tray"
    gone = documents.pop(address)
    reading = collector.collect(NOW + TICK)
    assert leaks(reading) == {"Tray": "sensor_fault", "Rear": "dry"}
    (event,) = rows_of(reading, COOLANT_EVENTS)
    assert (event["leak_state"], event["state_before"]) == ("sensor_fault", "leak")
    other, _ = served(documents)  # another process
    other.restore(collector.cursor())
    reading = other.collect(NOW + 2 * TICK)
    (row,) = [row for row in rows_of(reading, COOLANT_READINGS) if row.get("leak_state") == "sensor_fault"]
    assert (row["leak_before"], rows_of(reading, COOLANT_EVENTS)) == ("leak", [])
    documents[address] = gone | {"DetectorState": "OK"}
    (event,) = rows_of(other.collect(NOW + 3 * TICK), COOLANT_EVENTS)
    assert (event["leak_state"], event["state_before"]) == ("dry", "sensor_fault")


def test_a_detector_that_is_no_longer_listed_is_lost_after_200_s_and_not_before(served):
    documents = with_detectors()
    listed = [{"DeviceName": "Rear", "DetectorState": "OK"}, {"DeviceName": "Tray", "DetectorState": "OK"}]
    documents[f"{UNIT}/LeakDetection"]["LeakDetectorGroups"] = [{"Detectors": listed}]
    collector, _ = served(documents)
    assert leaks(collector.collect(NOW)) == {"Rear": "dry", "Tray": "dry"}
    listed.pop()
    assert leaks(collector.collect(NOW + TICK)) == {"Rear": "dry"}
    for late in (NOW + LOST_AFTER_US + TICK, NOW + LOST_AFTER_US + 2 * TICK):
        found = collector.collect(late)
        assert leaks(found) == {"Rear": "dry", "Tray": "sensor_fault"}
    (row,) = [row for row in rows_of(found, COOLANT_READINGS) if row.get("leak_state") == "sensor_fault"]
    assert (row["quality"], row["leak_before"], row["label"]) == ("stale", "dry", "Tray")


def test_a_unit_that_fails_for_one_reading_changes_no_detector(served):
    documents = with_detectors(Tray=WET)
    collector, service = served(documents)
    collector.collect(NOW)
    find, service.find = service.find, lambda _path: None
    with pytest.raises(CollectError):
        collector.collect(NOW + TICK)
    service.find = find
    reading = collector.collect(NOW + 2 * TICK)
    assert leaks(reading) == {"Tray": "leak"}
    assert rows_of(reading, COOLANT_EVENTS) == []


def test_a_condition_is_told_when_it_comes_and_when_it_goes_and_not_while_its_part_is_unread(served):
    pump = {
        "Status": {
            "State": "Enabled",
            "Health": "Critical",
            "Conditions": [
                {
                    "MessageId": "Environmental.1.1.0.PumpFailed",
                    "Severity": "Critical",
                    "Message": "Pump '1' has failed.",
                },
                {"MessageId": "Environmental.1.2.PumpOK", "Severity": "OK"},
            ],
        }
    }
    documents = unit(Pumps=pump)
    collector, _ = served(documents)
    told = [(e["event"], e.get("message")) for e in rows_of(collector.collect(NOW), COOLANT_EVENTS)]
    assert told == [("health_changed", None), ("condition", "PumpFailed")]
    gone = documents.pop(f"{UNIT}/Pumps/1")
    assert rows_of(collector.collect(NOW + TICK), COOLANT_EVENTS) == []
    documents[f"{UNIT}/Pumps/1"] = gone
    assert rows_of(collector.collect(NOW + 2 * TICK), COOLANT_EVENTS) == []
    documents[f"{UNIT}/Pumps/1"] = {"Status": {"State": "Enabled", "Health": "OK"}}
    gone_events = [
        (e["event"], e["component"], e.get("state_before"))
        for e in rows_of(collector.collect(NOW + 3 * TICK), COOLANT_EVENTS)
    ]
    assert gone_events == [
        ("health_changed", "CDUs/1/Pumps/1", "critical"),
        ("condition_cleared", "CDUs/1/Pumps/1", None),
    ]


def test_a_valve_that_shuts_is_an_event(served):
    connector = {"Status": {"State": "Enabled", "Health": "OK"}}
    documents = unit(SecondaryCoolantConnectors=connector)
    collector, _ = served(documents)
    assert rows_of(collector.collect(NOW), COOLANT_EVENTS) == []
    documents[f"{UNIT}/SecondaryCoolantConnectors/1"] = {"Status": {"State": "Disabled", "Health": "OK"}}
    (event,) = rows_of(collector.collect(NOW + TICK), COOLANT_EVENTS)
    assert (event["event"], event["state"], event["state_before"]) == ("valve_changed", "Disabled", "Enabled")


def test_a_unit_that_is_too_slow_tells_of_leaks_first_and_of_the_rest_in_turn(served):
    documents = with_detectors(Tray=WET)
    documents[UNIT] |= links(Pumps=f"{UNIT}/Pumps")
    documents[f"{UNIT}/Pumps"] = members(*(f"{UNIT}/Pumps/{n}" for n in range(6)))
    documents |= {f"{UNIT}/Pumps/{n}": {"PumpSpeedPercent": {"Reading": n}} for n in range(6)}
    collector, service = served(documents, timeout_seconds=1.0)
    find, left = service.find, 0

    def slow(path):
        nonlocal left
        left -= 1
        if left < 0:
            service.hangs = True
        return find(path)

    service.find = slow
    pumps, reasons = set(), set()
    for round_number in range(6):
        service.hangs, left = False, 10 if round_number == 0 else 6
        reading = collector.collect(NOW + round_number * TICK)
        assert leaks(reading) == {"Tray": "leak"}
        reasons |= reading.rejected.keys()
        pumps |= {key[0] for key in points(reading) if key[1] == "pump_speed"}
    assert len(pumps) == 6
    assert reasons <= {"timeout", "out_of_time"}


def test_a_recorded_folder_may_hold_what_is_no_document(tmp_path):
    with pytest.raises(CollectError) as caught:
        RedfishFolder(tmp_path)
    assert caught.value.reason == "no_data"
    tray = f"{ROOT}/Chassis/1/LeakDetectors/Tray"
    (tmp_path / "a.json").write_text(json.dumps({"@odata.id": tray} | WET))
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").write_text("[]")
    (tmp_path / "d.json").write_text('{"@odata.id": "http://elsewhere.example/redfish/v1/Chassis"}')
    reading = fake_redfish("http://127.0.0.1:1").read_folder(RedfishFolder(tmp_path), NOW)
    assert leaks(reading) == {"Tray": "leak"}
    (tmp_path / "a.json").write_text(json.dumps({"@odata.id": f"{ROOT}/Systems/1"}))
    with pytest.raises(CollectError, match="neither a coolant unit nor a detector"):
        fake_redfish("http://127.0.0.1:1").read_folder(RedfishFolder(tmp_path), NOW)


BOGUS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
WHOLE = with_detectors(Tray=WET) | {
    f"{UNIT}/Pumps/1": {
        "PumpSpeedPercent": {"Reading": 1, "DataSourceUri": f"{ROOT}/S"},
        "Status": {"Conditions": []},
    },
    f"{UNIT}/Pumps": members(f"{UNIT}/Pumps/1"),
    "S": {"ReadingType": "Percent", "Reading": 1, "Thresholds": {"UpperCritical": {"Reading": 1}}},
}
WHOLE[UNIT] = {**WHOLE[UNIT], **links(Pumps=f"{UNIT}/Pumps")}
WHOLE[f"{UNIT}/LeakDetection"] = {
    **WHOLE[f"{UNIT}/LeakDetection"],
    "LeakDetectorGroups": [{"Detectors": [{"DeviceName": "Rear", "DetectorState": "OK"}]}],
}


def places(document, here=()):
    """Yield the way to every value of a document."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        yield (*here, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*here, key))


SPOTS = [(path, *way) for path, document in WHOLE.items() for way in places(document)]


@pytest.fixture(scope="module")
def mutable():
    service = Service(lambda _path: None)
    with RedfishServers([service]) as servers:
        yield service, servers.urls[0]


@settings(max_examples=100)
@given(spot=st.sampled_from(SPOTS), value=BOGUS)
def test_whatever_stands_at_whatever_place_is_rows_or_a_typed_error(mutable, spot, value):
    service, url = mutable
    documents = copy.deepcopy(WHOLE)
    path, *way, last = spot
    place = documents[path]
    for key in way:
        place = place[key]
    place[last] = value
    service.find = below(documents)
    collector = fake_redfish(url)
    try:
        reading = collector.collect(NOW)
    except CollectError:
        return
    finally:
        collector.close()
    for stream in (COOLANT_READINGS, COOLANT_EVENTS, POWER_READINGS):
        rows_of(reading, stream)
