"""`stdout`: one readable line per notification."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from alerts.frame import iso
from alerts.notifier import Notification, NotifierConfig, notifier
from contract.errors import NotifyError

_COLOURS = {"critical": "\x1b[1;31m", "major": "\x1b[31m", "minor": "\x1b[33m", "info": "\x1b[36m"}
_GREEN, _PLAIN = "\x1b[32m", "\x1b[0m"


class StdoutConfig(NotifierConfig):
    """Nothing beyond what every notifier has."""


@notifier("stdout", StdoutConfig)
class StdoutNotifier:
    """Prints; in colour on a terminal."""

    batch_size = 100
    refresh_seconds = None

    def __init__(self, config: StdoutConfig, stream: TextIO | None = None) -> None:
        del config
        self._stream = stream

    def notify(self, notifications: Sequence[Notification]) -> str:
        stream = self._stream if self._stream is not None else sys.stdout
        try:
            for notification in notifications:
                print(_line(notification, colour=stream.isatty()), file=stream)
            stream.flush()
        except (OSError, ValueError) as error:
            raise NotifyError("unreachable", f"standard output: {error}") from error
        return "printed"

    def refresh(self, firing: Sequence[Notification], now_us: int, *, alive: bool, hall: str) -> None:
        """Print nothing: a line stays where it was printed."""

    def close(self) -> None:
        """Hold nothing that must be given back."""


def _line(notification: Notification, *, colour: bool) -> str:
    row = notification.row
    word = "FIRING" if row["transition"] == "firing" else f"ended ({row['end_reason']})"
    if colour:
        shade = _COLOURS[row["severity"]] if row["transition"] == "firing" else _GREEN
        word = f"{shade}{word}{_PLAIN}"
    summary = "".join(c if c.isprintable() else "?" for c in row["summary"])
    place = f"  [{notification.place}]" if notification.place else ""
    return f"{iso(row['ts'])}  {word}  {row['severity']}  {row['rule']}  {summary}{place}"
