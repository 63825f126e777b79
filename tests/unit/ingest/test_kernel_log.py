"""The collector of kernel logs: what it reads, when its events were, and that place and events go together."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from contract.config import HallSection, parse_model
from contract.errors import CollectError, ConfigError
from contract.metrics import Metrics
from contract.stream import Stream
from contract.streams.fabric import FABRIC_EVENTS
from contract.streams.gpu import GPU_EVENTS
from contract.streams.self import COLLECTOR_STATUS
from contract.testing import START_US, FakeClock
from ingest.collector import Context, Reading
from ingest.gpu.kernel_log import MAX_LINES, KernelLogCollector, KernelLogConfig
from ingest.kernel.follow.file import MAX_READ_BYTES
from ingest.source import Source, SourceMetrics
from ingest.testing import FakeOutlet

UUID = "GPU-b6c3b2be-1111-2222-3333-444455556666"
LOST = "NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
MAP = f"NVRM: GPU at PCI:0000:91:00: {UUID}"
NIC = "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature"
NO_FAULT = "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS"
NOTHING = "workqueue: ib_cache_event_task hogged CPU"


class Host:
    """A host with a log file."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "kern.log"
        self.log.touch()
        self.clock = FakeClock()
        self.outlet = FakeOutlet()

    def write(self, *texts: str, at_us: int | None = None, tag: str = "kernel") -> None:
        at = datetime.fromtimestamp((self.clock.now_us() if at_us is None else at_us) / 1e6, UTC)
        with self.log.open("a") as log:
            log.writelines(f"{at.isoformat(timespec='microseconds')} h1 {tag}: {text}\n" for text in texts)

    def config(self, **values: Any) -> KernelLogConfig:
        given = {"collector": "gpu-kernel-log", "host": "h1", "source": "file", "path": self.log}
        return parse_model(KernelLogConfig, {**given, "start": "beginning", **values}, "test")

    def collector(self, **values: Any) -> KernelLogCollector:
        return KernelLogCollector(
            self.config(**values), Context(hall=HallSection(name="test"), clock=self.clock)
        )

    def source(self, epoch: str = "e") -> Source:
        """Return the collector as the runner runs it, from what the outlet remembers."""
        hall, metrics = HallSection(name="test"), SourceMetrics(Metrics())
        return Source(self.config(), self.collector(), self.outlet, hall, epoch, self.clock, metrics)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def rows_of(reading: Reading, stream: Stream) -> list[dict[str, Any]]:
    """Return what a reading holds of a stream, without nulls and what the runner adds."""
    found: list[dict[str, Any]] = []
    for rows in reading.rows:
        if rows.stream is stream:
            count = len(rows)
            stamps: dict[str, list[Any]] = {
                "ts": [0] * count,
                "host": ["h1"] * count,
                "synthetic": [False] * count,
            }
            table = stream.table({**stamps, **rows.columns}).to_pylist()
            found += [
                {name: value for name, value in row.items() if value is not None and name not in stamps}
                for row in table
            ]
    return found


def read(collector: KernelLogCollector, host: Host) -> list[dict[str, Any]]:
    """Return the events of one reading."""
    reading = collector.collect(host.clock.now_us())
    return [*rows_of(reading, GPU_EVENTS), *rows_of(reading, FABRIC_EVENTS)]


def test_events_of_gpus_and_of_network_cards_go_to_their_streams(host: Host) -> None:
    host.write(MAP, NOTHING, LOST, NIC)
    reading = host.collector().collect(host.clock.now_us())
    (lost,) = rows_of(reading, GPU_EVENTS)
    assert (lost["event"], lost["code"], lost["gpu_uuid"]) == ("xid", 79, UUID)
    (nic,) = rows_of(reading, FABRIC_EVENTS)
    assert (nic["event"], nic["pci_bus_id"]) == ("port_module_high_temp", "0000:5c:00.0")
    assert reading.skipped == {"irrelevant": 1}
    assert not reading.rejected


def test_an_event_was_when_its_line_was_written(host: Host) -> None:
    at_us = host.clock.now_us() - 90_000_000
    host.write(MAP, LOST, at_us=at_us)
    source = host.source()
    assert source.poll()
    (row,) = host.outlet.rows(GPU_EVENTS)
    assert row["ts"] == datetime.fromtimestamp(at_us / 1e6, UTC).replace(tzinfo=None)
    assert row["host"] == "h1"


@pytest.mark.parametrize("ahead_seconds", [6, -367 * 86_400])
def test_a_time_that_cannot_be_true_gives_way_to_that_of_the_reading(host: Host, ahead_seconds: int) -> None:
    host.write(LOST, at_us=START_US + ahead_seconds * 1_000_000)
    reading = host.collector().collect(START_US)
    assert [rows.columns["ts"] for rows in reading.rows] == [[START_US]]


def test_where_the_clock_of_a_log_is_wrong_its_times_can_be_left(host: Host) -> None:
    host.write(LOST, at_us=START_US - 3_600_000_000)
    reading = host.collector(times="reading").collect(START_US)
    assert [rows.columns["ts"] for rows in reading.rows] == [[START_US]]


def test_what_a_program_writes_is_no_fault(host: Host) -> None:
    host.write(LOST, tag="train.py[31337]")
    assert read(host.collector(), host) == []


def test_a_restart_tells_nothing_twice_and_nothing_too_little(host: Host) -> None:
    host.write(MAP, LOST)
    first = host.source()
    assert first.poll()
    host.write(LOST.replace("79", "48"))  # while nobody reads, and the map is behind
    host.outlet.refusals = ["full"]
    second = host.source("f")
    assert not second.poll()
    third = host.source("g")
    assert third.poll()
    told = host.outlet.rows(GPU_EVENTS)
    assert [(row["code"], row["gpu_uuid"]) for row in told] == [(79, UUID), (48, UUID)]


def test_what_the_outlet_does_not_take_is_put_again_with_its_place(host: Host) -> None:
    host.outlet.refusals = ["full"]
    host.write(LOST)
    source = host.source()
    assert [source.poll() for _ in range(2)] == [False, True]
    assert len(host.outlet.rows(GPU_EVENTS)) == 1
    assert host.outlet.cursors


def test_a_place_in_one_log_says_nothing_about_another(host: Host) -> None:
    host.write(MAP, LOST)
    before = host.collector()
    read(before, host)
    other = host.log.with_name("other.log")
    other.write_text(f"{LOST.replace('79', '48')}\n")
    after = host.collector(path=other)
    after.restore(before.cursor())
    (event,) = read(after, host)
    assert (event["code"], event["gpu_uuid"]) == (48, UUID)


@pytest.mark.parametrize(
    "cursor",
    [b"", b"[]", b"{}", b'{"log": 1, "place": {}, "parser": {}}', b'{"parser": {}, "log": "file:'],
)
def test_a_cursor_that_cannot_be_read_is_as_good_as_none(host: Host, cursor: bytes) -> None:
    host.write(LOST)
    collector = host.collector()
    collector.restore(cursor)
    assert len(read(collector, host)) == 1


def test_a_place_that_cannot_be_read_is_as_good_as_none(host: Host) -> None:
    host.write(LOST)
    collector = host.collector()
    kept = orjson.loads(collector.cursor())
    collector.restore(orjson.dumps(kept | {"place": {"offset": "x"}}))
    assert len(read(collector, host)) == 1


def test_a_backlog_is_worked_off_in_pieces(host: Host) -> None:
    with host.log.open("w") as log:
        log.writelines(f"{NO_FAULT}\n{NOTHING}\n" for _ in range(2 * MAX_LINES + 5))
    host.write(LOST)
    collector, counts = host.collector(), []
    for _ in range(4):
        skipped = collector.collect(host.clock.now_us()).skipped
        counts.append((skipped.get("no_fault", 0), skipped.get("irrelevant", 0)))
    *first, last, nothing = counts
    assert [no_fault for no_fault, _ in first] == [MAX_LINES, MAX_LINES]
    assert (last[0], nothing) == (5, (0, 0))
    assert sum(irrelevant for _, irrelevant in counts) == 2 * MAX_LINES + 5


def test_a_fault_behind_any_number_of_lines_about_something_else_is_read_at_once(host: Host) -> None:
    count = 2 * MAX_READ_BYTES // len(NOTHING)
    host.log.write_text(f"{NOTHING}\n" * count)
    host.write(LOST)
    reading = host.collector().collect(host.clock.now_us())
    assert [row["code"] for row in rows_of(reading, GPU_EVENTS)] == [79]
    assert reading.skipped == {"irrelevant": count}


def test_a_loss_told_in_three_lines_is_put_together_across_a_rotation(host: Host) -> None:
    host.write(MAP, "NVRM: The NVIDIA GPU 0000:91:00.0", NOTHING)
    collector = host.collector()
    assert read(collector, host) == []
    host.write("NVRM: (PCI ID: 10de:2330) installed in this system has", NOTHING)
    host.log.rename(host.log.with_name("kern.log.1"))
    host.write(NOTHING, "NVRM: fallen off the bus and is not responding to commands.")
    reading = collector.collect(host.clock.now_us())
    (lost,) = rows_of(reading, GPU_EVENTS)
    assert (lost["event"], lost["gpu_uuid"]) == ("lost", UUID)
    assert reading.skipped == {"irrelevant": 2, "no_fault": 1}


def test_half_of_the_time_of_a_reading_is_all_it_takes(host: Host) -> None:
    class SlowClock(FakeClock):
        def monotonic(self) -> float:
            self.advance(1)
            return super().monotonic()

    host.clock = SlowClock()
    with host.log.open("w") as log:
        log.writelines(f"{NO_FAULT}\n" for _ in range(MAX_LINES))
    reading = host.collector(timeout_seconds=4).collect(START_US)
    assert reading.skipped == {"no_fault": 4_000}


def test_what_was_read_before_an_error_is_told_and_the_error_next(host: Host) -> None:
    host.write(*[NOTHING] * 2_000)
    host.write(LOST)
    collector = host.collector()
    host.log.rename(host.log.with_name("kern.log.1"))
    with pytest.raises(CollectError):
        collector.collect(START_US)
    host.log.with_name("kern.log.1").rename(host.log)
    assert [event["code"] for event in read(collector, host)] == [79]


def test_lines_that_a_log_lost_are_told_in_the_status(host: Host) -> None:
    host.write(MAP)
    source = host.source()
    assert source.poll()
    host.log.write_text(f"{NOTHING} and more of it, so that the file is longer than before\n" * 5)
    assert source.poll()
    source.publish_status()
    *_, status = host.outlet.rows(COLLECTOR_STATUS)
    assert orjson.loads(status["rejections"])["log_replaced"] == 1


def test_the_driver_names_itself_and_its_gpus(host: Host, tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (root@b)\n"
    for address, uuid in (
        ("0000:91:00.0", UUID),
        ("0000:92:00.0", "GPU-????????-????-????-????-????????????"),
    ):
        folder = tmp_path / "nvidia/gpus" / address
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 17\nGPU UUID: \t {uuid}\nBus Location: \t {address}\n"
        (folder / "information").write_text(text)
    (tmp_path / "nvidia/version").write_text(version + "GCC version:  gcc version 12.3.0\n")
    host.write(LOST, LOST.replace("91", "92"))
    first, second = read(host.collector(driver_folder=tmp_path / "nvidia"), host)
    assert (first["gpu_uuid"], first["driver_version"]) == (UUID, "580.82.07")
    assert "gpu_uuid" not in second
    (first, _) = read(host.collector(driver_folder=tmp_path / "nvidia", driver="550.54.15"), host)
    assert first["driver_version"] == "550.54.15"


def test_without_a_driver_the_lines_are_all_there_is(host: Host, tmp_path: Path) -> None:
    host.write(LOST)
    (event,) = read(host.collector(driver_folder=tmp_path / "nowhere"), host)
    assert "driver_version" not in event


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"path": None}, "which file?"),
        ({"source": "journal"}, "the journal is found without"),
        ({"source": "syslog"}, "kmsg"),
        ({"zone": "Europe/Nowhere"}, "there is no zone 'Europe/Nowhere'"),
        ({"zone": "../etc"}, "there is no zone"),
        ({"start": "yesterday"}, "beginning"),
    ],
)
def test_a_table_that_cannot_work_says_why(host: Host, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        host.config(**values)


@pytest.mark.parametrize("source", ["kmsg", "journal"])
def test_a_log_of_this_machine_is_followed_without_a_path(host: Host, source: str) -> None:
    collector = host.collector(source=source, path=None)
    assert orjson.loads(collector.cursor())["log"] == f"{source}:"
    collector.close()
