"""The collector of kernel logs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self
from zoneinfo import ZoneInfo

import orjson
from pydantic import Field, field_validator, model_validator

from contract.errors import CollectError
from contract.streams.fabric import FABRIC_EVENTS
from contract.streams.gpu import GPU_EVENTS
from ingest.collector import Context, HostConfig, Reading, Rows, collector
from ingest.kernel.follow.file import FileFollower
from ingest.kernel.follow.follower import Follower
from ingest.kernel.follow.journal import JournalFollower
from ingest.kernel.follow.kmsg import KMSG, KmsgFollower
from ingest.kernel.line import KernelLine
from ingest.kernel.parser import KernelParser

MAX_LINES = 20_000
"""One reading takes no more that matter: a backlog is worked off second by second, each well within its timeout."""

_BATCH_LINES = 2_000
_DRIVER_FOLDER = Path("/proc/driver/nvidia")
_DRIVER_VERSION = re.compile(r"\b(\d{3,4}\.\d{1,4}(?:\.\d{1,4})?)\b", re.ASCII)
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\s*$", re.MULTILINE)

_AHEAD_US = 5_000_000
"""A later time is that of a wrong clock; rules forgive one as much."""

_OLDEST_US = 366 * 86_400_000_000
"""An older time is that of a clock that was never set: no log is kept for so long."""


class KernelLogConfig(HostConfig):
    """A kernel log."""

    source: Literal["kmsg", "journal", "file"] = Field(
        default="kmsg",
        description="`kmsg`: the kernel's own buffer; `journal`: systemd's, which outlives a crash; `file`: a log file.",
    )
    path: Path | None = Field(
        default=None, description="The log file, like `/var/log/kern.log`; its rotations are followed."
    )
    start: Literal["now", "beginning"] = Field(
        default="now",
        description="What a first start reads: only what comes, or all that the log holds, which rules take for new.",
    )
    times: Literal["line", "reading"] = Field(
        default="line",
        description="When an event was: the time of its line, or that of the reading, where the log's clock is wrong.",
    )
    zone: str = Field(default="UTC", description="Zone of dates without one, like `Europe/Berlin`.")
    driver: str | None = Field(
        default=None,
        description="Version of the GPU driver, where neither the log nor the driver itself tells it.",
    )
    driver_folder: Path | None = Field(
        default=None,
        description="Where the GPU driver names its version and its GPUs: of this machine for `kmsg` and `journal`, "
        "nowhere for `file`, which may be another machine's.",
    )
    interval_seconds: float = Field(
        default=1, gt=0, le=3600, description="Time from one reading to the next."
    )

    @field_validator("zone")
    @classmethod
    def _is_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"there is no zone {zone!r}") from error
        return zone

    @model_validator(mode="after")
    def _has_path(self) -> Self:
        if self.source == "file" and self.path is None:
            raise ValueError("`path` is missing: which file?")
        if self.source == "journal" and self.path is not None:
            raise ValueError("`path` belongs to a file; the journal is found without")
        return self

    @property
    def identity(self) -> str:
        """Name the log: a place in one says nothing about another."""
        return f"{self.source}:{self.path or ''}"


@collector("gpu-kernel-log", KernelLogConfig, (GPU_EVENTS, FABRIC_EVENTS))
class KernelLogCollector:
    """Reads what the kernel says about GPUs, NVSwitches and network cards.

    ```toml
    [[ingest.collectors]]
    collector = "gpu-kernel-log"
    host = "h100-a01-01"
    source = "journal"
    ```

    Every Xid and SXid, GPUs that are lost or reset, NVLinks, and the faults of network cards become rows of
    `gpu_events` and `fabric_events`; the rest of the log is nothing. Repeats are gathered: the first is told at
    once, then a count at growing intervals. Only what the kernel itself wrote counts: a program can write any text,
    but not the kernel's facility. In a file the tag `kernel:` is often all that is left of it, and `logger -t kernel`
    writes that, too: of files, take one that only the kernel's facility goes to (`kern.log`), or the journal.

    It needs the right to read the log: group `adm` or `systemd-journal`; `/dev/kmsg` needs root or the capability
    `CAP_SYSLOG`. A poll costs the machine nothing but the new lines, and us some 2 us of CPU for each.

    Where it has read and what it has told are stored together, so that a restart neither misses a line nor tells
    one twice. What a log loses before it is read is counted in `collector_status`: `records_overwritten` (the
    kernel's buffer is small), `log_replaced` (a file was truncated or its rotation removed), `entries_vacuumed`.
    """

    def __init__(
        self, config: KernelLogConfig, context: Context, *, follower: Follower | None = None
    ) -> None:
        self._config = config
        self._clock = context.clock
        self._follower = follower or _follower(config, context)
        folder = _driver_folder(config)
        self._parser = KernelParser(driver=config.driver or _read_driver(folder), gpus=_read_gpus(folder))

    def collect(self, now_us: int) -> Reading:
        self._read(now_us)
        found = self._parser.events(now_us)
        both = ((GPU_EVENTS, found.gpu), (FABRIC_EVENTS, found.fabric))
        return Reading(
            rows=[Rows.gather(stream, rows) for stream, rows in both if rows],
            rejected=found.rejected + self._follower.counts(),
            skipped=+found.skipped,
        )

    def cursor(self) -> bytes:
        return orjson.dumps(
            {
                "log": self._config.identity,
                "place": self._follower.cursor(),
                "parser": self._parser.dump(),
            }
        )

    def restore(self, cursor: bytes) -> None:
        try:
            kept = orjson.loads(cursor)
            self._parser.load(kept["parser"])
            if kept["log"] == self._config.identity:
                self._follower.restore(kept["place"])
        except (ValueError, TypeError, KeyError):
            return

    def close(self) -> None:
        self._follower.close()

    def _read(self, now_us: int) -> None:
        """Feed the parser until the log has no more, or half of the time or the most lines are used up."""
        until = self._clock.monotonic() + self._config.timeout_seconds / 2
        for number in range(MAX_LINES // _BATCH_LINES):
            try:
                lines = self._follower.read(_BATCH_LINES)
            except CollectError:
                if number == 0:
                    raise
                return  # what was read is told first; the next reading meets the error again
            left_out = self._follower.left_out()
            if not lines and not left_out:
                return
            self._parser.feed([self._timed(line, now_us) for line in lines], now_us, left_out=left_out)
            if self._clock.monotonic() >= until:
                return

    def _timed(self, line: KernelLine, now_us: int) -> KernelLine:
        """Give a line the time of the reading where its own cannot be true."""
        ts_us = line.ts_us
        sane = ts_us is not None and now_us - _OLDEST_US <= ts_us <= now_us + _AHEAD_US
        return line if sane and self._config.times == "line" else line._replace(ts_us=now_us)


def _follower(config: KernelLogConfig, context: Context) -> Follower:
    from_end = config.start == "now"
    match config.source:
        case "kmsg":
            return KmsgFollower(config.path or KMSG, from_end=from_end, clock=context.clock)
        case "journal":
            return JournalFollower(from_end=from_end)
        case "file":
            path, zone = config.path or Path(), ZoneInfo(config.zone)
            return FileFollower(path, from_end=from_end, clock=context.clock, zone=zone)


def _driver_folder(config: KernelLogConfig) -> Path | None:
    if config.driver_folder is None and config.source != "file":
        return _DRIVER_FOLDER
    return config.driver_folder


def _read_driver(folder: Path | None) -> str | None:
    """Return the version of the loaded driver: `NVRM version: NVIDIA UNIX ... Kernel Module  550.54.15  ...`."""
    found = _DRIVER_VERSION.search(_text(folder / "version")) if folder is not None else None
    return found[1] if found is not None else None


def _read_gpus(folder: Path | None) -> dict[str, str]:
    """Return the UUIDs of the GPUs that the driver knows, by PCI address; one it cannot ask has none."""
    if folder is None:
        return {}
    found = {path.parent.name: _UUID.search(_text(path)) for path in folder.glob("gpus/*/information")}
    return {address: uuid[1] for address, uuid in found.items() if uuid is not None}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
