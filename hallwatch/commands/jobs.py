"""`hallwatch jobs`: who has which GPUs now."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from contract.config import load_config
from hallwatch.commands.options import CONFIG, format_option
from hallwatch.terminal import counted, open_console, say

_SHOWN_HOSTS = 4


@click.command()
@click.option("--host", help="Only jobs on this host.")
@CONFIG
@click.option(
    "--lake",
    "lake_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the lake, instead of a configuration.",
)
@format_option(("table", "json"), "json: rows of the view `jobs_now`, one object per line.")
def jobs(host: str | None, config_path: Path, lake_path: Path | None, output_format: str) -> None:
    """List the jobs that run now and the hosts they have; the collector `jobs` reads them from the scheduler."""
    from analytics.query import connect

    path = lake_path if lake_path is not None else load_config(config_path).lake.path
    with connect(path) as lake:
        rows = lake.arrow(
            "FROM jobs_now WHERE $h IS NULL OR job IN (SELECT job FROM jobs_now WHERE host = $h) "
            "ORDER BY start_ts, job, host, part",
            {"h": host},
        ).to_pylist()
    if output_format == "json":
        for row in rows:
            sys.stdout.buffer.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        return
    _print(rows)


def _print(rows: Sequence[dict[str, Any]]) -> None:
    console = open_console()
    by_job: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_job.setdefault(row["job"], []).append(row)
    if not by_job:
        say(console, "No job runs, as far as the lake knows.")
        return
    heads = ("since (UTC)", "job", "state", "role", "user", "GPUs", "hosts")
    lines = [heads, *(_cells(job, parts) for job, parts in by_job.items())]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    for cells in lines:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        say(console, "  ".join([*padded, cells[-1]]))
    hosts = len({row["host"] for row in rows})
    say(console, f"\n{counted(len(by_job), 'job')} on {counted(hosts, 'host')}")


def _cells(job: str, parts: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    hosts = list(dict.fromkeys(part["host"] for part in parts))
    more = f" and {len(hosts) - _SHOWN_HOSTS} more" if len(hosts) > _SHOWN_HOSTS else ""
    gpus = [part["gpus"] for part in parts]
    since = parts[0]["start_ts"]
    return (
        "?" if since is None else f"{since:%Y-%m-%d %H:%M:%S}",
        job,
        "+".join(_words(parts, "state")),
        "+".join(_words(parts, "role")) or "-",
        parts[0]["user"] or "-",
        "?" if None in gpus else str(sum(gpus)),
        ", ".join(hosts[:_SHOWN_HOSTS]) + more,
    )


def _words(parts: Sequence[dict[str, Any]], column: str) -> list[str]:
    return list(dict.fromkeys(part[column] for part in parts if part[column] is not None))
