"""The terminal: what devices, files and people wrote is shown as text, never obeyed."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

_SHOWN = dict.fromkeys([*range(32), 127, *range(128, 160)], "\N{REPLACEMENT CHARACTER}")
_SHOWN |= {ord("\n"): "\n", ord("\t"): "\t"}
"""Control characters move cursors, hide lines and write clipboards."""


def open_console() -> Console:
    """Return a console that takes square brackets and numbers as they are."""
    return Console(markup=False, highlight=False)


def shown(text: str, style: str = "") -> Text:
    """Return text as it may be shown: every control character but line ends and tabs is replaced."""
    return Text(text.translate(_SHOWN), style)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line, broken by the terminal and not by us, so that it can be copied."""
    console.print(shown(text, style), soft_wrap=True)


def counted(number: int, thing: str) -> str:
    """Return a number of things in words: `1 host`, `2 hosts`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def called() -> str:
    """Return how this program was called, so that the next call can be pasted."""
    program, here = Path(sys.argv[0]).absolute(), Path.cwd()
    if program.name != "hallwatch" or shutil.which("hallwatch") == str(program):
        return "hallwatch"
    return shlex.quote(str(program.relative_to(here) if program.is_relative_to(here) else program))
