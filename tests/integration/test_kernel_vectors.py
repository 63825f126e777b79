"""Kernel lines as real machines wrote them: each becomes what is known to be true about it, or nothing."""

import csv
import os
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from contract.streams.fabric import FABRIC_EVENTS
from contract.streams.gpu import GPU_EVENTS
from ingest.collector import Rows
from ingest.kernel.formats import parse_line
from ingest.kernel.parser import KernelEvents, KernelParser

pytestmark = pytest.mark.integration

VECTORS = Path(os.environ.get("HALLWATCH_VECTORS", Path(__file__).parents[2].parent / "shared" / "vectors"))
LINES = VECTORS / "gpu" / "kernel" / "kernel_lines.tsv"
XID_LINES = VECTORS / "datasets" / "xid-lines" / "xid_lines.tsv"
STORIES = VECTORS / "gpu" / "kernel" / "sequences.tsv"
LOGS = VECTORS / "datasets" / "gpud-kernel-logs"
CARRIER = VECTORS / "gpu" / "kernel" / "ib-carrier-flap.syslog"
NOW_US = 1_795_000_000_000_000

needs_vectors = pytest.mark.skipif(not LINES.exists(), reason="the captures are not beside this checkout")


def table(path):
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def read(raws, **options) -> KernelEvents:
    parser = KernelParser()
    lines = [parse_line(raw, now_us=NOW_US, **options) for raw in raws]
    parser.feed([line for line in lines if line is not None], NOW_US)
    found = parser.events(NOW_US, final=True)
    for stream, rows in ((GPU_EVENTS, found.gpu), (FABRIC_EVENTS, found.fabric)):
        if rows:
            rows_ = Rows.gather(stream, [row | {"host": "h1", "synthetic": False} for row in rows])
            cleaned, rejected = stream.clean(rows_.columns)
            assert not rejected
            assert cleaned.num_rows == len(rows)
    return found


def log(name):
    return (LOGS / name).read_bytes().splitlines()


def story(name):
    """Return (microseconds, line) of a story; its lines have whole times only."""
    rows = [row for row in table(STORIES) if row["sequence"] == name]
    return [(row["time_as_logged"], row["line"]) for row in rows]


ALL_LINES = [*table(LINES), *table(XID_LINES)]


@needs_vectors
@pytest.mark.parametrize("row", ALL_LINES, ids=lambda row: f"{row['expect_kind']}-{row['expect_code']}")
def test_every_known_line_is_what_it_is_known_to_be(row):
    found = read([row["line"]])
    kind, code = row["expect_kind"], row["expect_code"]
    gpu = [(event["event"], event.get("code")) for event in found.gpu]
    fabric = [event["event"] for event in found.fabric]
    if kind in ("xid", "sxid"):
        assert gpu == [(kind, int(code))]
        assert found.gpu[0]["severity"] in ("fatal", "nonfatal", "info", "unknown")
        assert not fabric
    elif kind == "sxid_follower":
        assert gpu == [("sxid", int(code))]
        assert found.gpu[0]["class"] == "follower"
    elif kind == "nic":
        assert not gpu
        assert fabric == [code]
    elif kind == "other_accel":
        assert [(event["event"], event["name"]) for event in found.gpu] == [("device_error", code)]
    else:
        assert kind == "none"
        assert not gpu
        assert not fabric


@needs_vectors
def test_what_the_lines_say_beside_their_code():
    gpu = [event for row in ALL_LINES for event in read([row["line"]]).gpu]

    def events(code, event="xid"):
        return [row for row in gpu if row.get("code") == code and row["event"] == event]

    assert {row["severity"] for row in events(145)} == {"nonfatal"}
    assert {(row["link"], row["reason"]) for row in events(149) if row.get("reason")} == {(9, "peer reset")}
    assert {row.get("caused_by_code") for row in events(45)} == {149, 145}
    assert {row["class"] for row in events(45)} == {"follower"}
    assert [row["action"] for row in events(154)] == ["unknown"]
    assert [row["class"] for row in events(999)] == ["unknown"]
    assert [row["process"] for row in events(999)] == ["test"]
    assert {row["pid"] for row in events(63)} == {1896}
    assert {row.get("link") for row in events(20009, "sxid")} == {None}
    assert {row["severity"] for row in events(28006, "sxid")} == {"nonfatal"}
    assert {row["severity"] for row in events(24007, "sxid")} == {"fatal"}
    power = read([row["line"] for row in ALL_LINES if row["expect_code"] == "pci_power_insufficient"]).fabric
    assert [row["available_watts"] for row in power] == [27]


@needs_vectors
def test_a_program_that_crashes_is_xid_13_at_its_places_and_then_43():
    found = read(log("dmesg-oom-and-xid13.iso.log"))
    counts: Counter[int] = Counter()
    for row in found.gpu:
        assert row["pci_bus_id"] == "0000:38:00.0"
        assert row["class"] == "application"
        counts[row["code"]] += row["occurrences"]
    assert counts == {13: 16, 43: 1}
    assert {row["unit"] for row in found.gpu if row.get("unit")} == {
        "GPC 8 TPC 5",
        "GPC 9 TPC 1",
        "GPC 9 TPC 2",
        "GPC 9 TPC 5",
        "GPC 10 TPC 1",
        "GPC 10 TPC 4",
    }
    assert not found.fabric
    first = datetime(2025, 1, 21, 4, 41, 44, 283302, tzinfo=UTC)
    assert found.gpu[0]["ts"] == round(first.timestamp() * 1_000_000)


@needs_vectors
def test_a_segfault_of_a_library_is_no_event():
    found = read(log("dmesg-nccl-segfault.iso.log"))
    assert not found.gpu
    assert not found.fabric
    assert found.skipped["irrelevant"] == 2


@needs_vectors
def test_seven_repeats_of_the_peer_memory_error_are_two_rows():
    found = read(log("kmsg-peermem.log"), boot_us=0)
    assert [(row["event"], row["driver"], row["occurrences"]) for row in found.fabric] == [
        ("peermem_error", "nvidia-peermem", 1),
        ("peermem_error", "nvidia-peermem", 6),
    ]
    assert not found.gpu
    assert found.skipped["irrelevant"] == 1


@needs_vectors
def test_a_panic_holds_two_driver_loads_and_an_empty_cage():
    found = read(log("pstore-panic-dmesg.txt"), boot_us=0)
    assert [(row["event"], row["driver_version"]) for row in found.gpu] == [("reset", "550.144.03")] * 2
    assert [(row["event"], row["pci_bus_id"], row["severity"]) for row in found.fabric] == [
        ("module_unplugged", "0000:41:00.1", "info")
    ]
    assert found.skipped["link_came_up"] == 1


@needs_vectors
def test_the_fabric_manager_tells_of_one_error_of_a_switch():
    found = read(log("fabricmanager.log"))
    assert [
        (row["event"], row["code"], row["severity"], row["pci_bus_id"], row["link"], row["evidence"])
        for row in found.gpu
    ] == [("sxid", 12028, "nonfatal", "0000:86:00.0", 61, "daemon_log")]
    assert not found.fabric


@needs_vectors
def test_every_line_that_any_log_holds_is_read_or_counted():
    for path in [*LOGS.iterdir(), CARRIER]:
        lines = [line for raw in path.read_bytes().splitlines() if (line := parse_line(raw)) is not None]
        parser = KernelParser()
        parser.feed(lines, NOW_US)
        found = parser.events(NOW_US, final=True)
        told = sum(row["occurrences"] for row in [*found.gpu, *found.fabric])
        quiet = 1 if path.name == "fabricmanager.log" else 0
        assert told + found.skipped.total() + found.rejected.total() >= len(lines) - quiet


@needs_vectors
def test_six_lost_and_six_gained_carriers_are_counted_and_told_by_a_daemon():
    found = read(CARRIER.read_bytes().splitlines())
    counts: Counter[str] = Counter()
    for row in found.fabric:
        assert row["nic"] == "ib6"
        assert row["evidence"] == "daemon_log"
        counts[row["event"]] += row["occurrences"]
    assert counts == {"link_down": 6, "link_up": 6}
    assert not found.gpu


@needs_vectors
def test_an_nvlink_fault_leads_its_followers():
    found = read(
        [f"{time} {line}".replace("Z ", "Z host kernel: ") for time, line in story("a100-nvlink-then-gsp")]
    )
    told: Counter[tuple[object, ...]] = Counter()
    for row in found.gpu:
        told[row["event"], row["code"], row["severity"], row["class"]] += row["occurrences"]
    assert told == {
        ("sxid", 24007, "fatal", "link"): 1,
        ("xid", 62, "fatal", "driver"): 1,
        ("xid", 45, "info", "follower"): 4,
        ("xid", 74, "fatal", "link"): 1,
        ("xid", 154, "fatal", "information"): 1,
    }
    xids = [row for row in found.gpu if row["event"] == "xid"]
    assert {row["gpu_uuid"] for row in xids} == {"GPU-5fc0bcec-c2e1-38dc-8994-2a9f9f3b709e"}
    assert [row["link"] for row in xids if row["code"] == 74] == [8]
    assert xids[-1]["action"] == "reset_gpu"


@needs_vectors
def test_a_program_that_writes_out_of_bounds_is_told_of_eight_gpus_as_the_applications_fault():
    def as_logged(time, line):
        if not line.startswith("Xid 31"):
            return f"{time} {line}"
        _, _, pci, pid, *_ = line.split()
        return f"{time} NVRM: Xid ({pci}): 31, {pid}, name=python3, channel 0x00000002, intr 00000000."

    found = read([as_logged(*row) for row in story("xid31-all-8-gpus-software")])
    xids = [row for row in found.gpu if row["event"] == "xid"]
    assert Counter(row["code"] for row in xids) == {13: 1, 31: 8}
    assert {row["class"] for row in xids} == {"application"}
    resets = [row for row in found.gpu if row["event"] == "reset"]
    assert {row["driver_version"] for row in resets} == {"580.82.07"}
    assert {row["pci_bus_id"] for row in resets} == {row["pci_bus_id"] for row in xids} | {None}


@needs_vectors
def test_a_line_that_only_speaks_of_an_xid_is_none():
    found = read([line for _, line in story("xid31-all-8-gpus-software") if line.startswith("Xid 31")])
    assert not found.gpu


@needs_vectors
def test_a_halt_is_not_hidden_by_the_cleanups_after_it():
    lines = [f"[{time}] {line}" for time, line in story("xid31-62-then-45-train")]
    found = read(lines, boot_us=NOW_US - 20_000_000_000)
    assert [(row["code"], row["severity"]) for row in found.gpu if row["class"] != "follower"] == [
        (31, "nonfatal"),
        (62, "fatal"),
    ]
    cleanups = [row for row in found.gpu if row["code"] == 45]
    assert [row["occurrences"] for row in cleanups] == [1, 4]
    assert {row["pci_bus_id"] for row in found.gpu} == {"0000:0a:00.0"}


@needs_vectors
def test_two_gpus_that_time_out_are_two_events():
    found = read([f"[{time}] {line}" for time, line in story("gsp-timeouts-two-gpus")])
    assert [(row["code"], row["pci_bus_id"], row["severity"], row["process"]) for row in found.gpu] == [
        (119, "0001:6c:00.0", "fatal", "NvmlTaskRunner"),
        (119, "0001:96:00.0", "fatal", "NvmlTaskRunner"),
    ]
    assert found.gpu[1]["ts"] - found.gpu[0]["ts"] == 45_000_000
