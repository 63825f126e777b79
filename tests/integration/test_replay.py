"""A folder of recordings played as a person plays it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hallwatch import connect
from hallwatch.cli import main
from hallwatch.replay import play
from twin.plan import draw_plan, inventory_yaml
from twin.run import Twin
from twin.scenario import Scenario

PAGE = Path(__file__).resolve().parents[1] / "fixtures/dcgm/two-gpus-dcgm-4.5.prom"


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    logger = logging.getLogger("hallwatch")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Write what somebody may send: pages that change, one that is broken, a map, and a file of another kind."""
    twin = Twin(draw_plan(hosts=3, seed=1), Scenario(injections=()), start_us=0)
    names = [host.name for host in twin.plan.hosts]
    folder = tmp_path / "bundle [red]"
    (folder / names[0]).mkdir(parents=True)
    for seconds in (0, 2, 4):
        twin.step(2.0)
        (folder / names[0] / f"{seconds}.prom").write_bytes(twin.page(0))
    (folder / names[0] / "3.prom").write_bytes(b"\xff\x00 no page {")
    (folder / f"{names[1]}.prom").write_bytes(twin.page(1))
    (folder / f"{names[2]}.prom").write_bytes(b"<html>log in</html>")
    (folder / "inventory.yaml").write_text(inventory_yaml(twin.plan))
    (folder / "[red] notes.txt").touch()
    return folder


def test_every_page_is_played_and_what_could_not_be_read_is_told(
    bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / 'out "put"'
    with pytest.raises(SystemExit) as caught:
        main(["replay", str(bundle), "--output", str(output), "--hold", "3"])
    printed, messages = capfd.readouterr()
    assert caught.value.code == 0
    assert messages == ""
    assert "Not playable: [red] notes.txt" in printed
    assert "gpu-dcgm@h100-a01-01/main: 1 of 8 readings failed: no GPU" in printed
    assert "gpu-dcgm@h100-a01-03/main: 8 of 8 readings failed: no GPU" in printed
    assert "gpu-dcgm@h100-a01-02/main" not in printed
    with connect(output / "lake") as lake:
        rows = lake.sql(
            "SELECT host, count(*), bool_and(synthetic) FROM gpu_samples GROUP BY host ORDER BY host"
        )
        assert rows.fetchall() == [("h100-a01-01", 8 * 7, True), ("h100-a01-02", 8 * 8, True)]
        kinds = lake.sql("SELECT count(*) FROM inventory WHERE kind = 'host'")
        assert kinds.fetchall() == [(3,)]


def test_where_an_earlier_result_may_not_be_emptied_the_option_to_name_another_is_told(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["replay", str(bundle), "--output", str(tmp_path)])
    assert caught.value.code == 2
    assert "--output" in capsys.readouterr().err


def test_a_device_that_answers_late_is_failing_and_its_collector_is_not_silent(tmp_path: Path) -> None:
    (tmp_path / "hall/late").mkdir(parents=True)
    shutil.copy(PAGE, tmp_path / "hall/late/75.prom")
    played = play(tmp_path / "hall", tmp_path / "out", hold_seconds=5)
    assert [alert.rule for alert in played.alerts] == []
    with connect(played.config.lake.path) as lake:
        states = lake.sql("SELECT state, count(*) FROM collector_status GROUP BY state").fetchall()
        notifications = lake.sql("SELECT count(*) FROM notifications").fetchall()
    assert dict(states)["failing"] >= 7
    assert notifications == [(0,)]


def test_an_alert_is_told_by_the_second_of_the_recording(tmp_path: Path) -> None:
    (tmp_path / "hall/host1").mkdir(parents=True)
    page = PAGE.read_text()
    (tmp_path / "hall/host1/0.prom").write_text(page)
    changed = [
        line.rsplit(" ", 1)[0] + " 79" if line.startswith("DCGM_FI_DEV_XID_ERRORS{") else line
        for line in page.splitlines()
    ]
    assert changed != page.splitlines()
    (tmp_path / "hall/host1/7.prom").write_text("\n".join(changed) + "\n")
    played = play(tmp_path / "hall", tmp_path / "out", hold_seconds=2)
    assert {(alert.rule, (alert.at_us - played.start_us) // 1_000_000) for alert in played.alerts} == {
        ("gpu-xid-fatal", 7)
    }
