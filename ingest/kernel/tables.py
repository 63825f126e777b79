"""The tables beside this file: tab-separated, a header, one row per fact."""

from __future__ import annotations

from pathlib import Path


def read_table(name: str) -> list[dict[str, str]]:
    """Return the rows of a table by column; an empty cell is an empty text."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    header = lines[0].split("\t")
    return [dict(zip(header, line.split("\t"), strict=True)) for line in lines[1:]]
