"""A host from the files of its kernel: rows, events, and what must not be taken for one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from contract.clock import SYSTEM_CLOCK
from contract.config import HallSection
from contract.errors import CollectError
from contract.streams.host import HOST_DIMMS, HOST_EVENTS, HOST_PCIE, HOST_SAMPLES
from contract.testing import START_US, FakeClock
from ingest.collector import Context, Rows
from ingest.host.host import HostCollector, MachineConfig
from ingest.host.testing import FakeTimekeeper, host_collector
from ingest.host.timekeeping import ClockState
from ingest.testing import clean
from twin.host_tree import HostTree

GPU, NIC = "0000:53:00.0", "0000:52:00.0"
MINUTE = 60_000_000
HOUR = 60 * MINUTE


class Machine:
    """A small host of the twin, its collector, and the time."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.tree = HostTree(
            folder, START_US, gpus=(GPU, "0000:64:00.0"), nics=(NIC, "0000:63:00.0"), cores_per_socket=2
        )
        self.now_us = START_US
        self.timekeeper = FakeTimekeeper()
        self.config = config
        self.collector = self.start()
        self.rejected: Mapping[str, int] = {}

    def start(self) -> HostCollector:
        return host_collector(self.tree.procfs, self.tree.sysfs, timekeeper=self.timekeeper, **self.config)

    def restart(self) -> None:
        """Start the collector anew from what it remembered."""
        cursor = self.collector.cursor()
        self.collector = self.start()
        self.collector.restore(cursor)

    def poll(self, seconds: float = 10.0) -> dict[str, list[dict[str, Any]]]:
        """Let time pass and read; return the rows of each stream without their nulls."""
        self.tree.advance(seconds)
        self.now_us += round(seconds * 1_000_000)
        reading = self.collector.collect(self.now_us)
        self.rejected = reading.rejected
        found: dict[str, list[dict[str, Any]]] = {
            stream.name: [] for stream in (HOST_SAMPLES, HOST_DIMMS, HOST_PCIE, HOST_EVENTS)
        }
        for rows in reading.rows:
            table, rejected = clean(
                Rows(stream=rows.stream, columns={"host": ["h1"] * len(rows), **rows.columns})
            )
            assert not rejected
            found[rows.stream.name] += [
                {
                    name: value
                    for name, value in row.items()
                    if value is not None and name not in ("synthetic", "host")
                }
                for row in table
            ]
        return found

    def events(self, seconds: float = 10.0) -> list[tuple[Any, ...]]:
        """Read; return what happened: event, device, occurrences."""
        rows = self.poll(seconds)["host_events"]
        return [(row["event"], row.get("device"), row.get("occurrences")) for row in rows]

    def dimm(self, name: str, seconds: float = 60.0) -> dict[str, Any]:
        (row,) = [row for row in self.poll(seconds)["host_dimms"] if row["dimm"] == name]
        return row

    def device(self, name: str, seconds: float = 60.0) -> dict[str, Any]:
        (row,) = [row for row in self.poll(seconds)["host_pcie"] if row["device"] == name]
        return row


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_host_gives_a_row_of_itself_of_every_module_and_of_every_device(machine):
    machine.poll()
    machine.tree.busy_ratio = 0.5
    rows = machine.poll(60)
    (sample,) = rows["host_samples"]
    assert sample["cpus"] == 8
    assert sample["cpu_busy_ratio"] == pytest.approx(0.5)
    assert sample["cpu_user_ratio"] == pytest.approx(0.4)
    assert (sample["cpu_temperature_celsius"], sample["cpu_temperature_margin_celsius"]) == (45, 55)
    assert (sample["core_throttles"], sample["package_throttles"]) == (0, 0)
    assert sample["memory_total_bytes"] == 1024 * 2**30
    assert (sample["memory_controllers"], sample["memory_corrected_errors"]) == (8, 0)
    assert (sample["gpus"], sample["nics"], sample["nvmes"], sample["devices_missing"]) == (2, 2, 2, 0)
    assert sample["kernel"] == "6.8.0-1027-generic"
    assert sample["uptime_seconds"] == pytest.approx(864_070)
    assert len(rows["host_dimms"]) == 16 + 8
    classes = [row["device_class"] for row in rows["host_pcie"]]
    assert {name: classes.count(name) for name in classes} == {"gpu": 2, "nic": 2, "nvme": 2, "bridge": 10}
    assert rows["host_events"] == []
    assert machine.rejected == {}


def test_what_does_not_change_is_told_once_a_minute(machine):
    counts = [len(machine.poll()["host_pcie"]) for _ in range(7)]
    assert counts == [16, 0, 0, 0, 0, 0, 16]


def test_what_is_wrong_is_told_at_every_reading(machine):
    machine.poll()
    machine.tree.lose(NIC)
    machine.tree.narrow(GPU, 4)
    told = [[row["device"] for row in machine.poll()["host_pcie"]] for _ in range(3)]
    assert told == [[GPU, NIC]] * 3


def test_a_processor_that_throttles_is_counted_once_not_once_per_thread(machine):
    machine.poll()
    machine.tree.throttle(3)
    (sample,) = machine.poll()["host_samples"]
    assert (sample["core_throttles"], sample["package_throttles"]) == (3, 3)


def test_errors_of_a_module_are_told_with_its_slot(machine):
    machine.poll()
    machine.tree.corrected_errors("mc4/dimm1", 5)
    machine.tree.uncorrected_errors("mc0/dimm0")
    rows = machine.poll()
    corrected, uncorrected = sorted(rows["host_events"], key=lambda row: row["event"])
    assert (corrected["event"], corrected["device"], corrected["occurrences"]) == ("dimm_ce", "mc4/dimm1", 5)
    assert (corrected["label"], corrected["detail"]) == ("CPU_SrcID#1_MC#0_Chan#1_DIMM#0", "channel 1 slot 0")
    assert (uncorrected["event"], uncorrected["severity"]) == ("dimm_ue", "fatal")
    assert {row["dimm"] for row in rows["host_dimms"]} == {"mc4/dimm1", "mc0/dimm0"}
    assert machine.dimm("mc4/dimm1")["corrected_errors_24h"] == 5


def test_a_storm_of_corrected_errors_is_told_at_once_and_then_once_a_minute(machine):
    machine.poll()
    told = []
    for _ in range(12):
        machine.tree.corrected_errors("mc0/dimm0", 100)
        told += [count for _, _, count in machine.events()]
    assert told == [100, 600]
    assert machine.events(60) == [("dimm_ce", "mc0/dimm0", 500)]


def test_errors_before_the_first_reading_are_no_event(machine):
    machine.tree.corrected_errors("mc0/dimm0", 5_000)
    assert machine.events() == []
    row = machine.dimm("mc0/dimm0")
    assert (row["corrected_errors"], row["corrected_errors_24h"]) == (5_000, 0)


def test_errors_are_forgotten_after_a_day(machine):
    machine.poll()
    machine.tree.corrected_errors("mc0/dimm0", 7)
    assert machine.dimm("mc0/dimm0", 60)["corrected_errors_24h"] == 7
    assert machine.dimm("mc0/dimm0", 23 * 3_600)["corrected_errors_24h"] == 7
    row = machine.dimm("mc0/dimm0", 2 * 3_600)
    assert (row["corrected_errors"], row["corrected_errors_24h"]) == (7, 0)


def test_a_driver_that_is_loaded_again_sets_counters_back_and_brings_no_errors(machine):
    machine.tree.corrected_errors("mc0/dimm0", 90)
    machine.poll(600)
    machine.tree.reload_edac()
    assert {event for event, _, _ in machine.events(60)} == {"edac_reset"}
    assert machine.dimm("mc0/dimm0")["corrected_errors_24h"] == 0


def test_a_counter_that_was_set_back_and_is_higher_already_counts_from_zero(machine):
    machine.tree.corrected_errors("mc0/dimm0", 10)
    machine.poll(600)
    machine.tree.reload_edac()
    machine.tree.corrected_errors("mc0/dimm0", 15)
    assert ("dimm_ce", "mc0/dimm0", 15) in machine.events(60)


def test_a_reboot_is_one_event_with_the_time_of_the_start(machine):
    before = machine.poll()["host_samples"][0]["boot_id"]
    machine.tree.corrected_errors("mc0/dimm0", 3)
    machine.poll()
    machine.tree.reboot(240)
    machine.now_us += 240_000_000
    machine.tree.corrected_errors("mc0/dimm0", 3)
    rows = machine.poll()
    reboot, errors = rows["host_events"]
    assert (reboot["event"], reboot["previous_boot_id"]) == ("reboot", before)
    assert reboot["boot_id"] == rows["host_samples"][0]["boot_id"] != before
    assert (rows["host_samples"][0]["ts"] - reboot["ts"]).total_seconds() < 90
    assert (errors["event"], errors["occurrences"]) == ("dimm_ce", 3)
    assert machine.dimm("mc0/dimm0")["corrected_errors_24h"] == 6
    assert machine.events() == []


def test_what_was_seen_is_remembered_across_a_restart_of_the_collector(machine):
    machine.poll()
    machine.tree.corrected_errors("mc0/dimm0", 4)
    machine.poll()
    machine.restart()
    machine.tree.corrected_errors("mc0/dimm0", 4)
    machine.tree.lose(GPU)
    machine.tree.reboot(0)
    assert [event for event, _, _ in machine.events(60)] == ["reboot", "device_missing"]
    assert machine.dimm("mc0/dimm0")["corrected_errors_24h"] == 4
    machine.restart()
    assert machine.events() == []


@pytest.mark.parametrize(
    "cursor", [b"", b"{}", b"[]", b'{"modules": 7}', b"\xff", b'{"modules":{"corrected":{"a":[1]}}}']
)
def test_a_cursor_that_cannot_be_read_is_as_good_as_none(machine, cursor):
    machine.collector.restore(cursor)
    assert machine.events() == []


def test_a_host_without_an_edac_driver_says_so_and_nothing_else(machine, tmp_path):
    (tmp_path / "sys/devices/system/edac").rename(tmp_path / "away")
    machine.tree = HostTree(tmp_path / "other", START_US, cores_per_socket=2)
    rows = machine.poll()
    assert rows["host_samples"][0]["memory_controllers"] == 0
    assert "memory_corrected_errors" not in rows["host_samples"][0]
    assert (rows["host_dimms"], rows["host_events"], machine.rejected) == ([], [], {})


def test_an_error_that_the_controller_cannot_place_is_its_own(machine, tmp_path):
    machine.poll()
    (tmp_path / "sys/devices/system/edac/mc/mc2/ue_noinfo_count").write_text("1\n")
    assert machine.events() == [("dimm_ue", "mc2", 1)]


def test_a_device_that_falls_off_the_bus_is_missing_until_it_is_back(machine):
    machine.poll()
    machine.tree.lose(GPU)
    rows = machine.poll()
    (event,) = rows["host_events"]
    assert (event["event"], event["device"], event["device_class"], event["severity"]) == (
        "device_missing",
        GPU,
        "gpu",
        "fatal",
    )
    assert (rows["host_samples"][0]["gpus"], rows["host_samples"][0]["devices_missing"]) == (1, 1)
    assert machine.device(GPU)["presence"] == "missing"
    machine.tree.restore(GPU)
    assert machine.events() == [("device_back", GPU, None)]
    assert machine.device(GPU)["presence"] == "present"


def test_a_device_that_does_not_come_back_after_a_reboot_is_missing(machine):
    machine.poll()
    machine.tree.lose(NIC)
    machine.tree.reboot()
    assert ("device_missing", NIC, None) in machine.events()


def test_other_addresses_after_a_reboot_are_no_loss(machine, tmp_path):
    machine.poll()
    machine.tree.reboot()
    devices = tmp_path / "sys/bus/pci/devices"
    (devices / GPU).rename(devices / "0000:54:00.0")
    assert [event for event, _, _ in machine.events()] == ["reboot"]
    assert machine.poll()["host_samples"][0]["devices_missing"] == 0


def test_a_gpu_whose_address_went_to_another_device_is_missing_by_number(machine, tmp_path):
    machine.poll()
    machine.tree.lose(GPU)
    machine.tree.reboot()
    devices = tmp_path / "sys/bus/pci/devices"
    (devices / NIC).rename(devices / GPU)
    machine.restart()
    told = [(event, device) for event, device, _ in machine.events()]
    assert told == [("reboot", None), ("device_missing", "gpu#2")]
    (devices / GPU).rename(devices / NIC)
    machine.tree.reboot()
    machine.tree.restore(GPU)
    machine.restart()
    assert [(event, device) for event, device, _ in machine.events()] == [
        ("reboot", None),
        ("device_back", "gpu#2"),
    ]


def test_a_device_that_is_there_and_cannot_be_read_is_not_missing(machine, tmp_path):
    machine.poll()
    machine.restart()
    path = tmp_path / "sys/bus/pci/devices" / GPU / "class"
    path.rename(tmp_path / "class")
    rows = machine.poll()
    assert rows["host_events"] == []
    assert (rows["host_samples"][0]["gpus"], rows["host_samples"][0]["devices_missing"]) == (1, 0)
    (tmp_path / "class").rename(path)
    rows = machine.poll()
    assert rows["host_samples"][0]["gpus"] == 2
    assert rows["host_events"] == []


def test_memory_that_is_told_by_rank_is_read_like_modules(machine, tmp_path):
    at = tmp_path / "sys/devices/system/edac/mc/mc0"
    (at / "dimm0").rename(at / "rank0")
    assert "mc0/rank0" in {row["dimm"] for row in machine.poll()["host_dimms"]}


@pytest.mark.parametrize(
    ("written", "read"),
    [("0000:53:00.0", GPU), ("00000000:53:00.0", GPU), ("0000:CA:00.1", "0000:ca:00.1"), ("53:00.0", GPU)],
)
def test_an_address_may_be_written_as_other_programs_do(written, read):
    config = MachineConfig(collector="host", host="h1", expected_addresses=(written,))
    assert config.expected_addresses == (read,)


@pytest.mark.parametrize(
    "table",
    [
        {"expected_addresses": ["slot 3"]},
        {"expected_devices": {"gpu": -1}},
        {"expected_devices": {"fpga": 1}},
    ],
)
def test_a_wrong_expectation_is_refused(table):
    with pytest.raises(ValidationError):
        MachineConfig(collector="host", host="h1", **table)


def test_a_bus_that_cannot_be_listed_says_nothing_about_devices(machine, tmp_path):
    machine.poll()
    (tmp_path / "sys/bus/pci/devices").rename(tmp_path / "away")
    rows = machine.poll(60)
    assert (rows["host_pcie"], rows["host_events"]) == ([], [])
    assert "gpus" not in rows["host_samples"][0]


def test_fewer_devices_than_configured_are_missing_from_the_first_reading_on(tmp_path):
    machine = Machine(tmp_path, expected_devices={"gpu": 4}, expected_addresses=("0000:99:00.0",))
    assert sorted(machine.events()) == [
        ("device_missing", "0000:99:00.0", None),
        ("device_missing", "gpu#3", None),
        ("device_missing", "gpu#4", None),
    ]
    machine.tree.lose(GPU)
    assert machine.events() == [("device_missing", GPU, None)]
    assert machine.device("gpu#3")["device_class"] == "gpu"


def test_a_device_that_nobody_expects_any_more_is_withdrawn_once(tmp_path):
    machine = Machine(tmp_path, forget_missing_after_days=1)
    machine.poll()
    machine.tree.lose(NIC)
    machine.poll()
    assert machine.device(NIC, 2 * 86_400)["presence"] == "withdrawn"
    assert machine.poll(60)["host_samples"][0]["devices_missing"] == 0
    assert NIC not in {row["device"] for row in machine.poll(60)["host_pcie"]}


def test_a_link_has_as_many_lanes_as_both_its_ends(machine, tmp_path):
    narrow = tmp_path / "sys/bus/pci/devices/0000:4f:01.0"
    (narrow / "max_link_width").write_text("8\n")
    machine.tree.narrow(GPU, 8)
    row = machine.device(GPU)
    assert (row["upstream"], row["link_width"], row["max_link_width"]) == ("0000:4f:01.0", 8, 8)


def test_a_disk_behind_a_volume_controller_hangs_on_its_own_root_port(machine, tmp_path):
    """Intel VMD gives its disks a domain of their own: `0000:60:05.5/pci10000:00/10000:00:02.0/10000:01:00.0`."""
    root = "pci0000:60/0000:60:05.5/pci10000:00/10000:00:02.0"
    for path, code, most, width in ((root, "0x060400", 16, 4), (f"{root}/10000:01:00.0", "0x010802", 4, 4)):
        at = tmp_path / "sys/devices" / path
        at.mkdir(parents=True, exist_ok=True)
        for name, text in (("class", code), ("max_link_width", most), ("current_link_width", width)):
            (at / name).write_text(f"{text}\n")
        (tmp_path / "sys/bus/pci/devices" / at.name).symlink_to(f"../../../devices/{path}")
    rows = {row["device"]: row for row in machine.poll()["host_pcie"]}
    assert "link_width" not in rows["10000:00:02.0"]
    disk = rows["10000:01:00.0"]
    assert (disk["upstream"], disk["link_width"], disk["max_link_width"]) == ("10000:00:02.0", 4, 4)


def test_a_port_tells_of_a_link_only_once(machine):
    rows = {row["device"]: row for row in machine.poll()["host_pcie"]}
    assert "link_width" in rows["0000:4e:00.0"], "a switch's upper port has the link to the root"
    assert "link_width" not in rows["0000:4d:01.0"], "the root port would tell of the same"
    assert "link_width" not in rows["0000:4f:01.0"], "a lower port would tell of its device's"


def test_a_link_that_narrows_is_told_and_a_gpu_that_saves_power_is_not(machine, tmp_path):
    machine.poll()
    machine.tree.narrow(GPU, 8)
    rows = machine.poll()
    (event,) = rows["host_events"]
    assert (event["event"], event["device"], event["detail"]) == ("pcie_link", GPU, "x16 -> x8")
    (row,) = rows["host_pcie"]
    assert (row["link_width"], row["max_link_width"]) == (8, 16)
    machine.tree.narrow(GPU, 16)
    assert [event for event, _, _ in machine.events()] == ["pcie_link"]
    (tmp_path / "sys/bus/pci/devices" / GPU / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    rows = machine.poll()
    assert (rows["host_events"], rows["host_pcie"]) == ([], [])
    assert machine.device(GPU)["link_speed_gts"] == 2.5


@pytest.mark.parametrize(
    ("width", "speed"), [("0", "Unknown"), ("63", "Unknown speed"), ("255", ""), ("x", "5 GT/s")]
)
def test_a_link_that_is_down_or_gone_has_no_figures(machine, tmp_path, width, speed):
    at = tmp_path / "sys/bus/pci/devices" / NIC
    (at / "current_link_width").write_text(width)
    (at / "current_link_speed").write_text(speed)
    row = machine.device(NIC)
    assert "link_width" not in row
    assert row.get("link_speed_gts") in (None, 5.0)


def test_pcie_errors_are_told_by_name_and_severity(machine):
    machine.poll()
    machine.tree.pcie_errors(GPU, "correctable", "BadTLP", 3)
    machine.tree.pcie_errors(NIC, "fatal", "MalfTLP")
    rows = machine.poll()
    events = {row["device"]: row for row in rows["host_events"]}
    assert (events[GPU]["severity"], events[GPU]["occurrences"], events[GPU]["detail"]) == (
        "corrected",
        3,
        "BadTLP +3",
    )
    assert (events[NIC]["severity"], events[NIC]["detail"]) == ("fatal", "MalfTLP +1")
    devices = {row["device"]: row for row in rows["host_pcie"]}
    assert devices[GPU]["errors"] == '{"correctable":{"BadTLP":3}}'
    assert (devices[GPU]["correctable_errors"], devices[GPU]["correctable_errors_1h"]) == (3, 3)
    assert (devices[NIC]["fatal_errors"], devices[NIC]["nonfatal_errors"]) == (1, 0)
    assert machine.device(GPU, 2 * 3_600)["correctable_errors_1h"] == 0


def test_names_of_errors_may_hold_spaces_and_totals_are_no_sums(machine, tmp_path):
    at = tmp_path / "sys/bus/pci/devices" / NIC / "aer_dev_correctable"
    at.write_text("Receiver Error 2\nBad TLP 5\nReplay Timer Timeout 0\nTOTAL_ERR_COR 6\nnonsense\n 7 x\n")
    row = machine.device(NIC)
    assert row["errors"] == '{"correctable":{"Receiver Error":2,"Bad TLP":5}}'
    assert row["correctable_errors"] == 6


def test_virtual_functions_and_a_servers_own_screen_are_no_devices(machine, tmp_path):
    for address, code, vendor in (
        ("0000:e0:00.1", "0x020000", "0x15b3"),
        ("0000:03:00.0", "0x030000", "0x1a03"),
    ):
        at = tmp_path / "sys/bus/pci/devices" / address
        at.mkdir()
        (at / "class").write_text(code)
        (at / "vendor").write_text(vendor)
    (tmp_path / "sys/bus/pci/devices/0000:e0:00.1/physfn").symlink_to(f"../{NIC}")
    (sample,) = machine.poll()["host_samples"]
    assert (sample["gpus"], sample["nics"]) == (2, 2)


def test_a_clock_that_loses_its_source_is_told_when_it_does(machine):
    machine.timekeeper.now = ClockState(source="kernel", synchronised=True, offset_seconds=0.01)
    assert machine.poll()["host_samples"][0]["clock_offset_seconds"] == 0.01
    machine.timekeeper.now = ClockState(source="kernel", synchronised=False)
    assert machine.events() == [("clock_unsynchronised", None, None)]
    assert machine.events() == []
    machine.timekeeper.now = None
    assert "clock_synchronised" not in machine.poll()["host_samples"][0]
    machine.timekeeper.now = ClockState(source="kernel", synchronised=True)
    assert machine.events() == [("clock_synchronised", None, None)]


def test_a_file_that_cannot_be_read_costs_its_own_value_only(machine, tmp_path):
    machine.poll()
    for path in ("devices/system/edac/mc/mc0/dimm0/dimm_ce_count", f"bus/pci/devices/{GPU}/aer_dev_fatal"):
        (tmp_path / "sys" / path).unlink()
        (tmp_path / "sys" / path).mkdir()
    (tmp_path / "proc/loadavg").write_text("what?")
    (tmp_path / "proc/meminfo").write_text("MemTotal: many kB\nMemFree: 12 kB\n")
    (tmp_path / "sys/devices/system/edac/mc/mc1/dimm0/dimm_ue_count").write_text("-ENODEV\n")
    reading = machine.collector.collect(machine.now_us + MINUTE)
    (dimms,) = [rows for rows in reading.rows if rows.stream is HOST_DIMMS]
    assert len(dimms) == 24
    assert reading.rejected["refused"] == 2
    assert reading.rejected["not_a_number"] == 1
    assert HOST_EVENTS not in [rows.stream for rows in reading.rows]


def test_a_value_that_comes_back_after_it_could_not_be_read_is_no_rise(machine, tmp_path):
    machine.tree.corrected_errors("mc0/dimm0", 50)
    machine.poll()
    at = tmp_path / "sys/devices/system/edac/mc/mc0/dimm0/dimm_ce_count"
    at.write_text("EIO")
    machine.poll()
    at.write_text("50\n")
    assert machine.events() == []


def test_memory_counted_by_row_and_channel_is_read_too(machine, tmp_path):
    """Before Linux 4.10 modules had no counters of their own."""
    at = tmp_path / "sys/devices/system/edac/mc/mc0"
    for dimm in ("dimm0", "dimm1"):
        for file in ("dimm_ce_count", "dimm_ue_count"):
            (at / dimm / file).unlink()
    row = at / "csrow2"
    row.mkdir()
    files = {
        "ce_count": 3,
        "ue_count": 1,
        "ch0_ce_count": 3,
        "ch1_ce_count": 0,
        "size_mb": 16_384,
        "mem_type": "Registered-DDR3",
    }
    for name, value in files.items():
        (row / name).write_text(f"{value}\n")
    (row / "ch0_dimm_label").write_text("DIMM_A1\n")
    rows = {row["dimm"]: row for row in machine.poll()["host_dimms"] if row["dimm"].startswith("mc0")}
    assert rows.keys() == {"mc0", "mc0/csrow2", "mc0/csrow2/ch0", "mc0/csrow2/ch1"}
    assert (rows["mc0/csrow2/ch0"]["corrected_errors"], rows["mc0/csrow2/ch0"]["label"]) == (3, "DIMM_A1")
    assert (rows["mc0/csrow2"]["uncorrected_errors"], rows["mc0/csrow2"]["size_mib"]) == (1, 16_384)


def test_a_machine_that_tells_nothing_is_an_error(tmp_path):
    collector = host_collector(tmp_path / "no", tmp_path / "no")
    with pytest.raises(CollectError) as raised:
        collector.collect(START_US)
    assert raised.value.reason == "no_data"


def test_the_machine_of_this_test_is_read_whole():
    collector = HostCollector(
        MachineConfig(collector="host", host="h1"), Context(hall=HallSection(name="test"), clock=SYSTEM_CLOCK)
    )
    collector.collect(START_US)
    SYSTEM_CLOCK.sleep(0.1)  # the kernel counts in hundredths of a second
    reading = collector.collect(START_US + MINUTE)
    by_stream = {rows.stream.name: rows for rows in reading.rows}
    ((sample,), rejected) = clean(
        Rows(stream=HOST_SAMPLES, columns={"host": ["h1"], **by_stream["host_samples"].columns})
    )
    assert not rejected
    assert len(sample["boot_id"]) == 36
    assert sample["cpus"] >= 1
    assert 0 <= sample["cpu_busy_ratio"] <= 1
    assert sample["memory_total_bytes"] > 2**26
    assert sample["memory_available_bytes"] <= sample["memory_total_bytes"]
    assert sample["uptime_seconds"] > 0
    assert "host_events" not in by_stream


_CONTENTS = st.one_of(
    st.binary(max_size=64),
    st.sampled_from(
        [b"18446744073709551615", b"-1", b"\xc2\xb2", b"99999999999999999999999", b"nan", b"", b"1 " * 40]
    ),
    st.integers(0, 2**70).map(
        lambda number: f"TOTAL_ERR_COR {number}\nRxErr {number}\ncpu {number}".encode()
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_the_files_hold_a_reading_gives_rows_that_the_contract_takes(data, machine, tmp_path):
    files = sorted(
        path for root in ("proc", "sys") for path in (tmp_path / root).rglob("*") if path.is_file()
    )
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=12, unique=True)):
        path.write_bytes(data.draw(_CONTENTS))
    machine.now_us += 10_000_000
    for rows in machine.collector.collect(machine.now_us).rows:
        clean(Rows(stream=rows.stream, columns={"host": ["h1"] * len(rows), **rows.columns}))
    machine.restart()


class StuckClock(FakeClock):
    """Stands still for so many looks at it, then jumps beyond every deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.jumps_at = -1

    def monotonic(self) -> float:
        self.looks += 1
        if self.looks == self.jumps_at:
            self.advance(100)
        return super().monotonic()


def test_wherever_a_reading_takes_too_long_it_is_an_error_and_loses_no_event(machine):
    clock = StuckClock()
    roots = {"procfs_root": machine.tree.procfs, "sysfs_root": machine.tree.sysfs}
    machine.collector = HostCollector(
        MachineConfig(collector="host", host="h1", **roots),
        Context(hall=HallSection(name="test"), clock=clock),
        timekeeper=machine.timekeeper,
    )
    machine.poll()
    clock.looks = 0
    machine.poll()
    looks = clock.looks
    assert looks > 100
    for at in range(3, looks + 1, 9):
        machine.tree.corrected_errors("mc7/dimm1", 2)
        clock.looks, clock.jumps_at = 0, at
        with pytest.raises(CollectError) as raised:
            machine.poll()
        assert raised.value.reason == "timeout"
        clock.jumps_at = -1
        assert machine.events(61) == [("dimm_ce", "mc7/dimm1", 2)]


def test_a_bus_that_is_listed_late_after_a_reboot_is_judged_as_after_a_reboot(machine, tmp_path):
    machine.poll()
    machine.tree.reboot()
    devices = tmp_path / "sys/bus/pci/devices"
    devices.rename(tmp_path / "away")
    machine.restart()
    assert machine.events() == [("reboot", None, None)]
    (tmp_path / "away").rename(devices)
    (devices / GPU).rename(devices / "0000:54:00.0")
    assert machine.events() == []
