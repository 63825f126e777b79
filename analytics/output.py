"""Printing the answer to a query: for people as a table, for programs as CSV, JSON lines or Arrow.

Everything but the table is streamed, so that a large answer needs no memory.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any, BinaryIO

import duckdb
import orjson
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

FORMATS = ("table", "csv", "json", "arrow")

TABLE_ROWS = 1_000
"""A table longer than this is cut, and says so: nobody reads on."""

WIDEST = 4_000
"""Columns of a table that no terminal shows: one line per row, for `less -S`, `grep` and files."""

_BATCH_ROWS = 10_000


def print_answer(answer: duckdb.DuckDBPyRelation, output_format: str, output: BinaryIO) -> None:
    """Write an answer; CSV has a header, JSON one object per line, Arrow is an IPC stream."""
    if output_format == "table":
        _print_table(answer, output)
        return
    reader = answer.to_arrow_reader(_BATCH_ROWS)
    {"csv": _print_csv, "json": _print_json, "arrow": _print_arrow}[output_format](reader, output)


def _print_table(answer: duckdb.DuckDBPyRelation, output: BinaryIO) -> None:
    rows = answer.limit(TABLE_ROWS + 1).fetchall()
    table = Table(*answer.columns, box=SIMPLE_HEAD, pad_edge=False)
    numeric = [str(kind) not in ("VARCHAR", "TIMESTAMP", "DATE", "BOOLEAN") for kind in answer.types]
    for column, right in zip(table.columns, numeric, strict=True):
        column.justify = "right" if right else "left"
        column.overflow = "fold"
    for row in rows[:TABLE_ROWS]:
        table.add_row(*(_cell(value) for value in row))
    text = io.TextIOWrapper(output, encoding="utf-8", write_through=True)
    console = Console(file=text)
    if not console.is_terminal:
        console.width = WIDEST
    console.print(table)
    if len(rows) > TABLE_ROWS:
        console.print(f"Only the first {TABLE_ROWS} rows; --format csv gives all.")
    else:
        console.print(f"{len(rows)} row{'s' * (len(rows) != 1)}")
    text.detach()


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    if isinstance(value, float):
        return Text(f"{value:.10g}")
    if isinstance(value, datetime):
        return Text(value.isoformat(sep=" ", timespec="milliseconds"))
    return Text(value.hex() if isinstance(value, bytes) else str(value))


def _print_csv(reader: pa.RecordBatchReader, output: BinaryIO) -> None:
    text = io.TextIOWrapper(output, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(reader.schema.names)
    for batch in reader:
        columns = [[_plain(value) for value in column.to_pylist()] for column in batch.columns]
        writer.writerows(zip(*columns, strict=True))
    text.detach()


def _print_json(reader: pa.RecordBatchReader, output: BinaryIO) -> None:
    output.writelines(
        orjson.dumps(row, default=_plain, option=orjson.OPT_APPEND_NEWLINE) for row in _rows(reader)
    )


def _rows(reader: pa.RecordBatchReader) -> Iterator[dict[str, Any]]:
    for batch in reader:
        yield from batch.to_pylist()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def _print_arrow(reader: pa.RecordBatchReader, output: BinaryIO) -> None:
    with pa.ipc.new_stream(output, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
