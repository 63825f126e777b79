"""Printing the answer to a query: for people as a table, for programs as CSV, JSON lines or Arrow.

Everything but the table is streamed, so that a large answer needs no memory.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, BinaryIO

import duckdb
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

FORMATS = ("table", "csv", "json", "arrow")

TABLE_ROWS = 1_000
"""A table longer than this is cut, and says so: nobody reads on."""

WIDEST = 4_000
"""Columns of a table that no terminal shows: one line per row, for `less -S`, `grep` and files."""

NARROWEST_COLUMN = 10
"""A column that is narrower on the average can hardly be read."""

_BATCH_ROWS = 10_000
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "�")


def print_answer(answer: duckdb.DuckDBPyRelation, output_format: str, output: BinaryIO) -> None:
    """Write an answer; CSV has a header, JSON one object per line, Arrow is an IPC stream."""
    if output_format == "table":
        _print_table(answer, output)
        return
    reader = answer.to_arrow_reader(_BATCH_ROWS)
    {"csv": _print_csv, "json": _print_json, "arrow": _print_arrow}[output_format](reader, output)


def _print_table(answer: duckdb.DuckDBPyRelation, output: BinaryIO) -> None:
    rows = answer.limit(TABLE_ROWS + 1).fetchall()
    table = Table(*map(_shown, answer.columns), box=SIMPLE_HEAD, pad_edge=False)
    numeric = [str(kind) not in ("VARCHAR", "TIMESTAMP", "DATE", "BOOLEAN") for kind in answer.types]
    for column, right in zip(table.columns, numeric, strict=True):
        column.justify = "right" if right else "left"
        column.overflow = "fold"
    for row in rows[:TABLE_ROWS]:
        table.add_row(*(_cell(value) for value in row))
    text = io.TextIOWrapper(output, encoding="utf-8", write_through=True)
    console = Console(file=text)
    screen = os.get_terminal_size(output.fileno()).columns if console.is_terminal else WIDEST
    # Where columns would shrink to nothing, lines run on and the terminal wraps them.
    console.width = screen if screen >= NARROWEST_COLUMN * len(table.columns) else WIDEST
    console.print(table, soft_wrap=console.width > screen)
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
    return Text(_shown(value.hex() if isinstance(value, bytes) else str(value)))


def _shown(text: str) -> str:
    """Return a text without what a terminal would obey, and cut where nobody reads on."""
    return text[:WIDEST].translate(_CONTROLS) + "…" * (len(text) > WIDEST)


def _print_csv(reader: pa.RecordBatchReader, output: BinaryIO) -> None:
    text = io.TextIOWrapper(output, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(reader.schema.names)
    for batch in reader:
        writer.writerows(zip(*map(_plain_values, batch.columns), strict=True))
    text.detach()


def _print_json(reader: pa.RecordBatchReader, output: BinaryIO) -> None:
    names = _unique(reader.schema.names)
    for batch in reader:
        rows = zip(*map(_plain_values, batch.columns), strict=True)
        lines = [dict(zip(names, row, strict=True)) for row in rows]
        output.writelines(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


def _unique(names: Sequence[str]) -> list[str]:
    """Tell columns of one name apart: an object has each name once."""
    return [f"{name}_{at}" if name in names[:at] else name for at, name in enumerate(names)]


def _plain_values(column: pa.Array) -> list[Any]:
    """Return values that JSON and CSV know, times as ISO 8601."""
    if pa.types.is_timestamp(column.type):
        # By Arrow, not by Python: a broken clock may name a year that Python has no date for.
        column = pc.replace_substring_regex(column.cast(pa.string()), r"^(\d{4}-\d\d-\d\d) ", r"\1T")
    return [_plain(value) for value in column.to_pylist()]


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | str() | float():
            return value
        case int():
            return value if -(2**63) <= value < 2**64 else str(value)
        case Decimal():  # what sum() of whole numbers gives
            return _plain(int(value)) if value == int(value) else float(value)
        case bytes():
            return value.hex()
        case date():
            return value.isoformat()
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return str(value)


def _print_arrow(reader: pa.RecordBatchReader, output: BinaryIO) -> None:
    with pa.ipc.new_stream(output, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
