"""Real kernel logs and stories through the whole path: follower, parser, bus, lake, engine."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.errors import ConfigError
from hallwatch import connect
from hallwatch.cli import main
from hallwatch.replay import Played, play

LOST = "NVRM: Xid (PCI:0000:53:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
MAP = "NVRM: GPU at PCI:0000:53:00: GPU-4551370e-99b2-d74c-3427-fa48d732a1df"
GPU = "GPU-4551370e-99b2-d74c-3427-fa48d732a1df"
REPEATS = 800_000

TOLD = {
    "a100-nvlink-then-gsp": {
        ("gpu-sxid-fatal", "a100-nvlink-then-gsp/nvswitch1"),
        ("gpu-xid-fatal", "GPU-5fc0bcec-c2e1-38dc-8994-2a9f9f3b709e"),
    },
    "gsp-timeouts-two-gpus": {("gpu-xid-fatal", "gsp-timeouts-two-gpus")},
    "xid31-62-then-45-train": {("gpu-xid-fatal", "xid31-62-then-45-train")},
    "ib-carrier-flap": {("nic-link-flap", "ib-carrier-flap/ib6")},
}
"""Log -> the alerts that people are told about; of every other log, none."""


def stories(vectors: Path) -> dict[str, str]:
    """Return the ordered stories as the logs they were posted from."""
    found: dict[str, list[str]] = defaultdict(list)
    with (vectors / "gpu/kernel/sequences.tsv").open(newline="") as table:
        for row in csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE):
            at, line = row["time_as_logged"], row["line"]
            if at.endswith(
                "Z"
            ):  # a time with a host and a tag, a clock alone, or what dmesg puts into brackets
                line = f"{at} host1 kernel: {line}"
            else:
                line = f"{at} {line}" if re.fullmatch(r"\d\d:\d\d:\d\d", at) else f"[{at}] {line}"
            found[row["sequence"]].append(line)
    return {name: "\n".join(lines) + "\n" for name, lines in found.items()}


def quiet_lines(vectors: Path) -> list[str]:
    with (vectors / "gpu/kernel/kernel_lines.tsv").open(newline="") as table:
        rows = csv.DictReader(table, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row["line"] for row in rows if row["expect_kind"] == "none"]


@pytest.fixture(scope="module")
def played(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("logs")
    for path in (vectors / "datasets/gpud-kernel-logs").glob("*.*"):
        shutil.copy(path, folder)
    shutil.copy(vectors / "gpu/kernel/ib-carrier-flap.syslog", folder)
    for name, text in stories(vectors).items():
        (folder / f"{name}.log").write_text(text)
    (folder / "quiet.txt").write_text("\n".join(quiet_lines(vectors)))
    return play(folder, tmp_path_factory.mktemp("replay") / "out", hold_seconds=15)


def test_every_log_is_played_under_the_name_of_its_file(played: Played) -> None:
    assert played.hall.not_playable == ()
    assert {log.name for log in played.hall.recordings} == {
        *TOLD,
        "dmesg-nccl-segfault.iso",
        "dmesg-oom-and-xid13.iso",
        "fabricmanager",
        "kmsg-peermem",
        "pstore-panic-dmesg",
        "quiet",
        "xid31-all-8-gpus-software",
    }


def test_people_are_told_of_each_fatal_story_once_and_of_nothing_else(played: Played) -> None:
    told = [(alert.host, alert.rule, alert.entity) for alert in played.alerts if alert.severity != "info"]
    assert sorted(told) == sorted(
        (host, rule, entity) for host, alerts in TOLD.items() for rule, entity in alerts
    )


def test_programs_that_failed_are_kept_and_nobody_is_told(played: Played) -> None:
    kept = {alert.host for alert in played.alerts if alert.rule == "gpu-xid-application"}
    assert kept == {
        "a100-nvlink-then-gsp",
        "dmesg-oom-and-xid13.iso",
        "xid31-62-then-45-train",
        "xid31-all-8-gpus-software",
    }


def test_a_code_that_a_gauge_would_hide_behind_the_next_is_in_the_lake(played: Played) -> None:
    rows = events(played, "xid31-62-then-45-train")
    assert [row["code"] for row in rows][:3] == [31, 62, 45]
    assert sum(row["occurrences"] for row in rows if row["code"] == 45) == 5


def test_events_are_as_far_apart_as_their_lines(played: Played) -> None:
    first, second, *_ = events(played, "xid31-62-then-45-train")
    assert round((second["ts"] - first["ts"]).total_seconds()) == 43


def test_no_line_was_lost_or_refused(played: Played) -> None:
    with connect(played.config.lake.path) as lake:
        assert lake.sql("SELECT count(*) FROM dead_letters").fetchall() == [(0,)]
        bad = lake.sql(
            "SELECT source, max(lines_rejected) AS lines FROM collector_status GROUP BY 1 HAVING lines > 0"
        )
        assert bad.fetchall() == [("gpu-kernel-log@quiet/txt", 2)]  # they begin as an Xid and name no code


def events(played: Played, host: str) -> list[dict[str, Any]]:
    with connect(played.config.lake.path) as lake:
        found = lake.sql(
            f"SELECT ts, event, code, occurrences FROM gpu_events WHERE host = '{host}' ORDER BY ts, _seq"
        )
        return [
            dict(zip(("ts", "event", "code", "occurrences"), row, strict=True)) for row in found.fetchall()
        ]


def as_journal(texts: list[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        entry = {"MESSAGE": text, "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "PRIORITY": "3"}
        yield json.dumps(entry | {"__REALTIME_TIMESTAMP": str(1_780_272_000_000_000 + number * 2_000_000)})


FORMS = {
    "host1.log": [f"2026-06-01T00:00:0{n}+00:00 host1 kernel: {text}" for n, text in enumerate((MAP, LOST))],
    "host2.syslog": [f"Jun  1 00:00:0{n} host2 kernel: {text}" for n, text in enumerate((MAP, LOST))],
    "host3.dmesg": [f"[   10{n}.000000] {text}" for n, text in enumerate((MAP, LOST))],
    "host4.kmsg": [f"3,{n},{n}000000,-;{text}" for n, text in enumerate((MAP, LOST))],
    "host5.json": list(as_journal([MAP, LOST])),
    "host6.txt": [MAP, LOST],
}
FORGED = {
    "host1.log": f"2026-06-01T00:00:09+00:00 host1 train.py[7]: {LOST}",
    "host2.syslog": f"Jun  1 00:00:09 host2 logger: {LOST}",
    "host4.kmsg": f"11,9,9000000,-;{LOST}",
    "host5.json": json.dumps({"MESSAGE": LOST, "_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"}),
}


def test_a_log_of_any_form_raises_the_alert_of_its_gpu(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, lines in FORMS.items():
        (tmp_path / "in" / name).write_text("\n".join(lines) + "\n")
    played = play(tmp_path / "in", tmp_path / "out", hold_seconds=2)
    assert {(alert.rule, alert.entity) for alert in played.alerts} == {("gpu-xid-fatal", GPU)}
    with connect(played.config.lake.path) as lake:
        hosts = lake.sql("SELECT host, count(*) FROM gpu_events WHERE code = 79 GROUP BY host ORDER BY host")
        assert hosts.fetchall() == [(f"host{number}", 1) for number in range(1, 7)]


def test_a_program_that_writes_the_same_line_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, line in FORGED.items():
        (tmp_path / "in" / name).write_text(f"{FORMS[name][0]}\n{line}\n")
    played = play(tmp_path / "in", tmp_path / "out", hold_seconds=2)
    assert played.alerts == []


@pytest.mark.slow
def test_eight_hundred_thousand_repeats_are_a_few_events_and_one_alert(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    error = "NVRM: Xid (PCI:0000:53:00): 95, pid='<unknown>', name=<unknown>, Uncontained: L1 (0x1). RST: No, D-RST: No"
    with (tmp_path / "in/host1.dmesg").open("w") as log:
        log.write(f"[   99.000000] {MAP}\n")
        log.writelines(f"[  100.{number:06d}] {error}\n" for number in range(REPEATS))
    played = play(tmp_path / "in", tmp_path / "out", hold_seconds=400)
    assert [(alert.rule, alert.entity) for alert in played.alerts] == [("gpu-xid-fatal", GPU)]
    counts = [row["occurrences"] for row in events(played, "host1")]
    assert sum(counts) == REPEATS
    assert len(counts) <= 10


def test_what_was_played_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/host1.dmesg").write_text(f"[  1.0] {MAP}\n[  2.0] {LOST}\n[ 900.0] usb 1-1: new device\n")
    (tmp_path / "in/notes.txt").write_text("the fans were loud\n")
    with pytest.raises(SystemExit) as caught:
        main(["replay", str(tmp_path / "in"), "--output", str(tmp_path / "out"), "--hold", "1"])
    printed = capsys.readouterr().out
    assert caught.value.code == 0
    assert "Played 1 log for 302 s." in printed
    assert "Pauses of more than 5 minutes" in printed
    assert "Not playable: notes.txt" in printed
    assert "1.0 s  ALERT  critical  gpu-xid-fatal: " in printed
    assert "FROM gpu_events" in printed


def test_a_folder_of_notes_is_nothing_to_play(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the fans were loud\n")
    with pytest.raises(ConfigError, match=r"NAME\.log"):
        play(tmp_path, tmp_path / "out")
