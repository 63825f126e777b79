"""What changed at the parts of a unit since the reading before: their health, their valves, what they complain of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ingest.coolant.readings import Row, text_of
from ingest.coolant.redfish_client import checked_path
from ingest.coolant.redfish_rows import component_of, conditions_of, health_of, state_of
from ingest.coolant.redfish_walk import Found, Task

_HEALTHS = {"Warning": "warning", "Critical": "critical"}
_PARTS = frozenset({"unit", "connector", "pump", "filter", "reservoir", "cooling_loop"})

MAX_KEPT = 4_096

_Key = tuple[str, str]
"""The part that a condition is about, and its message."""


class Changes:
    """Remembers how everything stood, so that only what is new is an event. A part that was not read stands as before."""

    def __init__(self) -> None:
        self._healths: dict[str, str] = {}
        self._valves: dict[str, str] = {}
        self._conditions: dict[_Key, list[str]] = {}
        """Where each condition that stands was read."""

    def look(self, found: Found) -> list[Row]:
        """Return rows of `coolant_events`."""
        parts = [(task, document) for task, document in found.documents if task.kind in _PARTS]
        events = [event for task, document in parts for event in self._of_part(task, document)]
        return [*events, *self._of_conditions(parts)]

    def dump(self) -> dict[str, Any]:
        """Return what must outlive the process."""
        return {
            "healths": self._healths,
            "valves": self._valves,
            "conditions": [[*key, paths] for key, paths in self._conditions.items()],
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take up what `dump` gave; what is not of that form is left out."""
        for name, into in (("healths", self._healths), ("valves", self._valves)):
            part = saved.get(name)
            into.update({str(k): str(v) for k, v in part.items()} if isinstance(part, dict) else {})
        stored = saved.get("conditions")
        for item in stored if isinstance(stored, list) else []:
            if isinstance(item, list) and len(item) == 3 and isinstance(item[2], list):
                self._conditions[str(item[0]), str(item[1])] = [str(path) for path in item[2]]

    def _of_part(self, task: Task, document: Mapping[str, Any]) -> Iterator[Row]:
        name, health, state = component_of(task.path), health_of(document), state_of(document)
        place = {
            "component": name,
            "label": text_of(document.get("Name"), 255),
            "loop": task.loop,
            "health": health,
            "protocol": "redfish",
            "source_uri": task.path,
        }
        if health is not None and (before := _note(self._healths, name, health, "ok")) is not None:
            yield place | {"event": "health_changed", "state": health, "state_before": before or None}
        # A connector's valve is open while its state is Enabled, closed while it is Disabled (CoolantConnector,
        # ValveControl).
        if task.kind == "connector" and state is not None:
            before = _note(self._valves, name, state, "Enabled")
            if before is not None:
                yield place | {"event": "valve_changed", "state": state, "state_before": before or None}

    def _of_conditions(self, parts: list[tuple[Task, dict[str, Any]]]) -> Iterator[Row]:
        now: dict[_Key, list[str]] = {}
        rows: dict[_Key, Row] = {}
        for task, document in parts:
            for condition in conditions_of(document):
                row = _condition(task, condition)
                key = str(row["component"]), str(row["message"])
                now.setdefault(key, []).append(task.path)
                rows.setdefault(key, row)
        read = {task.path for task, _ in parts}
        for key, paths in list(self._conditions.items()):
            if key not in now and read.issuperset(paths):
                del self._conditions[key]
                yield {
                    "event": "condition_cleared", "component": key[0], "message": key[1], "protocol": "redfish",
                    "source_uri": paths[0],
                }  # fmt: skip
        for key, paths in now.items():
            if key not in self._conditions:
                yield rows[key]
            if key in self._conditions or len(self._conditions) < MAX_KEPT:
                self._conditions[key] = paths


def _note(kept: dict[str, str], name: str, state: str, usual: str) -> str | None:
    """Keep a state; return the one before, "" at the first look, or None where it is no news."""
    before = kept.get(name)
    if before is not None or len(kept) < MAX_KEPT:
        kept[name] = state
    if state == (before or usual):
        return None
    return before or ""


def _condition(task: Task, condition: Mapping[str, Any]) -> Row:
    origin = condition.get("OriginOfCondition")
    path = checked_path(origin.get("@odata.id")) if isinstance(origin, dict) else None
    # `Environmental.1.2.PumpFailed` and `Environmental.1.1.0.PumpFailed` are one message of one registry.
    registry, _, rest = str(condition.get("MessageId") or "").partition(".")
    return {
        "event": "condition",
        "component": component_of(path or task.path),
        "health": _HEALTHS[str(condition["Severity"])],
        "message": text_of(rest.rpartition(".")[2] or registry or "unknown", 255),
        "registry": text_of(registry, 64) if rest else None,
        "detail": text_of(condition.get("Message"), 1_024),
        "device_ts": _time_us(condition.get("Timestamp")),
        "protocol": "redfish",
        "source_uri": task.path,
    }


def _time_us(text: object) -> int | None:
    """Return a Redfish time in microseconds UTC; one without a zone, or out of any calendar, is none."""
    if not isinstance(text, str) or len(text) > 40:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if moment.tzinfo is None else round(moment.timestamp() * 1_000_000)
