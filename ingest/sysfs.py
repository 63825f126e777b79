"""Small files that the kernel writes, below a folder of one's choice: `/sys`, `/proc`, or a tree that stands for one.

Whatever a device makes of a read costs the caller one value, never more: files are read without waiting and to a
bounded length, folders to a bounded number of entries, and a whole reading to a deadline.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from itertools import islice
from pathlib import Path

from contract.clock import Clock
from contract.errors import CollectError

MAX_FILE_BYTES = 65_536
MAX_ENTRIES = 4_096

_HALF_PAGE = 2_048
_NUMBER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR})
_REASONS = {errno.EACCES: "denied", errno.EPERM: "denied", errno.ENODEV: "gone", errno.ENXIO: "gone"}


class KernelTree:
    """Reads below `root`; for one thread. Paths are relative, and links are followed as the kernel's own are.

    What is not there is None and nothing else; what is there and gives no value is None and counted in `failures`.
    """

    def __init__(self, root: Path, clock: Clock, *, timeout_seconds: float) -> None:
        self._root = str(root)
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._deadline = float("inf")
        self.failures: Counter[str] = Counter()
        """What gave no value since `begin`, by reason: denied, gone, refused, too_large, not_a_number."""

    def begin(self) -> None:
        """Begin a reading: from here on the time runs, and failures are counted anew."""
        self._deadline = self._clock.monotonic() + self._timeout_seconds
        self.failures = Counter()

    def text(self, path: str) -> str | None:
        """Return the contents of a file without the white space around; raise CollectError past the deadline."""
        full = self._at(path)
        try:
            handle = os.open(full, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                content = _read(handle)
            finally:
                os.close(handle)
        except OSError as error:
            self._fail(error)
            return None
        if len(content) > MAX_FILE_BYTES:
            self.failures["too_large"] += 1
            return None
        return content.decode("utf-8", "replace").strip(" \t\r\n\0")

    def number(self, path: str) -> int | None:
        """Return the whole number that a file holds: decimal, at most 20 digits."""
        text = self.text(path)
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            self.failures["not_a_number"] += 1
            return None
        return int(text)

    def names(self, path: str) -> tuple[str, ...] | None:
        """Return what a folder holds, sorted; no more than `MAX_ENTRIES` of it."""
        full = self._at(path)
        try:
            with os.scandir(full) as entries:
                return tuple(sorted(entry.name for entry in islice(entries, MAX_ENTRIES)))
        except OSError as error:
            self._fail(error)
            return None

    def target(self, path: str) -> str | None:
        """Return the last name of what a link points to: a device's address, a driver's name."""
        link = self.link(path)
        return None if link is None else Path(link).name

    def link(self, path: str) -> str | None:
        """Return what a link points to, as it is written: for a device, all that it hangs on."""
        full = self._at(path)
        try:
            return str(Path(full).readlink())
        except OSError:
            return None

    def _at(self, path: str) -> str:
        if self._clock.monotonic() > self._deadline:
            raise CollectError("timeout", f"{self._root}: not read within {self._timeout_seconds:g} s")
        return f"{self._root}/{path}"

    def _fail(self, error: OSError) -> None:
        if error.errno not in _ABSENT:
            self.failures[_REASONS.get(error.errno or 0, "refused")] += 1


def _read(handle: int) -> bytes:
    """Read a file, and one byte of what is beyond the bound."""
    content = part = os.read(handle, MAX_FILE_BYTES + 1)
    # Longer files of /proc come by the page, cut between lines; a part that is much shorter was the last.
    while len(part) >= _HALF_PAGE and len(content) <= MAX_FILE_BYTES:
        part = os.read(handle, MAX_FILE_BYTES + 1 - len(content))
        content += part
    return content
