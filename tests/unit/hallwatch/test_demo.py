"""The demo's verdict cannot be talked into a good answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.bus.testing import MemoryBus
from contract.codec import Event, encode_event
from contract.config import load_config
from contract.errors import ConfigError
from contract.streams.alerts import ALERTS
from contract.testing import FakeClock, example_rows
from hallwatch.alertwatch import AlertWatch, Found
from hallwatch.demo import judge
from hallwatch.democonfig import Endpoints, hall_config, probe_config
from hallwatch.freshfolder import MARKER, fresh_folder
from ingest.runner import read_tables

HOT: dict[str, Any] = {"name": "thermal", "kind": "fault", "entity": "GPU-1", "host": "h1", "shown_us": 5}
LOST: dict[str, Any] = {"name": "xid79", "kind": "fault", "entity": "GPU-2", "host": "h2", "shown_us": 6}
START: dict[str, Any] = {"name": "job-start", "kind": "decoy", "entity": "h3", "host": "h3", "shown_us": 7}


HOST_COLLECTORS = ("gpu-dcgm", "gpu-kernel-log", "fabric-ports", "host")


def alert(rule: str, entity: str) -> Found:
    return Found(rule=rule, entity=entity, host=None, severity="major", summary="", at_us=10, told_us=11)


def test_every_fault_raised_and_nothing_else_passes() -> None:
    verdict = judge(
        [HOT, LOST, START], [alert("gpu-xid-fatal", "GPU-2"), alert("gpu-thermal-margin", "GPU-1")]
    )
    assert verdict.passed
    assert [found.rule for _, found in verdict.faults if found] == ["gpu-thermal-margin", "gpu-xid-fatal"]
    assert verdict.decoys == [START]


@pytest.mark.parametrize(
    "alerts",
    [
        [],
        [alert("gpu-thermal-margin", "GPU-1")],
        [alert("gpu-thermal-margin", "GPU-2"), alert("gpu-xid-fatal", "GPU-2")],
        [alert("gpu-xid-fatal", "GPU-1"), alert("gpu-xid-fatal", "GPU-2")],
    ],
    ids=["nothing", "one missed", "wrong entity", "wrong rule"],
)
def test_a_missed_fault_fails(alerts: list[Found]) -> None:
    assert not judge([HOT, LOST], alerts).passed


@pytest.mark.parametrize(
    "extra",
    [alert("gpu-thermal-margin", "GPU-9"), alert("host-silent", "h3"), alert("gpu-xid-fatal", "GPU-2")],
    ids=["bystander", "decoy", "twice"],
)
def test_one_alert_too_many_fails(extra: Found) -> None:
    right = [alert("gpu-xid-fatal", "GPU-2"), alert("gpu-thermal-margin", "GPU-1")]
    verdict = judge([HOT, LOST, START], [*right, extra])
    assert not verdict.passed
    assert len(verdict.false_alerts) == 1


def test_a_run_without_faults_proves_nothing() -> None:
    assert not judge([START], []).passed


def test_the_configuration_it_writes_is_one_a_person_could_have_written(tmp_path: Path) -> None:
    found = Endpoints(
        hosts=[
            {
                "host": name,
                "exporter": "http://127.0.0.1:1/metrics",
                "syslog": f"syslog/{name}.log",
                "procfs": f"hosts/{name}/proc",
                "sysfs": f"hosts/{name}/sys",
            }
            for name in ("h1", "h2")
        ],
        units=[{"equipment": "cdu-1", "redfish": "http://127.0.0.1:2"}],
    )
    path = tmp_path / "hallwatch.toml"
    path.write_text(hall_config(found))
    config = load_config(path, {})
    assert config.hall.synthetic
    assert config.hall.inventory == tmp_path / "twin" / "inventory.yaml"
    sources = read_tables(config)
    assert list(sources) == [
        "inventory@demo/main",
        *(f"{collector}@{host}/main" for host in ("h1", "h2") for collector in HOST_COLLECTORS),
        "coolant-redfish@cdu-1/main",
        "attest-import@demo/main",
    ]
    assert dict(sources["fabric-ports@h1/main"][1])["sysfs_root"] == tmp_path / "twin/hosts/h1/sys"
    path.write_text(probe_config(found))
    assert list(read_tables(load_config(path, {}))) == ["fabric-mesh@h1/main", "fabric-responder@h2/main"]


def test_only_a_folder_that_a_demo_made_is_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with fresh_folder(folder):
        (folder / "lake").mkdir()
        (folder / "lake" / "rows").touch()
        (folder / "hallwatch.toml").touch()
        (folder / "away").symlink_to(tmp_path)
    with fresh_folder(folder):
        assert [p.name for p in folder.iterdir()] == [MARKER]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="--output"), fresh_folder(tmp_path / "mine", "--output"):
        raise AssertionError
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_folder_in_which_a_demo_runs_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    with fresh_folder(folder):
        (folder / "lake").mkdir()
        with pytest.raises(ConfigError, match="runs in"), fresh_folder(folder):
            raise AssertionError
        assert (folder / "lake").exists()
    with fresh_folder(folder):
        assert not (folder / "lake").exists()


class Alerts(MemoryBus):
    """A bus with the topic of alerts, and transitions on it."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.ensure_topics([ALERTS])
        self._sequence = 0

    def fire(self, entity: str) -> None:
        row = example_rows(ALERTS, 1, entity=entity, transition="firing", ts=0)
        event = Event(source="engine/a", epoch="e", sequence=self._sequence, table=row)
        self._sequence += 1
        self.append(ALERTS.topic, 0, encode_event(ALERTS, event, "a"))


def test_alerts_are_followed_from_now_on_even_where_retention_took_the_first() -> None:
    bus = Alerts()
    for number in range(3):
        bus.fire(f"old-{number}")
    bus.truncate(ALERTS.topic, 0, 2)
    watch = AlertWatch(bus.consumer("x"))
    assert watch.poll() == []
    bus.fire("new")
    assert [found.entity for found in watch.poll()] == ["new"]
