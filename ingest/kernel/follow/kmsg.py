"""The kernel's own buffer, /dev/kmsg.

Linux Documentation/ABI/testing/dev-kmsg: a read gives one record; records are numbered from 0 at each boot; where
records were overwritten before they were read, a read fails with EPIPE and the next one gives the oldest record
that is left. What user space writes there never has facility 0.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from contract.clock import Clock
from contract.errors import CollectError
from contract.log import Log
from ingest.kernel.follow.follower import Cursor
from ingest.kernel.formats import parse_line
from ingest.kernel.line import KernelLine

KMSG = Path("/dev/kmsg")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_RECORD_BYTES = 16_384
"""Linux kernel/printk/printk.c formats a record into 8 KiB at most; into a shorter buffer it gives EINVAL."""

_log = Log("ingest.kernel")


class Device(Protocol):
    """An open /dev/kmsg."""

    def read(self) -> bytes:
        """Return the next record; raise BlockingIOError where there is none yet, OSError(EPIPE) after a loss."""
        ...

    def close(self) -> None: ...


class KmsgDevice:
    """The device file."""

    def __init__(self, path: Path) -> None:
        """Raise OSError."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def read(self) -> bytes:
        return os.read(self._descriptor, _RECORD_BYTES)

    def close(self) -> None:
        os.close(self._descriptor)


class KmsgFollower:
    """Follows the kernel's buffer by the numbers of its records.

    A record has the kernel's uptime. The wall time of it is the clock now less what the kernel has run since: right
    for what is read when it is written, and where the clock was set since, by the clock as it is now. Neither
    counter runs while a machine is suspended, so what was logged before that seems later by as long.
    """

    def __init__(
        self,
        path: Path = KMSG,
        *,
        from_end: bool,
        clock: Clock,
        open_device: Callable[[Path], Device] = KmsgDevice,
        boot_id: Path = _BOOT_ID,
    ) -> None:
        self._path = path
        self._passing = from_end
        """The buffer is read and passed over: to know its last number is to miss nothing after it."""
        self._clock = clock
        self._open = open_device
        self._boot_id = boot_id
        self._boot = ""
        self._device: Device | None = None
        self._next: int | None = None
        """Number of the next record; None: whatever is the oldest."""
        self._restored: tuple[str, int] | None = None
        self._counts: Counter[str] = Counter()

    def read(self, max_lines: int) -> Sequence[KernelLine]:
        lines: list[KernelLine] = []
        now_us = self._clock.now_us()
        boot_us = now_us - round(self._clock.monotonic() * 1e6)
        try:
            device = self._opened()
            while len(lines) < max_lines and (record := self._record(device)) is not None:
                line = parse_line(record, boot_us=boot_us)
                if line is not None:
                    ts_us = None if line.ts_us is None else min(line.ts_us, now_us)
                    lines.append(line._replace(ts_us=ts_us))
        except OSError as error:
            self.close()
            if not lines:
                raise self._explained(error) from error
        return lines

    def left_out(self) -> int:
        return 0

    def counts(self) -> Counter[str]:
        counts, self._counts = self._counts, Counter()
        return counts

    def cursor(self) -> Cursor:
        return {} if self._next is None else {"boot": self._boot, "next": self._next}

    def restore(self, cursor: Cursor) -> None:
        """Take a place over; where the kernel was started since, go on from its first record."""
        if cursor:
            self._restored = str(cursor["boot"]), int(cursor["next"])

    def close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def _opened(self) -> Device:
        if self._device is None:
            if not self._boot:
                self._boot = self._read_boot_id()
                self._resume()
            self._device = self._open(self._path)
        return self._device

    def _resume(self) -> None:
        if self._restored is not None:
            boot, following = self._restored
            self._next = following if boot == self._boot else 0
            self._passing = False

    def _record(self, device: Device) -> bytes | None:
        """Return the next record that is new; None where there is none yet."""
        while True:
            try:
                record = device.read()
            except BlockingIOError:
                if self._passing:
                    self._passing, self._next = False, self._next or 0
                return None
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                continue  # the number of the next record tells how many are gone
            number = int(record.split(b",", 2)[1])
            if self._next is not None and number < self._next:
                continue
            self._tell_lost(number)
            self._next = number + 1
            if not self._passing:
                return record

    def _tell_lost(self, number: int) -> None:
        lost = 0 if self._next is None else number - self._next
        if lost > 0 and not self._passing:
            self._counts["records_overwritten"] += lost
            _log.warning("records_overwritten", path=str(self._path), count=lost, first=self._next)

    def _read_boot_id(self) -> str:
        try:
            return self._boot_id.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise CollectError("unreadable", f"{self._boot_id}: {error}") from error

    def _explained(self, error: OSError) -> CollectError:
        if isinstance(error, PermissionError):
            words = f"{error.strerror}; it takes CAP_SYSLOG (or root) where kernel.dmesg_restrict is 1"
            return CollectError("unreadable", f"{self._path}: {words}")
        reason = "unreachable" if isinstance(error, FileNotFoundError) else "unreadable"
        return CollectError(reason, f"{self._path}: {error.strerror}")
