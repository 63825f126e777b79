"""A coolant unit, its collector under the runner, and the shipped rules: what fires, what ends it, what stays quiet."""

from pathlib import Path
from typing import Self

import pytest

from alerts.evaluator import Evaluator
from alerts.ruleset import check_rules
from alerts.watcher import Tick
from contract.bus import Message
from contract.config import HallSection
from contract.metrics import Metrics
from contract.streams.coolant import COOLANT_LOOPS, COOLANT_READINGS
from contract.streams.self import COLLECTOR_STATUS
from contract.testing import FakeClock
from ingest.coolant.redfish_client import RedfishConfig
from ingest.coolant.testing import fake_redfish
from ingest.source import Source, SourceMetrics
from ingest.testing import FakeOutlet
from twin.cdu import Cdu, serve_cdu
from twin.redfish import RedfishServers

RULES = Path(__file__).resolve().parents[2] / "alerts/rules/coolant.yaml"
HALL = HallSection(name="hall", synthetic=True)
JUDGED = {stream.topic for stream in (COOLANT_READINGS, COOLANT_LOOPS, COLLECTOR_STATUS)}
TRAY = "cdu-1/CDUs/1/LeakDetectors/Tray"


class Hall:
    """One coolant unit, read every 10 s, and an engine's judgement of it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.cdu = Cdu("cdu-1", rated_kilowatts=100, heat_kilowatts=70)
        self.cdu.advance(600)
        self.service = serve_cdu(self.cdu)
        self.servers = RedfishServers([self.service])
        self.outlet = FakeOutlet()
        self.alerts: list[tuple[str, str, str]] = []

    def __enter__(self) -> Self:
        (url,) = self.servers.__enter__().urls
        self.url = url
        self.evaluator = Evaluator(check_rules([RULES]), "hall", synthetic=True)
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.source.finish()
        self.servers.__exit__(None, None, None)

    def start(self) -> None:
        """Start the collector, with what the outlet stored of the one before."""
        config = RedfishConfig(collector="coolant-redfish", equipment="cdu-1", url=self.url)
        collector = fake_redfish(self.url, clock=self.clock, timeout_seconds=30)
        metrics = SourceMetrics(Metrics())
        epoch = f"epoch-{self.clock.now_us()}"
        self.source = Source(config, collector, self.outlet, HALL, epoch, self.clock, metrics)

    def run(self, seconds: int) -> None:
        """Let time pass; what was read goes to the rules."""
        for _ in range(seconds // 10):
            self.clock.advance(10)
            self.cdu.advance(10)
            sent = len(self.outlet.records)
            self.source.poll()
            self.source.publish_status()
            now_us = self.clock.now_us()
            messages = [
                Message(
                    o.topic, o.partition, sent + at, now_us, o.record.key, o.record.headers, o.record.body
                )
                for at, o in enumerate(self.outlet.records[sent:])
                if o.topic in JUDGED
            ]
            drafts = self.evaluator.apply(messages, Tick(now_us=now_us, behind={}))
            self.alerts += [(draft.transition, draft.rule.rule, draft.entity) for draft in drafts]

    def take(self) -> set[tuple[str, str, str]]:
        """Return what was told since the last call."""
        told, self.alerts = self.alerts, []
        assert len(set(told)) == len(told)
        return set(told)


@pytest.fixture
def hall():
    with Hall() as hall:
        hall.run(120)
        yield hall


def test_a_healthy_unit_under_a_load_that_changes_is_quiet(hall):
    for kilowatts in (20, 95, 60):
        hall.cdu.heat_kilowatts = kilowatts
        hall.run(200)
    assert hall.take() == set()


def test_a_leak_outlives_its_sensor_a_restart_and_a_silent_unit_and_ends_with_its_own_word(hall):
    hall.cdu.leak("Tray", liters_per_minute=0.05)
    hall.run(10)
    assert hall.take() == {("firing", "coolant-leak", TRAY)}
    hall.cdu.lose_detector("Tray")
    hall.run(60)
    assert hall.take() == {("firing", "coolant-leak-sensor-lost-wet", TRAY)}
    hall.source.finish()
    hall.start()
    find, hall.service.find = hall.service.find, lambda _path: None
    hall.run(20)
    hall.service.find = find
    hall.run(300)
    assert hall.take() == set()
    hall.cdu.mend()
    hall.run(60)
    assert hall.take() == {
        ("ended", "coolant-leak-sensor-lost-wet", TRAY),
        ("ended", "coolant-leak", TRAY),
    }


def test_a_detector_that_is_lost_while_dry_is_minor_and_one_that_cannot_be_trusted_is_suspect(hall):
    hall.cdu.lose_detector("Overflow")
    hall.cdu.detectors["Tray"].state, hall.cdu.detectors["Tray"].enabled = "Critical", False
    hall.run(100)
    assert hall.take() == {
        ("firing", "coolant-leak-sensor-lost", "cdu-1/CDUs/1/LeakDetectors/Overflow"),
        ("firing", "coolant-leak-suspect", TRAY),
    }


def test_a_dead_pump_is_told_by_the_unit_and_a_worn_one_by_its_speed(hall):
    hall.cdu.degrade_pump(2, 0)
    hall.run(150)
    assert hall.take() == {("firing", "coolant-device-critical", "cdu-1/CDUs/1/Pumps/2")}
    hall.cdu.mend()
    hall.cdu.degrade_pump(1, 0.5)
    hall.run(200)
    assert hall.take() == {
        ("ended", "coolant-device-critical", "cdu-1/CDUs/1/Pumps/2"),
        ("firing", "coolant-pump-degraded", "cdu-1/CDUs/1/Pumps/1/pump_speed/measured"),
    }
