"""Options that several commands share."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

CONFIG = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("hallwatch.toml"),
    envvar="HALLWATCH_CONFIG",
    show_default=True,
    help="Configuration file.",
)


def format_option(formats: Sequence[str], words: str) -> Callable[[_Command], _Command]:
    """Return the option that says how an answer is written; the first of `formats` is the default."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help=words,
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
