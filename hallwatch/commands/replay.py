"""`hallwatch replay`."""

from __future__ import annotations

import logging
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from analytics.query import connect
from contract.log import set_up_logging
from hallwatch.recordings import LONGEST_PAUSE_SECONDS
from hallwatch.replay import HOLD_SECONDS, Played, play
from hallwatch.terminal import called, counted, open_console, say

FAILED = """\
SELECT source, max(polls_failed), max(polls), arg_max(last_error, ts) FROM collector_status
GROUP BY source HAVING max(polls_failed) > 0 ORDER BY source"""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("replay"),
    show_default=True,
    help="Where its bus, lake and alerts go; an earlier replay there is removed.",
)
@click.option(
    "--hold",
    "hold_seconds",
    type=click.FloatRange(min=0),
    default=HOLD_SECONDS,
    show_default=True,
    help="Seconds that it goes on after the last page or line.",
)
@click.option(
    "--speed", type=click.FloatRange(min=0.01), help="Times the recorded pace; as fast as possible without."
)
def replay(folder: Path, output: Path, hold_seconds: float, speed: float | None) -> None:
    """Play recordings of devices in FOLDER through collectors, bus, lake and engine.

    \b
    NAME.prom            one exporter page, held for the whole replay
    NAME/SECONDS.prom    pages of one exporter, each shown from that second on
    NAME.log             a kernel log: dmesg, syslog, journal JSON or /dev/kmsg; also
                         .syslog .dmesg .kmsg .json .jsonl .txt
    inventory.yaml       the map of that hall (without one, nothing is expected to be there)

    NAME is the host. The lines of a log come as far apart as their times are.

    What the rules raise is what they would have raised in the hall. The replay has its own bus and lake.
    """  # noqa: D301 - the command line library wants the character itself
    set_up_logging(level=logging.ERROR)  # a device that fails is part of the report
    console = open_console()
    columns = (
        TextColumn("replay"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("replay", total=1.0)
        played = play(
            folder,
            output,
            hold_seconds=hold_seconds,
            speed=speed,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    _report(console, played)


def _report(console: Console, played: Played) -> None:
    parts = ((len(played.hall.recordings), "device"), (len(played.hall.logs), "log"))
    what = " and ".join(counted(count, noun) for count, noun in parts if count)
    say(console, f"Played {what} for {played.seconds:.0f} s.")
    if any(log.shortened for log in played.hall.logs):
        say(
            console,
            f"Pauses of more than {LONGEST_PAUSE_SECONDS / 60:.0f} minutes in logs were shortened to that.",
        )
    if played.hall.not_playable:
        say(console, "Not playable: " + ", ".join(played.hall.not_playable))
    lake = connect(played.config.lake.path)
    for source, failed, polls, error in lake.sql(FAILED).fetchall():
        say(console, f"{source}: {failed} of {polls} readings failed: {error}", "yellow")
    rows = Table("stream", "rows", title="In the lake", title_justify="left")
    for stream in lake.versions:
        ((count,),) = lake.sql(f'SELECT count(*) FROM "{stream}"').fetchall()
        if count:
            rows.add_row(stream, f"{count:,}")
    console.print(rows)
    if not played.alerts:
        say(console, "No alert was raised.")
    for alert in played.alerts:
        seconds = (alert.at_us - played.start_us) / 1e6
        say(console, f"{seconds:6.1f} s  ALERT  {alert.severity:8}  {alert.rule}: {alert.summary}")
    stream = "gpu_samples" if played.hall.recordings else "gpu_events"
    say(
        console,
        f"\nAsk it: {called()} sql --config {played.config_path} 'SELECT host, count(*) FROM {stream} GROUP BY host'",
    )
