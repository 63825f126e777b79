"""A folder of recordings is served as its devices would have served it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx
import pytest

from contract.errors import ConfigError
from contract.testing import FakeClock
from hallwatch.recordings.hall import read_recordings
from hallwatch.recordings.logs import (
    LONGEST_PAUSE_SECONDS,
    LONGEST_UNTIMED_SECONDS,
    PACE_SECONDS,
    LogRecording,
    LogWriter,
)
from hallwatch.recordings.pages import PageRecording, serve
from ingest.attestation.evidence import read_evidence
from twin.agents import FIRMWARE
from twin.evidence import Guest, Maker, Processor


def page_recordings(folder: Path) -> list[PageRecording]:
    return [r for r in read_recordings(folder).recordings if isinstance(r, PageRecording)]


def test_a_page_alone_is_held_and_pages_in_a_folder_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "still.prom").write_bytes(b"still 1\n")
    (tmp_path / "moving").mkdir()
    for seconds, page in [("000", b"a 1\n"), ("007.5", b"b 2\n"), ("010s", b"c 3\n")]:
        (tmp_path / "moving" / f"{seconds}.prom").write_bytes(page)
    hall = read_recordings(tmp_path)
    assert hall.seconds == 10.0
    clock = FakeClock()
    seen = []
    moving, still = page_recordings(tmp_path)
    with serve(moving, clock) as moving_url, serve(still, clock) as still_url:
        for _ in range(12):
            seen.append(httpx.get(moving_url).content)
            assert httpx.get(still_url).content == b"still 1\n"
            clock.advance(1)
    assert seen == [b"a 1\n"] * 8 + [b"b 2\n"] * 2 + [b"c 3\n"] * 2


def test_before_its_first_page_a_device_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "5.prom").write_bytes(b"a 1\n")
    clock = FakeClock()
    (late,) = page_recordings(tmp_path)
    with serve(late, clock) as url:
        assert httpx.get(url).status_code == 503
        clock.advance(5)
        assert httpx.get(url).status_code == 200


def test_what_cannot_be_played_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(b"a 1\n")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.prom").touch()
    (tmp_path / "no host.prom").touch()
    (tmp_path / "no@host").mkdir()
    (tmp_path / "no@host" / "0.prom").touch()
    (tmp_path / os.fsdecode(b"no-text-\xff.prom")).touch()
    hall = read_recordings(tmp_path)
    assert [(r.name, r.pages) for r in page_recordings(tmp_path)] == [("a", (b"",))]
    assert hall.not_playable == (
        "a.prom",
        "empty/",
        "no host.prom",
        os.fsdecode(b"no-text-\xff.prom"),
        "no@host/",
        "notes.txt",
    )


def test_the_map_of_a_recorded_hall_says_which_hall_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(b"a 1\n")
    assert (read_recordings(tmp_path).name, read_recordings(tmp_path).synthetic) == ("replay", False)
    (tmp_path / "inventory.yaml").write_text("hall: north\nsynthetic: true\n")
    hall = read_recordings(tmp_path)
    assert (hall.name, hall.synthetic, hall.inventory) == ("north", True, tmp_path / "inventory.yaml")


def test_a_mistake_in_the_map_stops_a_replay_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(b"a 1\n")
    (tmp_path / "inventory.yaml").write_text("hall: north\nracks: 3\n")
    with pytest.raises(ConfigError, match=r"inventory\.yaml:2: racks: unknown key"):
        read_recordings(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_with_nothing_to_play_is_an_error_that_says_what_is_looked_for(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=name):
        read_recordings(tmp_path / name)


ENTRY = '{{"MESSAGE":"{}","__REALTIME_TIMESTAMP":"{}"}}\n'
XID = "NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus."


def read_log(folder: Path, name: str, text: str) -> LogRecording:
    (folder / name).write_text(text)
    (log,) = read_recordings(folder).recordings
    assert isinstance(log, LogRecording)
    return log


@pytest.mark.parametrize(
    ("name", "text", "seconds"),
    [
        ("a.dmesg", "[   10.5] x\n[   12.0] y\n", (0.0, 1.5)),
        ("a.log", "2026-06-01T00:00:00+02:00 h k: x\n2026-06-01T00:00:04+02:00 h k: y\n", (0.0, 4.0)),
        ("a.syslog", "Dec 31 23:59:59 h kernel: x\nJan  1 00:00:01 h kernel: y\n", (0.0, 2.0)),
        ("a.kmsg", "6,1,1000000,-;x\n SUBSYSTEM=pci\n6,2,3000000,-;y\n", (0.0, 0.0, 2.0)),
        ("a.json", ENTRY.format("x", 1000000) + ENTRY.format("y", 8000000), (0.0, 7.0)),
        ("a.txt", f"{XID}\n\n{XID}\n", (0.0, PACE_SECONDS)),
        ("a.txt", f"{XID}\n[  7.0] x\ny\n[  9.0] z\n", (0.0, 0.0, 0.0, 2.0)),
        ("a.txt", "[  9.0] a clock that is set back\n[  7.0] x\n[  9.0] y\n[ 10.0] z\n", (0.0, 0.0, 0.0, 1.0)),
    ],
)  # fmt: skip
def test_the_lines_of_a_log_are_as_far_apart_as_their_times(
    tmp_path: Path, name: str, text: str, seconds: tuple[float, ...]
) -> None:
    log = read_log(tmp_path, name, text)
    assert (log.name, log.instance) == ("a", name.partition(".")[2])
    assert log.seconds == pytest.approx(seconds)
    assert not log.shortened


def test_a_long_pause_of_a_log_is_shortened_and_said_to_be(tmp_path: Path) -> None:
    log = read_log(tmp_path, "a.log", "[  1.0] x\n[ 1301.0] y\n[ 1302.0] z\n")
    assert log.seconds == (0.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS + 1)
    assert log.shortened


def test_a_long_log_without_times_does_not_take_for_ever(tmp_path: Path) -> None:
    log = read_log(tmp_path, "a.log", f"{XID}\n" * 60_000)
    assert log.seconds[-1] == pytest.approx(LONGEST_UNTIMED_SECONDS, rel=0.01)


def test_a_file_that_no_kernel_wrote_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(b"a 1\n")
    for name, text in [
        ("notes.txt", "the fans were loud\n"),
        ("answer.json", '{"status": "success", "data": {}}\n'),
        ("empty.log", ""),
        ("blank.log", "\n\n"),
        ("other.csv", "[  1.0] x\n"),
        ("no host.log", "[  1.0] x\n"),
    ]:
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.log").mkdir()
    hall = read_recordings(tmp_path)
    assert [type(recording) for recording in hall.recordings] == [PageRecording]
    assert len(hall.not_playable) == 7


def test_a_host_can_have_pages_and_several_logs(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(b"a 1\n")
    (tmp_path / "a.dmesg").write_text("[  1.0] x\n[  9.0] y\n")
    (tmp_path / "a.syslog").write_text("Jan  1 00:00:01 h kernel: y\n")
    hall = read_recordings(tmp_path)
    assert [(recording.name, getattr(recording, "instance", "")) for recording in hall.recordings] == [
        ("a", "dmesg"),
        ("a", ""),
        ("a", "syslog"),
    ]
    assert hall.seconds == 8.0


def test_a_log_is_written_as_time_passes_and_never_more_than_is_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hallwatch.recordings.logs.MAX_LINES", 2)
    log = read_log(tmp_path, "a.log", "[  1.0] u\n[  1.0] v\n[  1.0] w\n[  6.0] x\n")
    writer = LogWriter(log, tmp_path / "recorded")
    assert writer.path.read_text() == ""
    seen = []
    for elapsed in (0.0, 1.0, 2.0, 5.0):
        writer.show(elapsed)
        seen.append((writer.path.read_text().count("\n"), writer.due_seconds))
    assert seen == [(2, 0.0), (3, 5.0), (3, 5.0), (4, float("inf"))]
    assert writer.path.read_text() == (tmp_path / "a.log").read_text()


def test_the_trees_of_a_kernel_follow_each_other_behind_one_path(tmp_path: Path) -> None:
    for seconds, state in (("0", "4: ACTIVE"), ("7.5", "1: DOWN")):
        port = tmp_path / "in" / "h1" / f"{seconds}.sysfs" / "class/infiniband/mlx5_0/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
    (recording,) = read_recordings(tmp_path / "in").recordings
    assert (recording.name, recording.last_seconds, recording.polled) == ("h1", 7.5, True)
    seen = []
    with recording.play(tmp_path / "recorded", FakeClock(), mapped=False) as player:
        [table] = player.tables
        assert (table["collector"], table["sysfs_root"]) == ("fabric-ports", "recorded/h1.sysfs")
        for elapsed in range(9):
            player.show(elapsed)
            shown = tmp_path / "recorded/h1.sysfs/class/infiniband/mlx5_0/ports/1/state"
            seen.append(shown.read_text())
    assert seen == ["4: ACTIVE"] * 8 + ["1: DOWN"]


def test_the_documents_of_a_redfish_service_are_served_as_they_were(tmp_path: Path) -> None:
    for seconds, version in (("0", "1.0.0"), ("5", "1.1.0")):
        folder = tmp_path / "cdu" / f"{seconds}.redfish"
        folder.mkdir(parents=True)
        (folder / "index.json").write_text(json.dumps({"RedfishVersion": version}))
    (recording,) = read_recordings(tmp_path).recordings
    clock = FakeClock()
    with recording.play(tmp_path / "recorded", clock, mapped=False) as player:
        [table] = player.tables
        url = f"{table['url']}/redfish/v1/"
        assert (table["collector"], table["equipment"]) == ("coolant-redfish", "cdu")
        assert httpx.get(url).json()["RedfishVersion"] == "1.0.0"
        clock.advance(5)
        assert httpx.get(url).json()["RedfishVersion"] == "1.1.0"
        assert httpx.get(f"{url}Chassis").status_code == 404


def test_the_messages_of_a_building_are_known_by_their_topics(tmp_path: Path) -> None:
    (tmp_path / "pod.csv").write_text(
        'offset,topic,payload\n0s,BMS/v1/PUB/Value/a,"{}"\n12s,BMS/v1/PUB/Value/a,"{}"\n'
    )
    (tmp_path / "table.csv").write_text("a,b,c\n1,2,3\n")
    hall = read_recordings(tmp_path)
    assert [(r.name, r.last_seconds) for r in hall.recordings] == [("pod", 12.0)]
    assert hall.not_playable == ("table.csv",)
    with hall.recordings[0].play(tmp_path / "recorded", FakeClock(), mapped=False) as player:
        assert player.tables[0]["path"] == "recorded/pod.csv"
        assert (tmp_path / "recorded/pod.csv").read_text() == (tmp_path / "pod.csv").read_text()


def test_evidence_is_handed_in_at_its_second_with_what_lies_beside_it(tmp_path: Path) -> None:
    maker = Maker("Milan", 1_780_272_000_000_000)
    chip = Processor(maker=maker, chip_id=bytes(64), tcb=FIRMWARE)
    for seconds in ("0", "30"):
        folder = tmp_path / "in" / "vm1" / f"{seconds}.evidence"
        folder.mkdir(parents=True)
        (folder / "report.bin").write_bytes(chip.report(Guest.named(seconds)))
        (folder / "vcek.der").write_bytes(chip.certificate)
    (recording,) = read_recordings(tmp_path / "in").recordings
    assert (recording.name, recording.last_seconds) == ("vm1", 30.0)
    (tmp_path / "in" / "roots").mkdir()
    with (
        read_recordings(tmp_path / "in")
        .recordings[0]
        .play(tmp_path / "other", FakeClock(), mapped=True) as player
    ):
        assert player.tables[0]["roots"] == str(tmp_path / "in" / "roots")
    drop = tmp_path / "recorded" / "vm1.evidence"
    with recording.play(tmp_path / "recorded", FakeClock(), mapped=False) as player:
        player.show(0.0)
        assert [path.name for path in drop.iterdir()] == ["0000-report.bin.evidence"]
        assert player.due_seconds == 30.0
        player.show(30.0)
        assert player.due_seconds == float("inf")
    evidence = read_evidence((drop / "0001-report.bin.evidence").read_bytes())
    assert evidence.body == chip.report(Guest.named("30"))
    assert evidence.attached == {"vcek.der": chip.certificate}
    assert evidence.host == "vm1"
