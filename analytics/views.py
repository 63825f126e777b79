"""The SQL behind the views: one per stream, over the exact files of one version, and those of `sql/`.

A stream's view restores units (whole steps become a number of the declared unit), and gives null for a column
that a file was written without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from analytics.parquet import DATE_COLUMN
from contract.stream import LAKE_COLUMNS, Column, ColumnKind, Stream

SQL_FOLDER = Path(__file__).parent / "sql"

_SQL_TYPES = {
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.list_(pa.int16()): "SMALLINT[]",
    pa.list_(pa.int32()): "INTEGER[]",
}


class FileGroup(NamedTuple):
    """Files of one table that hold the same columns."""

    columns: frozenset[str]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """One row of the view `lake_tables`."""

    stream: str
    interval_seconds: float | None
    version: int | None
    files: int
    bytes: int
    rows: int
    newest_received_us: int | None


class SqlView(NamedTuple):
    """A view out of `sql/`: its query, and the views and streams it reads."""

    name: str
    query: str
    inputs: tuple[str, ...]


def stream_view(stream: Stream, groups: Sequence[FileGroup]) -> str:
    """Return the query of a stream's view; without files it has no rows, but all its columns."""
    parts = [_select(stream, group) for group in groups if group.paths]
    return "\nUNION ALL\n".join(parts) or f"SELECT {_nulls(stream)} WHERE false"


def tables_view(tables: Iterable[TableFacts]) -> str:
    """Return the query of `lake_tables`: what the other views stand on."""
    rows = ", ".join(
        f"({_quoted(t.stream)}, {_literal(t.interval_seconds)}, {_literal(t.version)}, {t.files}, {t.bytes}, {t.rows}, "
        f"make_timestamp({_literal(t.newest_received_us)}::BIGINT))"
        for t in tables
    )
    return (
        "SELECT stream, interval_seconds::DOUBLE AS interval_seconds, version::BIGINT AS version, files::BIGINT AS files, bytes::BIGINT AS bytes, "
        f"rows::BIGINT AS rows, newest_received FROM (VALUES {rows}) "
        "AS t (stream, interval_seconds, version, files, bytes, rows, newest_received)"
    )


def origins_view(streams: Iterable[Stream], schema: str) -> str:
    """Return the query of `origins`: who sent what when, of every stream that is sent at an interval."""
    return "\nUNION ALL\n".join(
        f'SELECT {_quoted(s.name)} AS stream, _source, _epoch, _seq, _received FROM {schema}."{s.name}"'
        for s in streams
        if s.interval is not None
    )


def _literal(number: float | None) -> str:
    return "NULL" if number is None else str(number)


def sql_type(column: Column) -> str:
    """Return the DuckDB type of a column as its view shows it."""
    return "TIMESTAMP" if column.kind is ColumnKind.TIME else _SQL_TYPES[column.type]


def _select(stream: Stream, group: FileGroup) -> str:
    columns = ", ".join(_restored(c, group.columns) for c in (*stream.columns, *LAKE_COLUMNS))
    paths = ", ".join(_quoted(path) for path in group.paths)
    return (
        f"SELECT {columns}, {DATE_COLUMN} FROM read_parquet([{paths}], "
        f"hive_partitioning = true, hive_types = {{'{DATE_COLUMN}': DATE}})"
    )


def _restored(column: Column, present: frozenset[str]) -> str:
    name = f'"{column.name}"'
    if column.name not in present:
        return f"NULL::{sql_type(column)} AS {name}"
    if column.steps_per_unit is None:
        return name
    # An integer divided by an integer, as doubles, is the number that the decimal text stands for.
    units = f"{name}::DOUBLE / {column.steps_per_unit}::DOUBLE" if column.steps_per_unit != 1 else name
    return f"({units})::{sql_type(column)} AS {name}"


def _nulls(stream: Stream) -> str:
    columns = (f'NULL::{sql_type(c)} AS "{c.name}"' for c in (*stream.columns, *LAKE_COLUMNS))
    return ", ".join([*columns, f"NULL::DATE AS {DATE_COLUMN}"])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@cache
def sql_macros(folder: Path = SQL_FOLDER / "macros") -> str:
    """Return the statements that make the functions of our own."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.sql")))


@cache
def sql_views(folder: Path = SQL_FOLDER) -> tuple[SqlView, ...]:
    """Read the views of a folder, each after those that it reads."""
    views = {path.stem: _read_view(path) for path in sorted(folder.glob("*.sql"))}
    return tuple(_ordered(views))


def _read_view(path: Path) -> SqlView:
    text = path.read_text(encoding="utf-8")
    inputs = re.search(r"^-- inputs: (.+)$", text, re.MULTILINE)
    if inputs is None:
        raise ValueError(f"{path}: the header names no inputs")
    return SqlView(path.stem, text.rstrip().removesuffix(";"), tuple(re.split(r",\s*", inputs[1].strip())))


def _ordered(views: Mapping[str, SqlView]) -> Iterable[SqlView]:
    done: dict[str, SqlView] = {}

    def visit(view: SqlView) -> None:
        for name in view.inputs:
            if name in views and name not in done:
                visit(views[name])
        done.setdefault(view.name, view)

    for view in views.values():
        visit(view)
    return done.values()
