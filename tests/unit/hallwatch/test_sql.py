"""A question that cannot be asked or answered is told in a sentence."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from hallwatch.cli import main


class Asker:
    """Calls `hallwatch sql` on an empty lake; returns its exit code, output and messages."""

    def __init__(
        self, lake: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        self._lake, self._monkeypatch, self._captured = lake, monkeypatch, capsysbinary

    def ask(self, *arguments: str, question: bytes = b"") -> tuple[object, str, str]:
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(question)))
        with pytest.raises(SystemExit) as caught:
            main(["sql", "--lake", str(self._lake), *arguments])
        output, messages = self._captured.readouterr()
        return caught.value.code, output.decode(), messages.decode()


@pytest.fixture
def asker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Asker:
    return Asker(tmp_path, monkeypatch, capsysbinary)


@pytest.mark.parametrize("output_format", ["csv", "table"])
def test_a_question_may_come_from_standard_input_or_as_an_argument(asker: Asker, output_format: str) -> None:
    form, text = ("--format", output_format), "SELECT 'ü' AS letter"
    code, output, _ = asker.ask(*form, text)
    assert code == 0
    assert "ü" in output
    assert asker.ask(*form, question=text.encode()) == (0, output, "")


@pytest.mark.parametrize(
    ("arguments", "question", "words"),
    [
        ([], b"", "there is no question"),
        ([" "], b"", "there is no question"),
        ([], b"SELECT '\xff'", "not UTF-8"),
        (["SELECT '\udcff'"], b"", "not UTF-8"),
        (["--format", "json", "SELECT DATE '29000-01-01' AS d"], b"", "cast it to VARCHAR"),
        (["SELECT nothing FROM nowhere"], b"", "nowhere does not exist"),
        (["SELECT * FROM read_text('/etc/hostname')"], b"", "disabled by configuration"),
        (["DROP VIEW gpu_samples"], b"", "read-only"),
    ],
)
def test_what_is_wrong_with_a_question_is_told_without_a_traceback(
    asker: Asker, arguments: list[str], question: bytes, words: str
) -> None:
    code, output, messages = asker.ask(*arguments, question=question)
    assert code in (1, 2)
    assert output == ""
    assert words in messages
    assert "Traceback" not in messages


def test_a_binary_answer_is_not_sent_to_a_terminal(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    code, output, messages = asker.ask("--format", "arrow", "SELECT 1")
    assert (code, output) == (2, "")
    assert "send it to a file" in messages
