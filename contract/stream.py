"""How a stream is declared: a list of columns from which everything else is derived.

Derived here: the Arrow schema on the wire, the schema in the lake, and validation. Derived elsewhere from the
same declaration: the codec, `docs/streams.md`, the rule linter and the views.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contract.errors import ContractError
from contract.histogram import MAX_BUCKETS, MAX_NANOSECONDS, MAX_SCHEMA, check_histograms, parents_of

TIME_TYPE = pa.timestamp("us")
"""Naive, always UTC: DuckDB returns it without a time-zone database."""

MAX_TEXT_BYTES = 65_536
MAX_BLOB_BYTES = 16_777_216


class ColumnKind(enum.StrEnum):
    """What a column means; decides validation, storage, rollups and what a rule may do with it."""

    TIME = "time"
    TEXT = "text"
    GAUGE = "gauge"
    COUNTER = "counter"
    STATE = "state"
    BITMASK = "bitmask"
    HISTOGRAM = "histogram"
    BLOB = "blob"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a stream, with all that is known about its values."""

    name: str
    kind: ColumnKind
    type: pa.DataType
    doc: str
    required: bool = False
    valid: tuple[float, float] | None = None
    """Inclusive; a value outside becomes null and is counted."""
    resolution: float | None = None
    """The sensor's own step; the lake stores whole steps."""
    states: tuple[str, ...] = ()
    bits: Mapping[int, str] = field(default_factory=dict)
    max_length: int = MAX_TEXT_BYTES
    histogram: str = ""
    """Name of the histogram that it is a part of."""

    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest value that validation lets through."""
        if self.valid is not None:
            return self.valid
        if pa.types.is_floating(self.type):
            info = np.finfo(self.type.to_pandas_dtype())
            return float(info.min), float(info.max)
        number = self.type.value_type if self.kind is ColumnKind.HISTOGRAM else self.type
        beyond = 2 ** (number.bit_width - 1)
        signed = self.kind not in (ColumnKind.COUNTER, ColumnKind.BITMASK)
        return -beyond if signed else 0, beyond - 1

    @property
    def steps_per_unit(self) -> int | None:
        """How many stored steps make one unit, or None where the value is stored as it is."""
        if self.resolution is None or not pa.types.is_floating(self.type):
            return None
        return round(1 / self.resolution)

    @property
    def lake_type(self) -> pa.DataType:
        """The type in the lake: whole steps of the resolution where one is declared."""
        if self.steps_per_unit is None:
            return self.type
        low, high = self.bounds()
        widest = max(abs(low), abs(high)) * self.steps_per_unit
        return pa.int32() if widest < 2**31 else pa.int64()


def time(name: str, doc: str, *, required: bool = False) -> Column:
    """Declare a moment: microseconds UTC."""
    return Column(name=name, kind=ColumnKind.TIME, type=TIME_TYPE, doc=doc, required=required)


def text(name: str, doc: str, *, required: bool = False, max_length: int = MAX_TEXT_BYTES) -> Column:
    """Declare a text; longer than `max_length` bytes becomes null and is counted."""
    return Column(
        name=name, kind=ColumnKind.TEXT, type=pa.string(), doc=doc, required=required, max_length=max_length
    )


def gauge(
    name: str,
    type: str,
    doc: str,
    *,
    valid: tuple[float, float] | None = None,
    resolution: float | None = None,
    required: bool = False,
) -> Column:
    """Declare a value that goes up and down."""
    if resolution is not None and not (
        resolution <= 1 and abs(1 / resolution - round(1 / resolution)) < 1e-9
    ):
        raise ValueError(f"{name}: a resolution must be one over a whole number")
    return Column(
        name=name,
        kind=ColumnKind.GAUGE,
        type=pa.type_for_alias(type),
        doc=doc,
        valid=valid,
        resolution=resolution,
        required=required,
    )


def counter(name: str, doc: str, *, type: str = "int64", required: bool = False) -> Column:
    """Declare a count that only rises, until a reset sets it back."""
    return Column(
        name=name, kind=ColumnKind.COUNTER, type=pa.type_for_alias(type), doc=doc, required=required
    )


def state(name: str, states: Sequence[str], doc: str, *, required: bool = False) -> Column:
    """Declare one word out of a closed list."""
    return Column(
        name=name, kind=ColumnKind.STATE, type=pa.string(), doc=doc, required=required, states=tuple(states)
    )


def flag(name: str, doc: str, *, required: bool = False) -> Column:
    """Declare a state of two values."""
    return Column(name=name, kind=ColumnKind.STATE, type=pa.bool_(), doc=doc, required=required)


def bitmask(name: str, bits: Mapping[int, str], doc: str) -> Column:
    """Declare a set of named bits; unnamed bits are kept."""
    return Column(name=name, kind=ColumnKind.BITMASK, type=pa.int64(), doc=doc, bits=bits)


def blob(name: str, doc: str) -> Column:
    """Declare raw bytes."""
    return Column(name=name, kind=ColumnKind.BLOB, type=pa.binary(), doc=doc, max_length=MAX_BLOB_BYTES)


def histogram(name: str, doc: str) -> tuple[Column, ...]:
    """Declare values that are counted, integer nanoseconds: the columns of `contract.histogram.Histogram`.

    They are all there or all null, and agree with each other: a row where they do not is counted as `not_a_histogram`.
    """
    parts = (
        gauge(f"{name}_count", "int64", f"{doc} How many.", valid=(0, 2**62)),
        gauge(f"{name}_sum", "int64", "Their sum, nanoseconds.", valid=(0, 2**63 - 1)),
        gauge(f"{name}_min", "int64", "The least, nanoseconds; null of none.", valid=(1, MAX_NANOSECONDS)),
        gauge(f"{name}_max", "int64", "The greatest, nanoseconds; null of none.", valid=(1, MAX_NANOSECONDS)),
        gauge(
            f"{name}_schema", "int8", "Buckets per power of two, as a power of two.", valid=(0, MAX_SCHEMA)
        ),
        _buckets(f"{name}_idx", pa.int16(), "Buckets that hold any, ascending: i ends at 2^(i / 2^schema)."),
        _buckets(f"{name}_cnt", pa.int32(), "How many each of them holds."),
    )
    return tuple(replace(part, histogram=name) for part in parts)


def _buckets(name: str, type: pa.DataType, doc: str) -> Column:
    return Column(name=name, kind=ColumnKind.HISTOGRAM, type=pa.list_(type), doc=doc, max_length=MAX_BUCKETS)


LAKE_COLUMNS = (
    text("_log", "Identity of the log that carried the event: a topic id, never a name."),
    gauge("_partition", "int32", "Partition of that log."),
    gauge("_offset", "int64", "Offset of the message in that partition."),
    text("_source", "Who sent it: `collector@host/instance`."),
    text("_epoch", "Random id of that process start."),
    gauge("_seq", "int64", "The source's count of events in this stream; a hole is a loss."),
    time("_received", "When the bus appended the message."),
    text("_principal", "Who was authenticated as the sender; null on a local bus."),
)
"""Added by the readers of the bus to every row."""


@dataclass(frozen=True)
class Stream:
    """One topic = one schema = one lake table = one SQL view."""

    name: str
    family: str
    version: int
    key: str
    """Column whose value chooses the partition."""
    partitions: int
    interval: timedelta | None
    """How often a source sends; None where events come when something happens."""
    rows_per_second: float
    """Expected in a hall of 20,000 GPUs."""
    doc: str
    columns: Sequence[Column]
    sort_by: tuple[str, ...] = ("host", "ts")
    """Order of rows in a lake file: the entity as text, then time."""
    sparse: bool = False
    """Few rows: the lake may gather them longer before it writes a file."""

    def __post_init__(self) -> None:
        names = [c.name for c in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.name}: a column is declared twice")
        for name in (self.key, *self.sort_by):
            if name not in names:
                raise ValueError(f"{self.name}: no column {name!r}")

    @property
    def topic(self) -> str:
        return f"hallwatch.{self.name}.v{self.version}"

    @cached_property
    def by_name(self) -> dict[str, Column]:
        return {c.name: c for c in self.columns}

    @cached_property
    def histograms(self) -> tuple[str, ...]:
        """The names of its histograms."""
        return tuple(dict.fromkeys(c.histogram for c in self.columns if c.histogram))

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of rows on the wire."""
        return pa.schema([_field(c, c.type) for c in self.columns])

    @cached_property
    def lake_schema(self) -> pa.Schema:
        """The Arrow schema of rows in the lake: whole steps, and where each row came from."""
        return pa.schema([_field(c, c.lake_type) for c in (*self.columns, *LAKE_COLUMNS)])

    def partition_of(self, key: str) -> int:
        """Return the partition of a key: stable for ever, so it is a plain CRC-32."""
        return zlib.crc32(key.encode()) % self.partitions

    def table(self, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
        """Build a table from Python values; columns not named are null.

        Raises ContractError where a value does not fit its column.
        """
        table, rejected = self.clean(columns)
        if rejected:
            (column, reason), _ = next(iter(rejected.items()))
            raise ContractError("bad_value", f"{self.name}.{column}: {reason}")
        return table

    def clean(self, columns: Mapping[str, Sequence[Any]]) -> tuple[pa.Table, Rejected]:
        """Build a table from Python values, with every value null that cannot be true.

        Raises ContractError where a type is wrong, columns differ in length or a required value is missing.
        """
        unknown = set(columns) - set(self.by_name)
        if unknown:
            raise ContractError("bad_value", f"{self.name} has no column {min(unknown)!r}")
        lengths = {len(v) for v in columns.values()}
        if len(lengths) > 1:
            raise ContractError("unequal_columns", f"{self.name}: columns of {sorted(lengths)} values")
        rows = lengths.pop() if lengths else 0
        return self._assemble(
            {name: infer_array(self.by_name[name], values) for name, values in columns.items()}, rows
        )

    def validate(self, table: pa.Table) -> tuple[pa.Table, Rejected]:
        """Do the same to a table whose columns may be missing, unknown or of another width.

        Unknown columns are dropped: a later version of the stream may have added them.
        """
        found = {name: table.column(name) for name in table.column_names if name in self.by_name}
        return self._assemble(found, table.num_rows)

    def _assemble(
        self, found: Mapping[str, pa.Array | pa.ChunkedArray], rows: int
    ) -> tuple[pa.Table, Rejected]:
        rejected: Rejected = {}
        arrays = []
        for column in self.columns:
            values = found.get(column.name)
            if values is None:
                cleaned: pa.Array | pa.ChunkedArray = pa.nulls(rows, column.type)
            else:
                cleaned, counts = clean_array(column, values)
                rejected.update({(column.name, reason): count for reason, count in counts.items()})
            if column.required and cleaned.null_count:
                raise ContractError("missing_value", f"{self.name}.{column.name} is missing or impossible")
            arrays.append(cleaned)
        for name in self.histograms:
            self._clean_histogram(name, arrays, rejected)
        return pa.Table.from_arrays(arrays, schema=self.schema), rejected

    def _clean_histogram(
        self, name: str, arrays: list[pa.Array | pa.ChunkedArray], rejected: Rejected
    ) -> None:
        """Make every part null in the rows where the parts make no histogram together."""
        places = {
            c.name.removeprefix(f"{name}_"): at for at, c in enumerate(self.columns) if c.histogram == name
        }
        parts = {field: arrays[at] for field, at in places.items()}
        if all(part.null_count == len(part) for part in parts.values()):
            return
        broken, blank = check_histograms(parts)
        if told := int(np.count_nonzero(broken & ~blank)):
            rejected[f"{name}_idx", "not_a_histogram"] = told
        if broken.any():
            for at in places.values():
                arrays[at] = pc.if_else(pa.array(broken), pa.scalar(None, arrays[at].type), arrays[at])


Rejected = dict[tuple[str, str], int]
"""How many values became null, by (column, reason)."""


def infer_array(column: Column, values: Sequence[Any]) -> pa.Array:
    """Convert Python values without changing one: numbers keep the width they came with."""
    try:
        if column.kind in _TEXTUAL:
            return pa.array(values, column.type)
        if column.kind is ColumnKind.HISTOGRAM:
            return pa.array(values, pa.list_(pa.int64()))
        return pa.array(values, _few_numbers_type(values))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ContractError("bad_value", f"{column.name}: {error}") from error


_FEW_VALUES = 512


def _few_numbers_type(values: Sequence[Any]) -> pa.DataType | None:
    """Return the type of a short list of numbers; None leaves it to Arrow.

    Arrow's own look at the values costs more than a host's worth of them; in a long list it costs nothing.
    """
    if len(values) > _FEW_VALUES:
        return None
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {int}:
        return pa.int64()
    return pa.float64() if kinds == {float} else None


def clean_array(
    column: Column, values: pa.Array | pa.ChunkedArray
) -> tuple[pa.Array | pa.ChunkedArray, dict[str, int]]:
    """Return the values in the column's own type, null where they cannot be true, and the counts by reason.

    Raises ContractError where they are of another nature altogether: a text where a number belongs.
    """
    if values.null_count == len(values):
        return pa.nulls(len(values), column.type), {}
    try:
        if column.kind in _TEXTUAL:
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            if values.type != column.type:
                raise ContractError("bad_value", f"{column.name}: {values.type} where {column.type} belongs")
            return _clean_texts(column, values)
        if column.kind is ColumnKind.HISTOGRAM:
            return _clean_buckets(column, values)
        if not _numeric(values.type) and values.type != column.type:
            raise ContractError("bad_value", f"{column.name}: {values.type} where {column.type} belongs")
        return _clean_numbers(column, values)
    except pa.ArrowException as error:
        raise ContractError("bad_value", f"{column.name}: {error}") from error


_TEXTUAL = frozenset({ColumnKind.TEXT, ColumnKind.BLOB, ColumnKind.STATE})


def _numeric(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type))


def _field(column: Column, stored: pa.DataType) -> pa.Field:
    metadata = {"doc": column.doc, "kind": str(column.kind)}
    if column.resolution is not None:
        metadata["resolution"] = repr(column.resolution)
    return pa.field(column.name, stored, nullable=not column.required, metadata=metadata)


def _clean_texts(
    column: Column, values: pa.Array | pa.ChunkedArray
) -> tuple[pa.Array | pa.ChunkedArray, dict[str, int]]:
    if column.type == pa.bool_():
        return values, {}
    if column.states:
        known = pc.is_in(values, pa.array([*column.states, None], pa.string()))
        if not pc.all(known).as_py():
            return _null_where(values, pc.invert(known), "unknown_state")
    elif pc.max(pc.binary_length(values)).as_py() > column.max_length:
        return _null_where(values, pc.greater(pc.binary_length(values), column.max_length), "too_long")
    return values, {}


def _clean_buckets(
    column: Column, values: pa.Array | pa.ChunkedArray
) -> tuple[pa.Array | pa.ChunkedArray, dict[str, int]]:
    """Let lists of numbers pass that are not too long and whose numbers fit; a list that holds null does not."""
    kind = values.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_integer(
        kind.value_type
    ):
        raise ContractError("bad_value", f"{column.name}: {kind} where {column.type} belongs")
    values = values.cast(pa.list_(pa.int64()))
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    low, high = column.bounds()
    flat = values.flatten()
    fits = pc.fill_null(pc.and_(pc.greater_equal(flat, low), pc.less_equal(flat, high)), False)
    wrong = np.zeros(len(values), np.bool_)
    wrong[parents_of(values)[~np.asarray(fits)]] = True
    lengths = pc.list_value_length(values).fill_null(0).to_numpy()
    counts: dict[str, int] = {}
    for mask, reason in ((wrong, "out_of_range"), (lengths > column.max_length, "too_long")):
        if mask.any():
            values, found = _null_where(values, pa.array(mask), reason)
            counts |= found
    return values.cast(column.type), counts


def _clean_numbers(
    column: Column, values: pa.Array | pa.ChunkedArray
) -> tuple[pa.Array | pa.ChunkedArray, dict[str, int]]:
    counts: dict[str, int] = {}
    if column.type == TIME_TYPE and values.type != TIME_TYPE:
        return values.cast(pa.int64()).cast(TIME_TYPE), counts
    if column.type == TIME_TYPE:
        return values, counts
    if pa.types.is_floating(values.type):
        if not pc.all(pc.is_finite(values)).as_py():
            values, found = _null_where(values, pc.invert(pc.is_finite(values)), "not_a_number")
            counts |= found
        if pa.types.is_integer(column.type) and not pc.all(pc.equal(values, pc.trunc(values))).as_py():
            values, found = _null_where(values, pc.not_equal(values, pc.trunc(values)), "not_whole")
            counts |= found
    low, high = _comparable_bounds(column, values.type)
    extremes = pc.min_max(values).as_py()
    if extremes["min"] is not None and (extremes["min"] < low or extremes["max"] > high):
        values, found = _null_where(
            values, pc.or_(pc.less(values, low), pc.greater(values, high)), "out_of_range"
        )
        counts |= found
    return values.cast(column.type, safe=not pa.types.is_floating(column.type)), counts


def _comparable_bounds(column: Column, found: pa.DataType) -> tuple[float, float]:
    """Return the bounds as numbers of the values' own type: the greatest int64 has no double of its own."""
    low, high = column.bounds()
    if not pa.types.is_floating(found):
        return low, high
    greatest = float(high)
    return float(low), greatest if greatest <= high else float(np.nextafter(greatest, 0))


def _null_where(
    values: pa.Array | pa.ChunkedArray, mask: pa.Array | pa.ChunkedArray, reason: str
) -> tuple[pa.Array | pa.ChunkedArray, dict[str, int]]:
    mask = pc.fill_null(mask, False)
    return pc.if_else(mask, pa.scalar(None, values.type), values), {reason: pc.sum(mask).as_py()}
