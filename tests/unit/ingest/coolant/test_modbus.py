"""The Modbus collector against a unit that answers, refuses, lies or keeps silent."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from contract.clock import SystemClock
from contract.config import Config, HallSection
from contract.errors import CollectError, ConfigError
from contract.streams.coolant import COOLANT_EVENTS, COOLANT_LOOPS, COOLANT_READINGS, POWER_READINGS
from contract.streams.self import COLLECTOR_STATUS
from ingest.collector import Context, Rows
from ingest.coolant.modbus import ModbusCollector, ModbusConfig
from ingest.coolant.modbus_map import MAPS_FOLDER
from ingest.registry import read_table
from ingest.runner import build_runner
from ingest.testing import FakeOutlet, clean
from twin.modbus_unit import Answering, FloatUnit, LoopState

SECOND = 1_000_000


@pytest.fixture
def unit():
    with FloatUnit() as unit:
        yield unit


@pytest.fixture
def collector(unit):
    with_timeout = collect_from(unit)
    yield with_timeout
    with_timeout.close()


def collect_from(unit, *, path=None, timeout_seconds=0.5, **values):
    config = ModbusConfig(
        collector="coolant-modbus",
        equipment="cdu-1",
        address="127.0.0.1",
        port=unit.port,
        map=None if path else "supermicro-cdu-200kw",
        path=path,
        timeout_seconds=timeout_seconds,
        **values,
    )
    return ModbusCollector(config, Context(hall=HallSection(name="test"), clock=SystemClock()))


def rows(reading, stream):
    """Return the cleaned rows of a stream; fail where the runner would reject a value."""
    found = []
    for part in reading.rows:
        if part.stream is stream:
            whole = {**part.columns, "equipment": ["cdu-1"] * len(part)}
            cleaned, rejected = clean(Rows(stream=stream, columns=whole))
            assert not rejected
            found += [{name: value for name, value in row.items() if value is not None} for row in cleaned]
    return found


def readings(reading):
    return {row["label"]: row for row in rows(reading, COOLANT_READINGS)}


def detector(reading, name="leakage1"):
    (row,) = [row for row in rows(reading, COOLANT_READINGS) if row.get("component") == name]
    return row["leak_state"], row.get("leak_before"), row["quality"]


def test_a_unit_is_read_with_one_request_per_block(unit, collector):
    reading = collector.collect(SECOND)
    assert unit.requests == 2
    assert reading.rejected == {}
    found = readings(reading)
    assert found["coolant_supply_temp"]["value"] == 32.0
    assert found["coolant_supply_temp"]["unit"] == "Celsius"
    assert found["coolant_supply_temp"]["quality"] == "good"
    assert found["coolant_supply_temp"]["source_uri"] == f"modbus://127.0.0.1:{unit.port}/holding/5000"
    assert found["coolant_flow"]["value"] == 150.0
    assert found["inverter1_error"]["device_state"] == "ok"
    assert rows(reading, POWER_READINGS)[0]["power_watts"] == 4_000.0


def test_a_probe_that_is_not_built_in_is_bad_not_hot(collector):
    spare = readings(collector.collect(SECOND))["coolant_supply_temp_spare"]
    assert spare["quality"] == "bad"
    assert "value" not in spare


def test_a_loop_says_what_its_points_say_together(unit, collector):
    collector.collect(SECOND)
    (loop,) = rows(collector.collect(46 * SECOND), COOLANT_LOOPS)
    assert loop["pump_percent"] == 60.0
    assert loop["pump_running_seconds"] == 45.0
    assert loop["delta_pressure_kpa"] == 110.0
    assert loop["heat_removed_kilowatts"] == pytest.approx(100.62, abs=0.01)
    assert loop["dew_margin_celsius"] == pytest.approx(32 - 10.457, abs=0.001)
    assert "balance_ratio" not in loop  # the unit's own draw is not what it cools
    unit.follow(LoopState(pump_percent=(0, 0, 0), flow_liters_per_minute=0))
    (loop,) = rows(collector.collect(50 * SECOND), COOLANT_LOOPS)
    assert (loop["pump_running_seconds"], loop["flow_liters_per_minute"]) == (0.0, 0.0)


def test_a_leak_is_told_when_it_comes_and_when_its_own_detector_ends_it(unit, collector):
    assert detector(collector.collect(SECOND)) == ("dry", "dry", "good")
    unit.follow(LoopState(leak=True))
    reading = collector.collect(2 * SECOND)
    assert detector(reading) == ("leak", "leak", "good")
    (event,) = rows(reading, COOLANT_EVENTS)
    assert (event["event"], event["leak_state"], event["state_before"]) == ("leak_changed", "leak", "dry")
    assert rows(collector.collect(3 * SECOND), COOLANT_EVENTS) == []
    unit.follow(LoopState())
    (event,) = rows(collector.collect(4 * SECOND), COOLANT_EVENTS)
    assert (event["leak_state"], event["state_before"]) == ("dry", "leak")


def test_a_broken_detector_is_never_dry_and_a_broken_one_that_says_leak_is_suspect(unit, collector):
    unit.follow(LoopState(leak_sensor_broken=True))
    assert detector(collector.collect(SECOND)) == ("sensor_fault", None, "bad")
    unit.follow(LoopState(leak=True, leak_sensor_broken=True))
    assert detector(collector.collect(2 * SECOND)) == ("suspect", "suspect", "bad")


def test_a_detector_whose_block_is_refused_keeps_what_it_said(unit, collector):
    unit.follow(LoopState(leak=True))
    collector.collect(SECOND)
    unit.exceptions[2] = 4
    reading = collector.collect(2 * SECOND)
    assert detector(reading) == ("sensor_fault", "leak", "bad")
    assert reading.rejected == {"device_failure": 1}


def test_what_was_said_outlives_the_process(unit, collector):
    unit.follow(LoopState(leak=True))
    collector.collect(SECOND)
    later = collect_from(unit)
    later.restore(collector.cursor())
    unit.exceptions[2] = 4
    assert detector(later.collect(2 * SECOND)) == ("sensor_fault", "leak", "bad")
    later.close()


@pytest.mark.parametrize("cursor", [b"", b"{", b"[]", b'{"a": 1}', b"\xff"])
def test_a_memory_that_cannot_be_read_is_none(collector, cursor):
    collector.restore(cursor)
    assert detector(collector.collect(SECOND))[0] == "dry"


def test_a_refused_block_costs_itself_alone_and_then_only_the_register_to_blame(unit, collector):
    unit.exceptions[5022] = 2
    reading = collector.collect(SECOND)
    assert reading.rejected == {"illegal_address": 1}
    assert readings(reading)["coolant_supply_temp"]["detail"] == "illegal_address"
    assert readings(reading)["inverter1_error"]["quality"] == "good"
    for at in range(2, 9):
        reading = collector.collect(at * SECOND)
    found = readings(reading)
    assert found["coolant_supply_temp"]["value"] == 32.0
    assert [name for name, row in found.items() if row.get("detail")] == ["coolant_flow"]
    assert len(collector.blocks) <= 8


def test_a_block_that_was_split_is_whole_again_an_hour_after_the_unit_is_well(unit, collector):
    unit.exceptions[5022] = 4
    for at in range(1, 9):
        collector.collect(at * SECOND)
    parts = len(collector.blocks)
    assert parts > 2
    unit.exceptions.clear()
    collector.collect(3_599 * SECOND)
    assert len(collector.blocks) == parts
    unit.requests = 0
    assert collector.collect(3_601 * SECOND).rejected == {}
    assert (unit.requests, len(collector.blocks)) == (2, 2)


def test_a_whole_block_that_is_refused_again_costs_no_point_and_no_news(unit, collector):
    unit.exceptions |= {5022: 2, 2: 2}
    with pytest.raises(CollectError):
        collector.collect(SECOND)
    for at in range(2, 9):
        before = collector.collect(at * SECOND)
    parts = collector.blocks
    after = collector.collect(3_601 * SECOND)
    assert (after.rejected, collector.blocks) == (before.rejected, parts)
    assert readings(after) == readings(before)
    assert rows(after, COOLANT_EVENTS) == []


def test_a_unit_that_refuses_all_its_blocks_is_read_in_halves_too(unit, collector):
    unit.exceptions |= {5022: 2, 2: 2}
    with pytest.raises(CollectError, match="every block was refused"):
        collector.collect(SECOND)
    assert readings(collector.collect(2 * SECOND))["inverter1_error"]["quality"] == "good"


def test_a_busy_unit_is_asked_again_as_before(unit, collector):
    unit.answering = "busy"
    with pytest.raises(CollectError) as raised:
        collector.collect(SECOND)
    assert raised.value.reason == "no_data"
    assert "device_busy" in str(raised.value)
    assert len(collector.blocks) == 2
    unit.answering = "serve"
    assert collector.collect(2 * SECOND).rejected == {}


def test_a_unit_that_was_busy_for_a_moment_is_asked_once_more(unit, collector):
    unit.busy_requests = 1
    reading = collector.collect(SECOND)
    assert reading.rejected == {}
    assert detector(reading) == ("dry", "dry", "good")
    assert unit.requests == 3


def test_detectors_are_read_before_a_unit_falls_silent(unit, collector):
    unit.answering = "endless"  # only its first answer is one
    assert detector(collector.collect(SECOND)) == ("dry", "dry", "good")


def test_an_answer_of_another_size_is_no_value(unit, collector):
    unit.answering = "short"
    reading = collector.collect(SECOND)
    assert reading.rejected == {"wrong_size": 1}
    assert readings(reading)["coolant_flow"]["quality"] == "bad"


@pytest.mark.parametrize(
    ("answering", "reason"),
    [("hang", "timeout"), ("drip", "timeout"), ("garbage", "timeout"), ("close", "unreachable")],
)
def test_a_unit_without_an_answer_is_an_error_and_read_again_when_it_is_well(
    unit, collector, answering, reason
):
    unit.answering = answering
    with pytest.raises(CollectError) as raised:
        collector.collect(SECOND)
    assert raised.value.reason == reason
    unit.answering = "serve"
    assert readings(collector.collect(2 * SECOND))["coolant_flow"]["value"] == 150.0


def test_a_unit_that_never_stops_answering_is_cut_off_before_its_answers_are_taken_for_later_ones(
    unit, collector
):
    unit.answering = "endless"
    reading = collector.collect(SECOND)
    assert reading.rejected == {"unreadable": 1}
    assert readings(reading)["coolant_flow"]["quality"] == "bad"
    assert readings(reading)["inverter1_error"]["device_state"] == "ok"


def test_a_connection_that_the_unit_closed_meanwhile_is_opened_again(unit, collector):
    collector.collect(SECOND)
    unit._server.drop()
    assert collector.collect(2 * SECOND).rejected == {}


def test_a_late_answer_is_never_taken_for_the_next(unit, collector):
    unit.answering = "drip"
    with pytest.raises(CollectError):
        collector.collect(SECOND)
    unit.answering = "serve"
    unit.follow(LoopState(flow_liters_per_minute=77))
    assert readings(collector.collect(2 * SECOND))["coolant_flow"]["value"] == 77.0


def test_where_nobody_listens_is_an_error_that_names_the_place():
    with FloatUnit() as unit:
        gone = collect_from(unit)
    with pytest.raises(CollectError, match=f"127.0.0.1:{unit.port}"):
        gone.collect(SECOND)


def test_users_give_a_map_of_their_own_by_its_path(unit, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "map: mine\nmaker: M\nmodel: M\nfirmware: any\nsource: its manual\nword_order: CDAB\nloop: FWS\n"
        "points:\n  - {name: f, address: 5022, point: flow, type: float32, unit: gpm}\n"
    )
    collector = collect_from(unit, path=path)
    (row,) = rows(collector.collect(SECOND), COOLANT_READINGS)
    assert row["value"] == pytest.approx(150 * 3.785411784)
    assert row["loop"] == "FWS"
    collector.close()


def test_a_map_with_a_mistake_stops_the_start(tmp_path):
    (tmp_path / "bad.yaml").write_text("map: bad\n")
    with pytest.raises(ConfigError, match=r"bad\.yaml:1: "):
        configure(path=str(tmp_path / "bad.yaml"))


def test_the_path_of_a_map_counts_from_the_folder_of_the_configuration(tmp_path):
    (tmp_path / "mine.yaml").write_text((MAPS_FOLDER / "meta-aalc-rpu.yaml").read_text())
    _, settings = configure(tmp_path, path="mine.yaml")
    assert settings.path == tmp_path / "mine.yaml"
    assert settings.read_map().map == "meta-aalc-rpu"
    (tmp_path / "mine.yaml").write_text("map: bad\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml:1: "):
        configure(tmp_path, path="mine.yaml")
    with pytest.raises(ConfigError, match=rf"{tmp_path}/none\.yaml: No such file") as raised:
        configure(tmp_path, path="none.yaml")
    assert raised.value.reason == "unreadable"


@pytest.mark.parametrize("values", [{}, {"map": "meta-aalc-rpu", "path": "mine.yaml"}])
def test_a_configuration_names_one_map(values):
    with pytest.raises(ConfigError, match="either `map` names a shipped register map, or `path`"):
        configure(**values)


def test_a_map_that_is_not_there_is_named_beside_those_that_are():
    with pytest.raises(ConfigError, match="there are meta-aalc-rpu, supermicro-cdu-200kw"):
        configure(map="cdu-9000")


def configure(folder=Path(), /, **values):
    table = {"collector": "coolant-modbus", "equipment": "c", "address": "10.0.0.1", **values}
    return read_table(table, "here", folder)


def test_units_that_misbehave_delay_no_other():
    kinds: tuple[Answering, ...] = ("serve", "hang", "drip", "endless", "busy", "close")
    with ExitStack() as running:
        tables = []
        for kind in kinds:
            unit = running.enter_context(FloatUnit())
            unit.answering = kind
            tables.append(
                {
                    "collector": "coolant-modbus",
                    "equipment": kind,
                    "address": "127.0.0.1",
                    "port": unit.port,
                    "map": "supermicro-cdu-200kw",
                    "timeout_seconds": 0.5,
                }
            )
        outlet = FakeOutlet()
        config = Config.model_validate({"hall": {"name": "hall"}, "ingest": {"collectors": tables}})
        assert not build_runner(config, outlet).run_once()
    said = {row["equipment"]: row["value"] for row in outlet.rows(COOLANT_READINGS) if row["point"] == "flow"}
    assert said["serve"] == 150.0
    states = {row["source"].split("@")[1].split("/")[0]: row for row in outlet.rows(COLLECTOR_STATUS)}
    failed = {kind: states[kind]["last_error_reason"] for kind in kinds if states[kind]["polls_failed"]}
    assert failed == {"hang": "timeout", "drip": "timeout", "busy": "no_data", "close": "unreachable"}
