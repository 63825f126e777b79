"""The kernel's buffer is read by the numbers of its records; what was overwritten is counted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from contract.clock import SystemClock
from contract.errors import CollectError
from contract.testing import START_US, FakeClock
from ingest.kernel.follow.kmsg import KMSG, KmsgFollower
from ingest.kernel.follow.testing import FakeKmsg
from ingest.kernel.line import KERNEL, USER


class Machine:
    """A kernel with a buffer, which can be started again."""

    def __init__(self, folder: Path, room: int = 100) -> None:
        self.kmsg = FakeKmsg(room)
        self.clock = FakeClock()
        self.boot_id = folder / "boot_id"
        self.boot_id.write_text("boot-1\n")

    def reboot(self) -> None:
        self.kmsg = FakeKmsg(self.kmsg.records.maxlen or 0)
        self.boot_id.write_text("boot-2\n")

    def write(self, *texts: str) -> None:
        for text in texts:
            self.kmsg.write(text)

    def follower(self, after: KmsgFollower | None = None, *, from_end: bool = False) -> KmsgFollower:
        """Return a follower, from the cursor of another if one is given."""
        follower = KmsgFollower(
            from_end=from_end, clock=self.clock, open_device=self.kmsg.open, boot_id=self.boot_id
        )
        if after is not None:
            follower.restore(after.cursor())
        return follower


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, room=4)
    machine.write("a", "b")
    return machine


def texts(follower: KmsgFollower, most: int = 100) -> list[str]:
    return [line.text for line in follower.read(most)]


def test_a_first_start_reads_all_or_only_what_is_new(machine: Machine) -> None:
    whole, new = machine.follower(), machine.follower(from_end=True)
    assert (texts(whole, 1), texts(whole), texts(new)) == (["a"], ["b"], [])
    machine.write("c")
    assert (texts(whole), texts(new)) == (["c"], ["c"])


def test_what_came_while_nobody_read_is_read_after_a_restart_even_where_nothing_was_read_before(
    machine: Machine,
) -> None:
    new = machine.follower(from_end=True)
    assert texts(new) == []
    machine.write("c")
    assert texts(machine.follower(new, from_end=True)) == ["c"]
    empty = Machine(machine.boot_id.parent)
    first = empty.follower(from_end=True)
    assert texts(first) == []
    empty.write("a")
    assert texts(empty.follower(first, from_end=True)) == ["a"]


def test_records_that_were_overwritten_under_a_reader_are_counted(machine: Machine) -> None:
    reader = machine.follower()
    assert texts(reader) == ["a", "b"]
    machine.write(*"cdefgh")
    assert texts(reader) == ["e", "f", "g", "h"]
    assert reader.counts() == {"records_overwritten": 2}
    assert not reader.counts()


def test_records_that_were_overwritten_while_nobody_read_are_counted(machine: Machine) -> None:
    reader = machine.follower()
    texts(reader)
    machine.write(*"cdefg")
    reader = machine.follower(reader)
    assert texts(reader) == ["d", "e", "f", "g"]
    assert reader.counts() == {"records_overwritten": 1}


def test_what_was_overwritten_before_the_first_start_is_no_loss(machine: Machine) -> None:
    machine.write(*"cdefg")
    reader = machine.follower()
    assert texts(reader) == ["d", "e", "f", "g"]
    assert not reader.counts()


def test_a_new_boot_is_read_from_its_first_record(machine: Machine) -> None:
    reader = machine.follower()
    texts(reader)
    machine.reboot()
    machine.write("x", "y", "z")
    assert texts(machine.follower(reader, from_end=True)) == ["x", "y", "z"]
    machine.write("1", "2")
    late = machine.follower(reader)
    assert texts(late) == ["y", "z", "1", "2"]
    assert late.counts() == {"records_overwritten": 1}


def test_an_uptime_becomes_a_time_by_the_clock_as_it_is_now(machine: Machine) -> None:
    machine.kmsg.write("c", uptime_us=7_000_000, priority=3)
    machine.kmsg.write("from the future", uptime_us=99_000_000)
    machine.clock.advance(10)
    *_, line, ahead = machine.follower().read(10)
    assert (line.ts_us, line.facility, line.severity) == (START_US + 7_000_000, KERNEL, 3)
    assert ahead.ts_us == machine.clock.now_us()


def test_what_user_space_wrote_into_the_buffer_is_not_the_kernels(machine: Machine) -> None:
    machine.kmsg.write("NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.", priority=8 * USER + 3)
    *_, line = machine.follower().read(10)
    assert (line.facility, line.severity) == (USER, 3)


def test_a_device_that_fails_is_opened_again(machine: Machine) -> None:
    reader = machine.follower()
    texts(reader, 1)
    machine.kmsg.broken = OSError(errno.EIO, "Input/output error")
    with pytest.raises(CollectError, match="Input/output error"):
        reader.read(10)
    machine.kmsg.broken = None
    assert texts(reader) == ["b"]


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (PermissionError(errno.EPERM, "Operation not permitted"), "unreadable", "CAP_SYSLOG"),
        (FileNotFoundError(errno.ENOENT, "No such file"), "unreachable", "No such file"),
    ],
)
def test_a_device_that_cannot_be_opened_says_what_it_takes(
    machine: Machine, error: OSError, reason: str, words: str
) -> None:
    machine.kmsg.broken = error
    with pytest.raises(CollectError, match=words) as caught:
        machine.follower().read(10)
    assert caught.value.reason == reason


def may_read_buffer() -> bool:
    """Tell whether the kernel lets this user open its buffer: permission bits alone do not say."""
    try:
        os.close(os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def test_the_buffer_of_this_machine_is_read_and_found_again_or_it_is_told_why_not() -> None:
    clock = SystemClock()
    reader = KmsgFollower(from_end=False, clock=clock)
    if not may_read_buffer():
        with pytest.raises(CollectError, match=str(KMSG)):
            reader.read(5)
        return
    first = reader.read(5)
    assert all(line.ts_us is not None and line.ts_us <= clock.now_us() for line in first)
    cursor = reader.cursor()
    rest = reader.read(5)
    reader.close()
    reader = KmsgFollower(from_end=False, clock=clock)
    reader.restore(cursor)
    assert [line.text for line in reader.read(len(rest))] == [line.text for line in rest]
    assert not reader.counts()
    reader.close()
