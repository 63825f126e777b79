"""`hallwatch engine`."""

from __future__ import annotations

from pathlib import Path

import click

from analytics.query import connect
from contract.bus import open_bus
from contract.clock import SystemClock
from contract.config import load_config
from contract.errors import StoreError
from contract.log import Log, set_up_logging
from contract.metrics import Metrics
from hallwatch.commands.options import ACCEPT_NEW_LOG, CONFIG, stop_on_signals

_log = Log("engine")


@click.command()
@CONFIG
@ACCEPT_NEW_LOG
def engine(config_path: Path, accept_new_log: bool) -> None:
    """Judge everything on the bus by the rules, and tell people.

    One engine per hall. A restart replays its journal and goes on where it was: no alert is lost, repeated or
    forgotten. SIGTERM keeps the state and ends.
    """
    from alerts.engine import Engine

    set_up_logging()
    config = load_config(config_path)
    clock, stop, metrics = SystemClock(), stop_on_signals(), Metrics()
    metrics.serve(config.engine.metrics_port)
    bus = open_bus(config.bus, clock)
    _log.info("engine_started", bus=config.bus.place, journal=config.engine.path)
    try:
        Engine.open(
            config,
            bus,
            clock=clock,
            metrics=metrics,
            accept_new_log=accept_new_log,
            old_head=lambda: _head_in_lake(config.lake.path),
        ).run(stop)
    finally:
        bus.close()


def _head_in_lake(lake: Path) -> str | None:
    """Return the hash of the last transition in the lake; an engine without a journal continues from it."""
    try:
        with connect(lake) as connection:
            found = connection.sql(
                "SELECT hash FROM alerts ORDER BY ts DESC, chain_index DESC LIMIT 1"
            ).fetchall()
    except StoreError:
        return None  # a hall that begins has no lake yet
    return found[0][0] if found else None
