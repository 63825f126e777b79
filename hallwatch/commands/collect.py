"""`hallwatch collect`, and checking what a person wrote: the configuration and the map of the hall."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from contract.bus import open_bus
from contract.bus.local import LocalBus
from contract.clock import Clock, SystemClock
from contract.config import Config, StrictConfig, load_config
from contract.errors import TransportError
from contract.log import Log, set_up_logging
from contract.streams import STREAMS
from hallwatch.commands.options import CONFIG, stop_on_signals
from hallwatch.kinds import counted_kind

if TYPE_CHECKING:
    from ingest.runner import Runner
    from ingest.spool import Outlet

_DRAIN_SECONDS = 5.0
_SPOOL = "spool"

_log = Log("collect")


@click.command()
@CONFIG
@click.option("--once", is_flag=True, help="Read every device once and end; exit code 1 if one failed.")
@click.option(
    "--to",
    "target",
    type=click.Choice(["bus", "stdout"]),
    default="bus",
    show_default=True,
    help="stdout: look at what would be sent, one JSON line per event; nothing is kept, and nothing taken away.",
)
def collect(config_path: Path, once: bool, target: str) -> None:
    """Run the collectors of a configuration.

    Each reads its device on its own schedule; one that is slow or dead delays no other. What each is doing is in
    the stream collector_status. A device that another process collects already is refused. Where the bus is a
    cluster, what cannot be sent waits in the folder of [ingest] until it is back.
    """
    from ingest.runner import build_runner
    from ingest.spool import StdoutOutlet

    set_up_logging()
    config = load_config(config_path)
    clock, stop = SystemClock(), stop_on_signals()
    if target == "stdout":
        runner = build_runner(config, StdoutOutlet(sys.stdout), clock=clock, only_looking=True)
        succeeded = _run(runner, stop, once=once)
    else:
        succeeded = _collect_to_bus(config, clock, stop, once=once)
    if not succeeded:
        raise click.exceptions.Exit(1)


def _collect_to_bus(config: Config, clock: Clock, stop: threading.Event, *, once: bool) -> bool:
    from ingest.claims import claim_sources
    from ingest.runner import build_runner

    with ExitStack() as stack:
        outlet = stack.enter_context(closing(_open_outlet(config, clock, stack)))
        runner = build_runner(config, outlet, clock=clock)
        claims = config.bus.path if config.bus.kind == "local" else config.ingest.path
        stack.enter_context(claim_sources(claims / "sources", [source.name for source in runner.sources]))
        succeeded = _run(runner, stop, once=once)
        _drain(outlet, clock)
        return succeeded


def _open_outlet(config: Config, clock: Clock, stack: ExitStack) -> Outlet:
    """Write the log of this machine directly; keep events for a cluster, which may be away, in a spool."""
    from ingest.spool import DirectOutlet, SpoolOutlet

    if config.bus.kind == "local":
        local = stack.enter_context(closing(LocalBus.open(config.bus, clock)))
        local.ensure_topics(STREAMS.values())
        return DirectOutlet(local)
    bus = stack.enter_context(closing(open_bus(config.bus, clock)))
    try:
        bus.ensure_topics(STREAMS.values())
    except TransportError as error:
        if not error.retryable:
            raise
        _log.warning("bus_away", reason=error.reason, error=error)
    return SpoolOutlet(config.ingest.path / _SPOOL, bus, clock=clock)


def _drain(outlet: Outlet, clock: Clock) -> None:
    """Give what was collected last the time to reach the bus; what does not is sent by the next start."""
    deadline = clock.monotonic() + _DRAIN_SECONDS
    while (waiting := outlet.depth()) and clock.monotonic() < deadline:
        clock.sleep(0.05)
    if waiting:
        _log.warning("events_wait", count=waiting)


def _run(runner: Runner, stop: threading.Event, *, once: bool) -> bool:
    """Collect until told to stop, or once; return whether every device that was to be read once was."""
    if once:
        return runner.run_once()
    runner.run(stop)
    return True


@click.command("check-config")
@CONFIG
def check_config(config_path: Path) -> None:
    """Check a configuration file and what it names: collectors, notifiers, rules, the map of the hall.

    Prints it in full: every key with its value or default and what it means. A secret is not shown.
    """
    from alerts.notify import build_notifiers
    from alerts.ruleset import check_rules
    from ingest.runner import read_tables
    from ingest.topology.hallfile import read_hall_file

    config = load_config(config_path)
    collectors = [settings for _, settings in read_tables(config).values()]
    notifiers = [one.config for one in build_notifiers(config.engine.notifiers, config.file_folder)]
    check_rules(config.engine.rules)
    if config.hall.inventory is not None:
        read_hall_file(config.hall.inventory, hall=config.hall.name, synthetic=config.hall.synthetic)
    for name, section in config:
        click.echo("\n".join(_toml(f"[{name}]", section)) + "\n")
    for heading, tables in (("[[ingest.collectors]]", collectors), ("[[engine.notifiers]]", notifiers)):
        for table in tables:
            click.echo("\n".join(_toml(heading, table)) + "\n")


def _toml(heading: str, section: StrictConfig) -> Iterator[str]:
    """Write a section as its file could say it; tables in it are for sections of their own."""
    yield heading
    for key, value in section.model_dump(mode="json").items():
        if key in section.unused() or _holds_tables(value):
            continue
        meaning = f"# {type(section).model_fields[key].description}"
        yield f"# {key} =  {meaning}" if value is None else f"{key} = {json.dumps(value)}  {meaning}"


def _holds_tables(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


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
    return ", ".join(counted_kind(count, kind) for kind, count in kinds.items())
