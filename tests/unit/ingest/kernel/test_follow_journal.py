"""The kernel's entries in the journal are read once, through a `journalctl` that may die."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contract.errors import CollectError
from ingest.kernel.follow.entry import MAX_ENTRY_BYTES, parse_entry
from ingest.kernel.follow.journal import JournalFollower
from ingest.kernel.follow.testing import FakeJournal
from ingest.kernel.line import KERNEL, USER


class Host:
    """A journal and those who follow it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.journal = FakeJournal(folder, sys.executable)
        self._stack = stack

    def follower(self, after: JournalFollower | None = None, *, from_end: bool = False) -> JournalFollower:
        follower = JournalFollower(from_end=from_end, command=[str(self.journal.command)])
        if after is not None:
            after.close()
            follower.restore(after.cursor())
        self._stack.callback(follower.close)
        return follower


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with ExitStack() as stack:
        yield Host(tmp_path, stack)


def texts(follower: JournalFollower, count: int) -> list[str]:
    """Read until there are so many lines."""
    found: list[str] = []
    for _ in range(1_000):
        found += [line.text for line in follower.read(count - len(found))]
        if len(found) >= count:
            return found
        time.sleep(0.01)
    raise AssertionError(f"only {found}")


def test_a_first_start_reads_all_or_only_what_is_new(host: Host) -> None:
    host.journal.write("a")
    host.journal.write("b")
    assert texts(host.follower(), 2) == ["a", "b"]
    new = host.follower(from_end=True)
    new.read(1)
    host.journal.write("c")
    assert texts(new, 1) == ["c"]


def test_what_came_while_nobody_read_is_read_after_a_restart(host: Host) -> None:
    host.journal.write("a")
    reader = host.follower(from_end=True)
    reader.read(1)
    host.journal.write("b")
    host.journal.write("c")
    reader = host.follower(reader, from_end=True)
    assert texts(reader, 1) == ["b"]
    reader = host.follower(reader)
    assert texts(reader, 1) == ["c"]


def test_entries_that_the_journal_removed_before_they_were_read_are_told(host: Host) -> None:
    host.journal.write("a")
    reader = host.follower()
    texts(reader, 1)
    reader.close()
    for message in "bcd":
        host.journal.write(message)
    host.journal.vacuum(2)
    reader = host.follower(reader)
    assert texts(reader, 2) == ["c", "d"]
    assert reader.counts() == {"entries_vacuumed": 1}


def test_entries_of_user_space_are_not_asked_for(host: Host) -> None:
    host.journal.write("a")
    host.journal.write("b", _TRANSPORT="syslog")
    reader = host.follower(from_end=True)
    reader.read(1)
    host.journal.write("c", _TRANSPORT="syslog")
    host.journal.write("d")
    assert texts(reader, 1) == ["d"]
    assert not reader.counts()


def test_a_cursor_that_the_journal_does_not_take_is_told(host: Host) -> None:
    host.journal.write("a")
    reader = host.follower()
    reader.restore({"cursor": "x"})
    with pytest.raises(CollectError, match="Failed to seek to cursor"):
        texts(reader, 1)


def test_the_last_lines_of_the_boot_before_are_asked_for_too(host: Host) -> None:
    host.journal.write("a")
    texts(host.follower(), 1)
    _, call = host.journal.calls()
    assert "_TRANSPORT=kernel" in call
    assert not {"-k", "-b", "--dmesg", "--boot"} & set(call)


@pytest.mark.parametrize("from_end", [True, False])
def test_a_journal_without_a_line_of_the_kernel_is_an_error_and_then_read_from_the_first(
    host: Host, from_end: bool
) -> None:
    host.journal.write("a", _TRANSPORT="syslog")
    reader = host.follower(from_end=from_end)
    with pytest.raises(CollectError, match="group systemd-journal") as caught:
        reader.read(1)
    assert caught.value.reason == "no_data"
    host.journal.write("b")
    assert texts(reader, 1) == ["b"]


def test_one_reading_alone_reads_something(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.kernel.follow.journal._FIRST_ENTRY_SECONDS", 60)
    host.journal.write("a")
    assert [line.text for line in host.follower().read(10)] == ["a"]


def test_a_journalctl_that_died_is_told_and_started_again_behind_the_last_entry(host: Host) -> None:
    host.journal.write("a")
    host.journal.write("die")
    reader = host.follower()
    assert texts(reader, 2) == ["a", "die"]
    with pytest.raises(CollectError, match="ended with 1: died of it") as caught:
        texts(reader, 1)
    assert caught.value.reason == "unreachable"
    host.journal.write("b")
    assert texts(reader, 1) == ["b"]


def test_a_machine_without_journalctl_is_told_what_else_there_is(tmp_path: Path) -> None:
    for from_end in (True, False):
        reader = JournalFollower(from_end=from_end, command=[str(tmp_path / "journalctl")])
        with pytest.raises(CollectError, match="kmsg") as caught:
            reader.read(1)
        assert caught.value.reason == "unreachable"


def test_an_entry_that_is_none_is_counted_and_passed_over(host: Host) -> None:
    host.journal.write(None)
    host.journal.write_raw('{"half": "_TRANSPORT": "kernel"')
    host.journal.write("x" * (2 * MAX_ENTRY_BYTES))
    host.journal.write("a")
    reader = host.follower()
    assert texts(reader, 1) == ["a"]
    assert reader.counts() == {"entry_unreadable": 3}
    host.journal.write("b")
    assert texts(host.follower(reader), 1) == ["b"]


@pytest.mark.parametrize(
    ("fields", "facility"),
    [
        (b'"_TRANSPORT":"kernel","SYSLOG_FACILITY":"0"', KERNEL),
        (b'"_TRANSPORT":"kernel","SYSLOG_IDENTIFIER":"kernel"', KERNEL),
        (b'"_TRANSPORT":"kernel","SYSLOG_FACILITY":"1"', USER),
        (b'"_TRANSPORT":"kernel","SYSLOG_IDENTIFIER":"logger"', USER),
        (b'"_TRANSPORT":"syslog","SYSLOG_FACILITY":"0","SYSLOG_IDENTIFIER":"kernel"', USER),
        (b'"TRANSPORT":"kernel","SYSLOG_FACILITY":"0"', USER),
        (b'"_TRANSPORT":"syslog","SYSLOG_FACILITY":"3"', 3),
    ],
)
def test_only_what_came_out_of_the_kernels_buffer_and_is_its_own_is_the_kernels(
    fields: bytes, facility: int
) -> None:
    line = parse_entry(b'{"MESSAGE":"NVRM: Xid (PCI:0000:53:00): 79",' + fields + b"}")
    assert line is not None
    assert line.facility == facility


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b'"a"', "a"),
        (b"[65,255,66]", "A\N{REPLACEMENT CHARACTER}B"),
        (b'["a","b"]', "a"),
        (b"[[65],[66]]", "A"),
        (b"null", None),
        (b"[]", None),
        (b"[999]", None),
        (b"7", None),
        (b"{}", None),
    ],
)
def test_a_message_is_text_or_bytes_or_several(message: bytes, text: str | None) -> None:
    line = parse_entry(b'{"MESSAGE":' + message + b',"PRIORITY":"4","__REALTIME_TIMESTAMP":"5"}')
    assert (line and line.text) == text
    if line is not None:
        assert (line.ts_us, line.severity) == (5, 4)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"7", b"{}", b'{"MESSAGE":"a"', b"\xff"])
def test_what_is_no_entry_is_none(raw: bytes) -> None:
    assert parse_entry(raw) is None


def test_a_time_that_is_no_number_is_none() -> None:
    line = parse_entry(b'{"MESSAGE":"a","__REALTIME_TIMESTAMP":"x","PRIORITY":["3","4"]}')
    assert line is not None
    assert (line.ts_us, line.severity) == (None, 3)
