"""The lake in SQL: an in-memory DuckDB with one view per stream, each over the exact files of one table version.

Readers take no lock and never glob: a query sees one version of each table, whatever is committed, compacted or
removed meanwhile; upkeep keeps replaced files longer than any query may run. `lake_tables` tells the versions, and
`recent.gpu_samples` and the like are the same views over the files of the newest hour.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from analytics import deltalog
from analytics.lake import store_error
from analytics.views import (
    FileGroup,
    TableFacts,
    origins_view,
    sql_macros,
    sql_views,
    stream_view,
    tables_view,
)
from contract.clock import Clock, SystemClock
from contract.errors import StoreError
from contract.stream import Stream
from contract.streams import STREAMS

MAX_AGE_SECONDS = 2.0

RECENT_SECONDS = 3600.0
"""Schema `recent` has every stream's view once more, over the files that hold rows of its newest hour: a question
about now then opens some files, not all of two weeks.
"""

_SYSTEM_CLOCK = SystemClock()
_EXPLAIN = re.compile(r"\s*explain(\s+analyze\b|\s*\([^)]*\))?", re.IGNORECASE)


def connect(
    lake_path: Path | str,
    *,
    max_age_seconds: float = MAX_AGE_SECONDS,
    versions: Mapping[str, int] | None = None,
    memory_limit: str = "2GB",
    threads: int = 2,
    clock: Clock = _SYSTEM_CLOCK,
) -> LakeConnection:
    """Open the lake for reading; views show what was committed at most `max_age_seconds` before a query.

    With `versions` (table name to version, {} for the newest now) they stay as they are: what an audit needs.
    """
    return LakeConnection(
        Path(lake_path),
        max_age_seconds=max_age_seconds if versions is None else float("inf"),
        versions=versions or {},
        config={"memory_limit": memory_limit, "threads": threads},
        clock=clock,
    )


class LakeConnection:
    """A read-only SQL connection to the lake. Threads may share it: each call has its own cursor."""

    def __init__(
        self,
        path: Path,
        *,
        max_age_seconds: float,
        versions: Mapping[str, int],
        config: Mapping[str, Any],
        clock: Clock,
    ) -> None:
        self._path = path.resolve()
        if not self._path.is_dir():
            raise StoreError("unreadable", f"there is no lake at {self._path}")
        self._max_age_seconds = max_age_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._tables = {
            stream.name: _TableFiles(self._path / stream.name, stream, versions.get(stream.name))
            for stream in STREAMS.values()
        }
        self._connection = _open_duckdb(self._path, config)
        self._renewed_at = self._clock.monotonic()
        self._shown: dict[str, int | None] = {}
        self._renew(first=True)

    @property
    def versions(self) -> dict[str, int]:
        """The version of every table that the views show now."""
        return {name: t.version for name, t in self._tables.items() if t.version is not None}

    def sql(self, query: str, params: Any = None) -> duckdb.DuckDBPyRelation:
        """Run one SELECT, DESCRIBE, SHOW, SUMMARIZE or EXPLAIN; raise StoreError(refused) for anything else."""
        self.renew()
        cursor = self._connection.cursor()
        _refuse_writing(cursor, query)
        relation = cursor.sql(query, params=params)
        if relation is None:
            raise StoreError("refused", "that is no question")
        return relation

    def arrow(self, query: str, params: Any = None) -> pa.Table:
        """Run a query and return all its rows."""
        return self.sql(query, params).to_arrow_table()

    def renew(self) -> None:
        """Show what was committed meanwhile, unless that was looked at a moment ago."""
        with self._lock:
            now = self._clock.monotonic()
            if now - self._renewed_at >= self._max_age_seconds:
                self._renewed_at = now
                self._renew()

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _renew(self, *, first: bool = False) -> None:
        """Replace the views whose tables moved, all at once: a query sees all of them or none."""
        for table in self._tables.values():
            table.advance()
        moved = [t for name, t in self._tables.items() if first or t.version != self._shown.get(name)]
        if not moved:
            return
        with self._connection.cursor() as cursor:  # closing it undoes what was not committed
            cursor.execute("BEGIN")
            for table in moved:
                name = table.stream.name
                _create_view(cursor, f'"{name}"', stream_view(table.stream, table.groups()))
                _create_view(
                    cursor, f'recent."{name}"', stream_view(table.stream, table.groups(RECENT_SECONDS))
                )
            _create_view(cursor, "lake_tables", tables_view([t.facts() for t in self._tables.values()]))
            if first:
                streams = [table.stream for table in self._tables.values()]
                _create_view(cursor, "recent.origins", origins_view(streams, "recent"))
                for view in sql_views():
                    _create_view(cursor, view.name, view.query)
            cursor.execute("COMMIT")
        self._shown = {name: table.version for name, table in self._tables.items()}


class _File(NamedTuple):
    """What the log tells of a file."""

    bytes: int
    rows: int
    newest_us: int | None


class _TableFiles:
    """The files of one table at one version, moved on by reading its log."""

    def __init__(self, path: Path, stream: Stream, version: int | None) -> None:
        self._path = path
        self.stream = stream
        self._fixed = version
        self.version: int | None = None
        self._files: dict[str, _File] = {}
        self._columns: dict[str, frozenset[str]] = {}

    def advance(self) -> bool:
        """Go to the newest version; return whether anything changed."""
        if self.version is None:
            return self._open()
        if self._fixed is not None:
            return False
        newest = deltalog.newest_version(self._path, self.version)
        if newest == self.version:
            return False
        try:
            for version in range(self.version + 1, newest + 1):
                self._apply(deltalog.read_entry(self._path, version))
        except StoreError:
            return self._open()
        self.version = newest
        return True

    def _open(self) -> bool:
        if not deltalog.is_made(self._path):
            return False
        try:
            table = DeltaTable(self._path, version=self._fixed)
            actions = pa.table(table.get_add_actions(flatten=True))
        except (DeltaError, OSError) as error:
            raise store_error(error, f"{self._path} cannot be read") from error
        self.version = table.version()
        self._files = {
            unquote(row["path"]): _File(
                row["size_bytes"], row["num_records"] or 0, _microseconds(row.get("max._received"))
            )
            for row in actions.to_pylist()
        }
        return True

    def _apply(self, actions: Iterable[dict[str, Any]]) -> None:
        for action in actions:
            if add := action.get("add"):
                stats = orjson.loads(add.get("stats") or "{}")
                received = stats.get("maxValues", {}).get("_received")
                newest = _microseconds(datetime.fromisoformat(received)) if received else None
                self._files[unquote(add["path"])] = _File(add["size"], stats.get("numRecords", 0), newest)
            elif remove := action.get("remove"):
                self._files.pop(unquote(remove["path"]), None)

    def groups(self, within_seconds: float | None = None) -> list[FileGroup]:
        """Return the files by the columns they hold, which their names tell.

        With `within_seconds`, only those that hold a row received so shortly before the newest.
        """
        oldest_us = self._newest_us() - within_seconds * 1e6 if within_seconds is not None else -math.inf
        by_shape: dict[str, list[str]] = {}
        for name, file in self._files.items():
            if file.newest_us is None or file.newest_us >= oldest_us:
                by_shape.setdefault(Path(name).stem.rpartition("-")[2], []).append(f"{self._path}/{name}")
        return [
            FileGroup(self._columns_of(shape, paths[0]), tuple(paths)) for shape, paths in by_shape.items()
        ]

    def facts(self) -> TableFacts:
        """Return this table's row of `lake_tables`."""
        files, interval = self._files.values(), self.stream.interval
        return TableFacts(
            stream=self.stream.name,
            interval_seconds=None if interval is None else interval.total_seconds(),
            version=self.version,
            files=len(files),
            bytes=sum(file.bytes for file in files),
            rows=sum(file.rows for file in files),
            newest_received_us=self._newest_us() if files else None,
        )

    def _newest_us(self) -> int:
        return max((file.newest_us or 0 for file in self._files.values()), default=0)

    def _columns_of(self, shape: str, example: str) -> frozenset[str]:
        if shape not in self._columns:
            try:
                self._columns[shape] = frozenset(pq.read_schema(example).names)
            except (OSError, pa.ArrowException) as error:
                raise store_error(error, f"{example} cannot be read") from error
        return self._columns[shape]


def _microseconds(naive_utc: datetime | None) -> int | None:
    return None if naive_utc is None else (naive_utc - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001


def _open_duckdb(lake: Path, config: Mapping[str, Any]) -> duckdb.DuckDBPyConnection:
    """Open an in-memory DuckDB that can read the lake's files and no others."""
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
            "preserve_insertion_order": False,
            **config,
        }
    )
    connection.execute("SET parquet_metadata_cache = true")
    connection.execute("SET temp_directory = ''")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("CREATE SCHEMA recent")
    connection.execute(sql_macros())
    connection.execute("SET allowed_directories = [$folder]", {"folder": f"{lake}/"})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _create_view(cursor: duckdb.DuckDBPyConnection, name: str, query: str) -> None:
    cursor.execute(f"CREATE OR REPLACE VIEW {name} AS {query}")


def _refuse_writing(cursor: duckdb.DuckDBPyConnection, query: str) -> None:
    """Let one question pass. DuckDB's own locks stop files outside the lake, not a COPY into it."""
    statements = cursor.extract_statements(query)
    if len(statements) != 1:
        raise StoreError("refused", f"one statement at a time, not {len(statements)}")
    kind = statements[0].type
    if kind == duckdb.StatementType.EXPLAIN:
        # EXPLAIN ANALYZE runs what it explains.
        try:
            _refuse_writing(cursor, _EXPLAIN.sub("", query, count=1))
        except duckdb.ParserException as error:
            raise StoreError("refused", "only EXPLAIN [ANALYZE] SELECT is read-only for certain") from error
    elif kind != duckdb.StatementType.SELECT:
        raise StoreError("refused", f"the lake is read-only: {kind.name} is refused")
