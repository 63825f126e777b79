"""All conditions on one stream as one DuckDB projection over a batch of rows.

The statement is prepared once; planning it again for every batch would cost more than running it. A condition that
throws leaves the shared statement and runs alone under TRY, so that it costs its neighbours nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from alerts.expression import RECEIVED, Expression, sandbox
from contract.errors import StoreError
from contract.log import Log
from contract.stream import Stream

Codes = npt.NDArray[np.uint8]
"""What a condition gave for each row."""

FALSE, TRUE, UNKNOWN = 0, 1, 2

CHUNK_ROWS = 1_024
TRY_CHUNKS = 4
"""Under TRY a row that throws costs 20 us, a thousand times one that does not."""

_log = Log("projection")


class _Feed:
    """What a prepared statement reads: DuckDB asks it anew at every execution."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.table.schema.__arrow_c_schema__()


@dataclass(frozen=True, slots=True)
class Truths:
    """The answers for one batch, by condition as written; `failed` holds the message of each that threw."""

    codes: Mapping[str, Codes]
    failed: Mapping[str, str]


class Projection:
    """The conditions on one stream."""

    def __init__(self, stream: Stream, expressions: Sequence[Expression]) -> None:
        self._stream = stream
        self._expressions = list(dict.fromkeys(expressions))
        self._apart: list[Expression] = []
        sql = " ".join(expression.sql for expression in self._expressions)
        self._columns = [c.name for c in stream.columns if c.name in sql] or [stream.columns[0].name]
        if self._expressions:
            self._connect()

    def evaluate(self, table: pa.Table, received: pa.Array) -> Truths:
        """Answer every condition for every row of a table of the stream's schema."""
        if not self._expressions:
            return Truths({}, {})
        self._feed.table = table.select(self._columns).append_column(RECEIVED, received)
        try:
            codes = self._run_shared()
        except duckdb.Error as error:
            self._recover(error)
            self._part()
            codes = self._run_shared()
        failed: dict[str, str] = {}
        for expression in self._apart:
            codes[expression.text] = self._run_apart(expression, table.num_rows, failed)
        return Truths(codes, failed)

    def rejoin(self, text: str) -> None:
        """Take a condition that no longer throws back into the shared statement."""
        self._apart = [expression for expression in self._apart if expression.text != text]
        self._prepare()

    def _connect(self) -> None:
        self._connection = sandbox()
        nothing = self._stream.schema.empty_table().select(self._columns)
        self._feed = _Feed(nothing.append_column(RECEIVED, pa.array([], pa.timestamp("us"))))
        self._connection.register(self._stream.name, self._feed)
        self._prepare()

    def _prepare(self) -> None:
        self._shared = [expression for expression in self._expressions if expression not in self._apart]
        if self._shared:
            columns = ", ".join(f"{expression.sql} AS c{at}" for at, expression in enumerate(self._shared))
            self._connection.execute(f"PREPARE shared AS SELECT {columns} FROM {self._stream.name}")

    def _run_shared(self) -> dict[str, Codes]:
        if not self._shared:
            return {}
        columns = self._connection.execute("EXECUTE shared").fetchnumpy()
        return {e.text: _codes(columns[f"c{at}"]) for at, e in enumerate(self._shared)}

    def _part(self) -> None:
        """Move the conditions that throw on this batch out of the shared statement."""
        for expression in self._shared:
            try:
                self._run(expression.sql)
            except duckdb.Error as error:
                _log.warning("condition_threw", stream=self._stream.name, condition=expression.text)
                self._recover(error)
                self._apart.append(expression)
        self._prepare()

    def _run_apart(self, expression: Expression, rows: int, failed: dict[str, str]) -> Codes:
        """Answer chunk by chunk; TRY goes row by row where one throws, so only a few chunks may take it."""
        whole, codes = self._feed.table, np.full(rows, UNKNOWN, np.uint8)
        tries = TRY_CHUNKS
        for start in range(0, rows, CHUNK_ROWS):
            self._feed.table = whole.slice(start, CHUNK_ROWS)
            chunk = codes[start : start + CHUNK_ROWS]
            try:
                chunk[:] = self._run(expression.sql)
            except duckdb.Error as error:
                failed.setdefault(expression.text, str(error).split("\n", 1)[0])
                self._recover(error)
                if tries:
                    tries -= 1
                    self._try(expression, chunk)
        self._feed.table = whole
        return codes

    def _try(self, expression: Expression, codes: Codes) -> None:
        try:
            codes[:] = self._run(f"TRY({expression.sql})")
        except duckdb.Error as error:
            # Not every error is a row's own, which TRY can catch: running out of memory is not.
            self._recover(error)

    def _run(self, sql: str) -> Codes:
        query = f"SELECT {sql} AS c0 FROM {self._stream.name}"
        return _codes(self._connection.execute(query).fetchnumpy()["c0"])

    def _recover(self, error: duckdb.Error) -> None:
        """Open a new database where the error broke the old one."""
        if isinstance(error, duckdb.FatalException | duckdb.InternalException):
            table = self._feed.table
            try:
                self._connect()
            except duckdb.Error as again:
                raise StoreError("unreadable", f"DuckDB does not come back: {again}") from again
            self._feed.table = table


def _codes(column: Any) -> Codes:
    if isinstance(column, np.ma.MaskedArray):
        codes = column.data.astype(np.uint8)
        codes[np.ma.getmaskarray(column)] = UNKNOWN
        return codes
    return np.asarray(column).view(np.uint8)
