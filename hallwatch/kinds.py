"""Kinds of assets in words."""

from __future__ import annotations

from hallwatch.terminal import counted

_NAMES = {"gpu": "GPU", "nic": "NIC", "cdu": "CDU", "trust_root": "trust root"}


def counted_kind(number: int, kind: str) -> str:
    """Return a number of assets of a kind: `1 GPU`, `2 leaves`."""
    if kind == "leaf" and number != 1:
        return f"{number:,} leaves"
    return counted(number, _NAMES.get(kind, kind))
