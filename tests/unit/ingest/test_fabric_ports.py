"""Ports of RDMA devices: what a look at sysfs makes of them, and what two looks do."""

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.errors import CollectError
from contract.stream import ColumnKind
from contract.streams.fabric import FABRIC_EVENTS, FABRIC_PORTS
from contract.testing import START_US, FakeClock
from ingest.fabric.counters import COUNTERS
from ingest.fabric.port import parse_guid, parse_rate, parse_state
from ingest.fabric.testing import INFINIBAND, PORT, ports_collector, write_tree
from ingest.testing import clean, rows_of

SECOND = 1_000_000
MINUTE = 60 * SECOND
GUID = "0x58a2e10300123456"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_tree(tmp_path, INFINIBAND)
    return tmp_path


def look(collector, seconds=0.0):
    reading = collector.collect(START_US + round(seconds * SECOND))
    for rows in reading.rows:
        assert clean(rows)[1] == {}
    return reading


def ports(reading):
    return rows_of(reading, FABRIC_PORTS)


def events(reading):
    return [(row["event"], row["occurrences"]) for row in rows_of(reading, FABRIC_EVENTS)]


def port(collector, seconds=0.0):
    (row,) = ports(look(collector, seconds))
    return row


def change(root, **counters):
    write_tree(root, {f"{PORT}/counters/{name}": str(count) for name, count in counters.items()})


# -- the table of counters --------------------------------------------------------------------------------


def test_every_counter_of_the_table_has_a_column_and_every_column_a_file():
    columns = {counter.column for folder in COUNTERS.values() for counter in folder.values()}
    declared = {column.name for column in FABRIC_PORTS.columns if column.kind is ColumnKind.COUNTER}
    assert columns == declared - {"carrier_changes"}


def test_data_is_counted_in_words_of_four_bytes_and_waits_in_ticks(root):
    change(root, port_xmit_data=2880761508848, port_xmit_wait=3599)
    row = port(ports_collector(root))
    assert row["tx_bytes"] == 11523046035392
    assert row["port_xmit_wait_ticks"] == 3599


@pytest.mark.parametrize(
    ("counter", "most"),
    [
        ("local_link_integrity_errors", 15),
        ("link_downed", 255),
        ("symbol_error", 65_535),
        ("port_xmit_wait", 2**32 - 1),
    ],
)
def test_a_counter_at_the_most_its_width_holds_is_named_and_one_below_is_not(root, counter, most):
    collector = ports_collector(root)
    change(root, **{counter: most - 1})
    assert "saturated" not in port(collector)
    change(root, **{counter: most})
    assert port(collector, 10)["saturated"].startswith(counter)


def test_words_beyond_what_a_column_holds_are_no_value_and_cost_no_row(root):
    change(root, port_xmit_data=2**64 - 1, port_rcv_data=2**32 - 1)
    row = port(ports_collector(root))
    assert "tx_bytes" not in row
    assert row["rx_bytes"] == (2**32 - 1) * 4
    assert row["saturated"] == "rx_bytes,tx_bytes"


def test_the_wide_counters_of_an_old_kernel_count_more_than_the_narrow_ones(root):
    change(root, port_xmit_data=2**32 - 1)
    write_tree(root, {f"{PORT}/counters_ext/port_xmit_data_64": "5000000000"})
    row = port(ports_collector(root))
    assert row["tx_bytes"] == 20_000_000_000
    assert "saturated" not in row


# -- texts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("400 Gb/sec (4X NDR)", (400.0, 4, "NDR")),
        ("2.5 Gb/sec (1X SDR)", (2.5, 1, "SDR")),
        ("10 Gb/sec (4X)", (10.0, 4, "SDR")),
        ("56 Gb/sec (4X FDR10)", (56.0, 4, "FDR10")),
    ],
)
def test_a_rate_is_speed_lanes_and_generation(text, parts):
    assert tuple(parse_rate(text).values()) == parts


@pytest.mark.parametrize("text", [None, "", "N/A", "400", "400 Gb/sec", "-1 Gb/sec (4X NDR)"])
def test_what_is_no_rate_is_none(text):
    assert parse_rate(text) == {}


def test_a_state_goes_by_its_number():
    states = ("zero", "one", "two")
    assert [parse_state(text, states) for text in ("1: LINK", "2", "0: NOP", "3: x", "ACTIVE", "", None)] == [
        "one", "two", "zero", None, None, None, None,
    ]  # fmt: skip


def test_a_guid_is_written_as_in_the_inventory_and_zero_is_none():
    assert parse_guid("fe80:0000:0000:0000:58a2:e103:0012:3456") == GUID
    assert [parse_guid(text) for text in ("0000:0000:0000:0000", "58a2:e103", "", None)] == [None] * 4


@given(st.text(max_size=40))
def test_no_text_of_a_device_is_an_error(text):
    parse_rate(text)
    parse_state(text, ("a", "b"))
    parse_guid(text)


# -- files that give nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["N/A (no PMA)", "", "x", "-1"])
def test_a_counter_without_a_value_costs_only_itself(root, text):
    change(root, symbol_error=text)
    reading = look(ports_collector(root))
    (row,) = ports(reading)
    assert "symbol_error" not in row
    assert row["tx_bytes"] == 4000
    assert row["link_state"] == "active"


def test_files_that_cannot_be_read_are_counted(root):
    change(root, symbol_error="N/A (no PMA)")
    shutil.rmtree(root / PORT / "counters" / "link_downed", ignore_errors=True)
    (root / PORT / "counters" / "link_downed").unlink()
    (root / PORT / "counters" / "link_downed").mkdir()
    reading = look(ports_collector(root))
    assert ports(reading)[0]["unreadable_files"] == 2
    assert reading.rejected == {"not_a_number": 1, "refused": 1}


def test_a_port_without_a_state_and_without_counters_is_still_a_port(tmp_path):
    (tmp_path / PORT).mkdir(parents=True)
    row = port(ports_collector(tmp_path))
    assert (row["port_id"], row["present"], row["in_use"]) == ("h1/mlx5_0/1", True, False)


def test_a_link_that_is_down_has_no_speed(root):
    write_tree(root, {f"{PORT}/state": "1: DOWN", f"{PORT}/rate": "10 Gb/sec (4X SDR)"})
    row = port(ports_collector(root))
    assert row["link_state"] == "down"
    assert "speed_gbps" not in row


NAMES = [name for folder in COUNTERS.values() for name in folder]


@given(
    st.dictionaries(
        st.sampled_from(["node_guid", "fw_ver", "ports/1/state", "ports/1/rate", "ports/1/gid_attrs/ndevs/0"])
        | st.builds(
            "ports/1/{}/{}".format, st.sampled_from(["counters", "hw_counters"]), st.sampled_from(NAMES)
        ),
        st.binary(max_size=30) | st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
        max_size=12,
    )
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_files_hold_the_port_has_a_row_that_the_stream_takes(tmp_path, files):
    shutil.rmtree(tmp_path / "class", ignore_errors=True)
    (tmp_path / PORT).mkdir(parents=True)
    for name, content in files.items():
        path = tmp_path / "class/infiniband/mlx5_0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    collector = ports_collector(tmp_path)
    for seconds in (0, 60):
        (row,) = ports(collector.collect(START_US + seconds * SECOND))
        assert row["present"]
    collector.restore(collector.cursor())


def test_no_sysfs_and_no_device_are_told_apart(tmp_path):
    with pytest.raises(CollectError) as caught:
        ports_collector(tmp_path / "nowhere").collect(START_US)
    assert caught.value.reason == "unreachable"
    (tmp_path / "class").mkdir()
    with pytest.raises(CollectError) as caught:
        ports_collector(tmp_path).collect(START_US)
    assert caught.value.reason == "no_data"


class ImpatientClock(FakeClock):
    """Lets a little time pass whenever it is asked."""

    def monotonic(self) -> float:
        self.advance(0.01)
        return super().monotonic()


def test_a_reading_that_takes_too_long_sends_the_ports_it_has_and_misses_none(root):
    for number in range(1, 20):
        shutil.copytree(root / "class/infiniband/mlx5_0", root / f"class/infiniband/mlx5_{number}")
        write_tree(root, {f"class/infiniband/mlx5_{number}/node_guid": f"0000:0000:0000:{number:04x}"})
    expected = [{"devices": [f"mlx5_{number}" for number in range(20)]}]
    collector = ports_collector(root, clock=ImpatientClock(), timeout_seconds=2, expected=expected)
    reading = look(collector)
    found = ports(reading)
    assert 0 < len(found) < 20
    assert all(row["present"] for row in found)
    assert reading.rejected["timeout"] == 20 - len(found)


# -- identity ---------------------------------------------------------------------------------------------


def test_a_port_stays_itself_when_its_device_is_renamed(root):
    collector = ports_collector(root)
    assert port(collector)["port_id"] == f"{GUID}/1"
    (root / "class/infiniband/mlx5_0").rename(root / "class/infiniband/mlx5_ib7")
    reading = look(collector, 10)
    assert [(row["device"], row["port_id"]) for row in ports(reading)] == [("mlx5_ib7", f"{GUID}/1")]
    assert events(reading) == []


def test_two_devices_with_one_guid_are_called_by_their_place(root):
    shutil.copytree(root / "class/infiniband/mlx5_0", root / "class/infiniband/mlx5_1")
    reading = look(ports_collector(root))
    assert [row["port_id"] for row in ports(reading)] == ["h1/mlx5_0/1", "h1/mlx5_1/1"]
    assert reading.rejected == {"repeated_guid": 2}


def test_a_port_without_a_guid_is_called_by_its_pci_address(root):
    write_tree(root, {"class/infiniband/mlx5_0/node_guid": "0000:0000:0000:0000"})
    (root / "class/infiniband/mlx5_0/device").symlink_to("../../devices/pci0000:50/0000:53:00.0")
    row = port(ports_collector(root))
    assert (row["port_id"], row["pci_bus_id"]) == ("h1/0000:53:00.0/1", "0000:53:00.0")


# -- changes ----------------------------------------------------------------------------------------------


def test_the_first_look_tells_nothing_whatever_has_been_counted(root):
    change(root, link_downed=7, symbol_error=900)
    reading = look(ports_collector(root))
    assert events(reading) == []
    assert ports(reading)[0]["symbol_errors_12_minutes"] == 0


def test_a_link_that_goes_down_and_comes_back_is_told_each_time(root):
    collector = ports_collector(root)
    look(collector)
    write_tree(root, {f"{PORT}/state": "1: DOWN"})
    change(root, link_downed=1)
    assert events(look(collector, 10)) == [("link_down", 1)]
    assert events(look(collector, 20)) == []
    write_tree(root, {f"{PORT}/state": "4: ACTIVE"})
    assert events(look(collector, 30)) == [("link_up", 1)]


def test_losses_between_two_looks_are_told_one_by_one_to_a_limit(root):
    collector = ports_collector(root)
    look(collector)
    change(root, link_downed=3)
    assert events(look(collector, 10)) == [("link_down", 1)] * 3 + [("link_up", 3)]
    change(root, link_downed=103)
    told = events(look(collector, 20))
    assert len(told) == 11
    assert sum(count for event, count in told if event == "link_down") == 100


def test_a_counter_that_was_set_back_is_no_loss(root):
    change(root, link_downed=5, symbol_error=800)
    collector = ports_collector(root)
    look(collector)
    change(root, link_downed=0, symbol_error=3)
    reading = look(collector, 10)
    assert events(reading) == []
    assert ports(reading)[0]["symbol_errors_12_minutes"] == 0


def test_losses_while_a_counter_could_not_be_read_are_told_when_it_can(root):
    collector = ports_collector(root)
    look(collector)
    change(root, link_downed="N/A (no PMA)", symbol_error="N/A (no PMA)")
    assert events(look(collector, 10)) == []
    change(root, link_downed=2, symbol_error=7)
    reading = look(collector, 20)
    assert events(reading) == [("link_down", 1)] * 2 + [("link_up", 2)]
    assert ports(reading)[0]["symbol_errors_12_minutes"] == 7


def test_symbol_errors_of_a_time_without_a_reading_are_as_old_as_the_last_one(root):
    collector = ports_collector(root)
    look(collector)
    change(root, symbol_error="N/A (no PMA)")
    look(collector, 3_000)
    change(root, symbol_error=7)
    row = port(collector, 3_600)
    assert (row["symbol_errors_12_minutes"], row["symbol_errors_125_minutes"]) == (0, 7)


def test_a_loss_that_was_seen_while_its_counter_could_not_be_read_is_not_told_twice(root):
    collector = ports_collector(root)
    look(collector)
    change(root, link_downed="N/A (no PMA)")
    write_tree(root, {f"{PORT}/state": "1: DOWN"})
    assert events(look(collector, 10)) == [("link_down", 1)]
    change(root, link_downed=1)
    write_tree(root, {f"{PORT}/state": "4: ACTIVE"})
    assert events(look(collector, 20)) == [("link_up", 1)]


def test_speed_and_lanes_that_change_are_told_when_the_link_is_up_again(root):
    collector = ports_collector(root)
    look(collector)
    write_tree(root, {f"{PORT}/state": "1: DOWN", f"{PORT}/rate": "10 Gb/sec (4X SDR)"})
    assert events(look(collector, 10)) == [("link_down", 1)]
    write_tree(root, {f"{PORT}/state": "4: ACTIVE", f"{PORT}/rate": "50 Gb/sec (1X HDR)"})
    assert events(look(collector, 20)) == [("link_up", 1), ("speed_lowered", 1), ("width_lowered", 1)]
    write_tree(root, {f"{PORT}/rate": "400 Gb/sec (4X NDR)"})
    reading = look(collector, 30)
    assert events(reading) == [("speed_raised", 1), ("width_raised", 1)]
    first = rows_of(reading, FABRIC_EVENTS)[0]
    assert (first["detail"], first["port_id"], first["evidence"]) == (
        "50 Gb/s -> 400 Gb/s",
        f"{GUID}/1",
        "sysfs",
    )


def test_a_restart_of_the_collector_forgets_nothing(root):
    before = ports_collector(root)
    look(before)
    change(root, symbol_error=5)
    look(before, 10)
    change(root, link_downed=1, symbol_error=9)
    after = ports_collector(root)
    after.restore(before.cursor())
    reading = look(after, 40)
    assert events(reading) == [("link_down", 1), ("link_up", 1)]
    assert ports(reading)[0]["symbol_errors_12_minutes"] == 9


@pytest.mark.parametrize(
    "cursor",
    [
        b"",
        b"[]",
        b"{",
        b'{"a": 1}',
        b'{"a": {"seen_us": "x"}}',
        b'{"a": {"samples": [[1, 2]]}}',
        b'{"a": {}}',
        b"\xff",
    ],
)
def test_a_cursor_that_cannot_be_read_is_as_good_as_none(root, cursor):
    collector = ports_collector(root, expected=[{"devices": ["mlx5_0"]}])
    collector.restore(cursor)
    assert events(look(collector)) == []
    assert events(look(collector, 10)) == []


# -- boots ------------------------------------------------------------------------------------------------


def booted(tmp_path, uptime_seconds):
    write_tree(tmp_path, {"proc/uptime": f"{uptime_seconds}.25 1000.00"})


def test_links_that_train_in_the_first_minutes_after_a_boot_are_no_losses(root):
    booted(root, 100)
    collector = ports_collector(root, proc_root=root / "proc")
    assert port(collector)["uptime_seconds"] == 100
    change(root, link_downed=4, symbol_error=60)
    write_tree(root, {f"{PORT}/state": "2: INIT"})
    booted(root, 110)
    reading = look(collector, 10)
    assert events(reading) == []
    assert ports(reading)[0]["symbol_errors_12_minutes"] == 0
    booted(root, 700)
    change(root, link_downed=5)
    assert events(look(collector, 600)) == [("link_down", 1)]


def test_what_was_counted_before_a_boot_is_not_compared_with_what_is_counted_since(root):
    booted(root, 90_000)
    collector = ports_collector(root, proc_root=root / "proc")
    look(collector)
    booted(root, 1_000)
    change(root, link_downed=2, symbol_error=50)
    reading = look(collector, 2_000)
    assert events(reading) == []
    assert ports(reading)[0]["symbol_errors_12_minutes"] == 0


# -- symbol errors ----------------------------------------------------------------------------------------


def test_symbol_errors_are_set_against_what_the_live_link_carries(root):
    collector = ports_collector(root)
    look(collector)
    change(root, symbol_error=3)
    row = port(collector, 10)
    assert row["symbol_errors_12_minutes"] == row["symbol_errors_125_minutes"] == 3
    assert row["bit_error_ratio_12_minutes"] == pytest.approx(3 / (400e9 * 720))
    assert row["bit_error_ratio_125_minutes"] == pytest.approx(3 / (400e9 * 7500))
    write_tree(root, {f"{PORT}/rate": "100 Gb/sec (4X EDR)"})
    assert port(collector, 20)["bit_error_ratio_12_minutes"] == pytest.approx(3 / (100e9 * 720))


def test_the_first_errors_of_a_counter_that_stood_at_zero_count(root):
    collector = ports_collector(root)
    look(collector)
    change(root, symbol_error=1)
    assert port(collector, 10)["symbol_errors_12_minutes"] == 1


def test_symbol_errors_leave_the_windows_as_time_passes(root):
    collector = ports_collector(root)
    look(collector)
    change(root, symbol_error=40)
    look(collector, 10)
    gathered = [
        (row["symbol_errors_12_minutes"], row["symbol_errors_125_minutes"])
        for row in (port(collector, minutes * 60) for minutes in (11, 13, 124, 126))
    ]
    assert gathered == [(40, 40), (0, 40), (0, 40), (0, 0)]


def test_errors_of_a_long_silence_are_not_thought_to_be_of_now(root):
    collector = ports_collector(root)
    look(collector)
    change(root, symbol_error=40)
    row = port(collector, 3_600)
    assert (row["symbol_errors_12_minutes"], row["symbol_errors_125_minutes"]) == (0, 40)


def test_a_counter_of_symbol_errors_that_has_stopped_gives_no_ratio(root):
    change(root, symbol_error=65_500)
    collector = ports_collector(root)
    look(collector)
    change(root, symbol_error=65_535)
    assert port(collector, 10)["symbol_errors_12_minutes"] == 35
    row = port(collector, 20)
    assert "symbol_errors_12_minutes" not in row
    assert "bit_error_ratio_12_minutes" not in row
    assert row["saturated"] == "symbol_error"


# -- rates ------------------------------------------------------------------------------------------------


def test_rates_are_means_of_a_minute_and_there_are_none_before(root):
    collector = ports_collector(root)
    rates = []
    for step in range(8):
        change(root, port_xmit_data=1000 + step * 2500)
        rates.append(port(collector, step * 10).get("tx_bytes_per_second"))
    assert rates == [None] * 6 + [1000.0] * 2


def test_a_rate_has_no_past_when_its_counter_was_set_back(root):
    collector = ports_collector(root)
    change(root, port_xmit_data=10**9)
    look(collector)
    change(root, port_xmit_data=0)
    assert "tx_bytes_per_second" not in port(collector, 60)
    change(root, port_xmit_data=1500)
    assert port(collector, 120)["tx_bytes_per_second"] == 100.0


# -- expectations -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlx5_0", "0000:53:00.0", GUID, "58a2:e103:0012:3456"])
def test_what_is_expected_stands_beside_what_is_however_the_device_is_listed(root, name):
    (root / "class/infiniband/mlx5_0/device").symlink_to("../../devices/pci0000:50/0000:53:00.0")
    expected = [{"devices": [name], "speed_gbps": 800, "width": 4}]
    row = port(ports_collector(root, expected=expected))
    assert (row["expected_speed_gbps"], row["expected_width"], row["in_use"]) == (800, 4, True)
    assert row["listing"] == f"h1/{GUID if name.startswith('58') else name}/1"


def test_a_port_that_comes_late_is_the_one_that_was_listed(root):
    collector = ports_collector(root, expected=[{"devices": ["mlx5_0", "0000:64:00.0"]}])
    listed = {row["listing"]: (row["port_id"], row["present"]) for row in ports(look(collector))}
    assert listed["h1/0000:64:00.0/1"] == ("h1/0000:64:00.0/1", False)
    write_tree(root, {path.replace("mlx5_0", "mlx5_1"): text for path, text in INFINIBAND.items()})
    write_tree(root, {"class/infiniband/mlx5_1/node_guid": "58a2:e103:0012:3457"})
    (root / "class/infiniband/mlx5_1/device").symlink_to("../../devices/pci0000:60/0000:64:00.0")
    listed = {row["listing"]: (row["port_id"], row["present"]) for row in ports(look(collector, 10))}
    assert listed["h1/0000:64:00.0/1"] == ("0x58a2e10300123457/1", True)


def test_a_listed_port_that_is_not_there_has_a_row_under_the_identity_it_last_had(root):
    collector = ports_collector(root, expected=[{"devices": ["mlx5_0", "mlx5_1"], "speed_gbps": 400}])
    first = {row["port_id"]: row["present"] for row in ports(look(collector))}
    assert first == {f"{GUID}/1": True, "h1/mlx5_1/1": False}
    shutil.rmtree(root / "class/infiniband/mlx5_0")
    reading = look(collector, 10)
    assert [(row["port_id"], row["present"], row["device"]) for row in ports(reading)] == [
        (f"{GUID}/1", False, "mlx5_0"),
        ("h1/mlx5_1/1", False, "mlx5_1"),
    ]
    assert events(reading) == []
    assert events(look(collector, 20)) == [("device_gone", 1)]
    assert events(look(collector, 30)) == []
    write_tree(root, INFINIBAND)
    assert events(look(collector, 40)) == [("device_back", 1)]


@pytest.mark.parametrize("gone", ["class/infiniband/mlx5_0", "class/infiniband"])
def test_the_loss_of_all_ports_is_told_once_and_then_there_is_no_data(root, gone):
    collector = ports_collector(root)
    look(collector)
    shutil.rmtree(root / gone)
    told = []
    for seconds in (10, 20, 30):
        try:
            told.append(events(look(collector, seconds)))
        except CollectError as error:
            told.append(error.reason)
    assert told == ["no_data", [("device_gone", 1)], "no_data"]
    write_tree(root, INFINIBAND)
    assert events(look(collector, 40)) == [("device_back", 1)]


def test_one_look_without_a_device_is_no_event(root):
    collector = ports_collector(root)
    write_tree(root, {path.replace("mlx5_0", "mlx5_1"): text for path, text in INFINIBAND.items()})
    write_tree(root, {"class/infiniband/mlx5_1/node_guid": "58a2:e103:0012:3457"})
    look(collector)
    hidden = root / "hidden"
    (root / "class/infiniband/mlx5_1").rename(hidden)
    assert events(look(collector, 10)) == []
    hidden.rename(root / "class/infiniband/mlx5_1")
    assert events(look(collector, 20)) == []


def test_a_port_that_was_never_up_and_is_not_listed_is_not_in_use(root):
    write_tree(root, {f"{PORT}/state": "1: DOWN"})
    collector = ports_collector(root)
    assert port(collector)["in_use"] is False
    write_tree(root, {f"{PORT}/state": "4: ACTIVE"})
    assert port(collector, 10)["in_use"] is True
    write_tree(root, {f"{PORT}/state": "1: DOWN"})
    assert port(collector, 20)["in_use"] is True


# -- values that last -------------------------------------------------------------------------------------


def test_a_port_is_not_read_again_while_its_driver_would_repeat_itself(root):
    write_tree(root, {f"{PORT}/hw_counters/lifespan": "12", f"{PORT}/hw_counters/out_of_sequence": "1"})
    collector = ports_collector(root)
    assert len(ports(look(collector))) == 1
    early = look(collector, 0.011)
    assert (early.rows, early.skipped) == ([], {"within_lifespan": 1})
    assert len(ports(look(collector, 0.012))) == 1


def test_a_port_that_is_not_read_is_not_missing(root):
    write_tree(root, {f"{PORT}/hw_counters/lifespan": "10000"})
    collector = ports_collector(root, expected=[{"devices": ["mlx5_0"]}])
    look(collector)
    assert [look(collector, seconds).rows for seconds in (1, 2, 3)] == [[], [], []]


# -- interfaces -------------------------------------------------------------------------------------------


def test_a_roce_port_loses_its_link_when_its_interface_loses_the_carrier(root):
    write_tree(
        root,
        {
            f"{PORT}/link_layer": "Ethernet",
            f"{PORT}/gid_attrs/ndevs/0": "eth4",
            "class/net/eth4/operstate": "up",
            "class/net/eth4/carrier_changes": "2",
        },
    )
    collector = ports_collector(root)
    row = port(collector)
    assert (row["interface"], row["operstate"], row["carrier_changes"]) == ("eth4", "up", 2)
    write_tree(root, {"class/net/eth4/carrier_changes": "6"})
    assert events(look(collector, 10)) == [("link_down", 1), ("link_down", 1), ("link_up", 2)]


def roce(root, interface="eth4", **files):
    write_tree(root, {f"{PORT}/link_layer": "Ethernet", f"{PORT}/gid_attrs/ndevs/0": interface})
    write_tree(root, {f"class/net/{interface}/{name}": text for name, text in files.items()})


def test_a_carrier_that_could_not_be_read_hides_no_loss_and_doubles_none(root):
    roce(root, carrier_changes="2")
    collector = ports_collector(root)
    look(collector)
    roce(root, carrier_changes="?")
    assert events(look(collector, 10)) == []
    roce(root, carrier_changes="4")
    assert events(look(collector, 20)) == [("link_down", 1), ("link_up", 1)]
    roce(root, carrier_changes="?")
    change(root, link_downed=1)
    assert events(look(collector, 30)) == [("link_down", 1), ("link_up", 1)]
    write_tree(root, {f"{PORT}/state": "1: DOWN"})
    change(root, link_downed=2)
    assert events(look(collector, 40)) == [("link_down", 1)]
    roce(root, carrier_changes="7")
    assert events(look(collector, 50)) == []


def test_the_carrier_of_another_interface_is_not_compared(root):
    roce(root, carrier_changes="2")
    collector = ports_collector(root)
    look(collector)
    roce(root, "eth5", carrier_changes="?")
    look(collector, 10)
    roce(root, "eth5", carrier_changes="90")
    assert events(look(collector, 20)) == []
    roce(root, "eth5", carrier_changes="92")
    assert events(look(collector, 30)) == [("link_down", 1), ("link_up", 1)]


def test_the_interface_of_a_port_is_the_one_with_its_number(root):
    net = "class/infiniband/mlx5_0/device/net"
    write_tree(
        root, {f"{net}/ib8/dev_port": "1", f"{net}/ib7/dev_port": "0", "class/net/ib7/operstate": "up"}
    )
    assert port(ports_collector(root))["interface"] == "ib7"


def test_an_infiniband_port_is_not_asked_for_what_only_roce_has(root):
    write_tree(
        root, {f"{PORT}/gid_attrs/ndevs/0": "eth9", "class/infiniband/mlx5_0/device/net/ib7/dev_port": "0"}
    )
    assert port(ports_collector(root))["interface"] == "ib7"


@pytest.mark.parametrize("name", ["../../etc", "..", "a b", "x" * 16])
def test_what_is_no_name_of_an_interface_leads_nowhere(root, name):
    write_tree(root, {f"{PORT}/gid_attrs/ndevs/0": name, f"{PORT}/link_layer": "Ethernet"})
    assert "interface" not in port(ports_collector(root))


def test_the_link_of_an_efa_is_that_of_its_interface_whatever_its_driver_says(tmp_path):
    efa = "class/infiniband/efa_0/ports/1"
    write_tree(tmp_path, {f"{efa}/state": "4: ACTIVE", f"{efa}/phys_state": "5: LinkUp"})
    write_tree(tmp_path, {f"{efa}/link_layer": "Unknown", "class/net/ens32/operstate": "up"})
    row = port(ports_collector(tmp_path))
    assert "link_state" not in row
    assert "phys_state" not in row
    collector = ports_collector(tmp_path, interfaces={"efa_0": "ens32"})
    assert port(collector)["link_state"] == "active"
    write_tree(tmp_path, {"class/net/ens32/operstate": "down"})
    reading = look(collector, 10)
    assert ports(reading)[0]["link_state"] == "down"
    assert events(reading) == [("link_down", 1)]
