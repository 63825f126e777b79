"""Fakes and generators that the tests of every package share, those that operators write for rules too."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from contract.histogram import FIELDS, MAX_SCHEMA, Histogram
from contract.stream import Column, ColumnKind, Stream

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

START_US = 1_780_272_000_000_000
"""2026-06-01, where the time of every test begins."""


class FakeClock:
    """A clock that moves only when told to, or when someone sleeps on it."""

    def __init__(self, now_us: int = START_US) -> None:
        self._now_us = now_us
        self._monotonic = 0.0

    def now_us(self) -> int:
        return self._now_us

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now_us += round(seconds * 1_000_000)
        self._monotonic += seconds

    def set(self, seconds: float) -> None:
        """Set the wall clock forward, or back, while no time passes."""
        self._now_us += round(seconds * 1_000_000)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self.advance(max(0.0, seconds))
        return event.is_set()


def example_rows(stream: Stream, count: int, **values: Any) -> pa.Table:
    """Return `count` valid rows of a stream: required columns filled plainly, the rest null, `values` on top.

    A value may be a list of `count` values or one value for all rows.
    """
    columns: dict[str, Any] = {
        c.name: [plain_value(c, i) for i in range(count)] for c in stream.columns if c.required
    }
    for name, value in values.items():
        columns[name] = value if isinstance(value, list) else [value] * count
    return stream.table(columns)


def plain_value(column: Column, index: int) -> Any:
    """Return a valid value for a column that says nothing, other for other rows where the column is text."""
    match column.kind:
        case ColumnKind.TIME:
            return START_US + index * 1_000_000
        case ColumnKind.TEXT:
            return f"{column.name}-{index}"
        case ColumnKind.STATE:
            return False if column.type == pa.bool_() else column.states[0]
        case ColumnKind.BLOB:
            return b""
        case _:
            return 0


def tables(stream: Stream, max_rows: int = 4, max_columns: int = 4) -> SearchStrategy[pa.Table]:
    """Draw valid tables of a stream: any nulls, empty tables, extreme values.

    Beside the required columns at most `max_columns` others hold values, so that a draw stays quick.
    """
    from hypothesis import strategies as st

    required = [c for c in stream.columns if c.required]
    optional = [c for c in stream.columns if not c.required and not c.histogram]

    def of_shape(shape: tuple[int, list[Column]]) -> SearchStrategy[pa.Table]:
        count, chosen = shape

        def constant(value: Any) -> list[Any]:
            return [value] * count

        cells = {
            c.name: st.lists(_cells(c), min_size=count, max_size=count) | _cells(c).map(constant)
            for c in (*required, *chosen)
        }
        measured = [_histograms(name, count) for name in stream.histograms]
        return st.tuples(st.fixed_dictionaries(cells), *measured).map(
            lambda parts: stream.table({name: values for part in parts for name, values in part.items()})
        )

    most = min(max_columns, len(optional))
    columns = st.lists(st.sampled_from(optional or required), unique_by=lambda c: c.name, max_size=most)
    return st.tuples(st.integers(0, max_rows), columns).flatmap(of_shape)


def _histograms(name: str, count: int) -> SearchStrategy[dict[str, list[Any]]]:
    """Draw the columns of a histogram: some null, some of nothing, some of a few values."""
    from hypothesis import strategies as st

    values = st.lists(st.integers(1, 2**50), max_size=6)
    drawn = st.none() | st.builds(Histogram.of, values, st.integers(0, MAX_SCHEMA))

    def columns(histograms: list[Histogram | None]) -> dict[str, list[Any]]:
        rows = [{} if one is None else one.columns(name) for one in histograms]
        return {f"{name}_{field}": [row.get(f"{name}_{field}") for row in rows] for field in FIELDS}

    return st.lists(drawn, min_size=count, max_size=count).map(columns)


def _cells(column: Column) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    cell = _values(column)
    return cell if column.required else st.none() | cell


def _values(column: Column) -> SearchStrategy[Any]:
    from hypothesis import strategies as st

    match column.kind:
        case ColumnKind.TIME:
            return st.integers(0, 2**62)
        case ColumnKind.TEXT:
            return st.text(max_size=min(20, column.max_length // 4))  # a character is at most four bytes
        case ColumnKind.STATE:
            return st.booleans() if column.type == pa.bool_() else st.sampled_from(column.states)
        case ColumnKind.BLOB:
            return st.binary(max_size=40)
        case _:
            low, high = column.bounds()
            if pa.types.is_floating(column.type):
                return st.floats(low, high, width=32 if column.type == pa.float32() else 64)
            return st.integers(int(low), int(high))
