"""`hallwatch twin run` says what it cannot simulate."""

from __future__ import annotations

from pathlib import Path

import pytest

from hallwatch.cli import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--hosts", "2"], "5 hosts or more"),
        (["--hosts", "3", "--quiet", "--base-port", "65534"], "need ports 65534 to 65537"),
        (["--seed", "-1"], "--seed"),
        (["--base-port", "-1"], "--base-port"),
    ],
)
def test_what_cannot_be_simulated_is_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["twin", "run", "--folder", str(tmp_path / "hall"), *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "hall").exists()
