"""`docs/streams.md`, made from the declarations, and what other generated pages share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from contract.stream import LAKE_COLUMNS, Column, ColumnKind, Stream
from contract.streams import STREAMS

_KINDS = {
    ColumnKind.TIME: "a moment, microseconds UTC",
    ColumnKind.TEXT: "text",
    ColumnKind.GAUGE: "goes up and down",
    ColumnKind.COUNTER: "only rises, until a reset",
    ColumnKind.STATE: "one word out of a list, or true and false",
    ColumnKind.BITMASK: "named bits",
    ColumnKind.HISTOGRAM: "buckets of a [histogram](histograms.md)",
    ColumnKind.BLOB: "raw bytes",
}


def streams_page() -> str:
    """Return docs/streams.md."""
    lines = [
        "# Streams",
        "",
        "Generated from `contract/streams/` by `make docs`. A stream is one topic, one schema, one table in the lake and",
        "one view in SQL, all of the same columns. A value that cannot be true is null and counted, never clipped.",
        "",
        "| kind | meaning |",
        "|---|---|",
        *(f"| {kind} | {meaning} |" for kind, meaning in _KINDS.items()),
        "",
        *_overview(),
        "",
        "## In every view",
        "",
        "Added by the reader of the bus:",
        "",
        *_columns(LAKE_COLUMNS),
    ]
    for stream in STREAMS.values():
        lines += ["", *_section(stream)]
    return "\n".join(lines) + "\n"


def config_table(model: type[BaseModel], *, without: str) -> Iterator[str]:
    """Yield the keys of a plug-in's table in the configuration, but the one that names the plug-in."""
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for key, field in model.model_fields.items():
        if key != without:
            default = "required" if field.is_required() else _default(_value(field))
            yield f"| `{key}` | {default} | {field.description} |"


def _value(field: FieldInfo) -> object:
    return field.get_default(call_default_factory=True, validated_data={})


def _default(value: object) -> str:
    """Write a default as TOML does; null is the key left out."""
    match value:
        case dict():
            return ", ".join(f'`"{key}" = "{item}"`' for key, item in value.items()) or "none"
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return ", ".join(f'`"{item}"`' for item in value) or "none"
        case int() | float():
            return f"`{value}`"
        case _:
            return f'`"{value}"`'


def _overview() -> Iterator[str]:
    yield "| stream | family | grain | rows/s at 20,000 GPUs |"
    yield "|---|---|---|---:|"
    for stream in STREAMS.values():
        yield f"| [{stream.name}](#{stream.name}) | {stream.family} | {stream.doc} | {stream.rows_per_second:,.0f} |"


def _section(stream: Stream) -> Iterator[str]:
    every = "when it happens" if stream.interval is None else f"every {stream.interval.total_seconds():g} s"
    yield f"## {stream.name}"
    yield ""
    yield stream.doc
    yield ""
    yield (
        f"Topic `{stream.topic}`, {stream.partitions} partition{'s' * (stream.partitions != 1)} by `{stream.key}`; "
        f"sent {every}; sorted in the lake by {', '.join(f'`{name}`' for name in stream.sort_by)}."
    )
    yield ""
    yield from _columns(stream.columns)


def _columns(columns: Iterable[Column]) -> Iterator[str]:
    yield "| column | kind | type | valid | meaning |"
    yield "|---|---|---|---|---|"
    for column in columns:
        yield f"| `{column.name}` | {column.kind} | {column.type} | {_valid(column)} | {_meaning(column)} |"


def _valid(column: Column) -> str:
    """Return the range, the step and whether a value must be there."""
    parts = []
    if column.valid is not None:
        low, high = column.valid
        parts.append(f"{low:,} to {high:,}")
    if column.resolution is not None:
        parts.append(f"in steps of {column.resolution:.10g}")
    if column.required:
        parts.append("always there")
    return ", ".join(parts)


def _meaning(column: Column) -> str:
    if column.states:
        return f"{column.doc} One of {', '.join(f'`{state}`' for state in column.states)}."
    if column.bits:
        return f"{column.doc} Bits: {', '.join(f'{bit:#x} {name}' for bit, name in column.bits.items())}."
    return column.doc
