"""`hallwatch parse` and `hallwatch explain`: a log and a code, read for a person."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from contract.streams.gpu import EVENT_ACTIONS, EVENT_CLASSES
from hallwatch.cli import main
from hallwatch.commands import explain
from ingest.kernel.tables import read_table

XID = "[  12.5] NVRM: Xid (PCI:0000:b3:00): 79, pid=7, name=python3, GPU has fallen off the bus."
DATED = "Jan  5 10:00:00 h1 kernel: NVRM: Xid (PCI:0000:b3:00): 13, Graphics Exception: ESR 0x1"
FORGED = "<12>Jan  5 10:00:00 h1 kernel: NVRM: Xid (PCI:0000:b3:00): 79, forged"


@pytest.fixture
def call(monkeypatch, capsysbinary):
    def call_(*arguments: str, given: str = "") -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        output, messages = capsysbinary.readouterr()
        return caught.value.code, output.decode(), messages.decode()

    return call_


def test_a_log_is_read_from_standard_input_as_a_table(call):
    code, output, messages = call("parse", "kernel-log", "-", given=f"{XID}\nusb 1-1: new device\n")
    assert code == 0
    assert "GPU has fallen off the bus" in output
    assert "12.5" in output
    assert "1 row" in output
    assert messages == "2 lines: 1 event\n"


def test_a_file_is_read_as_json_with_every_column(call, tmp_path: Path):
    path = tmp_path / "kern.log"
    path.write_text(f"{DATED}\n{FORGED}\n")
    code, output, messages = call("parse", "kernel-log", str(path), "--format", "json", "--host", "h9")
    (row,) = [json.loads(line) for line in output.splitlines()]
    assert code == 0
    assert (row["host"], row["event"], row["code"], row["class"]) == ("h9", "xid", 13, "application")
    assert "-01-05T10:00:00" in row["ts"]
    assert row["uptime_seconds"] is None
    assert messages == "2 lines: 1 event; 1 line written by user space, not believed\n"


def test_a_file_is_read_as_csv(call, tmp_path: Path):
    path = tmp_path / "dmesg"
    path.write_text(f"{XID}\n[  13.0] mlx5_core 0000:41:00.0 eth2: Link down")
    code, output, _ = call("parse", "kernel-log", str(path), "--format", "csv", "--driver", "570.1")
    rows = list(csv.DictReader(io.StringIO(output)))
    assert code == 0
    assert [(row["event"], row["uptime_seconds"], row["driver_version"]) for row in rows] == [
        ("xid", "12.5", "570.1"),
        ("link_down", "13.0", ""),
    ]


def test_entries_of_a_journal_are_read_as_such(call):
    entry = {"MESSAGE": XID.partition("] ")[2], "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0"}
    entry["__REALTIME_TIMESTAMP"] = "1780272000000000"
    forged = entry | {"_TRANSPORT": "syslog"}
    given = f"{json.dumps(entry)}\n{json.dumps(forged)}\n{{broken\n"
    _, output, messages = call("parse", "kernel-log", "-", "--format", "json", given=given)
    (row,) = [json.loads(line) for line in output.splitlines()]
    assert (row["event"], row["code"], row["ts"][:19]) == ("xid", 79, "2026-06-01T00:00:00")
    assert messages == (
        "3 lines: 1 event; 1 line written by user space, not believed; 1 line that cannot be read\n"
    )


@pytest.mark.parametrize("output_format", ["table", "json", "csv"])
def test_a_log_without_an_event_is_no_error(call, output_format):
    code, output, messages = call("parse", "kernel-log", "-", "--format", output_format, given="usb 1-1: x\n")
    assert code == 0
    assert output.count("\n") <= 1
    assert messages == "1 line: 0 events\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.log"], "nowhere.log"),
        (["-", "--zone", "Mars/Base"], "Mars/Base"),
        (["-", "--format", "x"], "'x'"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(call, arguments, words):
    code, _, messages = call("parse", "kernel-log", *arguments)
    assert code == 2
    assert words in messages
    assert "Traceback" not in messages


def test_lines_are_not_lost_where_pieces_of_a_log_meet(call, monkeypatch):
    monkeypatch.setattr("hallwatch.commands.parse._CHUNK_BYTES", 64)
    given = "".join(f"[{n}.0] NVRM: Xid (PCI:0000:{n:02x}:00): 48, x\n" for n in range(1, 40))
    _, output, messages = call("parse", "kernel-log", "-", "--format", "json", given=given + "y" * 300)
    assert len(output.splitlines()) == 39
    assert "39 events" in messages


def test_a_control_character_in_a_log_does_not_reach_the_terminal(call):
    given = "NVRM: Xid (PCI:0000:b3:00): 48, pid=7, name=\x1b[31mred, x\n"
    for output_format in ("table", "json"):
        _, output, _ = call("parse", "kernel-log", "-", "--format", output_format, given=given)
        assert "\x1b" not in output


def test_an_xid_is_explained_with_its_class_what_to_do_and_who_disagrees(call):
    code, output, _ = call("explain", "xid", "109")
    assert code == 0
    assert output.startswith("Xid 109: context switch timeout\n")
    assert "driver: driver or firmware" in output
    assert "reset the GPU" in output
    assert "facebookresearch/gcm counts it as not critical" in output
    assert "NVIDIA Xid catalog" in output


def test_the_words_of_a_line_are_decoded_and_the_layout_is_told(call):
    detail = "NETIR_LINK_EVT Fatal XC0 i0 Link 09 (0x025525c6 0x00000000)"
    _, output, _ = call("explain", "xid", "149", "--driver", "575", "--detail", detail)
    assert "peer reset" in output
    assert "the kernel's own word and the catalog's row" in output
    assert "layout of drivers before R575, but the driver is 575" in output


@pytest.mark.parametrize(
    ("arguments", "alert"),
    [
        (["xid", "79"], "gpu-xid-fatal (critical, hall-operations)"),
        (["xid", "110"], "gpu-xid-security (critical, security)"),
        (["xid", "154"], "none"),
        (["xid", "163"], "gpu-xid-facility (major, facility)"),
        (["xid", "31"], "gpu-xid-application (info, job-owner), gpu-xid-repeated (minor, hall-operations, when it comes 3 times)"),
        (["sxid", "12020"], "gpu-sxid-fatal (critical, hall-operations)"),
        (["sxid", "77777"], "gpu-sxid-degraded (minor, hall-operations, when it comes 3 times)"),
    ],
)  # fmt: skip
def test_the_alert_that_a_code_raises_is_named(call, arguments, alert):
    _, output, _ = call("explain", *arguments)
    (found,) = [line.split(maxsplit=1)[1] for line in output.splitlines() if line.startswith("  alert")]
    assert found == alert


def test_an_sxid_is_explained_by_the_list_it_is_in(call):
    _, output, _ = call("explain", "sxid", "12020")
    assert "always fatal: the whole host" in output
    _, output, _ = call("explain", "sxid", "24007")
    assert "trunk port" in output


@pytest.mark.parametrize("kind", ["xid", "sxid"])
def test_a_code_in_no_table_is_said_to_be_unknown(call, kind):
    code, output, _ = call("explain", kind, "77777")
    assert code == 0
    assert "in no table" in output


@pytest.mark.parametrize("number", ["0", "-1", "abc", "100001"])
def test_a_code_that_is_none_is_an_error(call, number):
    code, _, messages = call("explain", "xid", number)
    assert code == 2
    assert number in messages


def test_every_word_of_the_tables_has_a_meaning_for_people():
    assert set(explain._CLASSES) == set(EVENT_CLASSES)
    assert set(explain._ACTIONS) == set(EVENT_ACTIONS)
    assert set(explain._SCOPES) == {row["scope"] for row in read_table("sxid.tsv")}


def test_codes_all_over_the_table_can_be_explained(call):
    for code in range(1, 174, 34):
        assert call("explain", "xid", str(code))[0] == 0
