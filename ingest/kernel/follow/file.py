"""A log file, across its rotations.

A place in a file is known again by the bytes in front of it: names change hands when logs are rotated, inodes are
given out again, and a file that was copied and truncated keeps both. logrotate(8): `create` renames the file,
`copytruncate` copies it to FILE.1 and truncates it; FILE.1 or FILE-20260131 stays uncompressed with
`delaycompress`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import cached_property
from pathlib import Path
from typing import Any

from contract.clock import Clock
from contract.errors import CollectError
from contract.log import Log
from ingest.kernel.follow.entry import is_entry, parse_entry
from ingest.kernel.follow.follower import Cursor
from ingest.kernel.formats import MAX_LINE, parse_line
from ingest.kernel.line import KernelLine
from ingest.kernel.prefilter import all_lines, relevant_lines

CHUNK_BYTES = 262_144
"""Read at once, and the longest line that is looked at: of a longer one the beginning is taken."""

MAX_READ_BYTES = 8_388_608
"""One call reads no more, however little of it matters."""

_TAIL_BYTES = 128
_ROTATED = re.compile(r"[.-]\d{1,14}(?:[._-]\d{1,14}){0,3}|\.old|\.prev")
_MOST_ROTATED = 64

_log = Log("ingest.kernel")


@dataclass(slots=True)
class _Place:
    """How far a file was read."""

    inode: int = 0
    offset: int = 0
    """Where the first line begins that was neither returned nor left out."""
    tail: bytes = b""
    """The bytes in front of it."""
    passing: bool = False
    """The offset is inside of a line whose rest is passed over."""
    modified_ns: int = 0


class _File:
    """An open log file."""

    def __init__(self, path: Path) -> None:
        """Raise OSError."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(self.status().st_mode):
            self.close()
            raise OSError(errno.EINVAL, "no regular file")

    @cached_property
    def is_journal(self) -> bool:
        """Whether the lines are entries of a journal; ask when there is one."""
        return is_entry(self.read(0, 1))

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, offset)

    def status(self) -> os.stat_result:
        return os.fstat(self._descriptor)

    def read_on(self, place: _Place) -> bytes | None:
        """Return the bytes behind a place; None where this is not its file, nor a copy of it: it was truncated, too."""
        known = len(place.tail)
        found = self.read(place.offset - known, known + CHUNK_BYTES)
        return found[known:] if found.startswith(place.tail) else None

    def start(self) -> _Place:
        return _Place(inode=self.status().st_ino)

    def end(self) -> _Place:
        """Return the place behind what is there; a line that is being written is passed over."""
        status = self.status()
        size = status.st_size
        tail = self.read(max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES))
        passing = bool(tail) and not tail.endswith(b"\n")
        return _Place(
            inode=status.st_ino, offset=size, tail=tail, passing=passing, modified_ns=status.st_mtime_ns
        )

    def close(self) -> None:
        os.close(self._descriptor)


class FileFollower:
    """Follows the file behind a name: when it is rotated, to its end and then on in the new one.

    With `from_end` a first start takes only what is added from then on. Lines that cannot matter are left out
    without being read one by one. Lines of `journalctl --output=json` are read where the file begins with one, and
    all of them: a message can be written as numbers there, in which no word is found. NUL bytes, which a truncated
    file is filled with, are passed over.
    """

    def __init__(self, path: Path, *, from_end: bool, clock: Clock, zone: tzinfo = UTC) -> None:
        self._path = path
        self._from_end = from_end
        self._clock = clock
        self._zone = zone
        self._file: _File | None = None
        self._place: _Place | None = None
        self._rotated: deque[Path] = deque()
        """Older files that are still to be read before the one that has the name now."""
        self._leaving = False
        self._left_out = 0
        self._counts: Counter[str] = Counter()

    def read(self, max_lines: int) -> Sequence[KernelLine]:
        lines: list[KernelLine] = []
        left = MAX_READ_BYTES
        try:
            while len(lines) < max_lines and left > 0:
                file, place = self._opened()
                chunk = file.read_on(place)
                if chunk is None:
                    self.close()
                    continue
                left -= len(chunk)
                if not (
                    self._take(file, place, chunk, lines, max_lines - len(lines))
                    or self._turn(file, place, chunk, lines)
                ):
                    break
        except OSError as error:
            if not lines and not self._left_out:
                raise self._explained(error) from error
        return lines

    def left_out(self) -> int:
        left_out, self._left_out = self._left_out, 0
        return left_out

    def counts(self) -> Counter[str]:
        counts, self._counts = self._counts, Counter()
        return counts

    def cursor(self) -> Cursor:
        place = self._place
        if place is None:
            return {}
        return {
            "inode": place.inode,
            "offset": place.offset,
            "tail": place.tail.hex(),
            "passing": place.passing,
            "modified_ns": place.modified_ns,
        }

    def restore(self, cursor: Cursor) -> None:
        if cursor:
            self._place = _place(cursor)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- lines out of bytes ------------------------------------------------------------------------------

    def _take(self, file: _File, place: _Place, chunk: bytes, lines: list[KernelLine], most: int) -> bool:
        """Append at most so many lines of a chunk and move the place behind them; return whether it moved.

        A line that fills the chunk is taken up to there, whatever is in it, and its rest is passed over.
        """
        blank = len(chunk) - len(chunk.lstrip(b"\0"))
        end = chunk.rfind(b"\n") + 1
        if blank == len(chunk) or (not end and len(chunk) == CHUNK_BYTES):
            if blank < len(chunk):
                if not place.passing:
                    self._append(file, chunk[blank:], lines)
                place.passing = True
            self._move(file, place, chunk)
            return bool(chunk)
        if not end:
            return False
        start = chunk.find(b"\n") + 1 if place.passing else 0
        place.passing = False
        found = (all_lines if file.is_journal else relevant_lines)(chunk[start:end], most)
        self._left_out += found.others
        for raw in found.lines:
            self._append(file, raw, lines)
        self._move(file, place, chunk[: start + found.size_bytes])
        return True

    def _append(self, file: _File, raw: bytes, lines: list[KernelLine]) -> None:
        if len(raw) > MAX_LINE:
            self._counts["line_too_long"] += 1
        raw = raw.replace(b"\0", b"")
        if file.is_journal:
            line = parse_entry(raw)
            self._counts["entry_unreadable"] += line is None
        else:
            line = parse_line(raw, now_us=self._clock.now_us(), zone=self._zone)
        if line is not None:
            lines.append(line)

    def _move(self, file: _File, place: _Place, taken: bytes) -> None:
        place.offset += len(taken)
        place.tail = (place.tail + taken[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        place.modified_ns = file.status().st_mtime_ns

    # -- which file --------------------------------------------------------------------------------------

    def _opened(self) -> tuple[_File, _Place]:
        """Return the file to read and the place in it; raise OSError."""
        if self._file is None or self._place is None:
            self._leaving = False
            self._file, self._place = self._begin() if self._place is None else self._find(self._place)
        return self._file, self._place

    def _begin(self) -> tuple[_File, _Place]:
        if not self._path.exists():
            self._from_end = False  # what it will hold when it is there is new
        file = _File(self._path)
        return file, file.end() if self._from_end else file.start()

    def _find(self, place: _Place) -> tuple[_File, _Place]:
        """Open the file of a place, whatever its name is now; where it is gone, the oldest that came after it."""
        for path in sorted([self._path, *self._rotations()], key=lambda path: _inode(path) != place.inode):
            try:
                file = _File(path)
            except OSError:
                continue
            if file.read_on(place) is not None:
                place.inode = file.status().st_ino
                self._rotated = deque(() if path == self._path else self._after(place))
                return file, place
            file.close()
        self._rotated = deque(self._after(place))
        found = self._next()
        self._counts["log_replaced"] += 1
        _log.warning("log_replaced", path=str(self._path), lost="what was written after the last reading")
        return found

    def _next(self) -> tuple[_File, _Place]:
        file = _File(self._rotated.popleft() if self._rotated else self._path)
        return file, file.start()

    def _turn(self, file: _File, place: _Place, chunk: bytes, lines: list[KernelLine]) -> bool:
        """At the end of a file, where `chunk` is a line without an end, go on; return whether there is more to read."""
        if self._leaving:
            if chunk:
                if not place.passing:
                    self._append(file, chunk, lines)
                self._move(file, place, chunk)
            self.close()
            self._file, self._place = self._next()
            self._leaving = False
        elif self._rotated or self._is_followed(file):
            self._rotated = self._rotated or deque(self._after(place))
            self._leaving = True  # after one more look: its writer may have added to it until now
        else:
            return False
        return True

    def _is_followed(self, file: _File) -> bool:
        """Tell whether another file has the name, and something in it.

        Its writer goes on in the old file until it has opened the new one: one that is empty says nothing yet.
        """
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        then = file.status()
        return (now.st_dev, now.st_ino) != (then.st_dev, then.st_ino) and now.st_size > 0

    def _after(self, place: _Place) -> list[Path]:
        """Return the rotated files that were written after the one of a place, oldest first."""
        rotated = self._rotations()
        inodes = [_inode(path) for path in rotated]
        if place.inode in inodes:
            return rotated[inodes.index(place.inode) + 1 :]
        return [path for path in rotated if _modified_ns(path) > place.modified_ns]

    def _rotations(self) -> list[Path]:
        """Return what earlier files of this name are called now, oldest first."""
        name = self._path.name
        found = [
            entry
            for entry in self._path.parent.iterdir()
            if entry.name.startswith(name) and _ROTATED.fullmatch(entry.name[len(name) :])
        ]
        return sorted(found, key=_age)[-_MOST_ROTATED:]

    def _explained(self, error: OSError) -> CollectError:
        if isinstance(error, FileNotFoundError):
            return CollectError(
                "unreachable", f"{self._path}: no such file; it is read as soon as it is there"
            )
        if isinstance(error, PermissionError):
            return CollectError(
                "unreadable", f"{self._path}: {error.strerror}; its group (adm, on Debian) may read it"
            )
        return CollectError("unreadable", f"{self._path}: {error.strerror}")


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _modified_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _age(path: Path) -> tuple[int, int]:
    """Order files from old to new; written in one moment, FILE.2 comes before FILE.1, and an earlier date first."""
    digits = re.sub(r"\D", "", path.suffix if path.suffix[1:].isdigit() else path.name[-16:])
    number = int(digits or 0)
    return _modified_ns(path), -number if number < 1_000 else number


def _place(cursor: Mapping[str, Any]) -> _Place:
    return _Place(
        inode=int(cursor["inode"]),
        offset=int(cursor["offset"]),
        tail=bytes.fromhex(cursor["tail"]),
        passing=bool(cursor["passing"]),
        modified_ns=int(cursor["modified_ns"]),
    )
