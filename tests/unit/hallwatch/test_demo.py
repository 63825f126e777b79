"""The demo's verdict cannot be talked into a good answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contract.config import load_config
from contract.errors import ConfigError
from hallwatch.demo import MARKER, Found, demo_config, empty_folder, judge

HOT: dict[str, Any] = {"name": "thermal", "kind": "fault", "entity": "GPU-1", "host": "h1", "shown_us": 5}
LOST: dict[str, Any] = {"name": "xid79", "kind": "fault", "entity": "GPU-2", "host": "h2", "shown_us": 6}
START: dict[str, Any] = {"name": "job-start", "kind": "decoy", "entity": "h3", "host": "h3", "shown_us": 7}


def alert(rule: str, entity: str) -> Found:
    return Found(rule=rule, entity=entity, host=None, severity="major", summary="", at_us=10)


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
    path = tmp_path / "hallwatch.toml"
    path.write_text(demo_config([{"host": "h1", "url": "http://127.0.0.1:1/metrics"}]))
    config = load_config(path, {})
    assert config.hall.synthetic
    assert config.hall.inventory == tmp_path / "twin" / "inventory.yaml"
    assert config.ingest.collectors == (
        {"collector": "gpu-dcgm", "host": "h1", "url": "http://127.0.0.1:1/metrics"},
    )


def test_only_a_folder_that_a_demo_made_is_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    empty_folder(folder)
    (folder / "lake").mkdir()
    empty_folder(folder)
    assert [p.name for p in folder.iterdir()] == [MARKER]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match="--folder"):
        empty_folder(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").exists()
