"""From a line of a log to a message: the shapes in which kernel logs are kept.

Sources: Linux Documentation/ABI/testing/dev-kmsg (records), util-linux dmesg(1) (--time-format, --decode, -T),
RFC 3164 and RFC 5424 (syslog), Linux lib/vsprintf and CONFIG_PRINTK_CALLER ("[ T1946]"); the Fabric Manager's own
log as in the NVIDIA Fabric Manager user guide.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from ingest.kernel.line import DAEMON, KERNEL, USER, KernelLine

MAX_LINE = 8_192
"""Characters of a line that are read: a record of the kernel is far shorter."""

# fmt: off
_FACILITIES = (
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp",
    "res0", "res1", "res2", "res3",
    "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
# fmt: on
_LEVELS = ("emerg", "alert", "crit", "err", "warn", "notice", "info", "debug")

# Each part is of bounded length and none can match in two ways, so that a hostile line costs one pass.
_RECORD = re.compile(r"(\d{1,9}),\d{1,20},(\d{1,18}),[^;]{0,256};(.*)", re.DOTALL)
_FIELD = re.compile(r" [A-Z_]{1,64}=")
_PRIORITY = re.compile(r"<(\d{1,3})>")
_DECODED = re.compile(rf"({'|'.join(_FACILITIES)}) {{0,8}}:({'|'.join(_LEVELS)}) {{0,8}}: ")
_UPTIME = re.compile(r"\[ {0,16}(\d{1,12})(?:\.(\d{1,9}))?\] {0,8}(?:\[ {0,16}[TC]\d{1,10}\] {0,8})?")
_DATE = re.compile(r"\[[A-Z][a-z]{2} ([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})\] {0,8}")
_FABRIC_MANAGER = re.compile(
    r"\[([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d{4}) (\d\d):(\d\d):(\d\d)\] \[([A-Z]{1,16})\] \[tid \d{1,10}\] {0,8}"
)
_FABRIC_MANAGER_LEVELS = {"CRITICAL": 2, "ERROR": 3, "WARNING": 4, "INFO": 6, "DEBUG": 7}
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))? ")
_ISO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:([.,])(\d{1,9}))?(Z|[+-]\d\d:?\d\d)? {1,8}")
_RFC5424 = re.compile(
    r"1 (\S{1,64}) (?:\S{1,255}) (\S{1,48}) \S{1,128} \S{1,32} (?:-|\[[^\]]{0,1024}\]) {0,8}"
)
_CLOCK = re.compile(r"\d\d:\d\d:\d\d(?:\.\d{1,9})? {1,8}")
_TAG = re.compile(r"[^\s:]{1,255} ([A-Za-z_(][^\s:\[]{0,63})(\[\d{1,10}\])?: ?")
_KERNEL_TAG = re.compile(r"(?:[A-Za-z0-9_.-]{1,255} )?kernel: {0,8}")


def parse_line(
    raw: bytes | str,
    *,
    boot_us: int | None = None,
    now_us: int | None = None,
    zone: tzinfo = UTC,
) -> KernelLine | None:
    r"""Return the message of a line, or None where it holds none: empty, or a field of the record above it.

    `boot_us` is when the kernel started, which turns an uptime into a time; `now_us` gives a date without a year
    the year in which it is not in the future; `zone` is that of dates without one. A time that cannot be made out
    is None. A control character that the log has escaped (`\x0a`) stays as it is: it is data.
    """
    line = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    line = line[:MAX_LINE].rstrip("\r\n")
    if not line or line.isspace():
        return None
    first = line[0]
    if first == "[":
        return _bracketed(line, None, None, boot_us, zone)
    if first.isdigit():
        return _numbered(line, boot_us, zone)
    if first == "<":
        return _prioritised(line, boot_us, now_us, zone)
    if first == " " and _FIELD.match(line):
        return None
    decoded = _DECODED.match(line)
    if decoded is not None:
        facility, level = _FACILITIES.index(decoded[1]), _LEVELS.index(decoded[2])
        return _timed(line[decoded.end() :], facility, level, boot_us, zone)
    return _syslog(line, None, None, now_us, zone) or _bare(line, None, None, None)


def _numbered(line: str, boot_us: int | None, zone: tzinfo) -> KernelLine:
    record = _RECORD.match(line)
    if record is not None:
        priority, text = int(record[1]), record[3].partition("\n")[0]
        ts_us = None if boot_us is None else boot_us + int(record[2])
        return KernelLine(ts_us, text, priority >> 3, priority & 7)
    iso = _ISO.match(line)
    if (
        iso is not None and iso[2] != ","
    ):  # a comma is dmesg's; whoever writes a point names host and tag, too
        return _tagged(line[iso.end() :], _iso_us(iso, zone), None, None)
    return _timed(line, None, None, boot_us, zone)


def _timed(
    line: str, facility: int | None, severity: int | None, boot_us: int | None, zone: tzinfo
) -> KernelLine:
    """Read a message of dmesg: in front of it an uptime, a date, a time of day, or nothing."""
    if line.startswith("["):
        return _bracketed(line, facility, severity, boot_us, zone)
    iso = _ISO.match(line)
    if iso is not None:
        return _bare(line[iso.end() :], _iso_us(iso, zone), facility, severity)
    clock = _CLOCK.match(line)
    return _bare(line[clock.end() :] if clock is not None else line, None, facility, severity)


def _bracketed(
    line: str, facility: int | None, severity: int | None, boot_us: int | None, zone: tzinfo
) -> KernelLine:
    uptime = _UPTIME.match(line)
    if uptime is not None:
        ts_us = None
        if boot_us is not None:
            ts_us = boot_us + int(uptime[1]) * 1_000_000 + int((uptime[2] or "").ljust(6, "0")[:6])
        return _bare(line[uptime.end() :], ts_us, facility, severity)
    date = _DATE.match(line)
    if date is not None:
        month, day, hour, minute, second, year = date.groups()
        ts_us = _date_us(year, month, day, (hour, minute, second), zone)
        return _bare(line[date.end() :], ts_us, facility, severity)
    own = _FABRIC_MANAGER.match(line)
    if own is not None:
        month, day, year, hour, minute, second, level = own.groups()
        ts_us = _date_us(year, month, day, (hour, minute, second), zone)
        return KernelLine(ts_us, line[own.end() :], facility, _FABRIC_MANAGER_LEVELS.get(level, severity))
    return KernelLine(None, line, facility, severity)


def _prioritised(line: str, boot_us: int | None, now_us: int | None, zone: tzinfo) -> KernelLine:
    found = _PRIORITY.match(line)
    if found is None:
        return KernelLine(None, line, None, None)
    facility, severity = int(found[1]) >> 3, int(found[1]) & 7
    rest = line[found.end() :]
    if rest.startswith("["):
        return _bracketed(rest, facility, severity, boot_us, zone)
    structured = _RFC5424.match(rest) if rest.startswith("1 ") else None
    if structured is not None:
        iso = _ISO.match(f"{structured[1]} ")
        ts_us = _iso_us(iso, zone) if iso is not None else None
        return _told_by(structured[2], rest[structured.end() :], ts_us, facility, severity)
    return _syslog(rest, facility, severity, now_us, zone) or _timed(rest, facility, severity, boot_us, zone)


def _syslog(
    line: str, facility: int | None, severity: int | None, now_us: int | None, zone: tzinfo
) -> KernelLine | None:
    found = _SYSLOG.match(line)
    if found is None:
        return None
    month, day, hour, minute, second, fraction = found.groups()
    ts_us = None
    if now_us is not None:
        ts_us = _yearless_us(month, day, (hour, minute, second), now_us, zone)
        if ts_us is not None:
            ts_us += int((fraction or "").ljust(6, "0"))
    return _tagged(line[found.end() :], ts_us, facility, severity)


def _tagged(line: str, ts_us: int | None, facility: int | None, severity: int | None) -> KernelLine:
    """Read `host tag[pid]: message`. Without a tag nobody says that the kernel wrote it."""
    found = _TAG.match(line)
    if found is None:
        return KernelLine(ts_us, line, USER if facility is None else facility, severity)
    tag = f"{found[1]}{found[2] or ''}"
    return _told_by(tag, line[found.end() :], ts_us, facility, severity)


def _told_by(
    tag: str, message: str, ts_us: int | None, facility: int | None, severity: int | None
) -> KernelLine:
    """Take the tag for a claim: `kernel` is believed where no facility contradicts, all others are user space."""
    if tag == "kernel":
        return _bare(message, ts_us, KERNEL if facility is None else facility, severity)
    text = f"{tag}: {message}"
    return KernelLine(ts_us, text, facility or (DAEMON if "[" in tag else USER), severity)


def _bare(text: str, ts_us: int | None, facility: int | None, severity: int | None) -> KernelLine:
    """Drop what may be left in front: `host kernel:` after a time, an uptime after `kernel:`."""
    if text.find("kernel: ", 0, 300) >= 0:
        tag = _KERNEL_TAG.match(text)
        if tag is not None:
            text = text[tag.end() :]
    if text.startswith("["):
        uptime = _UPTIME.match(text)
        if uptime is not None:
            text = text[uptime.end() :]
    return KernelLine(ts_us, text, facility, severity)


def _iso_us(found: re.Match[str], zone: tzinfo) -> int | None:
    moment, _, fraction, offset = found.groups()
    try:
        parsed = datetime.fromisoformat(moment + (offset or ""))
    except ValueError:
        return None
    aware = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=zone)
    return _epoch_us(aware) + int((fraction or "").ljust(6, "0")[:6])


def _date_us(year: str, month: str, day: str, clock: tuple[str, str, str], zone: tzinfo) -> int | None:
    if month not in _MONTHS:
        return None
    hour, minute, second = map(int, clock)
    try:
        moment = datetime(int(year), _MONTHS.index(month) + 1, int(day), hour, minute, second, tzinfo=zone)
    except ValueError:
        return None
    return _epoch_us(moment)


def _yearless_us(month: str, day: str, clock: tuple[str, str, str], now_us: int, zone: tzinfo) -> int | None:
    """Return the latest such date that is at most a day ahead; 29 February may be four years back."""
    now = datetime.fromtimestamp(now_us / 1_000_000, zone)
    for year in range(now.year + 1, now.year - 8, -1):
        ts_us = _date_us(str(year), month, day, clock, zone)
        if ts_us is not None and ts_us <= now_us + _DAY_US:
            return ts_us
    return None


_DAY_US = 86_400_000_000


def _epoch_us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
