"""Redfish collectors for tests, and the rows they give."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contract.clock import Clock
from contract.config import HallSection
from contract.streams.coolant import COOLANT_READINGS
from contract.testing import FakeClock
from ingest.collector import Context, Reading
from ingest.coolant.redfish import RedfishCollector
from ingest.coolant.redfish_client import RedfishConfig
from ingest.testing import rows_of

ROOT = "/redfish/v1"


def fake_redfish(url: str, *, clock: Clock | None = None, **settings: Any) -> RedfishCollector:
    """Return a collector of the unit `cdu-1`."""
    config = RedfishConfig(collector="coolant-redfish", equipment="cdu-1", url=url, **settings)
    return RedfishCollector(config, Context(hall=HallSection(name="test"), clock=clock or FakeClock()))


def links(**named: str) -> dict[str, Any]:
    """Return a document that holds nothing but links below the root of the service."""
    return {name: {"@odata.id": f"{ROOT}/{path}"} for name, path in named.items()}


def members(*paths: str) -> dict[str, Any]:
    """Return a collection."""
    return {"Members": [{"@odata.id": f"{ROOT}/{path}"} for path in paths]}


def below(documents: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any] | None]:
    """Return what finds documents by their path below the root of the service."""
    return lambda path: documents.get(path.removeprefix(ROOT).lstrip("/"))


def folder(path: Path) -> Callable[[str], Mapping[str, Any] | None]:
    """Return what finds the documents of a mockup, as DMTF lays one out: a folder per resource with an index.json."""

    def find(resource: str) -> Mapping[str, Any] | None:
        file = path / resource.removeprefix(ROOT).lstrip("/") / "index.json"
        document: Mapping[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
        return document

    return find


def points(reading: Reading) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Return the rows of `coolant_readings` by component, point and role; fail where two have one name."""
    rows = rows_of(reading, COOLANT_READINGS)
    named = {(row["component"], row["point"], row["role"]): row for row in rows}
    assert len(named) == len(rows)
    return named
