"""The recorded pod of the capture folder: through the collector, the bus and the lake, to the physics its list states."""

import json
from types import SimpleNamespace

import pytest

from alerts.engine import Engine
from analytics.lake import Lake
from analytics.query import connect
from analytics.sink import Sink
from contract.bus.local import LocalBus
from contract.config import load_config
from contract.streams import STREAMS
from contract.testing import FakeClock
from ingest.runner import build_runner
from ingest.spool import DirectOutlet

RACKS = [f"Pod1C-E0{number}" for number in range(2, 7)]
SECONDS = 135
"""The record, and a hold: what rules must see to decide."""


@pytest.fixture(scope="module")
def oracle(vectors):
    found = json.loads((vectors / "coolant" / "oracle" / "dsx_heat_balance.json").read_text())
    return {rack["rack"]: rack for rack in found["racks"] if "q_pg25_kw" in rack}


@pytest.fixture(scope="module")
def pod(vectors, tmp_path_factory):
    """Play the record, second by second, into a lake; return what asks it."""
    folder = tmp_path_factory.mktemp("pod")
    record = vectors / "coolant" / "bms" / "dsx_exemplar_coolant.csv"
    (folder / "hallwatch.toml").write_text(
        f'engine.notifiers = []\n[hall]\nname = "pod"\n[[ingest.collectors]]\ncollector = "coolant-bms"\npath = "{record}"\n'
    )
    config, clock = load_config(folder / "hallwatch.toml", {}), FakeClock()
    bus = LocalBus(config.bus.path, fsync=False, clock=clock)
    bus.ensure_topics(STREAMS.values())
    (source,) = build_runner(config, DirectOutlet(bus), clock=clock).sources
    sink = Sink(config.lake, bus, Lake(config.lake.path), synthetic=False, clock=clock)
    engine = Engine.open(config, bus, clock=clock)
    for second in range(SECONDS):
        if second % 10 == 0:
            source.publish_status()
        assert source.poll()
        if second % 5 == 0:
            engine.step()
        if second % 30 == 0:
            sink.step()
        clock.advance(1)
    source.finish()
    engine.step()
    engine.close()
    sink.step()
    sink.flush()
    sink.close()
    bus.close()
    with connect(config.lake.path) as lake:
        yield SimpleNamespace(ask=lambda query: lake.sql(query).fetchall())


def test_every_message_becomes_a_row_or_is_known_to_be_none(pod):
    counts = dict(
        pod.ask(
            "SELECT 'readings', count(*) FROM coolant_readings UNION ALL "
            "SELECT 'power', count(*) FROM power_readings UNION ALL "
            "SELECT 'events', count(*) FROM coolant_events"
        )
    )
    # 2,591 values: 144 of sound and room pressure, 5 of the health of leak detectors, which is in the detectors' rows.
    assert counts == {"readings": 1_961, "power": 481, "events": 0}
    [(state, rejections, rejected)] = pod.ask(
        "SELECT state, rejections, lines_rejected FROM collector_status ORDER BY ts DESC LIMIT 1"
    )
    assert (state, json.loads(rejections), rejected) == ("stopping", {"not_kept": 144}, 0)


def test_readings_carry_the_time_at_which_they_were_taken(pod):
    [(first, last)] = pod.ask("SELECT min(ts), max(ts) FROM coolant_readings")
    assert 97 < (last - first).total_seconds() < 100


@pytest.mark.parametrize("rack", RACKS)
def test_the_means_are_those_of_the_oracle(pod, oracle, rack):
    found = pod.ask(
        f"SELECT point, avg(value) FROM coolant_readings WHERE equipment = '{rack}' AND role = 'measured' "
        "AND point IN ('flow', 'supply_temperature', 'return_temperature', 'delta_pressure') GROUP BY point"
    )
    assert {point: round(mean, 3) for point, mean in found} == {
        "flow": oracle[rack]["mean_flow_lpm"],
        "supply_temperature": oracle[rack]["mean_supply_c"],
        "return_temperature": oracle[rack]["mean_return_c"],
        "delta_pressure": oracle[rack]["mean_dp_kpa"],
    }
    [(watts,)] = pod.ask(f"SELECT avg(power_watts) FROM power_readings WHERE equipment = '{rack}'")
    assert round(watts / 1000, 3) == oracle[rack]["mean_power_kw"]


@pytest.mark.parametrize(("coolant", "suffix"), [("pg25", "pg25"), ("water", "water")])
@pytest.mark.parametrize("rack", RACKS)
def test_heat_removed_is_that_of_the_oracle_for_either_coolant(pod, oracle, rack, coolant, suffix):
    [(heat, ratio)] = pod.ask(
        "SELECT avg(heat_kilowatts), sum(heat_kilowatts) / sum(power_kilowatts) FROM heat_balance "
        f"WHERE equipment = '{rack}' AND coolant = '{coolant}'"
    )
    assert heat == pytest.approx(oracle[rack][f"q_{suffix}_kw"], rel=0.004)
    assert ratio == pytest.approx(oracle[rack][f"ratio_{suffix}"], abs=0.004)


def test_heat_removed_as_pg25_is_within_the_stated_share_of_the_power(pod):
    ratios = pod.ask(
        "SELECT equipment, sum(heat_kilowatts) / sum(power_kilowatts) FROM heat_balance "
        "WHERE is_stated AND loop = 'rack' GROUP BY ALL ORDER BY ALL"
    )
    assert [rack for rack, _ in ratios] == RACKS
    assert all(0.955 < ratio < 0.982 for _, ratio in ratios), ratios


def test_no_rack_is_near_its_dew_point_and_the_chilled_inlet_is_nearest(pod):
    margins = dict(
        pod.ask("SELECT equipment || ' ' || loop, min(dew_margin_celsius) FROM dew_margin GROUP BY ALL")
    )
    assert all(margins[f"{rack} rack"] == pytest.approx(23, abs=1.5) for rack in RACKS)
    assert margins["C-F00-CDU-05 FWS"] == pytest.approx(5.5, abs=0.15)
    assert min(margins, key=margins.__getitem__) == "C-F00-CDU-05 FWS"


def test_what_the_collector_says_of_a_loop_is_what_the_views_say(pod):
    worst = pod.ask(
        "SELECT max(abs(l.dew_margin_celsius - v.dew_margin_celsius)), max(abs(l.balance_ratio - b.balance_ratio)) "
        "FROM coolant_loops l JOIN dew_margin v ON v.equipment = l.equipment AND v.loop = l.loop "
        "AND v.minute = date_trunc('minute', l.ts) LEFT JOIN heat_balance b ON b.equipment = l.equipment "
        "AND b.loop = l.loop AND b.minute = v.minute AND b.is_stated"
    )
    assert worst[0][0] < 0.6
    assert worst[0][1] < 0.03


def test_setpoints_are_not_measurements_though_point_and_area_are_the_same(pod):
    found = pod.ask(
        "SELECT role, round(avg(value), 1), count(*) FROM coolant_readings WHERE equipment = 'C-F00-CDU-05' "
        "AND loop = 'TCS' AND point = 'supply_temperature' GROUP BY role ORDER BY role"
    )
    assert found == [("measured", 31.4, 4), ("setpoint", 32.0, 2)]


def test_the_misspelt_area_is_the_secondary_side_and_its_flow_an_impossible_zero(pod):
    assert pod.ask("SELECT value, loop FROM coolant_readings WHERE equipment = 'C-F00-CDU-05' AND point = 'flow' "
                   "AND loop = 'TCS'") == [(0.0, "TCS")]  # fmt: skip
    [(pump, pressure)] = pod.ask(
        "SELECT max(pump_percent), min(delta_pressure_kpa) FROM coolant_loops "
        "WHERE equipment = 'C-F00-CDU-05' AND loop = 'TCS' AND flow_liters_per_minute = 0"
    )
    assert pump == 44.0
    assert pressure > 20


def test_one_rack_runs_at_more_than_twice_the_pressure_of_its_peers(pod):
    found = dict(
        pod.ask(
            "SELECT equipment, median(delta_pressure_kpa) FROM coolant_loops WHERE loop = 'rack' GROUP BY equipment"
        )
    )
    assert max(found, key=found.__getitem__) == "Pod1C-E02"
    assert found["Pod1C-E02"] / found["Pod1C-E03"] > 2


def test_every_detector_of_the_pod_is_dry(pod):
    assert pod.ask("SELECT leak_state, count(DISTINCT equipment) FROM coolant_readings WHERE point = 'leak' "
                   "GROUP BY ALL") == [("dry", 6)]  # fmt: skip


def test_of_all_shipped_rules_the_record_fires_only_the_one_about_its_flow_sensor(pod):
    assert pod.ask("SELECT rule, entity, transition FROM alerts ORDER BY _seq") == [
        ("coolant-flow-impossible", "C-F00-CDU-05/TCS", "firing")
    ]
