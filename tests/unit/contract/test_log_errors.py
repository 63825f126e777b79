"""Logs are one line per event, and errors keep their reasons few."""

from __future__ import annotations

import io
import json
import logging

import pytest

from contract import errors
from contract.errors import CollectError, HallwatchError, LogTruncated
from contract.log import Log, set_up_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_logging():
    logger = logging.getLogger("hallwatch")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def test_away_from_a_terminal_a_line_is_json_with_the_event_and_its_fields() -> None:
    stream = io.StringIO()
    set_up_logging(stream)
    Log("sink").info("committed", rows=3, table="gpu_samples")
    line = json.loads(stream.getvalue())
    assert line["event"] == "committed"
    assert line["rows"] == 3
    assert line["logger"] == "hallwatch.sink"
    assert line["ts"].endswith("Z")


def test_on_a_terminal_a_line_is_words() -> None:
    stream = Terminal()
    set_up_logging(stream)
    Log("sink").warning("refused", reason="stale")
    Log("sink").debug("not shown")
    assert stream.getvalue().endswith("warning refused reason=stale\n")
    assert len(stream.getvalue().splitlines()) == 1


def test_what_a_device_sent_stays_in_its_line() -> None:
    stream = Terminal()
    set_up_logging(stream)
    Log("ingest").warning("source_failing", error="a\n2026 error forged \x1b[2J", host="gerät 1")
    assert stream.getvalue().endswith('error="a\\n2026 error forged \\u001b[2J" host=gerät 1\n')
    assert len(stream.getvalue().splitlines()) == 1


def test_a_reason_that_its_class_does_not_list_is_refused() -> None:
    with pytest.raises(ValueError, match="no reason 'bored'"):
        CollectError("bored", "x")


def test_every_error_of_the_tree_derives_from_the_root_and_lists_reasons() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) >= 10
    for cls in classes:
        assert issubclass(cls, HallwatchError)
        assert cls is HallwatchError or cls.reasons


def test_a_lagging_reader_is_told_how_much_it_lost() -> None:
    error = LogTruncated("t", 3, wanted=10, begins=25)
    assert error.lost == 15
    assert "15 messages were lost" in str(error)
    assert not error.retryable
