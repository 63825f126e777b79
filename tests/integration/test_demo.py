"""The commands of the README, run as a newcomer runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def hallwatch(*arguments: str, folder: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hallwatch", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("newcomer")
    return folder, hallwatch("demo", "--seed", "7", folder=folder, timeout=150)


def test_the_demo_finds_every_fault_and_nothing_else(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert "9 of 9 faults raised, 0 false alerts" in done.stdout


def test_after_the_demo_its_lake_answers_and_its_log_is_whole(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = demo
    config = ("--config", "demo-hall/hallwatch.toml")
    answer = hallwatch(
        "sql", "SELECT rule FROM alerts ORDER BY rule", *config, "--format", "json", folder=folder
    )
    assert [json.loads(line)["rule"] for line in answer.stdout.splitlines()] == [
        "attestation-debug",
        "coolant-leak",
        "dimm-uncorrectable",
        "gpu-thermal-margin",
        "gpu-xid-fatal",
        "gpu-xid-fatal",
        "host-silent",
        "nic-fatal",
        "port-link-down",
    ]
    lost = hallwatch(
        "sql", "SELECT sum(missing) AS missing FROM completeness", *config, "--format", "csv", folder=folder
    )
    assert lost.stdout == "missing\n0\n"
    firing = hallwatch("alerts", *config, "--format", "json", folder=folder)
    assert {json.loads(line)["rule"] for line in firing.stdout.splitlines()} >= {
        "gpu-xid-fatal",
        "host-silent",
        "nic-fatal",
    }
    verified = hallwatch("verify-log", *config, folder=folder)
    assert verified.returncode == 0, verified.stdout
    assert verified.stdout.startswith("whole: 9 transitions")


def test_one_question_puts_all_families_of_a_host_on_one_timeline(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = demo
    labels = json.loads((folder / "demo-hall/twin/labels.json").read_text())
    struck = {label["name"]: label["host"] for label in labels}
    query = (
        "SELECT host, max(hottest_celsius) > 80 AS hot, min(flow_liters_per_minute) > 20 AS flows, "
        "max(ports_down) AS down, list_sort(list(DISTINCT trust)) AS trust FROM host_timeline GROUP BY host"
    )
    answer = hallwatch(
        "sql", query, "--config", "demo-hall/hallwatch.toml", "--format", "json", folder=folder
    )
    rows = {row["host"]: row for row in map(json.loads, answer.stdout.splitlines())}
    assert len(rows) == 8
    assert {host for host, row in rows.items() if row["hot"]} == {struck["thermal"]}
    assert {host for host, row in rows.items() if row["down"]} == {struck["link-down"]}
    violated = {host for host, row in rows.items() if "genuine, policy violated" in row["trust"]}
    assert violated == {struck["debug-guest"]}
    assert all(row["flows"] and "genuine, policy met" in row["trust"] for row in rows.values())


def test_what_only_the_logs_know_is_in_the_lake_and_what_was_forged_is_not(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, _ = demo
    labels = json.loads((folder / "demo-hall/twin/labels.json").read_text())
    truth = {label["name"]: label["entity"] for label in labels}
    query = "SELECT code, gpu_uuid FROM gpu_events WHERE evidence = 'kernel_log' AND code IN (74, 79) ORDER BY code"
    answer = hallwatch("sql", query, "--config", "demo-hall/hallwatch.toml", "--format", "csv", folder=folder)
    assert answer.stdout.splitlines()[1:] == [f"74,{truth['nvlink']}", f"79,{truth['xid79']}"]


def test_up_runs_until_ctrl_c_and_leaves_no_process_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hallwatch", "up", "--quiet", "--hosts", "5"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        wait_for_rows(tmp_path, process)
        children = children_of(process.pid)
        assert len(children) == 5
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def wait_for_rows(folder: Path, process: subprocess.Popen[str]) -> None:
    """Ask the running hall, as a second terminal would."""
    for _ in range(60):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(1)
        answer = hallwatch(
            "sql",
            "SELECT count(*) AS n FROM gpu_samples",
            "--lake",
            "demo-hall/lake",
            "--format",
            "json",
            folder=folder,
        )
        if answer.returncode == 0 and json.loads(answer.stdout)["n"] > 0:
            return
    raise AssertionError("no rows after a minute")


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if int(parent) == pid:
                found.append(int(entry.name))
    return found
