"""Options that several commands share."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

CONFIG = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("hallwatch.toml"),
    envvar="HALLWATCH_CONFIG",
    show_default=True,
    help="Configuration file.",
)

ACCEPT_NEW_LOG = click.option(
    "--accept-new-log",
    is_flag=True,
    help="Go on although the bus is another one than before, or lost messages this reader never read.",
)


def stop_on_signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set, so that a process drains and ends by itself."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stop.set())
    return stop
