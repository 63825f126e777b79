"""A run leaves the files a person and a score need, and serves while it lasts."""

import json
import threading

import httpx
import pytest
import yaml
from typing_extensions import override

from contract.testing import FakeClock
from twin.plan import draw_plan
from twin.run import run_twin
from twin.scenario import Scenario, draw_demo_scenario


class StoppingClock(FakeClock):
    """A clock on which a run ends after so many waits; looks at the run at each of them."""

    def __init__(self, waits, look=lambda: None):
        super().__init__()
        self.waits, self.look = waits, look

    @override
    def wait(self, event, seconds):
        self.look()
        self.waits -= 1
        if self.waits < 0:
            event.set()
        return super().wait(event, seconds)


def run(folder, scenario, waits, look=lambda: None, *, hold=False):
    run_twin(
        folder,
        draw_plan(seed=3),
        scenario=scenario,
        clock=StoppingClock(waits, look),
        stop=threading.Event(),
        hold=hold,
    )


def test_a_run_writes_the_map_the_addresses_and_the_truth(tmp_path):
    plan = draw_plan(seed=3)
    start_us = FakeClock().now_us()
    run(tmp_path, draw_demo_scenario(plan, 3), 75)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "endpoints.json",
        "evidence",
        "hosts",
        "inventory.yaml",
        "labels.json",
        "roots",
        "syslog",
    ]
    inventory = yaml.safe_load((tmp_path / "inventory.yaml").read_text())
    assert inventory["rows"][0]["racks"][0]["hosts"][0]["host"] == plan.hosts[0].name
    endpoints = json.loads((tmp_path / "endpoints.json").read_text())
    assert [entry["host"] for entry in endpoints["hosts"]] == [host.name for host in plan.hosts]
    for entry in endpoints["hosts"]:
        assert entry["exporter"].startswith("http://")
        assert (tmp_path / entry["syslog"]).is_file()
        assert all((tmp_path / entry[tree]).is_dir() for tree in ("procfs", "sysfs"))
    assert [sorted(entry) for entry in endpoints["units"]] == [["equipment", "redfish"]] * 2
    labels = json.loads((tmp_path / "labels.json").read_text())
    assert len(labels) == 17
    assert all(label["onset_us"] <= label["shown_us"] <= start_us + 75_000_000 for label in labels)
    assert {label["kind"] for label in labels} == {"fault", "decoy"}


def test_every_host_has_a_log_and_its_address_says_where(tmp_path):
    plan = draw_plan(seed=3)
    run(tmp_path, draw_demo_scenario(plan, 3), 75)
    for host, entry in zip(
        plan.hosts, json.loads((tmp_path / "endpoints.json").read_text())["hosts"], strict=True
    ):
        log = (tmp_path / entry["syslog"]).read_text()
        assert log.endswith("\n")
        assert all(f" {host.name} " in line for line in log.splitlines())
    labels = json.loads((tmp_path / "labels.json").read_text())
    lost = next(label for label in labels if label["name"] == "xid79")
    assert ": 79, " in (tmp_path / "syslog" / f"{lost['host']}.log").read_text()


def test_the_truth_is_readable_from_the_first_moment(tmp_path):
    seen = []
    plan = draw_plan(seed=3)
    run(tmp_path, draw_demo_scenario(plan, 3), 0, lambda: seen.append((tmp_path / "labels.json").read_text()))
    assert [label["shown_us"] for label in json.loads(seen[0])] == [None] * 17


def test_a_page_follows_the_twins_time_second_by_second(tmp_path):
    pages = []

    def look():
        url = json.loads((tmp_path / "endpoints.json").read_text())["hosts"][0]["exporter"]
        pages.append(httpx.get(url).text)

    run(tmp_path, Scenario(), 3, look)
    assert len(pages) == 4
    assert len(set(pages)) == 4


def test_the_exporters_are_gone_after_the_run(tmp_path):
    run(tmp_path, Scenario(), 1)
    endpoints = json.loads((tmp_path / "endpoints.json").read_text())
    urls = [host["exporter"] for host in endpoints["hosts"]] + [
        unit["redfish"] for unit in endpoints["units"]
    ]
    assert len(urls) == 10
    for url in urls:
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


def test_what_is_held_begins_when_everybody_watches(tmp_path):
    labels = []

    def look():
        labels.append(json.loads((tmp_path / "labels.json").read_text()))
        if len(labels) == 30:
            (tmp_path / "begin").touch()

    plan = draw_plan(seed=3)
    start_us = FakeClock().now_us()
    run(tmp_path, draw_demo_scenario(plan, 3), 40, look, hold=True)
    assert labels[29] == []
    assert len(labels[-1]) == 17
    assert min(label["onset_us"] for label in labels[-1]) > start_us + 30_000_000
