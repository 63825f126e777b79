"""The published Redfish mockups and captures of coolant, served and read to the truth their list states."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from contract.streams.coolant import COOLANT_EVENTS, COOLANT_LOOPS, COOLANT_READINGS, POWER_READINGS
from ingest.coolant.redfish import RedfishCollector
from ingest.coolant.redfish_changes import Changes
from ingest.coolant.redfish_folder import RedfishFolder
from ingest.coolant.redfish_walk import Found, Task
from ingest.coolant.testing import below, fake_redfish, folder, links, members, points
from ingest.testing import rows_of
from twin.redfish import RedfishServers, Service

NOW = 1_790_000_000_000_000
TICK = 10_000_000
CONNECTOR = "CDUs/1/SecondaryCoolantConnectors/1"


@pytest.fixture
def redfish(vectors: Path) -> Path:
    return vectors / "coolant" / "redfish"


@contextmanager
def served(find: Callable[[str], Mapping[str, Any] | None]) -> Iterator[tuple[RedfishCollector, Service]]:
    service = Service(find)
    with RedfishServers([service]) as servers:
        collector = fake_redfish(servers.urls[0])
        yield collector, service
        collector.close()


def server(redfish: Path) -> Callable[[str], Mapping[str, Any] | None]:
    """Serve the liquid-cooled server, with the root and the chassis that its subset leaves out."""
    rest = folder(redfish / "public-liquid-cooled-server")
    own = below(
        {
            "": links(Chassis="Chassis"),
            "Chassis/1U": links(
                ThermalSubsystem="Chassis/1U/ThermalSubsystem",
                EnvironmentMetrics="Chassis/1U/EnvironmentMetrics",
            ),
        }
    )
    return lambda path: own(path) or rest(path)


def tray(redfish: Path) -> Callable[[str], Mapping[str, Any] | None]:
    """Serve the leak detection of a GB200 tray, of whose four detectors two were captured."""
    files = {path.stem: json.loads(path.read_text()) for path in (redfish / "gb-nvl-leak").glob("*.json")}
    at = {
        document["@odata.id"]: document
        for name, document in sorted(files.items())
        if name not in ("leak_detectors_single", "single_leak_detection")
    }
    at["/redfish/v1"] = links(Chassis="Chassis")
    at["/redfish/v1/Chassis"] = members("Chassis/Chassis_0")
    at["/redfish/v1/Chassis/Chassis_0"] = links(ThermalSubsystem="Chassis/Chassis_0/ThermalSubsystem")
    return at.get


def test_the_mockup_is_whole_and_the_server_has_its_dead_links(redfish):
    assert len(list((redfish / "public-cooling-unit").rglob("index.json"))) == 73
    files = (redfish / "public-liquid-cooled-server").rglob("index.json")
    documents = [json.loads(file.read_text()) for file in files]
    dead = set(linked(documents)) - {document["@odata.id"] for document in documents}
    # Of the 17 of the whole mockup, those of the subset, beside the chassis that was left out.
    assert len(dead - {"/redfish/v1/Chassis/1U"}) == 11
    assert sum(path.startswith("/redfish/v1/CoolingEquipment/") for path in dead) == 3


def linked(value):
    """Yield every address in documents."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in ("@odata.id", "DataSourceUri"):
                yield inner
            else:
                yield from linked(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from linked(inner)


def test_the_whole_coolant_unit_gives_each_point_once_and_nothing_is_rejected(redfish):
    with served(folder(redfish / "public-cooling-unit")) as (collector, service):
        reading = collector.collect(NOW)
        first = len(service.asked)
        again = collector.collect(NOW + TICK)
    assert (reading.rejected, reading.skipped) == ({}, {"repeated": 2})
    found = points(reading)
    assert len(found) == 40
    assert {row["protocol"] for row in found.values()} == {"redfish"}
    primary = "CDUs/1/PrimaryCoolantConnectors/1"
    measured = {
        point: row["value"]
        for (part, point, role), row in found.items()
        if part == primary and "value" in row
    }
    assert measured == {
        "supply_temperature": 30, "return_temperature": 40, "delta_temperature": 10, "flow": 42,
        "supply_pressure": 827, "return_pressure": 965, "delta_pressure": 138, "heat_removed": 25.48,
    }  # fmt: skip
    assert found["CDUs/1/EnvironmentMetrics", "air_humidity", "measured"]["value"] == 26
    assert found["CDUs/1/Pumps/1", "pump_speed", "measured"]["value"] == 38.5
    assert found["CDUs/1/Filters/1", "service_time", "measured"]["rated_value"] == 10_000
    assert points(again).keys() == found.keys()
    assert first - len(service.asked[first:]) >= 10  # the way is not walked anew each time


def test_the_reservoir_that_the_unit_does_not_link_is_read(redfish):
    with served(folder(redfish / "public-cooling-unit")) as (collector, _):
        level = points(collector.collect(NOW))["CDUs/1/Reservoirs/1", "reservoir_level", "measured"]
    assert "value" not in level
    assert level["device_state"] == "OK"


def test_a_flow_and_its_sensor_that_disagree_are_both_kept_and_neither_is_good(redfish):
    with served(folder(redfish / "public-cooling-unit")) as (collector, _):
        reading = collector.collect(NOW)
    flows = [
        (row["value"], row["quality"], row["source_uri"])
        for row in rows_of(reading, COOLANT_READINGS)
        if (row["point"], row.get("loop"), row["role"]) == ("flow", "TCS", "measured")
    ]
    connector = "/redfish/v1/ThermalEquipment/CDUs/1/SecondaryCoolantConnectors/1#/FlowLitersPerMinute"
    assert sorted(flows) == [
        (42, "unknown", connector),
        (79.6, "unknown", "/redfish/v1/Chassis/CDU/Sensors/SecondaryFlow"),
    ]
    assert all(
        "flow_liters_per_minute" not in row for row in rows_of(reading, COOLANT_LOOPS) if row["loop"] == "TCS"
    )


def test_two_sensors_of_one_id_keep_their_own_values_and_limits(redfish):
    with served(folder(redfish / "public-cooling-unit")) as (collector, _):
        found = points(collector.collect(NOW))
    assert found[CONNECTOR, "heat_removed", "measured"]["value"] == 25.31
    primary = found["CDUs/1/PrimaryCoolantConnectors/1", "supply_pressure", "measured"]
    assert (primary["upper_caution"], primary["upper_critical"]) == (1240, 1380)


def test_set_points_are_told_apart_from_what_is_measured(redfish):
    with served(folder(redfish / "public-cooling-unit")) as (collector, _):
        found = points(collector.collect(NOW))
    flow, pressure = (found[CONNECTOR, point, "setpoint"] for point in ("flow", "delta_pressure"))
    assert found["CDUs/1/Pumps/1", "pump_speed", "measured"]["setpoint_value"] == 45
    assert "setpoint_value" not in found[CONNECTOR, "delta_pressure", "measured"]  # its control is disabled
    assert (flow["value"], flow["device_state"], flow["quality"]) == (43, "Override", "good")
    assert (pressure["value"], pressure["device_state"], pressure["quality"]) == (35, "Disabled", "unknown")


def test_two_detectors_under_two_addresses_are_two_dry_detectors(redfish):
    with served(folder(redfish / "public-cooling-unit")) as (collector, _):
        reading = collector.collect(NOW)
    leaks = {
        row["component"]: (row["leak_state"], row["label"])
        for row in rows_of(reading, COOLANT_READINGS)
        if row["point"] == "leak"
    }
    assert leaks == {
        "CDUs/1/LeakDetectors/Moisture": ("dry", "Moisture Leak Detector"),
        "CDUs/1/LeakDetectors/Overflow": ("dry", "Fluid Level Overflow"),
    }


def test_the_failed_pump_is_critical_its_zero_is_no_reading_and_its_complaint_is_told_once(redfish):
    with served(folder(redfish / "public-cooling-unit")) as (collector, _):
        first, second = collector.collect(NOW), collector.collect(NOW + TICK)
    found = points(first)
    status = found["CDUs/1/Pumps/2", "status", "measured"]
    assert (status["health"], status["device_state"], status["detail"]) == (
        "critical",
        "UnavailableOffline",
        "Pump '2' has failed.",
    )
    assert found["CDUs/1/Pumps/2", "pump_speed", "measured"]["quality"] == "bad"
    told = [(row["event"], row["component"], row.get("message")) for row in rows_of(first, COOLANT_EVENTS)]
    assert sorted(told, key=str) == [
        ("condition", "CDUs/1/Pumps", "PumpSubsystemHealth"),
        ("condition", "CDUs/1/Pumps/2", "PumpFailed"),
        ("health_changed", "CDUs/1", None),
        ("health_changed", "CDUs/1/Pumps/2", None),
    ]
    assert rows_of(second, COOLANT_EVENTS) == []


def test_a_server_with_dead_links_gives_all_that_is_there(redfish):
    with served(server(redfish)) as (collector, service):
        reading = collector.collect(NOW)
        first = len(service.asked)
        again = collector.collect(NOW + TICK)
    assert reading.rejected == {"dead_link": 4}  # those that readings cite; the retired tree among them
    assert again.rejected == {}
    assert not any("/Sensors/" in line for line in service.asked[first:])
    found = points(reading)
    assert len(found) == 14 == len(points(again))
    assert [
        found[f"Chassis/1U/ThermalSubsystem/CoolantConnectors/CPU{n}", "supply_temperature", "measured"][
            "value"
        ]
        for n in (1, 2)
    ] == [14.8, 22.4]
    assert found["Chassis/1U/ThermalSubsystem/Pumps/CPU1", "pump_rotation", "measured"]["value"] == 300
    (power,) = rows_of(reading, POWER_READINGS)
    assert (power["component"], power["power_watts"]) == ("Chassis/1U/EnvironmentMetrics", 374)


def test_the_temperature_of_a_server_is_not_taken_for_that_of_the_air(redfish):
    with served(server(redfish)) as (collector, _):
        found = points(collector.collect(NOW))
    assert not [key for key in found if key[1] == "air_temperature"]


def test_a_tray_whose_detector_says_leakdetected_is_suspect_and_one_that_is_not_there_is_not_dry(redfish):
    with served(tray(redfish)) as (collector, _):
        reading = collector.collect(NOW)
    assert reading.rejected == {"dead_link": 2}
    prefix = "Chassis/Chassis_0/LeakDetectors/Chassis_0_LeakDetector_"
    found = {
        row["component"].removeprefix(prefix): (row["leak_state"], row.get("device_state"))
        for row in rows_of(reading, COOLANT_READINGS)
    }
    assert found == {
        "0_ColdPlate": ("dry", "OK"),
        "0_Manifold": ("sensor_fault", None),
        "1_ColdPlate": ("sensor_fault", None),
        "1_Manifold": ("suspect", "LeakDetected"),
    }
    events = {
        row["component"].removeprefix(prefix): row["leak_state"] for row in rows_of(reading, COOLANT_EVENTS)
    }
    assert events == {"0_Manifold": "sensor_fault", "1_ColdPlate": "sensor_fault", "1_Manifold": "suspect"}


def test_a_tray_with_a_single_dry_detector_gives_one_row_and_no_event(redfish):
    files = {path.stem: json.loads(path.read_text()) for path in (redfish / "gb-nvl-leak").glob("*.json")}
    find = tray(redfish)

    def single(path: str) -> Mapping[str, Any] | None:
        for name in ("single_leak_detection", "leak_detectors_single"):
            if files[name]["@odata.id"] == path:
                return dict(files[name])
        return find(path)

    with served(single) as (collector, _):
        reading = collector.collect(NOW)
    assert reading.rejected == {}
    assert [row["leak_state"] for row in rows_of(reading, COOLANT_READINGS)] == ["dry"]
    assert rows_of(reading, COOLANT_EVENTS) == []


@pytest.mark.parametrize(
    ("folder_name", "rows", "rejected"),
    [
        ("public-cooling-unit", 40, {}),
        ("public-liquid-cooled-server", 14, {"dead_link": 4}),
        ("gb-nvl-leak", 4, {"dead_link": 2}),
    ],
)
def test_a_recorded_folder_is_read_to_the_same_rows_without_a_service(redfish, folder_name, rows, rejected):
    collector = fake_redfish("http://127.0.0.1:1")
    reading = collector.read_folder(RedfishFolder(redfish / folder_name), NOW)
    assert (len(points(reading)), reading.rejected) == (rows, rejected)
    find = {"gb-nvl-leak": tray, "public-liquid-cooled-server": server}.get(folder_name)
    with served(find(redfish) if find else folder(redfish / folder_name)) as (live, _):
        assert points(live.collect(NOW)) == points(reading)


@pytest.mark.parametrize("version", ["1.4", "1.4.0"])
def test_every_message_of_the_registries_is_told_by_its_key(redfish, version):
    told: dict[tuple[str, str], str] = {}
    for name in ("Environmental.1.4.0", "SensorEvent.1.1.0"):
        registry = json.loads((redfish / "registries" / f"{name}.trimmed.json").read_text())
        prefix = name.partition(".")[0]
        for key, message in registry["Messages"].items():
            condition = {
                "MessageId": f"{prefix}.{version}.{key}",
                "Severity": "Critical",
                "Message": message["Message"],
            }
            task = Task("pump", f"/redfish/v1/{prefix}/{key}")
            found = Found(documents=[(task, {"Status": {"Conditions": [condition]}})])
            told |= {(row["registry"], row["message"]): row["detail"] for row in Changes().look(found)}
    assert len(told) == 105 + 19
    assert (
        told["Environmental", "ValvePositionChanged"].count("%1") == 2
    )  # a defect of the registry, left as it is
