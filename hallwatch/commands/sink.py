"""`hallwatch sink`."""

from __future__ import annotations

from pathlib import Path

import click

from contract.bus import open_bus
from contract.clock import SystemClock
from contract.config import load_config
from contract.log import Log, set_up_logging
from contract.metrics import Metrics
from hallwatch.commands.options import ACCEPT_NEW_LOG, CONFIG, stop_on_signals

_log = Log("sink")


@click.command()
@CONFIG
@ACCEPT_NEW_LOG
def sink(config_path: Path, accept_new_log: bool) -> None:
    """Write everything on the bus into the lake, exactly once.

    Any number of restarts lose nothing and double nothing: how far the bus was read is stored in the same commit
    as the rows. SIGTERM commits what was gathered and ends.
    """
    from analytics.lake import Lake
    from analytics.sink import Sink

    set_up_logging()
    config = load_config(config_path)
    clock, stop, metrics = SystemClock(), stop_on_signals(), Metrics()
    metrics.serve(config.lake.metrics_port)
    bus = open_bus(config.bus, clock)
    _log.info("sink_started", bus=config.bus.place, lake=config.lake.path)
    try:
        Sink(
            config.lake,
            bus,
            Lake(config.lake.path),
            synthetic=config.hall.synthetic,
            clock=clock,
            metrics=metrics,
            accept_new_log=accept_new_log,
        ).run(stop)
    finally:
        bus.close()
