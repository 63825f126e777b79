"""Logging: an event name and key-values; text on a terminal, JSON lines elsewhere. Per-item facts are counters."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from typing_extensions import override


class Log:
    """A logger of one module."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"hallwatch.{name}")

    def debug(self, event: str, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"fields": fields})


class _Formatter(logging.Formatter):
    def __init__(self, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    @override
    def format(self, record: logging.LogRecord) -> str:
        at = (
            datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._as_json:
            line = {
                "ts": at,
                "level": record.levelname.lower(),
                "logger": record.name,
                "event": record.getMessage(),
            }
            return json.dumps(line | fields, default=str)
        pairs = " ".join(f"{key}={_in_one_line(value)}" for key, value in fields.items())
        return f"{at} {record.levelname.lower():7} {record.getMessage()} {pairs}".rstrip()


def _in_one_line(value: object) -> str:
    """Show a value as a terminal may: what a device sent can hold line ends and worse."""
    text = str(value)
    return text if text.isprintable() else json.dumps(text, ensure_ascii=True)


def set_up_logging(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send hallwatch's log to a stream, standard error if none is given; call once, at the start of a process."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Formatter(as_json=not stream.isatty()))
    logger = logging.getLogger("hallwatch")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
