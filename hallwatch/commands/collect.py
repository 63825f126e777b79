"""`hallwatch collect`, and checking what a person wrote: the configuration and the map of the hall."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from contract.bus.local import LocalBus
from contract.clock import SystemClock
from contract.config import load_config
from contract.log import set_up_logging
from contract.streams import STREAMS
from hallwatch.commands.options import CONFIG, stop_on_signals

if TYPE_CHECKING:
    from ingest.runner import Runner


@click.command()
@CONFIG
@click.option("--once", is_flag=True, help="Read every device once and end; exit code 1 if one failed.")
@click.option(
    "--to",
    "target",
    type=click.Choice(["bus", "stdout"]),
    default="bus",
    show_default=True,
    help="stdout: look at what would be sent, one JSON line per event; nothing is kept.",
)
def collect(config_path: Path, once: bool, target: str) -> None:
    """Run the collectors of a configuration.

    Each reads its device on its own schedule; one that is slow or dead delays no other. What each is doing is in
    the stream collector_status.
    """
    from ingest.runner import build_runner
    from ingest.spool import DirectOutlet, StdoutOutlet

    set_up_logging()
    config = load_config(config_path)
    clock, stop = SystemClock(), stop_on_signals()
    if target == "stdout":
        runner = build_runner(config, StdoutOutlet(sys.stdout), clock=clock)
        _run(runner, stop, once=once)
        return
    bus = LocalBus.open(config.bus, clock)
    try:
        bus.ensure_topics(STREAMS.values())
        runner = build_runner(config, DirectOutlet(bus), clock=clock)
        _run(runner, stop, once=once)
    finally:
        bus.close()


def _run(runner: Runner, stop: threading.Event, *, once: bool) -> None:
    if not once:
        runner.run(stop)
    elif not runner.run_once():
        raise click.exceptions.Exit(1)


@click.command("check-config")
@CONFIG
def check_config(config_path: Path) -> None:
    """Check a configuration file, its collectors and notifiers too, and print it with every default filled in."""
    from alerts.notify import build_notifiers
    from ingest.registry import read_table

    config = load_config(config_path)
    for number, table in enumerate(config.ingest.collectors, 1):
        read_table(table, f"{config_path}: [[ingest.collectors]] number {number}")
    build_notifiers(config.engine.notifiers)
    if config.hall.inventory is not None:
        _read_inventory(config.hall.inventory)
    click.echo(config.model_dump_json(indent=2))


@click.group()
def inventory() -> None:
    """Work with the map of the hall."""


@inventory.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def check(file: Path) -> None:
    """Check the map of the hall; every problem is told with its line."""
    click.echo(f"{file}: good. {_read_inventory(file)}")


def _read_inventory(file: Path) -> str:
    from ingest.topology.hallfile import read_hall_file

    hall = read_hall_file(file)
    kinds = Counter(row["kind"] for row in hall.assets.values())
    return ", ".join(f"{count} {kind}" + ("s" if count != 1 else "") for kind, count in kinds.items())
