"""The files of a host are those of a kernel, and each fault changes what it should and nothing else."""

from pathlib import Path

import pytest

from twin.host_tree import HostTree
from twin.plan import draw_plan

START_US = 1_780_272_000_000_000
GPU = "0000:53:00.0"


@pytest.fixture
def tree(tmp_path):
    return HostTree(tmp_path, START_US, cores_per_socket=2)


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def changed(folder: Path, before: dict[str, str]) -> set[str]:
    """Return the files that differ, each by its place in the tree of devices."""
    return {path for path, text in contents(folder).items() if before.get(path) != text}


def test_a_host_has_its_processors_memory_and_devices(tree):
    assert len(tree.dimms) == 16
    devices = {path.name for path in (tree.sysfs / "bus/pci/devices").iterdir()}
    classes = [(tree.sysfs / "bus/pci/devices" / name / "class").read_text() for name in devices]
    assert [classes.count(f"{code}\n") for code in ("0x030200", "0x020700", "0x010802", "0x060400")] == [
        8,
        8,
        2,
        34,
    ]
    assert (tree.procfs / "stat").read_text().count("\ncpu") == 8


def test_every_host_of_a_plan_has_the_devices_of_the_plan(tmp_path):
    host = draw_plan(hosts=1).hosts[0]
    gpus, nics = [gpu.pci_bus_id for gpu in host.gpus], [nic.pci_bus_id for nic in host.nics]
    tree = HostTree(tmp_path, START_US, gpus=gpus, nics=nics, cores_per_socket=1)
    listed = {path.name for path in (tree.sysfs / "bus/pci/devices").iterdir()}
    assert {f"0000:{bus.lower()}:00.0" for bus in ("53", "CA")} <= listed
    assert all(
        any(name.endswith(address.lower().split(":", 1)[1]) for name in listed) for address in (*gpus, *nics)
    )


def test_the_path_of_a_device_leads_through_its_ports(tree):
    path = (tree.sysfs / "bus/pci/devices" / GPU).resolve().relative_to(tree.sysfs.resolve())
    assert str(path) == "devices/pci0000:4d/0000:4d:01.0/0000:4e:00.0/0000:4f:01.0/0000:53:00.0"


def test_time_passes_in_the_files_that_tell_it_and_nowhere_else(tree, tmp_path):
    before = contents(tmp_path)
    tree.advance(10)
    files = changed(tmp_path, before)
    assert files == {"proc/uptime", "proc/stat"} | {
        f"sys/devices/system/edac/mc/mc{number}/seconds_since_reset" for number in range(8)
    }


def test_an_error_of_memory_is_one_of_its_module_and_of_its_controller(tree, tmp_path):
    before = contents(tmp_path)
    tree.corrected_errors("mc3/dimm1", 2)
    at = "sys/devices/system/edac/mc/mc3"
    assert changed(tmp_path, before) == {f"{at}/dimm1/dimm_ce_count", f"{at}/ce_count"}
    assert (tmp_path / at / "ce_count").read_text() == "2\n"


def test_an_error_that_no_kernel_prints_is_refused(tree):
    with pytest.raises(ValueError, match="no fatal error is called 'BadTLP'"):
        tree.pcie_errors(GPU, "fatal", "BadTLP")


def test_a_lost_device_is_off_the_bus_until_it_is_put_back(tree):
    link = tree.sysfs / "bus/pci/devices" / GPU
    tree.pcie_errors(GPU, "correctable", "RxErr", 4)
    tree.lose(GPU)
    assert not link.exists()
    tree.reboot()
    assert not link.exists()
    tree.restore(GPU)
    assert "TOTAL_ERR_COR 0\n" in (link / "aer_dev_correctable").read_text()


def test_a_reboot_is_another_boot_with_fresh_counters(tree):
    boot = tree.procfs / "sys/kernel/random/boot_id"
    before = boot.read_text()
    tree.uncorrected_errors("mc0/dimm0")
    tree.reboot()
    assert boot.read_text() != before
    assert (tree.sysfs / "devices/system/edac/mc/mc0/ue_count").read_text() == "0\n"
    assert float((tree.procfs / "uptime").read_text().split()[0]) == 60


def test_nothing_of_a_host_answers_while_it_starts(tree, tmp_path, monkeypatch):
    there = []
    write = HostTree._write

    def watched(self, path, text):
        there.append(tree.procfs.exists() or tree.sysfs.exists())
        write(self, path, text)

    monkeypatch.setattr(HostTree, "_write", watched)
    tree.reboot()
    assert there
    assert not any(there)
    assert {path.name for path in tmp_path.iterdir()} == {"proc", "sys", "chronyc", "tracking"}


def test_a_folder_written_again_at_the_same_time_is_the_same_host(tmp_path):
    HostTree(tmp_path, START_US, cores_per_socket=1)
    before = contents(tmp_path)
    HostTree(tmp_path, START_US, cores_per_socket=1)
    assert contents(tmp_path) == before
