"""`hallwatch parse`: what is in a log, as the system would read it, without a system."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO
from zoneinfo import ZoneInfo

import click

from hallwatch.commands.options import format_option

if TYPE_CHECKING:
    from ingest.kernel.parser import KernelParser

_FORMATS = ("table", "csv", "json")

_CHUNK_BYTES = 1_048_576
_LONGEST_UPTIME_US = 10 * 366 * 86_400 * 1_000_000
"""A smaller time is counted from the start of the kernel, not from 1970."""

_SHOWN = (
    "event",
    "device",
    "unit",
    "link",
    "code",
    "name",
    "severity",
    "class",
    "action",
    "reason",
    "occurrences",
)
"""What fits a screen; the other formats have every column."""


@click.group()
def parse() -> None:
    """Read a log of a device and print the events in it; nothing is sent anywhere."""


@parse.command("kernel-log")
@click.argument("file", type=click.File("rb"))
@format_option(_FORMATS, "json: an object per line.")
@click.option("--driver", help="Version of the GPU driver, where the log does not tell it, like 570.124.06.")
@click.option("--host", help="Host of the log, for the column of that name.")
@click.option("--zone", default="UTC", show_default=True, help="Zone of dates without one.")
def kernel_log(file: BinaryIO, output_format: str, driver: str | None, host: str | None, zone: str) -> None:
    """Print the events of GPUs, switches and network cards in a kernel log; `-` is standard input.

    \b
    dmesg | hallwatch parse kernel-log -
    hallwatch parse kernel-log /var/log/kern.log --format csv
    journalctl -k -o json | hallwatch parse kernel-log - --format json

    Reads what /dev/kmsg, dmesg in each of its formats, syslog, the journal and a Fabric Manager's log hold. Only what
    the kernel wrote counts, as far as the format says who wrote it: plain dmesg does not. A text that repeats is told
    once, then as a count. The rest of the log is counted on standard error.
    """  # noqa: D301 - click must see the character
    from ingest.kernel.parser import KernelParser

    try:
        where = ZoneInfo(zone)
    except (OSError, ValueError, KeyError) as error:
        raise click.BadParameter(f"there is no zone {zone!r}", param_hint="--zone") from error
    parser = KernelParser(driver=driver)
    lines, unreadable = _feed(parser, file, where)
    found = parser.events(0, final=True)
    rows = sorted((*found.gpu, *found.fabric), key=lambda row: int(row["ts"]))
    _print([_row(row, host) for row in rows], output_format)
    click.echo(_summary(lines, len(rows), found.skipped, unreadable + found.rejected.total()), err=True)


def _feed(parser: KernelParser, file: BinaryIO, zone: ZoneInfo) -> tuple[int, int]:
    """Give the parser every line that can matter; return how many lines there were, and entries that are none."""
    from contract.clock import SystemClock
    from ingest.kernel.follow.entry import is_entry, parse_entry
    from ingest.kernel.formats import parse_line
    from ingest.kernel.prefilter import all_lines, relevant_lines

    now_us, count, unreadable, journal = SystemClock().now_us(), 0, 0, False
    for chunk in _chunks(file):
        journal = journal or (count == 0 and is_entry(chunk))
        found = (all_lines if journal else relevant_lines)(chunk)
        read = parse_entry if journal else partial(parse_line, boot_us=0, now_us=now_us, zone=zone)
        lines = [line for raw in found.lines if (line := read(raw)) is not None]
        parser.feed(lines, 0, left_out=found.others)
        count += len(found.lines) + found.others
        unreadable += len(found.lines) - len(lines) if journal else 0
    return count, unreadable


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield pieces that end where a line does; a line longer than a piece is cut."""
    kept = b""
    while piece := file.read(_CHUNK_BYTES):
        whole, _, rest = (kept + piece).rpartition(b"\n")
        if whole:
            yield whole + b"\n"
        elif len(rest) > _CHUNK_BYTES:
            yield rest
            rest = b""
        kept = rest
    if kept:
        yield kept


def _row(row: dict[str, Any], host: str | None) -> dict[str, Any]:
    from contract.streams.fabric import FABRIC_EVENTS
    from contract.streams.gpu import GPU_EVENTS

    columns = dict.fromkeys([*GPU_EVENTS.by_name, *FABRIC_EVENTS.by_name])
    filled = {**columns, **row, "host": host}
    del filled["synthetic"]
    us = filled.pop("ts")
    filled["device"] = row.get("gpu_uuid") or row.get("nvswitch") or row.get("nic") or row.get("pci_bus_id")
    times = {"ts": us if us > _LONGEST_UPTIME_US else None, "uptime_seconds": None}
    if 0 < us <= _LONGEST_UPTIME_US:
        times["uptime_seconds"] = us / 1_000_000
        filled["first_ts"] = None
    return times | filled


def _print(rows: list[dict[str, Any]], output_format: str) -> None:
    import duckdb
    import pyarrow as pa

    from analytics.output import print_answer

    if not rows and output_format == "table":
        click.echo("no event")
        return
    table = pa.Table.from_pylist(rows, schema=_schema())
    with duckdb.connect() as connection:
        connection.register("events", table)
        chosen = "*" if output_format != "table" else ", ".join(_columns(rows))
        print_answer(connection.sql(f"SELECT {chosen} FROM events"), output_format, sys.stdout.buffer)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    """Return what a screen shows: of each column that says anything, and how the log told the time."""
    times = [name for name in ("ts", "uptime_seconds") if any(row[name] is not None for row in rows)]
    shown = [name for name in _SHOWN if any(row.get(name) is not None for row in rows)]
    return times + [f'coalesce("{name}"::VARCHAR, \'\') AS "{name}"' for name in shown]


def _schema() -> Any:
    import pyarrow as pa

    from contract.streams.fabric import FABRIC_EVENTS
    from contract.streams.gpu import GPU_EVENTS

    fields = {column.name: column.type for column in (*FABRIC_EVENTS.columns, *GPU_EVENTS.columns)}
    del fields["synthetic"]
    ordered = {"ts": fields.pop("ts"), "uptime_seconds": pa.float64(), "host": fields.pop("host")}
    return pa.schema([*ordered.items(), ("device", pa.string()), *fields.items()])


_WORDS = {
    "user_space": "written by user space, not believed",
    "follower": "that only follow another",
    "duplicate": "told already",
    "link_came_up": "of a link that came up",
    "no_fault": "of a device, without a fault",
}


def _summary(lines: int, rows: int, skipped: Counter[str], unreadable: int) -> str:
    from hallwatch.terminal import counted

    parts = [
        f"{counted(skipped[reason], 'line')} {words}" for reason, words in _WORDS.items() if skipped[reason]
    ]
    if unreadable:
        parts.append(f"{counted(unreadable, 'line')} that cannot be read")
    return f"{counted(lines, 'line')}: {counted(rows, 'event')}" + "".join(f"; {part}" for part in parts)
