"""Every tree of sysfs of the capture folder, read to the truth its list states."""

from pathlib import Path

import pytest

from contract.streams.fabric import FABRIC_EVENTS, FABRIC_PORTS
from contract.testing import START_US
from ingest.fabric.testing import ports_collector
from ingest.testing import clean, rows_of
from tests.suites.rules_over_readings import told

pytestmark = pytest.mark.integration

SNAPSHOTS = ("s1_before_load", "s2_after_reboot_small_traffic", "s3_after_120s_bulk")
TIMES_SECONDS = (0.0, 3_600.0, 3_720.0)
"""The bulk write took two minutes; between the first two the instance was rebooted."""


def read(collector, seconds=0.0):
    reading = collector.collect(START_US + round(seconds * 1e6))
    for rows in reading.rows:
        assert clean(rows)[1] == {}
    assert reading.rejected == {}
    return reading


@pytest.fixture
def adapters(vectors: Path, tmp_path: Path) -> Path:
    """Return a root whose class of devices are the adapters of the capture; a licence among them is none."""
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "infiniband").symlink_to(vectors / "fabric" / "sysfs-procfs")
    return tmp_path


@pytest.fixture
def ports(adapters: Path):
    rows = rows_of(read(ports_collector(adapters)), FABRIC_PORTS)
    return {(row["device"], row["port"]): row for row in rows}


def test_every_port_of_every_adapter_has_a_row_and_the_licence_has_none(ports):
    assert list(ports) == [("hfi1_0", 1), ("mlx4_0", 1), ("mlx4_0", 2), ("mlx5_0", 1)]
    assert {row["link_state"] for row in ports.values()} == {"active"}
    assert {row["link_layer"] for row in ports.values()} == {"infiniband"}
    assert {row["unreadable_files"] for row in ports.values()} == {0}
    assert all("saturated" not in row for row in ports.values())


def test_omni_path_has_no_type_and_all_else(ports):
    row = ports["hfi1_0", 1]
    assert "hca_type" not in row
    assert (row["speed_gbps"], row["width"], row["generation"]) == (100, 4, "EDR")
    assert row["phys_state"] == "link_up"
    assert row["rx_bytes"] == 345091702026 * 4
    assert row["tx_bytes"] == 273558326543 * 4
    assert (row["rx_packets"], row["tx_packets"]) == (638036947, 568318856)


@pytest.mark.parametrize(
    ("port", "rx_words", "tx_words", "wait_ticks"),
    [(1, 2221223609, 26509113295, 3599), (2, 2460436784, 26540356890, 3846)],
)
def test_both_ports_of_an_old_adapter_count_for_themselves(ports, port, rx_words, tx_words, wait_ticks):
    row = ports["mlx4_0", port]
    assert (row["rx_bytes"], row["tx_bytes"]) == (rx_words * 4, tx_words * 4)
    assert row["port_xmit_wait_ticks"] == wait_ticks
    assert (row["speed_gbps"], row["width"], row["generation"]) == (40, 4, "QDR")
    assert (row["hca_type"], row["firmware"], row["board_id"]) == ("MT4099", "2.31.5050", "SM_1141000001000")


def test_a_physical_state_is_its_number_and_one_lane_is_one_lane(ports):
    row = ports["mlx5_0", 1]
    assert row["port_id"] == "0x0a7fbc1245efd23b/1"
    assert row["phys_state"] == "training"
    assert (row["speed_gbps"], row["width"], row["generation"]) == (25, 1, "EDR")
    assert (row["rx_bytes"], row["tx_bytes"]) == (18126345378 * 4, 2880761508848 * 4)
    assert row["unicast_tx_packets"] == row["tx_packets"] == 10907922116
    assert (row["local_ack_timeout_err"], row["roce_slow_restart_cnps"]) == (131, 131)
    assert (row["req_cqe_error"], row["resp_cqe_flush_error"]) == (3481, 4708)
    assert (row["rx_read_requests"], row["rx_write_requests"]) == (175528982, 742114)


@pytest.mark.parametrize(
    "expected", [[], [{"devices": ["0x0a7fbc1245efd23b"], "width": 4, "speed_gbps": 100}]]
)
def test_of_these_links_one_is_too_narrow_and_none_is_down(adapters, expected):
    collector = ports_collector(adapters, expected=expected)
    readings = [(at, read(collector, at)) for at in range(0, 120, 10)]
    assert told("fabric", readings) == [(20, "firing", "port-narrow", "0x0a7fbc1245efd23b/1")]


@pytest.fixture
def snapshots(vectors: Path, tmp_path: Path):
    """Yield readings of one instance with two EFAs; the collector starts anew after the reboot, with its cursor."""
    root = tmp_path / "sys"
    readings, cursor = [], b""
    for name, seconds in zip(SNAPSHOTS, TIMES_SECONDS, strict=True):
        root.unlink(missing_ok=True)
        root.symlink_to(vectors / "fabric" / "efa" / name / "sys")
        collector = ports_collector(root)
        collector.restore(cursor)
        readings.append((seconds, read(collector, seconds)))
        cursor = collector.cursor()
    return readings


def rise(snapshots, device, column, first, last):
    before, after = (
        next(row for row in rows_of(snapshots[at][1], FABRIC_PORTS) if row["device"] == device)
        for at in (first, last)
    )
    return after[column] - before[column]


@pytest.mark.parametrize(("device", "packets", "timeouts"), [("efa_0", 2623, 189), ("efa_1", 5799, 395)])
def test_a_bulk_write_is_sent_again_in_part_and_nothing_is_dropped(snapshots, device, packets, timeouts):
    assert rise(snapshots, device, "retrans_packets", 1, 2) == packets
    assert rise(snapshots, device, "retrans_timeout_events", 1, 2) == timeouts
    for column in ("rx_drops", "impaired_remote_conn_events", "unresponsive_remote_events"):
        assert rise(snapshots, device, column, 0, 2) == 0
    row = next(row for row in rows_of(snapshots[2][1], FABRIC_PORTS) if row["device"] == device)
    assert row["retrans_timeout_events_per_second"] == pytest.approx(timeouts / 120)


@pytest.mark.parametrize("device", ["efa_0", "efa_1"])
def test_a_reboot_sets_nothing_back_and_a_little_traffic_moves_nothing(snapshots, device):
    assert rise(snapshots, device, "tx_bytes", 0, 1) == 110_000_000
    for column in ("retrans_packets", "retrans_timeout_events", "retrans_bytes"):
        assert rise(snapshots, device, column, 0, 1) == 0


def test_an_efa_has_no_state_of_its_own_and_its_link_layer_is_unknown(snapshots):
    for _, reading in snapshots:
        for row in rows_of(reading, FABRIC_PORTS):
            assert (row["link_layer"], row["driver"]) == ("unknown", "efa")
            assert row.keys() & {"link_state", "phys_state"} == set()
            assert (row["completed_cmds"], row["no_completion_cmds"]) == (0, 0)


def test_the_bulk_write_is_told_of_both_devices_and_the_reboot_of_neither(snapshots):
    assert told("fabric", snapshots[:2]) == []
    assert told("fabric", snapshots) == [
        (3_720, "firing", "port-efa-timeouts", "h1/efa_0/1"),
        (3_720, "firing", "port-efa-timeouts", "h1/efa_1/1"),
    ]
    assert all(rows_of(reading, FABRIC_EVENTS) == [] for _, reading in snapshots)
