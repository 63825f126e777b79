"""Faults of a coolant unit over Modbus, from its registers to the shipped rules: what fires, and what stays quiet."""

from pathlib import Path

import pytest

from alerts.evaluator import Evaluator
from alerts.ruleset import check_rules
from alerts.watcher import Tick
from contract.bus import Message
from contract.clock import SystemClock
from contract.config import HallSection
from contract.metrics import Metrics
from contract.streams.coolant import COOLANT_LOOPS, COOLANT_READINGS
from contract.streams.self import COLLECTOR_STATUS
from contract.testing import FakeClock
from ingest.collector import Context
from ingest.coolant.modbus import ModbusCollector, ModbusConfig
from ingest.source import Source, SourceMetrics
from ingest.testing import FakeOutlet
from twin.modbus_unit import FloatUnit, LoopState

RULES = Path(__file__).resolve().parents[2] / "alerts/rules/coolant.yaml"
JUDGED = {stream.topic for stream in (COOLANT_READINGS, COOLANT_LOOPS, COLLECTOR_STATUS)}
SOURCE = "coolant-modbus@cdu-1/main"


class Hall:
    """One unit, read every 10 s of a clock that the test moves; its requests take the time they take."""

    def __init__(self, unit):
        self.unit, self.clock, self.outlet = unit, FakeClock(), FakeOutlet()
        config = ModbusConfig(
            collector="coolant-modbus",
            equipment="cdu-1",
            address="127.0.0.1",
            port=unit.port,
            map="supermicro-cdu-200kw",
            timeout_seconds=0.2,
        )
        section = HallSection(name="hall")
        collector = ModbusCollector(config, Context(hall=section, clock=SystemClock()))
        metrics = SourceMetrics(Metrics())
        self.source = Source(config, collector, self.outlet, section, "e1", self.clock, metrics)
        self.evaluator = Evaluator(check_rules([RULES]), "hall", synthetic=False)
        self.told = []

    def run(self, seconds, **loop):
        """Let time pass while the loop is as given; what was read goes to the rules."""
        self.unit.follow(LoopState(**loop))
        for _ in range(seconds // 10):
            self.clock.advance(10)
            sent, now_us = len(self.outlet.records), self.clock.now_us()
            self.source.poll()
            self.source.publish_status()
            messages = [
                Message(
                    o.topic, o.partition, sent + at, now_us, o.record.key, o.record.headers, o.record.body
                )
                for at, o in enumerate(self.outlet.records[sent:])
                if o.topic in JUDGED
            ]
            drafts = self.evaluator.apply(messages, Tick(now_us=now_us, behind={}))
            self.told += [(draft.transition, draft.rule.rule, draft.entity) for draft in drafts]

    def take(self):
        """Return what was told since the last call."""
        told, self.told = self.told, []
        return told


@pytest.fixture
def hall():
    with FloatUnit() as unit:
        hall = Hall(unit)
        hall.run(60)
        yield hall
        hall.source.finish()


def test_a_healthy_unit_a_stopped_one_and_one_that_starts_are_quiet(hall):
    hall.run(120)
    hall.run(120, pump_percent=(0, 0, 0), flow_liters_per_minute=0, return_kpa=219)
    hall.run(30, pump_percent=(30, 30, 0), flow_liters_per_minute=3, return_kpa=215)
    hall.run(120)
    assert hall.take() == []


def test_a_loop_that_moves_too_little_fires_until_it_moves_again(hall):
    hall.run(60, flow_liters_per_minute=4, return_kpa=215)
    assert hall.take() == [("firing", "coolant-low-flow", "cdu-1/TCS")]
    hall.run(30)
    assert hall.take() == [("ended", "coolant-low-flow", "cdu-1/TCS")]


def test_a_flow_meter_that_fails_is_no_low_flow(hall):
    hall.run(120, flow_liters_per_minute=0)
    assert hall.take() == [("firing", "coolant-flow-impossible", "cdu-1/TCS")]


def test_wet_air_is_told_before_water_is(hall):
    hall.run(120, ambient_celsius=30, humidity_percent=98, supply_celsius=32.5)
    assert hall.take() == [("firing", "coolant-condensation-near", "cdu-1/TCS")]
    hall.run(90, ambient_celsius=30, humidity_percent=98, supply_celsius=31)
    assert hall.take() == [("firing", "coolant-condensation", "cdu-1/TCS")]


def test_a_leak_holds_while_the_unit_is_silent_and_ends_by_its_own_detector(hall):
    hall.run(20, leak=True)
    assert hall.take() == [("firing", "coolant-leak", "cdu-1/leakage1")]
    hall.unit.answering = "hang"
    hall.run(60)
    assert hall.take() == [("firing", "coolant-unit-silent", SOURCE)]
    hall.unit.answering = "serve"
    hall.run(60, leak=True)
    assert hall.take() == [("ended", "coolant-unit-silent", SOURCE)]
    hall.run(60)
    assert hall.take() == [("ended", "coolant-leak", "cdu-1/leakage1")]
