"""`hallwatch replay`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from analytics.query import connect
from hallwatch.replay import HOLD_SECONDS, Played, play


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
    help="Seconds that the last page of each device stays.",
)
@click.option(
    "--speed", type=click.FloatRange(min=0.01), help="Times the recorded pace; as fast as possible without."
)
def replay(folder: Path, output: Path, hold_seconds: float, speed: float | None) -> None:
    """Play recordings of devices in FOLDER through collectors, bus, lake and engine.

    \b
    NAME.prom            one exporter page, held for the whole replay
    NAME/SECONDS.prom    pages of one exporter, each shown from that second on
    inventory.yaml       the map of that hall (without one, nothing is expected to be there)

    What the rules raise is what they would have raised in the hall. The replay has its own bus and lake.
    """  # noqa: D301 - the command line library wants the character itself
    console = Console()
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
    devices = len(played.hall.recordings)
    console.print(
        f"Played {devices} device{'s' * (devices != 1)} for {played.seconds:.0f} s.", highlight=False
    )
    if played.hall.not_playable:
        console.print("Not playable: " + ", ".join(played.hall.not_playable), highlight=False, soft_wrap=True)
    lake = connect(played.config.lake.path)
    rows = Table("stream", "rows", title="In the lake", title_justify="left")
    for stream in lake.versions:
        ((count,),) = lake.sql(f'SELECT count(*) FROM "{stream}"').fetchall()
        if count:
            rows.add_row(stream, f"{count:,}")
    console.print(rows)
    if not played.alerts:
        console.print("No alert was raised.")
    for alert in played.alerts:
        console.print(
            f"ALERT {alert.severity:8} {alert.rule}: {alert.summary}", highlight=False, soft_wrap=True
        )
    console.print(
        f"\nAsk it: hallwatch sql --config {played.config_path} 'FROM gpu_samples'",
        highlight=False,
        soft_wrap=True,
    )
