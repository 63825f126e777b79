"""The command line. Commands are named here as text and imported when called, so that `--help` is fast."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click
from typing_extensions import override

from contract.errors import HallwatchError
from hallwatch import __version__
from hallwatch.processes import end_with_parent


class LazyGroup(click.Group):
    """A group whose commands live in other modules: name -> (module:attribute, one line of help)."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy:
            return None
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._lazy.items()])


COMMANDS = {
    "demo": (
        "hallwatch.commands.demo:demo",
        "Run a whole hall on this machine, inject faults, show what was found.",
    ),
    "up": ("hallwatch.commands.demo:up", "Keep a hall running: every part of it, until Ctrl-C."),
    "collect": ("hallwatch.commands.collect:collect", "Run collectors: devices to bus (or to stdout)."),
    "sink": ("hallwatch.commands.sink:sink", "Run the sink: bus to lake, exactly once."),
    "engine": ("hallwatch.commands.engine:engine", "Run the alert engine: bus to alerts and notifications."),
    "lag": ("hallwatch.commands.lag:lag", "Show how far the readers of the bus are."),
    "sql": ("hallwatch.commands.sql:sql", "Ask the lake a question."),
    "alerts": ("hallwatch.commands.alerts:alerts", "List alerts: what fires now, or the history."),
    "rules": ("hallwatch.commands.rules:rules", "Check rule files and run the tests in them."),
    "verify-log": ("hallwatch.commands.alerts:verify_log", "Prove that no alert was changed or cut away."),
    "replay": ("hallwatch.commands.replay:replay", "Play recordings of devices through the whole system."),
    "parse": ("hallwatch.commands.parse:parse", "Print the events in a log of a device."),
    "explain": ("hallwatch.commands.explain:explain", "Say what a code means, and where sources disagree."),
    "attest": ("hallwatch.commands.attest:attest", "Judge evidence that a machine is what it claims."),
    "inventory": ("hallwatch.commands.collect:inventory", "Check the map of the hall."),
    "topology": ("hallwatch.commands.topology:topology", "Show the map of the hall, and what changed in it."),
    "jobs": ("hallwatch.commands.jobs:jobs", "List who has which GPUs now."),
    "maintenance": ("hallwatch.commands.maintenance:maintenance", "Announce work, and what it may do."),
    "check-config": (
        "hallwatch.commands.collect:check_config",
        "Check a configuration file and print it in full.",
    ),
    "twin": ("hallwatch.commands.twin:twin", "Simulate the devices of a hall."),
    "docs": ("hallwatch.commands.docs:docs", "Write the generated pages of docs/ again."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `hallwatch demo`. Each command explains itself with --help.",
)
@click.version_option(__version__, prog_name="hallwatch")
def cli() -> None:
    """Watch an AI data hall: GPU, fabric, coolant and attestation evidence on one timeline."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error a person can mend is one message and exit code 2, never a traceback."""
    _prepare_streams()
    end_with_parent()
    try:
        code = cli.main(
            args=list(arguments) if arguments is not None else None,
            prog_name="hallwatch",
            standalone_mode=False,
        )
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except HallwatchError as error:
        _fail(str(error))
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        where = error.filename or _MENDABLE.get(error.errno or 0)
        if where is None:
            raise
        if where == _OUTPUT:
            _drop_output()
        _fail(f"{where}: {error.strerror}")


_OUTPUT = "the output"
_MENDABLE = {
    errno.ENOSPC: _OUTPUT,
    errno.EDQUOT: _OUTPUT,
    errno.EFBIG: _OUTPUT,
    errno.EMFILE: "this process may open more after `ulimit -n 4096`",
    errno.ENFILE: "this machine",
}
"""What errors are about that name no file."""


def _fail(message: str) -> NoReturn:
    click.echo(f"hallwatch: {message}", err=True)
    sys.exit(2)


def _drop_output() -> None:
    """Let what could not be written go: the interpreter would try once more when it ends, and complain of that."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _prepare_streams() -> None:
    """Let no character and no closed stream be an error: what cannot be shown is shown as a question mark."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who started us
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - open to the end
        stream = getattr(sys, name)
        if mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
