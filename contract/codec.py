"""Rows to message and back: CloudEvents 1.0 binary mode, a JSON or an Arrow body, told apart by the content type.

JSON holds arrays of equal length by column; a value that is no array is a column of that one value; a column that
is not there is null. A histogram's buckets are arrays in such an array. Arrow holds one or more whole events, whose
source, epoch and sequence are columns.
CloudEvents: Kafka protocol binding 1.0.2, section 3.2 (attributes as `ce_` headers, body untouched).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from contract.bus.protocols import Record
from contract.errors import ContractError
from contract.stream import ColumnKind, Stream

JSON_TYPE = "application/vnd.hallwatch.columns+json"
ARROW_TYPE = "application/vnd.apache.arrow.stream"

ARROW_FROM_ROWS = 256
"""Below this an Arrow body is larger and slower than JSON."""

MAX_BODY_BYTES = 16_777_216
MAX_ROWS = 65_536
"""Rows in one message; a body of constant columns could otherwise claim any number."""

_EVENT_FIELDS = (
    pa.field("_source", pa.string()),
    pa.field("_epoch", pa.string()),
    pa.field("_seq", pa.int64()),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The rows of one stream from one source at one tick."""

    source: str
    epoch: str
    sequence: int
    table: pa.Table


def encode_event(stream: Stream, event: Event, key: str) -> Record:
    """Turn an event into the record to send."""
    headers = headers_of(stream, event.source, event.epoch, event.sequence)
    return Record(key=key, headers=headers, body=encode_json(stream, event.table))


def encode_events(stream: Stream, events: Sequence[Event], key: str) -> Record:
    """Turn several events of one partition, each source in sequence order, into one record with an Arrow body."""
    first = events[0]
    headers = headers_of(stream, first.source, first.epoch, first.sequence) | {"content-type": ARROW_TYPE}
    return Record(key=key, headers=headers, body=encode_arrow(stream, events))


def headers_of(stream: Stream, source: str, epoch: str, sequence: int) -> dict[str, str]:
    """Return the CloudEvents attributes of an event with a JSON body."""
    return {
        "ce_specversion": "1.0",
        "ce_id": f"{epoch}/{sequence}",
        "ce_source": source,
        "ce_type": stream.topic,
        "ce_epoch": epoch,
        "ce_sequence": str(sequence),
        "content-type": JSON_TYPE,
    }


def encode_json(stream: Stream, table: pa.Table) -> bytes:
    """Encode validated rows; NaN and infinity have no JSON and must have become null before."""
    columns: dict[str, Any] = {}
    for column in stream.columns:
        array = table.column(column.name)
        if column.kind is ColumnKind.TIME:
            array = array.cast(pa.int64())
        if column.name == "ts" or array.null_count < len(array):
            columns[column.name] = array.to_pylist()
    return encode_columns(stream, columns)


def encode_columns(stream: Stream, columns: Mapping[str, Sequence[Any]]) -> bytes:
    """Encode Python columns of equal length, times as microseconds; a constant column becomes one value."""
    document: dict[str, Any] = {}
    for name, values in columns.items():
        kind = stream.by_name[name].kind
        if kind is ColumnKind.BLOB:
            values = [None if v is None else base64.b64encode(v).decode() for v in values]
        first = values[0] if len(values) else None
        if kind is ColumnKind.HISTOGRAM and first is not None:
            document[name] = values  # a list that stands for every row would be taken for a list of rows
            continue
        constant = len(values) == 1 or (name != "ts" and len(values) and all(v == first for v in values))
        document[name] = first if constant else values
    return orjson.dumps(document)


def encode_arrow(stream: Stream, events: Sequence[Event]) -> bytes:
    """Encode whole events into one uncompressed Arrow IPC stream; the bus compresses."""
    tables = [_with_identity(stream, event) for event in events]
    table = pa.concat_tables(tables).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _with_identity(stream: Stream, event: Event) -> pa.Table:
    rows = event.table.num_rows
    values = (event.source, event.epoch, event.sequence)
    identity = [pa.repeat(pa.scalar(v, f.type), rows) for v, f in zip(values, _EVENT_FIELDS, strict=True)]
    return pa.Table.from_arrays(
        [*event.table.columns, *identity], schema=pa.schema([*stream.schema, *_EVENT_FIELDS])
    )


def parse_json(body: bytes) -> tuple[dict[str, Any], int]:
    """Read a JSON body; return its columns and how many rows they make: the lists must be of that length.

    Raises ContractError: unreadable_body, missing_value, too_large.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ContractError("unreadable_body", f"not JSON: {error}") from error
    if type(document) is not dict:
        raise ContractError("unreadable_body", f"a JSON {type(document).__name__} where an object belongs")
    ts = document.get("ts")
    if ts is None:
        raise ContractError("missing_value", "there is no ts")
    rows = len(ts) if type(ts) is list else 1
    if rows > MAX_ROWS:
        raise ContractError("too_large", f"{rows} rows in one message, at most {MAX_ROWS}")
    return document, rows


def decode_blobs(values: Sequence[Any], name: str) -> list[bytes | None]:
    """Undo the base64 of a blob column."""
    try:
        return [None if v is None else base64.b64decode(v, validate=True) for v in values]
    except (binascii.Error, TypeError, ValueError) as error:
        raise ContractError("bad_value", f"{name}: {error}") from error


def parse_arrow(body: bytes) -> pa.Table:
    """Read an Arrow body into a table that is safe to touch, with `_source`, `_epoch` and `_seq` as columns.

    Raises ContractError: unreadable_body, too_large, missing_header.
    """
    try:
        with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, ValueError, OSError, MemoryError, RecursionError) as error:
        raise ContractError("unreadable_body", f"not an Arrow stream: {error}"[:500]) from error
    if table.num_rows > MAX_ROWS:
        raise ContractError("too_large", f"{table.num_rows} rows in one message, at most {MAX_ROWS}")
    names = table.column_names
    for field in _EVENT_FIELDS:
        if names.count(field.name) != 1 or table.schema.field(field.name).type != field.type:
            raise ContractError(
                "missing_header", f"an Arrow body needs one column {field.name} of {field.type}"
            )
        if table.column(field.name).null_count:
            raise ContractError("missing_header", f"{field.name} is null")
    if len(set(names)) != len(names):
        raise ContractError("unreadable_body", "two columns of one name")
    return table
