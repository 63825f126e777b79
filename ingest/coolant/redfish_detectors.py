"""Leak detectors of a Redfish service, each once, in whichever of the two forms the service tells of it.

DMTF Redfish LeakDetection 1.2: groups of excerpts (LeakDetectorGroups), and links to detectors (LeakDetectors), which
newer services deprecate and GB200 trays serve. A chassis may link the same detectors again, under other addresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingest.coolant.leak import MAX_DETECTORS, LeakMemory, LeakState, judge, worst
from ingest.coolant.readings import Row, as_number, reading, text_of
from ingest.coolant.redfish_client import checked_path
from ingest.coolant.redfish_rows import component_of, health_of, state_of
from ingest.coolant.redfish_walk import Found, Task, excerpts

_REACTIONS = {"None": "none", "ForceOff": "force_off", "GracefulShutdown": "graceful_shutdown"}

_LOSSES = {"dead_link": "its address leads nowhere"}
"""Failures that say something of the detector; the others say something of the service."""


@dataclass(slots=True)
class Sighting:
    """What one form tells of a detector."""

    name: str
    state: LeakState
    source_uri: str | None
    label: str | None = None
    health: str | None = None
    device_state: str | None = None
    detail: str | None = None
    reaction: str | None = None
    reaction_delay_seconds: float | None = None
    excerpt: bool = False
    """It was told in passing, without the status of the detector."""


class Detectors:
    """The detectors of one unit, reading after reading."""

    def __init__(self) -> None:
        self.memory = LeakMemory()

    def look(self, found: Found, now_us: int) -> tuple[list[Row], list[Row]]:
        """Return rows of `coolant_readings` and of `coolant_events`."""
        rows, events = [], []
        for sighting in self._sightings(found):
            row, news = self._tell(sighting, now_us)
            rows.append(row)
            events += news
            self.memory.hear(sighting.name, now_us)
        for name in self.memory.silent(now_us):
            lost = Sighting(name, "sensor_fault", None, detail="it was not heard of for minutes")
            row, news = self._tell(lost, now_us)
            rows.append(row | {"quality": "stale"})
            events += news
        return rows, events

    def _tell(self, seen: Sighting, now_us: int) -> tuple[Row, list[Row]]:
        """Return a detector's row, and the event where it says something new."""
        heard = self.memory.note(seen.name, seen.state, now_us, seen.label)
        place = {
            "component": seen.name,
            "label": heard.label,
            "health": seen.health,
            "detail": seen.detail,
            "protocol": "redfish",
            "source_uri": seen.source_uri,
        }
        row = reading(
            "leak", None, quality="good" if seen.state in ("leak", "dry", "absent") else "bad", **place,
            leak_state=seen.state, leak_before=heard.before, device_state=seen.device_state,
        )  # fmt: skip
        if heard.news_after is None:
            return row, []
        event = {
            **place,
            "event": "leak_changed",
            "leak_state": seen.state,
            "state": seen.device_state,
            "state_before": None if heard.news_after == "new" else heard.news_after,
            "reaction": seen.reaction,
            "reaction_delay_seconds": seen.reaction_delay_seconds,
        }
        return row, [event]

    def _sightings(self, found: Found) -> list[Sighting]:
        """Return each detector once; where forms disagree the worse counts, and both are told."""
        merged: dict[str, Sighting] = {}
        told = (s for task, document in found.documents for s in _sighted(found, task, document))
        seen = list(itertools.islice(told, MAX_DETECTORS))
        lost = [s for task, reason in found.failed.values() for s in _lost(found, task, reason)]
        read = {sighting.name for sighting in seen}
        for sighting in [*seen, *(s for s in lost if s.name not in read)]:
            other = merged.get(sighting.name)
            if other is not None and sighting.label and other.label and sighting.label != other.label:
                sighting.name = f"{sighting.name} ({sighting.label})"
                other = merged.get(sighting.name)
            merged[sighting.name] = sighting if other is None else _merge(other, sighting)
        return list(merged.values())


def _name(found: Found, task: Task, last: str) -> str:
    """Return the name of a detector: of its unit and its last segment, whatever the address in between."""
    unit = found.owners.get(task.owner.rstrip("/"), task.owner)
    return text_of(f"{component_of(unit)}/LeakDetectors/{last}".lstrip("/"), 255) or last


def _sighted(found: Found, task: Task, document: Mapping[str, Any]) -> Iterator[Sighting]:
    if task.kind == "detector":
        state = document.get("DetectorState")
        delay = as_number(document.get("ReactionDelaySeconds"))
        alarm = "Warning" if state == "Warning" else "Critical"
        status = state_of(document)
        raw_health = document["Status"].get("Health") if isinstance(document.get("Status"), dict) else None
        yield Sighting(
            _name(found, task, _last(task.path)),
            judge(state, status, raw_health),
            task.path,
            text_of(document.get("Name"), 255),
            health_of(document),
            text_of(state, 64),
            None if status in (None, "Enabled") else text_of(f"Status.State is {status}", 255),
            _REACTIONS.get(str(document.get(f"{alarm}ReactionType"))),
            delay,
        )
    elif task.kind == "leak_detection":
        for excerpt in excerpts(document):
            path = checked_path(excerpt.get("DataSourceUri"))
            label = text_of(excerpt.get("DeviceName"), 255)
            state = excerpt.get("DetectorState")
            if path is not None or label is not None:
                yield Sighting(
                    _name(found, task, _last(path) if path is not None else str(label)),
                    judge(state),
                    path or task.path,
                    label,
                    device_state=text_of(state, 64),
                    excerpt=True,
                )


def _lost(found: Found, task: Task, reason: str) -> Iterator[Sighting]:
    if task.kind == "detector" and reason in _LOSSES:
        name = _name(found, task, _last(task.path))
        yield Sighting(name, "sensor_fault", task.path, detail=_LOSSES[reason])


def _merge(one: Sighting, other: Sighting) -> Sighting:
    """Put two sightings together: the worse counts, and of two that quote the same word the one that knows the status."""
    counts, rest = (one, other) if worst(one.state, other.state) == one.state else (other, one)
    if counts.excerpt and not rest.excerpt and counts.device_state == rest.device_state:
        counts, rest = rest, counts
    elif counts.state != rest.state:
        counts.detail = f"{rest.source_uri} says {rest.device_state}"
    for field in ("label", "health", "device_state", "detail", "reaction", "reaction_delay_seconds"):
        if getattr(counts, field) is None:
            setattr(counts, field, getattr(rest, field))
    counts.excerpt = counts.excerpt and rest.excerpt
    return counts


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
