"""What a device calls itself is shown, and does nothing to the terminal that shows it."""

from __future__ import annotations

import pytest
from rich.table import Table

from hallwatch.terminal import open_console, say, shown

EVIL = "GPU-[/bold] [red]x[/red] \x1b]52;c;cm0=\x07\x1b[2J\r\x9b1m\x7f\n\ttwo"


def test_no_text_is_markup_or_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    console = open_console()
    say(console, EVIL)
    table = Table("x")
    table.add_row(shown(EVIL))
    console.print(table)
    printed = capsys.readouterr().out
    assert printed.startswith(
        "GPU-[/bold] [red]x[/red] \ufffd]52;c;cm0=\ufffd\ufffd[2J\ufffd\ufffd1m\ufffd\n"
    )
    assert not set(printed) & {"\x1b", "\x07", "\x9b", "\x7f", "\r"}


def test_a_line_is_not_broken_where_the_terminal_ends(capsys: pytest.CaptureFixture[str]) -> None:
    say(open_console(), "x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"
