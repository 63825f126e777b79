"""The RDMA devices of a twin's host: what their files say."""

from pathlib import Path

import pytest

from twin.fabric_tree import FabricTree
from twin.plan import draw_plan

HOST = draw_plan(hosts=1, gpus_per_host=2).hosts[0]


@pytest.fixture
def tree(tmp_path: Path) -> FabricTree:
    return FabricTree(tmp_path, HOST)


def shown(tmp_path: Path, file: str, device: str = "mlx5_0") -> str:
    return (tmp_path / "class" / "infiniband" / device / "ports" / "1" / file).read_text()


def test_a_port_that_works_reads_as_linux_writes_it(tree, tmp_path):
    assert tree.devices == ("mlx5_0", "mlx5_1")
    texts = [
        shown(tmp_path, file)
        for file in ("state", "phys_state", "rate", "link_layer", "counters/symbol_error")
    ]
    assert texts == ["4: ACTIVE\n", "5: LinkUp\n", "400 Gb/sec (4X NDR)\n", "InfiniBand\n", "0\n"]
    device = tmp_path / "class" / "infiniband" / "mlx5_0" / "device"
    assert device.readlink().name == HOST.nics[0].pci_bus_id
    assert (device / "driver").readlink().name == "mlx5_core"


def test_data_is_counted_in_words_of_four_bytes_and_follows_the_load(tree, tmp_path):
    tree.step(2, [0.5, 0.0])
    assert int(shown(tmp_path, "counters/port_xmit_data")) == 0.5 * 50e9 * 2 / 4
    assert int(shown(tmp_path, "counters/port_xmit_data", "mlx5_1")) == 0


def test_a_link_that_is_down_carries_nothing_and_shows_a_rate_that_means_nothing(tree, tmp_path):
    tree.set_link(0, up=False)
    tree.step(10, 1.0)
    assert shown(tmp_path, "state") == "1: DOWN\n"
    assert shown(tmp_path, "rate") == "10 Gb/sec (4X SDR)\n"
    assert shown(tmp_path, "counters/port_xmit_data") == "0\n"
    assert shown(tmp_path, "counters/link_downed") == "1\n"


def test_a_counter_stops_at_the_most_its_width_holds(tree, tmp_path):
    tree.add_errors(0, 70_000)
    tree.flap(0, 300)
    assert shown(tmp_path, "counters/symbol_error") == "65535\n"
    assert shown(tmp_path, "counters/link_downed") == "255\n"


@pytest.mark.parametrize(
    ("lanes", "gbps", "rate"),
    [(4, 200, "200 Gb/sec (4X HDR)"), (1, 400, "100 Gb/sec (1X NDR)"), (2, 100, "50 Gb/sec (2X EDR)")],
)
def test_a_rate_tells_speed_lanes_and_generation(tree, tmp_path, lanes, gbps, rate):
    tree.set_speed(0, gbps)
    tree.set_lanes(0, lanes)
    assert shown(tmp_path, "rate") == rate + "\n"


def test_a_device_that_is_off_has_no_files_until_it_is_back_and_counts_anew(tree, tmp_path):
    tree.step(10, 1.0)
    tree.unplug(0)
    tree.step(10, 1.0)
    assert [path.name for path in (tmp_path / "class" / "infiniband").iterdir()] == ["mlx5_1"]
    tree.plug(0)
    assert shown(tmp_path, "counters/port_xmit_data") == "0\n"


def test_an_efa_always_says_that_it_is_active_and_counts_time_outs_while_it_sends(tmp_path):
    tree = FabricTree(tmp_path, HOST, style="efa")
    tree.set_link(0, up=False)
    tree.set_timeouts(1, 0.5)
    tree.step(10, 0.0)
    assert shown(tmp_path, "state", "efa_0") == "4: ACTIVE\n"
    assert shown(tmp_path, "link_layer", "efa_0") == "Unknown\n"
    assert shown(tmp_path, "hw_counters/retrans_timeout_events", "efa_1") == "0\n"
    tree.step(10, 0.5)
    assert shown(tmp_path, "hw_counters/retrans_timeout_events", "efa_1") == "5\n"


def test_no_file_is_ever_half_written(tree, tmp_path):
    tree.step(1, 0.3)
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".part")] == []
