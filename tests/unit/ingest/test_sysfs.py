"""Small files of the kernel: what a read may cost, and what it may not."""

import errno
import os
from pathlib import Path

import pytest

from contract.errors import CollectError
from contract.testing import FakeClock
from ingest import sysfs
from ingest.sysfs import MAX_FILE_BYTES, KernelTree


@pytest.fixture
def tree(tmp_path: Path) -> KernelTree:
    reader = KernelTree(tmp_path, FakeClock(), timeout_seconds=5)
    reader.begin()
    return reader


def test_a_file_is_its_text_without_the_white_space_around(tree, tmp_path):
    (tmp_path / "rate").write_text("400 Gb/sec (4X NDR)\n\n")
    assert tree.text("rate") == "400 Gb/sec (4X NDR)"
    assert tree.failures == {}


@pytest.mark.parametrize(
    ("content", "number"),
    [("0\n", 0), ("-3", -3), ("18446744073709551615\n", 2**64 - 1)],
)
def test_a_whole_number_is_one(tree, tmp_path, content, number):
    (tmp_path / "counter").write_text(content)
    assert tree.number("counter") == number


@pytest.mark.parametrize("content", ["N/A (no PMA)\n", "", "0x10", "1.5", "9" * 21, "١٢"])
def test_what_is_no_number_is_nothing_and_is_counted(tree, tmp_path, content):
    (tmp_path / "counter").write_text(content)
    assert tree.number("counter") is None
    assert tree.failures == {"not_a_number": 1}


def test_what_is_not_there_is_no_failure(tree, tmp_path):
    (tmp_path / "file").write_text("1")
    assert (tree.text("a/b"), tree.number("a"), tree.names("a"), tree.target("a")) == (None, None, None, None)
    assert tree.text("file/below") is None
    assert tree.failures == {}


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EINVAL, "refused"),
        (errno.EOPNOTSUPP, "refused"),
        (errno.EIO, "refused"),
        (errno.EACCES, "denied"),
        (errno.ENODEV, "gone"),
    ],
)
def test_a_device_that_refuses_a_read_costs_one_value(tree, tmp_path, monkeypatch, number, reason):
    (tmp_path / "counter").write_text("1")

    def refuse(*_args):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("ingest.sysfs.os.read", refuse)
    assert tree.number("counter") is None
    assert tree.failures == {reason: 1}


def test_what_never_ends_never_speaks_or_is_a_folder_is_not_waited_for(tree, tmp_path):
    (tmp_path / "long").write_bytes(b"1" * (MAX_FILE_BYTES + 1))
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert [tree.text(name) for name in ("long", "endless", "folder")] == [None, None, None]
    assert tree.failures == {"too_large": 2, "refused": 1}
    assert tree.number("pipe") is None


def test_a_folder_is_listed_in_order_and_to_a_limit(tree, tmp_path, monkeypatch):
    for name in ("mlx5_1", "mlx5_0", "mlx5_2"):
        (tmp_path / "class" / name).mkdir(parents=True)
    assert tree.names("class") == ("mlx5_0", "mlx5_1", "mlx5_2")
    monkeypatch.setattr(sysfs, "MAX_ENTRIES", 2)
    assert len(tree.names("class")) == 2


def test_a_link_tells_the_last_name_of_what_it_points_to(tree, tmp_path):
    (tmp_path / "device").symlink_to("../../devices/pci0000:50/0000:53:00.0")
    assert tree.target("device") == "0000:53:00.0"


def test_a_reading_that_takes_too_long_ends_and_the_next_has_its_own_time(tmp_path):
    clock = FakeClock()
    tree = KernelTree(tmp_path, clock, timeout_seconds=5)
    (tmp_path / "state").write_text("4: ACTIVE")
    tree.begin()
    clock.advance(5.1)
    with pytest.raises(CollectError, match="not read within 5 s") as caught:
        tree.text("state")
    assert caught.value.reason == "timeout"
    tree.begin()
    assert tree.text("state") == "4: ACTIVE"


def test_a_long_file_of_the_kernel_comes_by_the_page_and_is_read_whole(monkeypatch):
    """/proc/vmstat, like every file that lists records, gives no more than a page at a time."""
    monkeypatch.setattr(sysfs, "MAX_FILE_BYTES", 10_000_000)
    reader = KernelTree(Path("/proc"), FakeClock(), timeout_seconds=5)
    reader.begin()
    read = reader.text("self/maps") or ""
    assert len(read) > 8_192
    assert read.splitlines()[-1] == Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()[-1]


def test_a_link_is_given_as_it_is_written(tree, tmp_path):
    (tmp_path / "device").symlink_to("../../devices/pci0000:00/0000:00:01.0/0000:01:00.0")
    assert tree.link("device") == "../../devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    assert tree.target("device") == "0000:01:00.0"
    assert tree.link("absent") is None
