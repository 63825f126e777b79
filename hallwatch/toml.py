"""Configurations as text, for those that write one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

Table: TypeAlias = Mapping[str, Any]


def config_text(comment: str, sections: Mapping[str, Table], collectors: Iterable[Table]) -> str:
    """Return a configuration as a person would write it; sections without keys are left out."""
    lines = [f"# {comment}"]
    for name, section in sections.items():
        if section:
            lines += ["", f"[{name}]", *_pairs(section)]
    for table in collectors:
        lines += ["", "[[ingest.collectors]]", *_pairs(table)]
    return "\n".join(lines) + "\n"


def _pairs(table: Table) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in table.items()]


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(_pairs(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    # The escapes of JSON are TOML's too, but for pairs of surrogates; DEL it wants escaped, which JSON does not.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
