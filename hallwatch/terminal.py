"""The terminal: what devices, files and people wrote is shown as text, never obeyed."""

from __future__ import annotations

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
