"""An entry of the systemd journal as `journalctl --output=json` writes it.

Fields: systemd.journal-fields(7); how a field is written: systemd "Journal JSON Format". A field that begins with
an underscore is set by the journal itself: no program can claim another's.
"""

from __future__ import annotations

from typing import Any

import orjson

from ingest.kernel.line import KERNEL, USER, KernelLine

MAX_ENTRY_BYTES = 262_144
"""A larger one is no line of a kernel."""


def is_entry(raw: bytes) -> bool:
    """Tell an entry from a line of any other log by its first byte."""
    return raw.startswith(b"{")


def parse_entry(raw: bytes) -> KernelLine | None:
    """Return the message of an entry, or None where it has none that can be read.

    Only what came from the kernel's own buffer (`_TRANSPORT=kernel`) and is of facility 0 there is the kernel's.
    """
    try:
        entry = orjson.loads(raw)
        text = _text(entry["MESSAGE"])
        severity = _number(entry, "PRIORITY")
        return KernelLine(_number(entry, "__REALTIME_TIMESTAMP"), text, _facility(entry), severity)
    except (ValueError, TypeError, KeyError):
        return None


def _facility(entry: dict[str, Any]) -> int:
    facility = _number(entry, "SYSLOG_FACILITY")
    if entry.get("_TRANSPORT") != "kernel":
        return facility or USER
    if facility is None:
        return KERNEL if entry.get("SYSLOG_IDENTIFIER") == "kernel" else USER
    return facility


def _text(message: object) -> str:
    """Return a message: text, an array of bytes where it is no UTF-8, or several of them."""
    if isinstance(message, str):
        return message
    if isinstance(message, list) and message:
        return bytes(message).decode("utf-8", "replace") if isinstance(message[0], int) else _text(message[0])
    raise TypeError("no message")


def _number(entry: dict[str, Any], name: str) -> int | None:
    value = entry.get(name)
    if isinstance(value, list) and value:
        value = value[0]
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else None
