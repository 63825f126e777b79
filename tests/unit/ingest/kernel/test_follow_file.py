"""A log file is read once, line by line, whatever happens to it and to its reader."""

from __future__ import annotations

import json
import os
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from contract.errors import CollectError
from contract.testing import FakeClock
from ingest.kernel.follow.file import CHUNK_BYTES, MAX_READ_BYTES, FileFollower
from ingest.kernel.formats import MAX_LINE

SAID = "NVRM: "


def follower(path: Path, *, from_end: bool = False) -> FileFollower:
    return FileFollower(path, from_end=from_end, clock=FakeClock())


def texts(follower: FileFollower, most: int = 1_000) -> list[str]:
    """Read lines, and return what the driver said in them."""
    return [line.text.removeprefix(SAID) for line in follower.read(most)]


def said(*texts: str) -> str:
    """Return lines of the driver: a follower leaves out what cannot matter."""
    return "".join(f"{SAID}{text}\n" for text in texts)


def again(before: FileFollower, path: Path) -> FileFollower:
    """Start another follower from the cursor of one, as a restarted process does."""
    cursor = json.loads(json.dumps(before.cursor()))
    before.close()
    after = follower(path, from_end=True)
    after.restore(cursor)
    return after


def append(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_text(said("a", "b"))
    return path


def test_a_first_start_reads_all_or_only_what_is_new(log: Path) -> None:
    whole, new = follower(log), follower(log, from_end=True)
    assert (texts(whole), texts(new)) == (["a", "b"], [])
    append(log, said("c"))
    assert (texts(whole), texts(new)) == (["c"], ["c"])
    assert (texts(whole), texts(new)) == ([], [])


def test_a_line_is_read_when_it_is_whole(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    append(log, f"{SAID}half")
    assert texts(reader) == []
    reader = again(reader, log)
    assert texts(reader) == []
    append(log, " and half\n")
    assert texts(reader) == ["half and half"]


def test_from_the_end_a_line_that_is_being_written_is_passed_over(log: Path) -> None:
    append(log, "old and ")
    reader = follower(log, from_end=True)
    assert texts(reader) == []
    reader = again(reader, log)
    append(log, said("new", "c"))
    assert texts(reader) == ["c"]


def test_at_most_so_many_lines_are_read_at_once(log: Path) -> None:
    log.write_text(said(*map(str, range(10))))
    reader, seen = follower(log), []
    for _ in range(4):
        seen.append(texts(reader, 3))
        reader = again(reader, log)
    assert seen == [["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"], ["9"]]


def test_lines_that_cannot_matter_are_left_out_and_counted(log: Path) -> None:
    log.write_text("x\n" + said("a") + "\ny\n" + said("b") + "z\n" + said("c") + "x\n")
    reader = follower(log)
    assert (texts(reader, 2), reader.left_out()) == (["a", "b"], 4)
    reader = again(reader, log)
    assert (texts(reader), reader.left_out()) == (["c"], 1)
    assert (texts(reader), reader.left_out()) == ([], 0)


def test_no_more_is_left_out_at_once_than_is_read_at_once(log: Path) -> None:
    quiet = "x" * 99 + "\n"
    count = MAX_READ_BYTES // len(quiet) + CHUNK_BYTES // len(quiet)
    log.write_text(quiet * count + said("a"))
    reader = follower(log)
    assert texts(reader) == []
    first = reader.left_out()
    assert 0 < first <= MAX_READ_BYTES // len(quiet)
    assert (texts(reader), reader.left_out()) == (["a"], count - first)


def test_what_was_left_out_before_a_rotation_is_counted_with_what_came_after(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    append(log, "x\n" + said("c") + "y\nx without an end")
    log.rename(log.with_name("kern.log.1"))
    log.write_text("z\n" + said("d"))
    assert (texts(reader), reader.left_out()) == (["c", "x without an end", "d"], 3)


def test_what_was_left_out_before_an_error_is_told_and_the_error_next(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    append(log, "x\n")
    newer = log.with_name("kern.log.new")
    newer.mkdir()
    (newer / "x").touch()
    log.rename(log.with_name("kern.log.1"))
    newer.rename(log)
    assert (texts(reader), reader.left_out()) == ([], 1)
    with pytest.raises(CollectError, match="no regular file"):
        reader.read(10)
    assert reader.left_out() == 0


def test_a_file_that_is_not_there_yet_is_an_error_and_then_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    reader = follower(path, from_end=True)
    with pytest.raises(CollectError, match="as soon as it is there") as caught:
        reader.read(10)
    assert caught.value.reason == "unreachable"
    path.write_text(said("a"))
    assert texts(reader) == ["a"]


def test_a_file_that_may_not_be_read_says_who_may(log: Path) -> None:
    log.chmod(0)
    user = os.geteuid()
    if user == 0:  # who may read everything
        os.seteuid(65_534)
    try:
        with pytest.raises(CollectError, match="its group") as caught:
            follower(log).read(10)
    finally:
        os.seteuid(user)
    assert caught.value.reason == "unreadable"


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_a_folder_is_no_log_and_is_not_kept_open(tmp_path: Path) -> None:
    reader, before = follower(tmp_path, from_end=True), open_files()
    for _ in range(3):
        with pytest.raises(CollectError, match="no regular file") as caught:
            reader.read(10)
        assert caught.value.reason == "unreadable"
    assert open_files() == before


def test_a_renamed_file_is_read_to_its_end_before_the_new_one(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    with log.open("a") as held:
        log.rename(log.with_name("kern.log.1"))
        assert texts(reader) == []
        log.touch()
        held.write(said("c"))
        held.flush()
        assert texts(reader) == ["c"]  # its writer has not opened the new one yet
        held.write(said("d") + f"{SAID}without an end")
    append(log, said("e"))
    assert texts(reader) == ["d", "without an end", "e"]
    append(log, said("f"))
    assert texts(reader) == ["f"]
    assert not reader.counts()


def test_a_file_that_was_copied_and_truncated_is_read_on_from_its_copy(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    append(log, said("c"))
    (log.with_name("kern.log.1")).write_bytes(log.read_bytes())
    log.write_text(said("d"))
    assert texts(reader) == ["c", "d"]
    assert not reader.counts()


def test_a_truncated_file_that_has_grown_beyond_its_old_size_is_noticed(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    log.write_text(said("longer than before", "and more"))
    assert texts(reader) == ["longer than before", "and more"]
    assert reader.counts() == {"log_replaced": 1}
    assert not reader.counts()


def test_the_hole_that_a_writer_leaves_after_a_truncation_is_passed_over(log: Path) -> None:
    with log.open("r+b") as writer:
        writer.seek(0, os.SEEK_END)
        reader = follower(log)
        texts(reader)
        os.truncate(log, 0)
        writer.write(said("c").encode())
        writer.flush()
        assert log.read_bytes().startswith(b"\0\0")
        assert texts(reader) == ["c"]
        os.truncate(log, 3 * CHUNK_BYTES)
        assert texts(reader) == []
        writer.seek(0, os.SEEK_END)
        writer.write(said("d").encode())
        writer.flush()
        assert texts(reader) == ["d"]


@pytest.mark.parametrize("names", [["kern.log.2", "kern.log.1"], ["kern.log-20260131", "kern.log-20260201"]])
def test_what_was_rotated_while_nobody_read_is_read_first(log: Path, names: list[str]) -> None:
    reader = follower(log)
    texts(reader)
    append(log, said("c"))
    log.rename(log.with_name(names[0]))
    log.write_text(said("d"))
    log.rename(log.with_name(names[1]))
    log.write_text(said("e"))
    log.with_name("kern.log.3.gz").write_bytes(b"\x1f\x8b")
    log.with_name("kern.logs.1").write_text(said("another log"))
    reader = again(reader, log)
    assert texts(reader, 1) == ["c"]
    reader = again(reader, log)
    assert texts(reader, 1) == ["d"]
    reader = again(reader, log)
    assert texts(reader) == ["e"]
    assert not reader.counts()


def test_where_the_rest_of_a_log_is_gone_it_says_so_and_reads_what_came_after(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    log.unlink()
    log.with_name("kern.log.2").write_text(said("older"))
    os.utime(log.with_name("kern.log.2"), ns=(0, 0))
    log.with_name("kern.log.1").write_text(said("c"))
    log.write_text(said("d"))
    reader = again(reader, log)
    assert texts(reader) == ["c", "d"]
    assert reader.counts() == {"log_replaced": 1}


def test_another_file_with_the_same_inode_is_another_file(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    cursor = dict(reader.cursor())
    reader.close()
    other = log.with_name("kern.log.new")
    other.write_text(said("x", "y", "z"))
    other.replace(log)
    reader = follower(log)
    reader.restore(cursor | {"inode": log.stat().st_ino})
    assert texts(reader) == ["x", "y", "z"]


def test_two_files_that_begin_alike_are_told_apart_by_their_inode(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    log.rename(log.with_name("kern.log.1"))
    append(log.with_name("kern.log.1"), said("c"))
    log.write_text(said("a", "b", "d"))
    reader = again(reader, log)
    assert texts(reader) == ["c", "a", "b", "d"]


def test_a_link_that_is_switched_to_another_file_is_a_rotation(tmp_path: Path) -> None:
    link = tmp_path / "current"
    (tmp_path / "monday").write_text(said("a"))
    link.symlink_to(tmp_path / "monday")
    reader = follower(link)
    assert texts(reader) == ["a"]
    append(tmp_path / "monday", said("b"))
    (tmp_path / "tuesday").write_text(said("c"))
    link.unlink()
    link.symlink_to(tmp_path / "tuesday")
    assert texts(reader) == ["b", "c"]


def test_of_a_line_without_end_the_beginning_is_read_once(log: Path) -> None:
    log.write_text("x" * (3 * CHUNK_BYTES) + "\n" + said("b") + said("y" * (MAX_LINE - len(SAID) + 1)))
    reader = follower(log)
    assert texts(reader) == ["x" * MAX_LINE, "b", "y" * (MAX_LINE - len(SAID))]
    assert reader.counts() == {"line_too_long": 2}


def test_a_name_that_is_missing_between_two_files_is_no_error(log: Path) -> None:
    reader = follower(log)
    texts(reader)
    log.rename(log.with_name("kern.log.1"))
    assert texts(reader) == []
    reader = again(reader, log)
    append(log.with_name("kern.log.1"), said("c"))
    assert texts(reader) == ["c"]
    log.write_text(said("d"))
    assert texts(reader) == ["d"]


def test_a_date_without_a_zone_is_of_the_zone_of_the_log(log: Path) -> None:
    log.write_text("Jun  1 02:00:00 host1 kernel: NVRM: a\n")
    clock = FakeClock()
    reader = FileFollower(log, from_end=False, clock=clock, zone=ZoneInfo("Europe/Berlin"))
    (line,) = reader.read(1)
    assert line.ts_us == clock.now_us()


def test_a_file_of_journal_entries_is_read_as_such(log: Path) -> None:
    entry = {"MESSAGE": "a", "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "__REALTIME_TIMESTAMP": "7"}
    as_numbers = entry | {"MESSAGE": list(b"NVRM: \xff")}
    log.write_text(f"{json.dumps(entry)}\n{{broken\n{json.dumps(as_numbers)}\n")
    reader = follower(log)
    line, other = reader.read(10)
    assert (line.text, line.facility, line.ts_us) == ("a", 0, 7)
    assert other.text == "NVRM: \ufffd"
    assert (reader.left_out(), reader.counts()) == (0, {"entry_unreadable": 1})


def test_a_file_that_was_empty_becomes_one_of_journal_entries(log: Path) -> None:
    log.write_text("")
    reader = follower(log)
    assert texts(reader) == []
    append(log, '{"MESSAGE": "a"}\n')
    assert texts(reader) == ["a"]


@pytest.mark.parametrize("cursor", [{"offset": 1}, {"inode": "x"}])
def test_what_is_no_place_in_a_file_is_refused(log: Path, cursor: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        follower(log).restore(cursor)
