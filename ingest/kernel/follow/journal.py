"""The systemd journal, through a `journalctl` that stays.

journalctl(1): `--follow` goes on across the journal's own rotation; `--no-tail` gives all from the cursor on;
`--dmesg` would leave out the last lines of the boot before, which say why it ended, so the kernel is asked for by
`_TRANSPORT=kernel`. Not `--after-cursor`: where the entry is gone it skips the first that is left instead. A child
that nobody reads waits in its pipe, so that nothing is lost.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections import Counter
from collections.abc import Sequence
from typing import IO

import orjson

from contract.errors import CollectError
from contract.log import Log
from ingest.kernel.follow.entry import MAX_ENTRY_BYTES, parse_entry
from ingest.kernel.follow.follower import Cursor
from ingest.kernel.line import KernelLine

_FIELDS = "MESSAGE,PRIORITY,SYSLOG_FACILITY,SYSLOG_IDENTIFIER,_TRANSPORT"
_KERNEL = "_TRANSPORT=kernel"
_CHUNK_BYTES = 65_536
_COMPLAINT_BYTES = 1_000

_LAST_ENTRY_SECONDS = 3.0
"""How long a journal may take to find its newest entry; less than a reading has."""

_FIRST_ENTRY_SECONDS = 1.0
"""How long a child that starts is waited for, so that one reading alone reads something."""

_log = Log("ingest.kernel")


class JournalFollower:
    """Follows the kernel's entries in the journal of this machine."""

    def __init__(self, *, from_end: bool, command: Sequence[str] = ("journalctl",)) -> None:
        self._from_end = from_end
        self._command = tuple(command)
        self._child: subprocess.Popen[bytes] | None = None
        self._cursor: str | None = None
        self._known: str | None = None
        """The entry that a child gives first, because it was read before."""
        self._buffer = b""
        self._passing = False
        """The buffer begins inside of an entry that is too long."""
        self._complaint = b""
        self._counts: Counter[str] = Counter()

    def read(self, max_lines: int) -> Sequence[KernelLine]:
        lines: list[KernelLine] = []
        child = self._child or self._start()
        while len(lines) < max_lines:
            if not self._take(lines, max_lines - len(lines)) and not self._fill(child):
                break
        if not lines and child.poll() is not None and not self._fill(child):
            raise self._ended(child)
        return lines

    def left_out(self) -> int:
        return 0

    def counts(self) -> Counter[str]:
        counts, self._counts = self._counts, Counter()
        return counts

    def cursor(self) -> Cursor:
        return {} if self._cursor is None else {"cursor": self._cursor}

    def restore(self, cursor: Cursor) -> None:
        if cursor:
            self._cursor = str(cursor["cursor"])

    def close(self) -> None:
        child, self._child = self._child, None
        self._buffer, self._passing = b"", False
        if child is None:
            return
        child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._cursor is None:
            self._cursor = self._first_place()
        self._known = self._cursor
        start = () if self._cursor is None else (f"--cursor={self._cursor}",)
        self._complaint = b""
        try:
            child = subprocess.Popen(
                [
                    *self._command, "--follow", "--no-tail", "--output=json", f"--output-fields={_FIELDS}",
                    "--no-pager", "--quiet", *start, _KERNEL,
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise self._missing(error) from error
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._child = child
        if child.stdout is not None:
            select.select([child.stdout], [], [], _FIRST_ENTRY_SECONDS)
        return child

    def _first_place(self) -> str | None:
        """Return the entry to begin behind; None for the beginning. Every kernel says something when it starts."""
        last, from_end = self._last_entry(), self._from_end
        if last is None:
            self._from_end = False  # all that comes is new
            words = "the journal shows no line of the kernel: may this user read it (group systemd-journal, on most)?"
            raise CollectError("no_data", words)
        return last if from_end else None

    def _last_entry(self) -> str | None:
        """Return the cursor of the newest entry; None where there is none."""
        command = [
            *self._command,
            "--lines=1",
            "--output=json",
            "--output-fields=MESSAGE",
            "--no-pager",
            "--quiet",
            _KERNEL,
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_LAST_ENTRY_SECONDS, check=False)
        except OSError as error:
            raise self._missing(error) from error
        except subprocess.TimeoutExpired as error:
            raise CollectError(
                "timeout", f"journalctl gave no last entry in {_LAST_ENTRY_SECONDS} s"
            ) from error
        if done.returncode:
            raise CollectError(
                "unreachable", f"journalctl ended with {done.returncode}: {_words(done.stderr)}"
            )
        entries = done.stdout.splitlines()
        return _cursor_of(entries[-1]) if entries else None

    def _fill(self, child: subprocess.Popen[bytes]) -> bool:
        """Take what the child has written; return whether it was anything."""
        self._complaint = (self._complaint + _available(child.stderr))[-_COMPLAINT_BYTES:]
        chunk = _available(child.stdout)
        self._buffer += chunk
        return bool(chunk)

    def _take(self, lines: list[KernelLine], most: int) -> bool:
        """Append at most so many entries of the buffer; return whether there was a whole one."""
        *entries, rest = self._buffer.split(b"\n", most)
        if not entries and len(rest) > MAX_ENTRY_BYTES:
            self._passing, rest = True, b""
        self._buffer = rest
        for entry in entries:
            passed, self._passing = self._passing, False
            self._append(entry, lines, passed=passed)
        return bool(entries)

    def _append(self, entry: bytes, lines: list[KernelLine], *, passed: bool) -> None:
        place = None if passed else _cursor_of(entry)
        known, self._known = self._known, None
        if known is not None and place == known:
            return
        if known is not None:
            self._counts["entries_vacuumed"] += 1
            _log.warning("entries_vacuumed", lost="what the journal removed before it was read")
        line = None if passed else parse_entry(entry)
        if line is None:
            self._counts["entry_unreadable"] += 1
        else:
            lines.append(line)
        self._cursor = place or self._cursor

    def _ended(self, child: subprocess.Popen[bytes]) -> CollectError:
        """Give the child up; the next reading starts another behind the last entry."""
        words = _words(self._complaint)
        self.close()
        return CollectError("unreachable", f"journalctl ended with {child.returncode}: {words}")

    def _missing(self, error: OSError) -> CollectError:
        words = (
            f'{self._command[0]}: {error.strerror}; without a journal say source = "kmsg", or name a log file'
        )
        return CollectError("unreachable", words)


def _available(pipe: IO[bytes] | None) -> bytes:
    """Return what can be read without waiting."""
    return (pipe.read(_CHUNK_BYTES) if pipe is not None else None) or b""


def _cursor_of(entry: bytes) -> str | None:
    try:
        return str(orjson.loads(entry)["__CURSOR"])
    except (ValueError, TypeError, KeyError):
        return None


def _words(complaint: bytes) -> str:
    return complaint.decode("utf-8", "replace").strip() or "it says nothing about it"
