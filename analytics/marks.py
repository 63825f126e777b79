"""Which events the lake already holds: the highest sequence of every (log, partition, source, epoch).

The truth is in the rows. A snapshot `_marks/{version}.parquet` beside them says what all rows up to that version
amount to, so that a start reads only the files added since. Log entries and files after the newest snapshot must
stay until there is a newer one: `newest_snapshot` tells upkeep where that is.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from analytics import deltalog
from analytics.lake import LakeTable, store_error
from analytics.parquet import Reached, nothing
from contract.errors import StoreError
from contract.files import sync
from contract.log import Log
from contract.reader import MarkKey, Marks
from contract.stream import TIME_TYPE

SNAPSHOTS_KEPT = 2

_FOLDER = "_marks"
_SCHEMA = pa.schema(
    [
        ("_log", pa.string()),
        ("_partition", pa.int32()),
        ("_source", pa.string()),
        ("_epoch", pa.string()),
        ("_seq", pa.int64()),
        ("_received", TIME_TYPE),
    ]
)

_log = Log("marks")


def newest_snapshot(table: Path, upto: int | None = None) -> int | None:
    """Return the version of the newest snapshot: what later log entries added must stay until there is a newer."""
    versions = [int(path.stem) for path in (table / _FOLDER).glob("*.parquet")]
    return max((v for v in versions if upto is None or v <= upto), default=None)


def load_marks(table: LakeTable, log: str, partitions: set[int]) -> Marks:
    """Return the marks of some partitions as of the table's version; raise StoreError."""
    found = _collect(table, "_log = $value", log)
    return {
        MarkKey(row["_partition"], row["_source"], row["_epoch"]): row["_seq"]
        for row in found.to_pylist()
        if row["_partition"] in partitions
    }


def write_snapshot(table: LakeTable, idle_before_us: int, *, reached: Reached = nothing) -> None:
    """Snapshot the marks of all partitions at the table's version; forget epochs idle since `idle_before_us`.

    Raises StoreError.
    """
    rows = _collect(table, "max(_received) >= make_timestamp($value)", idle_before_us)
    folder = table.path / _FOLDER
    path = folder / f"{table.version:020}.parquet"
    half = folder / f"{path.stem}.{uuid.uuid4().hex}.half"
    try:
        folder.mkdir(exist_ok=True)
        with half.open("xb") as file:
            pq.write_table(rows, file, compression="zstd")
            reached("snapshot_written")
            file.flush()
            os.fsync(file.fileno())
        half.rename(path)
        sync(folder)
        reached("snapshot_named")
        for old in sorted(folder.glob("*.parquet"))[:-SNAPSHOTS_KEPT]:
            old.unlink(missing_ok=True)
    except (OSError, pa.ArrowException) as error:
        half.unlink(missing_ok=True)
        raise store_error(error, f"{path}: no snapshot of the marks") from error


def _collect(table: LakeTable, where: str, value: str | int) -> pa.Table:
    """Reduce the newest snapshot and the files added since to one row per mark."""
    snapshot = newest_snapshot(table.path, table.version)
    files = _files_since(table, snapshot)
    if snapshot is not None:
        files.insert(0, str(_path(table.path, snapshot)))
    if not files:
        return _SCHEMA.empty_table()
    question = (
        "SELECT _log, _partition, _source, _epoch, max(_seq) AS _seq, max(_received) AS _received "
        f"FROM read_parquet($files) GROUP BY ALL HAVING {where}"
    )
    try:
        with duckdb.connect(config={"threads": 1}) as connection:
            found = connection.sql(question, params={"files": files, "value": value})
            return found.to_arrow_table().cast(_SCHEMA)
    except duckdb.Error as error:
        raise StoreError("unreadable", f"{table.path}: the marks: {error}"[:500]) from error


def _files_since(table: LakeTable, snapshot: int | None) -> list[str]:
    """Return the files added after a snapshot; where their log entries or they are gone, all that there are."""
    if snapshot is not None:
        try:
            added = [table.path / file for file in deltalog.files_added(table.path, snapshot, table.version)]
        except StoreError:
            _log.warning("marks_from_all_files", table=table.path.name, snapshot=snapshot)
        else:
            if all(path.exists() for path in added):
                return [str(path) for path in added]
    return table.files()


def _path(table: Path, version: int) -> Path:
    return table / _FOLDER / f"{version:020}.parquet"
