"""Which collectors there are, for configuration and documentation."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract.config import parse_model
from contract.docs import config_table
from contract.errors import ConfigError
from ingest.collector import COLLECTORS, CollectorConfig, Registration


def read_table(
    table: Mapping[str, Any], where: str, folder: Path = Path()
) -> tuple[Registration, CollectorConfig]:
    """Turn a table of the configuration into a collector and its validated configuration.

    Relative paths in it count from `folder`.

    Raises ConfigError: missing, unknown_name, unknown_key, invalid.
    """
    collectors = COLLECTORS.all()
    name = table.get("collector")
    if name is None:
        raise ConfigError("missing", f"{where}: `collector` is missing; it is one of {', '.join(collectors)}")
    registration = collectors.get(name) if isinstance(name, str) else None
    if registration is None:
        raise ConfigError(
            "unknown_name", f"{where}: there is no collector {name!r}; there are {', '.join(collectors)}"
        )
    return registration, parse_model(registration.config, table, f"{where} ({name})").anchored(folder)


def collectors_page() -> str:
    """Return docs/collectors.md."""
    lines = [
        "# Collectors",
        "",
        "Generated from the code by `make docs`. A collector reads one device and sends rows; a configuration names",
        "as many as there are devices, each in a table of its own:",
        "",
        "```toml",
        "[[ingest.collectors]]",
        'collector = "gpu-dcgm"',
        'host = "h100-a01-01"',
        'url = "http://127.0.0.1:9400/metrics"',
        "```",
        "",
        "Whatever a collector reads, its source is `collector@host/instance`; how it fares is in `collector_status`.",
        "To add one, put a file into a subfolder of `ingest/`: a configuration, and a class under `@collector` with the",
        "four methods of `ingest.collector.Collector`. Schedule, back-off, clocks, the bus and the status are the runner's.",
    ]
    for registration in COLLECTORS.all().values():
        lines += ["", *_section(registration)]
    return "\n".join(lines) + "\n"


def _section(registration: Registration) -> list[str]:
    streams = ", ".join(f"`{stream.name}`" for stream in registration.streams)
    lines = [f"## {registration.name}", "", inspect.cleandoc(registration.doc), "", f"Writes {streams}.", ""]
    return [*lines, *config_table(registration.config, without="collector")]
