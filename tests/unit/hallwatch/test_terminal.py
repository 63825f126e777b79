"""What is printed can be read and pasted; what a device calls itself does nothing to the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.table import Table

from hallwatch.terminal import called, counted, open_console, say, shown

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


@pytest.mark.parametrize(
    ("program", "path", "said"),
    [
        (".venv/bin/hallwatch", "", ".venv/bin/hallwatch"),
        ("{here}/.venv/bin/hallwatch", "", ".venv/bin/hallwatch"),
        ("{here}/.venv/bin/hallwatch", "{here}/.venv/bin", "hallwatch"),
        ("/opt/my hall/hallwatch", "", "'/opt/my hall/hallwatch'"),
        ("{here}/hallwatch/__main__.py", "", "hallwatch"),
    ],
)
def test_a_command_to_try_next_begins_as_this_one_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, path: str, said: str
) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/hallwatch").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [program.format(here=tmp_path)])
    monkeypatch.setenv("PATH", path.format(here=tmp_path))
    assert called() == said


def test_one_is_not_several() -> None:
    assert [counted(number, "host") for number in (0, 1, 2000)] == ["0 hosts", "1 host", "2,000 hosts"]
