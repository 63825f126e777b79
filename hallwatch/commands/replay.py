"""`hallwatch replay`."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from analytics.query import connect
from contract.log import set_up_logging
from contract.streams import STREAMS
from contract.streams.self import COLLECTOR_STATUS
from hallwatch.recordings.hall import KINDS
from hallwatch.replay import HOLD_SECONDS, Played, play
from hallwatch.terminal import called, counted, open_console, say

FAILED = """\
SELECT source, max(polls_failed), max(polls), arg_max(last_error, ts) FROM collector_status
GROUP BY source HAVING max(polls_failed) > 0 ORDER BY source"""


HELP = (
    "Play recordings of devices in FOLDER through collectors, bus, lake and engine.",
    *(f"{kind.form}: {kind.meaning}." for kind in KINDS),
    "inventory.yaml: the map of that hall; without one, nothing is expected to be there.",
    "NAME is the host or the equipment. Without SECONDS it is held for the whole replay, else shown from then on.",
    "What the rules raise is what they would have raised in the hall. The replay has its own bus and lake.",
)


@click.command(help="\n\n".join(HELP))
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
    """Play a folder and report what came of it."""
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
    nouns = Counter(recording.noun for recording in played.hall.recordings)
    what = " and ".join(counted(count, noun) for noun, count in nouns.items())
    say(console, f"Played {what} for {played.seconds:.0f} s.")
    for note in dict.fromkeys(note for recording in played.hall.recordings for note in recording.notes):
        say(console, note)
    if played.hall.not_playable:
        say(console, "Not playable: " + ", ".join(played.hall.not_playable))
    lake = connect(played.config.lake.path)
    for source, failed, polls, error in lake.sql(FAILED).fetchall():
        say(console, f"{source}: {failed} of {polls} readings failed: {error}", "yellow")
    rows = Table("stream", "rows", title="In the lake", title_justify="left")
    counts = {s: lake.sql(f'SELECT count(*) FROM "{s}"').fetchall()[0][0] for s in lake.versions}
    for stream, count in counts.items():
        if count:
            rows.add_row(stream, f"{count:,}")
    console.print(rows)
    if not played.alerts:
        say(console, "No alert was raised.")
    for alert in played.alerts:
        seconds = (alert.at_us - played.start_us) / 1e6
        say(console, f"{seconds:6.1f} s  ALERT  {alert.severity:8}  {alert.rule}: {alert.summary}")
    first = next(
        stream for stream in STREAMS.values() if counts.get(stream.name) or stream is COLLECTOR_STATUS
    )
    say(
        console,
        f"\nAsk it: {called()} sql --config {played.config_path} 'SELECT {first.key}, count(*) FROM {first.name} GROUP BY {first.key}'",
    )
