"""What the points of a building management system mean: the table `bms_points.tsv`.

NVIDIA DSX Exchange, AsyncAPI 1.0.0 of the BMS, channels `BMS/v1/PUB/{Value|Metadata}/{objectType}/{pointType}/{tagPath}`;
also the names of its older contract (`LeakDetectRack`). A row with an area counts where the point has all its words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ingest.coolant.readings import text_of
from ingest.coolant.units import units_of

PREFIX = "BMS/v1/PUB/"

_UNITS = {
    "C": "Celsius",
    "degC": "Celsius",
    "F": "Fahrenheit",
    "degF": "Fahrenheit",
    "LPM": "L/min",
    "GPM": "gpm",
    "PSI": "psi",
    "%": "percent",
    "%RH": "percent",
}
"""Units in the words of the contract; what is not here is written as we do."""

_WATTS = {"kW": 1000.0, "W": 1.0, "MW": 1e6}

_AREAS = {"Seccondary": "Secondary"}
"""Misspelt in the published record."""

_AIR_PLACE = re.compile(r"(?:([^/]+)/)?environment/([^/]+)/[^/]+/[^/\d]*(\d+)")
"""Temperature and humidity of one probe: `rowE/environment/coldAisle/temperature/temp01/...`."""

_IDENTITIES = ("rackLocationId", "objectId", "associateId")
_LEAVES = ("/value", "/rValue", "/feedback")


@dataclass(frozen=True, slots=True)
class BmsPoint:
    """One point of the building, as its metadata says."""

    equipment: str
    component: str
    label: str | None
    point: str
    """Of `coolant_readings`, or `power`, or `leak_fault`."""
    loop: str | None
    role: str
    factor: float
    offset: float
    states: Mapping[str, str]
    """Words by the text of the number."""


def split_topic(topic: str) -> tuple[str, str] | None:
    """Return `Value` or `Metadata`, and the point; None for a topic of something else."""
    if not topic.startswith(PREFIX):
        return None
    kind, _, point = topic.removeprefix(PREFIX).partition("/")
    return (kind, point) if kind in ("Value", "Metadata") and point else None


def read_metadata(topic_point: str, metadata: Mapping[str, Any]) -> BmsPoint | None:
    """Return what a point is; None where nothing is kept of it.

    Raises ValueError where the metadata is of another form: no name of a unit, a unit nobody knows.
    """
    object_type, point_type, path = [*topic_point.split("/", 2), "", ""][:3]
    areas = _texts(metadata.get("processArea"))
    row = _row(object_type, point_type, frozenset(_AREAS.get(area, area) for area in areas))
    if row is None:
        return None
    equipment = next((metadata[name] for name in _IDENTITIES if isinstance(metadata.get(name), str)), None)
    if not equipment or text_of(equipment) != equipment:
        raise ValueError("it names no unit")
    factor, offset = _conversion(row["point"], metadata.get("engUnit"))
    role = row["role"] or ("setpoint" if metadata.get("isSetpoint") is True else "measured")
    name = next((metadata[key] for key in ("objectName", "rackLocationName") if key in metadata), None)
    return BmsPoint(
        equipment=equipment,
        component=text_of(row["component"] or _component(path, equipment)) or "",
        label=text_of(name),
        point=row["point"],
        loop=row["loop"] or None,
        role=role,
        factor=factor,
        offset=offset,
        states=_states(metadata.get("stateText")),
    )


@cache
def _table() -> dict[tuple[str, str], list[dict[str, str]]]:
    lines = Path(__file__).with_name("bms_points.tsv").read_text(encoding="utf-8").splitlines()
    header = lines[0].split("\t")
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for line in lines[1:]:
        row = dict(zip(header, line.split("\t"), strict=True))
        found.setdefault((row["object"], row["point_type"]), []).append(row)
    return found


def _row(object_type: str, point_type: str, areas: frozenset[str]) -> dict[str, str] | None:
    for row in _table().get((object_type, point_type), ()):
        if areas.issuperset(row["area"].split()):
            return row
    return None


def _conversion(point: str, unit: object) -> tuple[float, float]:
    name = _UNITS.get(unit, unit) if isinstance(unit, str) else ""
    if point == "power":
        known: Mapping[str, tuple[float, float]] = {word: (watts, 0.0) for word, watts in _WATTS.items()}
    else:
        known = {} if point == "leak_fault" else units_of(point)
    if not known:
        return 1.0, 0.0
    if name not in known:
        raise ValueError(f"unit {str(unit)[:40]!r} of {point}")
    return known[str(name)]


def _component(path: str, equipment: str) -> str:
    if air := _AIR_PLACE.search(path):
        return "/".join(part for part in air.groups() if part)
    _, found, inside = path.partition(f"/{equipment}/")
    if not found:
        inside = re.sub(r"^.*?/rack\d+/", "", path)
    for leaf in _LEAVES:
        inside = inside.removesuffix(leaf)
    return inside


def _states(texts: object) -> dict[str, str]:
    if not isinstance(texts, list):
        return {}
    return {
        f"{entry['value']:g}": text_of(entry["text"], 64) or ""
        for entry in texts[:64]
        if isinstance(entry, dict)
        and isinstance(entry.get("value"), int | float)
        and isinstance(entry.get("text"), str)
    }


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
