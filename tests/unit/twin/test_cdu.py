"""The coolant unit of the twin: flow follows the pumps, heat follows the flow, and the service shows it."""

import httpx
import pytest

from twin.cdu import RATED_PERCENT, STATIC_PRESSURE_KPA, Cdu, serve_cdu
from twin.redfish import RedfishServers

UNIT = "/redfish/v1/ThermalEquipment/CDUs/1"


@pytest.fixture
def cdu():
    unit = Cdu("cdu-1", rated_kilowatts=100, heat_kilowatts=80)
    unit.advance(600)
    return unit


def shown(cdu, path):
    """Return a document of the unit, read as a client would."""
    return serve_cdu(cdu).respond("GET", path, {}, b"").document


def test_in_its_steady_state_the_unit_carries_away_what_comes_in(cdu):
    assert cdu.removed_kilowatts == pytest.approx(80, rel=0.01)
    assert cdu.flow_liters_per_minute == pytest.approx(135)
    assert cdu.return_celsius - cdu.supply_celsius == pytest.approx(80_000 / (66.8 * 135), rel=0.01)


def test_the_size_of_a_step_decides_nothing(cdu):
    other = Cdu("cdu-1", rated_kilowatts=100, heat_kilowatts=80)
    for _ in range(600):
        other.advance(1)
    assert other.return_celsius == pytest.approx(cdu.return_celsius, abs=0.01)


def test_one_pump_makes_up_for_a_dead_one_and_says_how_fast_it_runs(cdu):
    cdu.degrade_pump(2, 0)
    cdu.advance(120)
    assert cdu.flow_ratio == pytest.approx(1, abs=0.02)
    first, second = (shown(cdu, f"{UNIT}/Pumps/{n}") for n in (1, 2))
    assert first["PumpSpeedPercent"]["Reading"] > 1.5 * RATED_PERCENT
    assert (second["Status"]["Health"], second["PumpSpeedPercent"]["Reading"]) == ("Critical", 0)
    assert second["SpeedControlPercent"]["SetPoint"] > 0


def test_without_flow_the_loop_warms_up_and_the_heat_is_no_longer_carried_away(cdu):
    warm = cdu.return_celsius
    cdu.restrict(0.05)
    cdu.advance(60)
    assert cdu.flow_ratio < 0.25
    assert cdu.return_celsius > warm + 5
    connector = shown(cdu, f"{UNIT}/SecondaryCoolantConnectors/1")
    assert connector["FlowLitersPerMinute"]["Reading"] < 30
    assert (
        connector["SupplyPressurekPa"]["Reading"] > STATIC_PRESSURE_KPA + 100
    )  # pumps push against what is shut


def test_a_leak_wets_its_detector_alone_and_empties_the_reservoir(cdu):
    level = cdu.level_percent
    cdu.leak("Tray", liters_per_minute=2)
    cdu.advance(300)
    assert cdu.level_percent == pytest.approx(level - 25)
    states = {
        d["DeviceName"]: d["DetectorState"]
        for d in shown(cdu, f"{UNIT}/LeakDetection")["LeakDetectorGroups"][0]["Detectors"]
    }
    assert states == {"Tray detector": "Critical", "Overflow detector": "OK"}
    cdu.advance(1_200)
    assert cdu.flow_ratio == 0


def test_a_lost_detector_is_unavailable_and_everything_can_be_mended(cdu):
    cdu.lose_detector("Overflow")
    assert shown(cdu, "/redfish/v1/Chassis/CDU/LeakDetectors/Overflow")["DetectorState"] == "Unavailable"
    cdu.leak("Tray")
    cdu.degrade_pump(1, 0.3)
    cdu.facility_running = False
    cdu.advance(60)
    cdu.mend()
    cdu.advance(600)
    assert cdu.removed_kilowatts == pytest.approx(80, rel=0.01)
    assert {detector.state for detector in cdu.detectors.values()} == {"OK"}


def test_without_facility_water_the_supply_follows_the_return(cdu):
    cdu.facility_running = False
    cdu.advance(120)
    assert cdu.supply_celsius > cdu.setpoint_celsius + 5
    assert shown(cdu, f"{UNIT}/PrimaryCoolantConnectors/1")["FlowLitersPerMinute"]["Reading"] == 0


def test_every_link_of_the_service_leads_somewhere(cdu):
    service, seen = serve_cdu(cdu), set()

    def follow(value):
        if isinstance(value, dict):
            for name, inner in value.items():
                if name in ("@odata.id", "DataSourceUri") and inner not in seen:
                    seen.add(inner)
                    answer = service.respond("GET", inner, {}, b"")
                    assert answer.status == 200, inner
                    follow(answer.document)
                else:
                    follow(inner)
        elif isinstance(value, list):
            for inner in value:
                follow(inner)

    follow({"@odata.id": "/redfish/v1"})
    assert len(seen) > 15


def test_the_service_asks_for_a_login_and_closes_sessions(cdu):
    service = serve_cdu(cdu, {"hallwatch": "secret"})

    login = {"UserName": "hallwatch", "Password": "secret"}
    with RedfishServers([service]) as servers, httpx.Client(base_url=servers.urls[0], timeout=20) as client:
        assert client.get("/redfish/v1/").status_code == 200
        assert client.get(UNIT).status_code == 401
        opened = client.post("/redfish/v1/SessionService/Sessions", json=login)
        assert opened.status_code == 201
        token = {"X-Auth-Token": opened.headers["X-Auth-Token"]}
        assert client.get(UNIT, headers=token).json()["EquipmentType"] == "CDU"
        (session,) = client.get("/redfish/v1/SessionService/Sessions", headers=token).json()["Members"]
        assert session == {"@odata.id": opened.headers["Location"]}
        assert client.delete(opened.headers["Location"], headers=token).status_code == 204
        assert client.get(UNIT, headers=token).status_code == 401
        assert client.patch(UNIT, auth=("hallwatch", "secret"), json={}).status_code == 405
