"""Files that are whole or absent."""

import stat

import pytest

from contract.files import sync, write_whole


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path) -> None:
    path = tmp_path / "key"
    write_whole(path, b"old", 0o600)
    write_whole(path, b"new", 0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_crash_left_behind_is_no_hindrance(tmp_path) -> None:
    (tmp_path / "key.part").write_bytes(b"half")
    write_whole(tmp_path / "key", b"whole")
    assert (tmp_path / "key").read_bytes() == b"whole"


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch) -> None:
    path = tmp_path / "key"
    write_whole(path, b"old")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"


def test_folders_and_files_are_synced_alike(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"")
    sync(tmp_path)
    sync(tmp_path / "a")
