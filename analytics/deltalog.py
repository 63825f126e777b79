"""The entries of a Delta table's log, read one by one.

The library answers a question about the newest version by replaying every entry since the last checkpoint, at
about 4 ms an entry. An entry is a few lines of JSON, and readers and the sink ask again every few seconds.
Format: Delta Lake transaction log protocol, section "Actions".
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson

from contract.errors import StoreError


def entry_path(table: Path, version: int) -> Path:
    """Return the file that holds one version's actions."""
    return table / "_delta_log" / f"{version:020}.json"


def is_made(table: Path) -> bool:
    """Tell whether there is a table: whoever makes one, or died making it, leaves a log without an entry.

    Raises StoreError(unreadable) where files of rows lie beside such a log: that is no table that was never made.
    """
    log = table / "_delta_log"
    if any(log.glob("*.json")) or any(log.glob("*.checkpoint*.parquet")):
        return True
    if any(table.glob("**/*.parquet")):
        raise StoreError("unreadable", f"{table}: files of rows, and no log that says which of them count")
    return False


def newest_version(table: Path, known: int) -> int:
    """Return the newest version, given one that exists: the log has no holes above it."""
    while entry_path(table, known + 1).exists():
        known += 1
    return known


def read_entry(table: Path, version: int) -> list[dict[str, Any]]:
    """Return one version's actions; raise StoreError where it is gone or torn."""
    try:
        lines = entry_path(table, version).read_bytes().splitlines()
        return [orjson.loads(line) for line in lines if line]
    except (OSError, orjson.JSONDecodeError) as error:
        raise StoreError("unreadable", f"{table.name}: log entry {version}: {error}") from error


def transactions(table: Path, after: int, upto: int) -> dict[str, int]:
    """Return the newest number of every application id that versions `after` < v <= `upto` set."""
    found: dict[str, int] = {}
    for version in range(after + 1, upto + 1):
        for action in read_entry(table, version):
            if "txn" in action:
                found[action["txn"]["appId"]] = action["txn"]["version"]
    return found


def files_added(table: Path, after: int, upto: int) -> Iterator[str]:
    """Yield the files whose rows were new in versions `after` < v <= `upto`: not what compaction rewrote."""
    for version in range(after + 1, upto + 1):
        for action in read_entry(table, version):
            if "add" in action and action["add"]["dataChange"]:
                yield unquote(action["add"]["path"])
