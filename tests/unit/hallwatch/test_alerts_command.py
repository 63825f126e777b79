"""The list of alerts is one line each, whatever the width of the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from hallwatch.commands.alerts import _print
from hallwatch.terminal import open_console

FIRING: dict[str, Any] = {
    "ts": 1_796_051_359_242_645,
    "severity": "critical",
    "rule": "gpu-xid-fatal",
    "entity": "GPU-1",
    "summary": "GPU-1 on h1 raised Xid 79: it needs a reset, a reboot or a repair" + " soon" * 20,
    "transition": "firing",
}
ENDED = FIRING | {"rule": "bus-silent", "entity": "hall-1", "summary": "nothing arrives", "severity": "info"}
ENDED |= {"transition": "ended", "end_reason": "cleared"}


def test_no_line_is_broken_and_the_entity_is_always_named(capsys: pytest.CaptureFixture[str]) -> None:
    _print(open_console(), [FIRING, ENDED], history=True)
    assert capsys.readouterr().out.splitlines() == [
        "at (UTC)             severity  rule           change           summary",
        f"2026-11-30 15:09:19  critical  gpu-xid-fatal  firing           {FIRING['summary']}",
        "2026-11-30 15:09:19  info      bus-silent     ended (cleared)  hall-1: nothing arrives",
    ]


def test_what_fires_needs_no_word_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    _print(open_console(), [FIRING], history=False)
    assert capsys.readouterr().out.splitlines()[0] == "at (UTC)             severity  rule           summary"
