"""The devices of a twin's host read by the real collector: each fault is told by its rule, and nothing else is."""

from pathlib import Path
from typing import Any

import pytest

from contract.streams.fabric import FABRIC_PORTS
from contract.testing import START_US
from ingest.collector import Reading
from ingest.fabric.testing import ports_collector
from ingest.testing import rows_of
from tests.suites.rules_over_readings import told
from twin.fabric_tree import FabricTree
from twin.plan import draw_plan

pytestmark = pytest.mark.integration

HOST = draw_plan(hosts=1).hosts[0]
STEP_SECONDS = 10


class Story:
    """A host and its collector, step by step."""

    def __init__(self, folder: Path, **options) -> None:
        self.tree = FabricTree(folder / "sys", HOST, **options)
        expected: dict[str, Any] = {"devices": list(self.tree.devices)}
        if options.get("style") != "efa":
            expected |= {"speed_gbps": 400, "width": 4}
        self.collector = ports_collector(folder / "sys", expected=[expected])
        self.readings: list[tuple[float, Reading]] = []
        self.at = 0.0

    def run(self, steps: int, load: float = 0.0) -> None:
        for _ in range(steps):
            self.tree.step(STEP_SECONDS, load)
            reading = self.collector.collect(START_US + round(self.at * 1e6))
            assert reading.rejected == {}
            self.readings.append((self.at, reading))
            self.at += STEP_SECONDS

    def told(self):
        return told("fabric", self.readings)


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path)


def entity(device: int) -> str:
    return f"{HOST.nics[device].guid}/1"


def test_a_healthy_host_has_eight_ports_that_work_and_nothing_is_told(story):
    story.run(12, load=0.7)
    rows = rows_of(story.readings[-1][1], FABRIC_PORTS)
    assert [row["port_guid"] for row in rows] == [nic.guid for nic in HOST.nics]
    assert {(row["speed_gbps"], row["width"], row["generation"]) for row in rows} == {(400, 4, "NDR")}
    assert {row["driver"] for row in rows} == {"mlx5_core"}
    assert [row["pci_bus_id"] for row in rows] == [nic.pci_bus_id for nic in HOST.nics]
    assert {row["interface"] for row in rows} == {f"ib{number}" for number in range(8)}
    assert rows[0]["tx_bytes_per_second"] == pytest.approx(0.7 * 50e9, rel=1e-6)
    assert story.told() == []


def test_a_link_that_goes_down_is_told_once_and_ends_when_it_is_back(story):
    story.run(3)
    story.tree.set_link(2, up=False)
    story.run(6)
    story.tree.set_link(2, up=True)
    story.run(3)
    assert story.told() == [
        (50, "firing", "port-link-down", entity(2)),
        (90, "ended", "port-link-down", entity(2)),
    ]


def test_a_link_that_flaps_between_looks_is_told_all_the_same(story):
    story.run(3)
    story.tree.flap(5)
    story.run(3)
    story.tree.flap(5)
    story.run(3)
    story.tree.flap(5)
    story.run(3)
    assert story.told() == [
        (60, "firing", "port-link-flap", entity(5)),
        (90, "firing", "port-link-flapping", entity(5)),
    ]


def test_lanes_and_speed_that_are_lost_are_told_apart(story):
    story.run(3)
    story.tree.set_lanes(1, 2)
    story.tree.set_speed(3, 200)
    story.run(4)
    assert story.told() == [
        (50, "firing", "port-narrow", entity(1)),
        (50, "firing", "port-slow", entity(3)),
    ]


def test_three_symbol_errors_are_too_many_and_two_are_not(story):
    story.run(3)
    story.tree.add_errors(0, 2)
    story.tree.add_errors(4, 3)
    story.run(3)
    assert story.told() == [(30, "firing", "port-bit-errors", entity(4))]


def test_a_counter_that_stops_is_told_and_is_not_taken_for_health(story):
    story.run(3)
    story.tree.add_errors(6, 100_000)
    story.run(3)
    assert story.told() == [
        (30, "firing", "port-bit-errors", entity(6)),
        (30, "firing", "port-counter-stopped", entity(6)),
    ]


def test_a_device_that_vanishes_is_missing_until_it_is_back(story):
    story.run(3)
    story.tree.unplug(7)
    story.run(5)
    story.tree.plug(7)
    story.run(2)
    assert story.told() == [
        (50, "firing", "port-missing", f"h1/{HOST.nics[7].name}/1"),
        (80, "ended", "port-missing", f"h1/{HOST.nics[7].name}/1"),
    ]


def test_an_efa_that_waits_for_answers_is_told_while_it_sends(tmp_path):
    story = Story(tmp_path, style="efa")
    story.tree.set_timeouts(1, 2.0)
    story.run(8)
    story.run(8, load=0.2)
    story.tree.set_timeouts(1, 0.0)
    story.run(8, load=0.2)
    # It sends from 80 s on; from 160 s on answers come, and a minute later none is missed in the last minute.
    assert story.told() == [
        (80, "firing", "port-efa-timeouts", entity(1)),
        (210, "ended", "port-efa-timeouts", entity(1)),
    ]
