"""The command line teaches, answers fast, and never shows a traceback for what a person can mend."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from hallwatch.cli import COMMANDS, cli, main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hallwatch", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_lists_every_command_without_importing_what_they_need() -> None:
    code = (
        "import sys; from hallwatch.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(set(sys.modules) & {'pyarrow', 'duckdb', 'deltalake', 'numpy', 'pydantic'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.endswith("[]\n")
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in ("folder", "help"):
            assert option.help, f"{name} --{option.name}"


def test_a_mistake_is_one_message_and_exit_code_two(tmp_path: Path) -> None:
    done = run("sink", "--config", str(tmp_path / "none.toml"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("hallwatch: ")
    assert "none.toml" in done.stderr


def test_a_command_that_found_something_wrong_says_so_by_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "hallwatch.toml").write_text(
        '[hall]\nname = "a"\n[[ingest.collectors]]\ncollector = "gpu-dcgm"\nhost = "h"\nurl = "http://127.0.0.1:9/"\n'
    )
    assert (
        run("collect", "--once", "--to", "stdout", "--config", str(tmp_path / "hallwatch.toml")).returncode
        == 1
    )
    assert run("rules", "check").returncode == 0


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dance"])
    assert caught.value.code == 2
    assert "dance" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--folder", str(tmp_path / "file/hall")])
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"hallwatch: {tmp_path}/file/hall: Not a directory\n"


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["written at the end", "written at once"])
def test_a_full_disk_behind_the_output_is_one_message(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hallwatch", "rules", "check"],
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "hallwatch: the output: No space left on device\n"


def test_too_many_open_files_are_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_out(**_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(cli, "main", run_out)
    with pytest.raises(SystemExit):
        main(["rules"])
    assert "ulimit -n" in capsys.readouterr().err


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(**_: object) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(cli, "main", break_down)
    with pytest.raises(OSError, match="Bad file descriptor"):
        main(["rules"])


def test_a_reader_that_goes_away_is_no_news() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "hallwatch", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(60)


def test_what_a_terminal_cannot_show_is_shown_as_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with pytest.raises(SystemExit):
        main(["--version"])
    sys.stdout.write("Grüße\n")
    sys.stdout.flush()
    assert shown.getvalue().endswith(b"Gr??e\n")


def test_a_stream_that_was_closed_before_is_no_error() -> None:
    code = (
        "import os, sys; os.close(0); os.close(1); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "-m", "hallwatch", "sql"],
        stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
