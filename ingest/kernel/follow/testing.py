"""A kernel's buffer and a journal that are not there, for the tests of those who follow them."""

from __future__ import annotations

import errno
import json
import stat
from collections import deque
from pathlib import Path
from typing import Any

JOURNALCTL = """\
#!{python}
# Behaves as journalctl does with the options that are used here: entries from a file, one JSON object a line.
import sys, time
folder = {folder!r}
options = dict(word.partition("=")[::2] for word in sys.argv[1:])
with open(folder + "/calls", "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
def entries():
    with open(folder + "/entries", "rb") as log:
        yield from log
def cursor(entry):
    return entry.split(b'"__CURSOR": "', 1)[-1].split(b'"', 1)[0].decode()
def kernel(entry):
    return b'"_TRANSPORT": "kernel"' in entry
if options.get("--lines") == "1":
    sys.stdout.buffer.write(b"".join(list(filter(kernel, entries()))[-1:]))
    sys.exit(0)
start = options.get("--cursor", "c0")
if not start.startswith("c"):
    sys.exit("Failed to seek to cursor: Invalid argument")
numbers = [int(cursor(entry)[1:]) if cursor(entry)[:1] == "c" else 0 for entry in entries()]
at = next((place for place, number in enumerate(numbers) if number >= int(start[1:])), len(numbers))
while True:
    for entry in list(entries())[at:]:
        at += 1
        if kernel(entry):
            sys.stdout.buffer.write(entry)
            sys.stdout.buffer.flush()
        if b'"MESSAGE": "die"' in entry and cursor(entry) != start:
            sys.exit("died of it")
    time.sleep(0.01)
"""


class FakeKmsg:
    """A buffer of a few records, as the kernel keeps it: opened by any number of readers."""

    def __init__(self, room: int = 100, *, first: int = 0) -> None:
        self.records: deque[bytes] = deque(maxlen=room)
        self.next = first
        self.broken: OSError | None = None

    def write(self, text: str, *, uptime_us: int = 0, priority: int = 6) -> None:
        self.records.append(f"{priority},{self.next},{uptime_us},-;{text}\n".encode())
        self.next += 1

    def open(self, path: Path) -> OpenKmsg:
        del path
        if self.broken is not None:
            raise self.broken
        return OpenKmsg(self)


class OpenKmsg:
    """One reader of a buffer."""

    def __init__(self, kmsg: FakeKmsg) -> None:
        self._kmsg = kmsg
        self._at = kmsg.next - len(kmsg.records)

    def read(self) -> bytes:
        kmsg = self._kmsg
        if kmsg.broken is not None:
            raise kmsg.broken
        oldest = kmsg.next - len(kmsg.records)
        if self._at < oldest:
            self._at = oldest
            raise OSError(errno.EPIPE, "Broken pipe")
        if self._at == kmsg.next:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self._at += 1
        return kmsg.records[self._at - 1 - oldest]

    def close(self) -> None:
        """Leave the buffer to its other readers."""


class FakeJournal:
    """A folder with entries, and a `journalctl` that gives them."""

    def __init__(self, folder: Path, python: str) -> None:
        self.command = folder / "journalctl"
        self._entries = folder / "entries"
        self._calls = folder / "calls"
        self._count = 0
        self.command.write_text(JOURNALCTL.format(python=python, folder=str(folder)))
        self.command.chmod(self.command.stat().st_mode | stat.S_IXUSR)
        self._entries.touch()

    def write(self, message: Any, **fields: Any) -> None:
        """Add an entry of the kernel; a field that is None is left out."""
        self._count += 1
        entry = {
            "__CURSOR": f"c{self._count}",
            "__REALTIME_TIMESTAMP": str(1_780_272_000_000_000 + self._count),
            "MESSAGE": message,
            "PRIORITY": "6",
            "SYSLOG_FACILITY": "0",
            "SYSLOG_IDENTIFIER": "kernel",
            "_TRANSPORT": "kernel",
        } | fields
        self.write_raw(json.dumps({name: value for name, value in entry.items() if value is not None}))

    def write_raw(self, line: str) -> None:
        with self._entries.open("a") as log:
            log.write(line + "\n")

    def vacuum(self, count: int) -> None:
        """Remove the oldest entries."""
        lines = self._entries.read_text().splitlines(keepends=True)
        self._entries.write_text("".join(lines[count:]))

    def calls(self) -> list[list[str]]:
        """Return with which options it was called, each time."""
        return [line.split() for line in self._calls.read_text().splitlines()]
