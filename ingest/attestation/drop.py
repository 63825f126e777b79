"""A folder that evidence appears in: each file is taken once, whole, and nothing that lies there can hold us up.

A file moves from where it was dropped to `taking/` and, when its rows are stored, to `taken/`; what is no evidence goes
to `set-aside/` with a note of the reason. Moves are renames, so that a file is always in one place. Whatever a crash
leaves in `taking/` is read again, unless the cursor says that its rows are stored. A folder of ours that is empty for a
while is removed: names of hosts come and go.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple, NoReturn

from contract.clock import Clock
from contract.errors import CollectError
from contract.files import write_whole

WHOLE_SUFFIX = ".evidence"
"""A name that ends so is a promise: the file was renamed into the folder when it was whole."""

MAX_ENTRIES = 10_000
"""One look sees no more; what lies behind has its turn at the next."""

_TAKING, _TAKEN, _ASIDE = "taking", "taken", "set-aside"
OURS = frozenset((_TAKING, _TAKEN, _ASIDE))
"""Folders in the folder that are no host's."""

_UNFINISHED = (".part", ".partial", ".tmp", ".filepart")
_HOST = re.compile(r"[^\s/@.][^\s/@]*")
_MAX_HOST_BYTES = 255
_NOTE_SUFFIX = ".reason"
_KEPT_LETTERS = 55
"""Of a name that gets something appended: at four bytes a letter it stays below the 255 of a file system."""
_TIDY_US = 600_000_000


class Identity(NamedTuple):
    """Which file it is, whatever its name; moving it changes none of this."""

    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


class Dropped(NamedTuple):
    """A file that was taken."""

    name: str
    """Where it was dropped: `NAME` or `HOST/NAME`."""
    host: str | None
    body: bytes
    identity: Identity


class _Refused(Exception):
    """A file that can never be evidence, with the reason that is counted."""

    def __init__(self, reason: str, words: str) -> None:
        super().__init__(words)
        self.reason = reason


class DropFolder:
    """The folder. `take` hands out files, `settle` ends those whose rows are stored."""

    def __init__(
        self, folder: Path, *, max_bytes: int, quiet_seconds: float, keep_hours: float, clock: Clock
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._quiet_ns = round(quiet_seconds * 1e9)
        self._keep_us = round(keep_hours * 3.6e9)
        self._clock = clock
        self._handed_out: dict[str, Identity] = {}
        self._ahead = _walk(folder)
        self._tidied_us: int | None = None
        self._untidy: Iterator[Path] = iter(())
        self.refused: Counter[str] = Counter()
        """Files that were set aside since somebody took this count, by reason."""

    def take(self, until: float) -> Iterator[Dropped]:
        """Yield whole files, those that a crash left first, until the clock's `monotonic` is past `until`.

        Raises CollectError(unreachable) where the folder cannot be read or written.
        """
        self._prepare()
        for name in chain(self._left(), self._drop()):
            if self._clock.monotonic() >= until:
                return
            dropped = self._read(name)
            if dropped is not None:
                self._handed_out[name] = dropped.identity
                yield dropped

    def settle(self) -> None:
        """End every file that was handed out: its rows are stored."""
        for name, identity in self._handed_out.items():
            path = self._folder / _TAKING / name
            status = _status(path)
            if status is not None and Identity.of(status) == identity:
                self._move(path, self._folder / _TAKEN / name)
                if path.parent.name != _TAKING:
                    _remove_empty(path.parent)
        self._handed_out = {}
        self._tidy()

    def forget(self) -> None:
        """Take back what was handed out: its rows were not made."""
        self._handed_out = {}

    def set_aside(self, dropped: Dropped, reason: str, words: str) -> None:
        """Put away a file that turned out to be no evidence."""
        self._handed_out.pop(dropped.name, None)
        self._put_aside(dropped.name, _Refused(reason, words))

    @property
    def handed_out(self) -> dict[str, Identity]:
        """What was handed out since the last `settle`: the cursor that belongs to its rows."""
        return dict(self._handed_out)

    def restore(self, handed_out: dict[str, Identity]) -> None:
        """Take up what an earlier process handed out and stored the rows of."""
        self._handed_out = dict(handed_out)

    def _prepare(self) -> None:
        try:
            for own in OURS:
                (self._folder / own).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise CollectError("unreachable", f"{self._folder}: {error.strerror}") from error

    def _left(self) -> list[str]:
        """Return the names in `taking/`."""
        seen = islice(_walk(self._folder / _TAKING), MAX_ENTRIES)
        return [name for name, is_folder in seen if not is_folder]

    def _drop(self) -> Iterator[str]:
        """Move what is whole into `taking/`; yield the names there."""
        for name in self._look():
            source, target = self._folder / name, self._folder / _TAKING / name
            is_free = not os.path.lexists(target) and (
                _is_folder(target.parent) or not os.path.lexists(target.parent)
            )
            if is_free and self._is_whole(source):
                self._move(source, target)
                yield name

    def _look(self) -> list[str]:
        """Return names in the folder; where a look cannot see all, the next goes on behind it."""
        seen = list(islice(self._ahead, MAX_ENTRIES))
        if len(seen) < MAX_ENTRIES:
            self._ahead = _walk(self._folder)
        return [name for name, is_folder in seen if not is_folder]

    def _is_whole(self, path: Path) -> bool:
        status = _status(path)
        if status is None or path.name.endswith(_UNFINISHED):
            return False
        quiet_ns = self._clock.now_us() * 1000 - status.st_ctime_ns
        # A change in the future is that of a clock that was set back: there is nothing to wait for.
        return path.name.endswith(WHOLE_SUFFIX) or not 0 <= quiet_ns < self._quiet_ns

    def _read(self, name: str) -> Dropped | None:
        """Return a file of `taking/`; None where it is still written, gone, or was set aside."""
        if name in self._handed_out:
            return None
        host, _, _ = name.rpartition("/")
        try:
            if not _is_text(name):
                _refuse("foreign", "its name is no text")
            if host and not is_host(host):
                _refuse("foreign", f"{host!r} cannot be the name of a host")
            body, identity = _read_whole(self._folder / _TAKING / name, self._max_bytes)
        except _Refused as refused:
            self._put_aside(name, refused)
            return None
        except FileNotFoundError:
            return None
        if len(body) != identity.size:
            return None  # somebody still writes it
        return Dropped(name, host or None, body, identity)

    def _put_aside(self, name: str, refused: _Refused) -> None:
        self.refused[refused.reason] += 1
        target = self._folder / _ASIDE / name
        self._move(self._folder / _TAKING / name, target)
        note = target.with_name(target.name[:_KEPT_LETTERS] + _NOTE_SUFFIX)
        try:
            if _is_folder(note):
                note.rename(self._beside(note))
            write_whole(note, f"{refused.reason}: {refused}\n".encode(errors="replace"))
        except OSError as error:
            raise CollectError("unreachable", f"{note}: {error.strerror}") from error

    def _move(self, source: Path, target: Path) -> None:
        """Rename; a file that was at the target before is replaced, anything else makes room or is left alone."""
        try:
            if os.path.lexists(target.parent) and not _is_folder(target.parent):
                target.parent.rename(self._beside(target.parent))
            target.parent.mkdir(mode=0o700, exist_ok=True)
            if _is_folder(target) or (_is_folder(source) and os.path.lexists(target)):
                target = self._beside(target)
            source.rename(target)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CollectError("unreachable", f"{source}: {error.strerror}") from error

    def _beside(self, path: Path) -> Path:
        """Return another name for what cannot have the one it should."""
        return path.with_name(f"{path.name[:_KEPT_LETTERS]}.{self._clock.now_us()}")

    def _tidy(self) -> None:
        """At times, remove what was put away longer ago than it is kept, and empty folders; a part at each call."""
        now_us = self._clock.now_us()
        if self._tidied_us is None or not 0 <= now_us - self._tidied_us < _TIDY_US:
            self._tidied_us, self._untidy = now_us, self._to_tidy()
        for path in islice(self._untidy, MAX_ENTRIES):
            status = _status(path)
            if status is None:
                continue
            age_us = now_us - status.st_ctime_ns // 1000
            if stat.S_ISDIR(status.st_mode):
                # One of another owner was made for a sender, who could not make it again.
                if age_us > _TIDY_US and status.st_uid == os.geteuid():
                    _remove_empty(path)
            elif age_us > self._keep_us:
                _remove(path)

    def _to_tidy(self) -> Iterator[Path]:
        """Yield all that was put away, and every folder of a host behind what is in it."""
        for own in (_TAKEN, _ASIDE):
            yield from (self._folder / own / name for name, _ in _walk(self._folder / own))
        for top in (self._folder / _TAKING, self._folder):
            yield from (top / name for name, is_folder in _walk(top) if is_folder)


def is_host(name: str) -> bool:
    """Tell whether it can be the name of a host, in a folder and in a column."""
    return _HOST.fullmatch(name) is not None and len(name.encode(errors="replace")) <= _MAX_HOST_BYTES


def count_waiting(folder: Path, most: int) -> int:
    """Return how many files wait in a drop folder, counted up to `most`; raise CollectError as `take` does."""
    files = (name for name, is_folder in islice(_walk(folder), MAX_ENTRIES) if not is_folder)
    return sum(1 for _ in islice(files, most))


def _walk(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield `NAME` and `HOST/NAME`, and each HOST behind what is in it, with whether it is such a folder.

    What is hidden is nobody's, nor are our own folders.
    """
    for entry in _entries(folder):
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and entry.name in OURS:
            continue
        if is_folder:
            yield from ((f"{entry.name}/{inner.name}", False) for inner in _entries(Path(entry.path)))
        yield entry.name, is_folder


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from (entry for entry in found if not entry.name.startswith("."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise CollectError("unreachable", f"{folder}: {error.strerror}") from error


def _read_whole(path: Path, max_bytes: int) -> tuple[bytes, Identity]:
    """Return a file's bytes and what it was before; never waits, never follows, never reads much more than allowed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        words = "a link" if error.errno == errno.ELOOP else str(error.strerror)
        raise _Refused("foreign", f"cannot be opened: {words}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            _refuse("foreign", "not a plain file")
        if status.st_size > max_bytes:
            _refuse("too_large", f"{status.st_size} bytes; evidence has at most {max_bytes}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            body = file.read(max_bytes + 1)
        if len(body) > max_bytes:
            _refuse("too_large", f"more than {max_bytes} bytes")
        after = os.fstat(descriptor)
        unchanged = Identity.of(after) == Identity.of(status) and after.st_ctime_ns == status.st_ctime_ns
        return body, Identity.of(status) if unchanged else Identity(0, -1, 0)
    finally:
        os.close(descriptor)


def _refuse(reason: str, words: str) -> NoReturn:
    raise _Refused(reason, words)


def _is_text(name: str) -> bool:
    """Tell whether a name can be written down: a file system takes any bytes for one."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return name.isprintable()


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _is_folder(path: Path) -> bool:
    """Tell whether it is a folder itself, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # something came into it, or somebody was faster
        folder.rmdir()


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CollectError("unreachable", f"{path}: {error.strerror}") from error
