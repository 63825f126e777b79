"""Which documents of a Redfish service tell of coolant, and in which order they are read.

Links: DMTF Redfish schema bundle 2025.4, of the resources named in `KINDS`. Leak detectors come first, then what was
read longest ago: a service that is too slow for its interval still tells of leaks, and by and by of all else.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from contract.errors import CollectError
from ingest.coolant.redfish_client import ROOT, NotThere, checked_path

KEPT_US = 600_000_000
"""How long the way to the documents is kept: what a unit is made of seldom changes."""

MAX_PAGES = 50
MAX_GIVEN_UP = 3
"""Failed connections in a row after which a reading is ended."""


@dataclass(frozen=True, slots=True)
class Task:
    """A document to be read."""

    kind: str
    path: str
    owner: str = ""
    """Path of the unit or the chassis that it belongs to."""
    loop: str | None = None
    parent: str = ""
    """The document that links to it."""
    page: int = 0
    unlinked: bool = False
    """Nobody links to it; it is asked for at the place where it would be."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What lies behind a link."""

    rank: int
    """Lower is read earlier."""
    links: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    """Property of the link, kind of what it leads to, and the loop that this stands in."""
    structure: bool = False
    """It holds links and no values: its links are kept for a while."""
    member: str | None = None
    """It is a collection of these."""
    owns: bool = False
    """What is linked from here belongs to it."""
    probes: Mapping[str, str] = field(default_factory=dict)
    """Kinds that are looked for under its own path where it does not link them, by their name there."""


def _list(member: str, rank: int = 0) -> Kind:
    return Kind(rank, structure=True, member=member)


def _water_parts(pumped: str) -> dict[str, tuple[str, str | None]]:
    return {
        "Pumps": ("pumps", pumped),
        "Filters": ("filters", None),
        "LeakDetection": ("leak_detection", None),
    }


KINDS = {
    "root": Kind(
        0,
        {"ThermalEquipment": ("thermal_equipment", None), "Chassis": ("chassis_list", None)},
        structure=True,
    ),
    "thermal_equipment": Kind(
        0,
        {
            **dict.fromkeys(("CDUs", "HeatExchangers", "ImmersionUnits", "RPUs"), ("units", None)),
            "CoolingLoops": ("cooling_loops", None),
            "LeakDetection": ("leak_detection", None),
        },
        structure=True,
    ),
    "units": _list("unit"),
    "unit": Kind(
        0,
        {
            **_water_parts("TCS"),
            "PrimaryCoolantConnectors": ("connectors", "FWS"),
            "SecondaryCoolantConnectors": ("connectors", "TCS"),
            "Reservoirs": ("reservoirs", "TCS"),
            "EnvironmentMetrics": ("environment", None),
        },
        owns=True,
        probes={"Reservoirs": "reservoirs", "LeakDetection": "leak_detection"},
    ),
    "chassis_list": _list("chassis"),
    "chassis": Kind(
        0,
        {
            "ThermalSubsystem": ("thermal_subsystem", None),
            "LeakDetectors": ("detectors", None),
            "EnvironmentMetrics": ("environment", None),
        },
        structure=True,
        owns=True,
    ),
    "thermal_subsystem": Kind(
        0, {**_water_parts("coldplate"), "CoolantConnectors": ("connectors", "coldplate")}, structure=True
    ),
    "leak_detection": Kind(1, {"LeakDetectors": ("detectors", None)}),
    "detectors": _list("detector", 1),
    "detector": Kind(2),
    "connectors": _list("connector", 3),
    "pumps": _list("pump", 3),
    "filters": _list("filter", 3),
    "reservoirs": _list("reservoir", 3),
    "cooling_loops": _list("cooling_loop", 3),
    "connector": Kind(4),
    "pump": Kind(4),
    "filter": Kind(4),
    "reservoir": Kind(4),
    "cooling_loop": Kind(4),
    "environment": Kind(4),
    "sensor": Kind(5),
}


@dataclass(slots=True)
class Found:
    """What a walk brought home."""

    documents: list[tuple[Task, dict[str, Any]]] = field(default_factory=list)
    """But those that hold links alone."""
    failed: dict[str, tuple[Task, str]] = field(default_factory=dict)
    """What could not be read, by path, and why: dead_link, or the reason of the error, or out_of_time."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Path of the unit that a chassis is a part of, by the path of the chassis; a server's own is in none."""
    error: CollectError | None = None
    """The first error."""
    bad_links: int = 0
    too_many: int = 0
    """Links that were left alone, since there are no bounds to what the service has."""

    def counts(self) -> Counter[str]:
        """Return how much could not be read, by reason."""
        counts = Counter(reason for task, reason in self.failed.values() if not task.unlinked)
        counts["bad_link"] += self.bad_links
        counts["too_many"] += self.too_many
        return counts


class Documents(Protocol):
    """Whatever has the documents of a service."""

    def get(self, path: str) -> dict[str, Any]:
        """Return a document; raise NotThere, or CollectError."""
        ...


class Walker:
    """Walks through a service reading after reading, and remembers the way."""

    def __init__(self, documents: Documents, *, max_documents: int, cited_sensors: bool) -> None:
        self._documents = documents
        self._max_documents = max_documents
        self._cited_sensors = cited_sensors
        self._kept: dict[str, tuple[int, tuple[Task, ...]]] = {}
        self._read_us: dict[str, int] = {}
        self._owners: dict[str, str] = {}

    def walk(self, now_us: int) -> Found:
        """Read what there is to read, until all is read, the time is over or the service is gone."""
        self._kept = {p: kept for p, kept in self._kept.items() if now_us < kept[0] <= now_us + KEPT_US}
        found, seen, numbers = Found(owners=self._owners), set[str](), itertools.count()
        heap: list[tuple[int, int, int, Task]] = []
        asked = given_up = 0

        def plan(tasks: Iterator[Task] | tuple[Task, ...]) -> None:
            for task in tasks:
                if len(seen) >= 2 * self._max_documents:
                    found.too_many += 1
                elif (key := task.path.rstrip("/")) not in seen:
                    seen.add(key)
                    rank = KINDS[task.kind].rank
                    heapq.heappush(heap, (rank, self._read_us.get(task.path, 0), next(numbers), task))

        plan((Task("root", ROOT),))
        while heap:
            task = heapq.heappop(heap)[-1]
            if task.path in self._kept:
                plan(self._kept[task.path][1])
                continue
            if asked >= self._max_documents:
                found.too_many += 1
                continue
            if given_up >= MAX_GIVEN_UP:
                found.failed[task.path] = task, "unreachable"
                continue
            asked += 1
            try:
                document = self._documents.get(task.path)
            except CollectError as error:
                given_up = given_up + 1 if error.reason == "unreachable" else 0
                self._fail(found, task, error, now_us)
                if error.reason == "timeout":
                    found.failed |= {left[-1].path: (left[-1], "out_of_time") for left in heap}
                    break
                continue
            given_up = 0
            self._read_us[task.path] = now_us
            plan(self._follow(task, document, found, now_us))
        if len(self._read_us) > 4 * self._max_documents:
            self._read_us.clear()  # a service that names its documents anew each time
        return found

    def _fail(self, found: Found, task: Task, error: CollectError, now_us: int) -> None:
        dead = isinstance(error, NotThere)
        found.failed[task.path] = task, "dead_link" if dead else error.reason
        if found.error is None and not task.unlinked:
            found.error = error
        if dead and (task.unlinked or task.kind == "sensor"):
            self._kept[task.path] = now_us + KEPT_US, ()  # not asked for again and again
        else:
            self._kept.pop(task.parent, None)  # the way may have changed

    def _follow(self, task: Task, document: dict[str, Any], found: Found, now_us: int) -> tuple[Task, ...]:
        """Take a document; return what it leads to."""
        kind = KINDS[task.kind]
        tasks = tuple(self._links(task, kind, document, found))
        if kind.structure:
            self._kept[task.path] = now_us + KEPT_US, tasks
        else:
            found.documents.append((task, document))
        if task.kind == "unit":
            self._learn_chassis(task, document)
        return tasks

    def _learn_chassis(self, task: Task, document: dict[str, Any]) -> None:
        """Learn which chassis are parts of a unit, for good: what they hold keeps its name while the unit is silent."""
        links = document.get("Links")
        for link in items(links.get("Chassis") if isinstance(links, dict) else None)[:64]:
            path = checked_path(_id(link))
            if path is not None and len(self._owners) < self._max_documents:
                self._owners[path.rstrip("/")] = task.path

    def _links(self, task: Task, kind: Kind, document: dict[str, Any], found: Found) -> Iterator[Task]:
        owner = task.path if kind.owns else task.owner
        for link, name, loop in self._named(task, kind, document):
            path = checked_path(link)
            if path is None:
                found.bad_links += 1
            else:
                yield Task(name, path, owner, loop or task.loop, task.path)
        for name, probed in kind.probes.items():
            if name not in document:
                path = f"{task.path.rstrip('/')}/{name}"
                yield Task(probed, path, owner, task.loop, task.path, unlinked=True)
        link = document.get("Members@odata.nextLink") if kind.member is not None else None
        if link is not None and (path := checked_path(link)) is not None and task.page < MAX_PAGES:
            yield Task(task.kind, path, owner, task.loop, task.path, task.page + 1)
        elif link is not None:
            found.too_many += task.page >= MAX_PAGES
            found.bad_links += task.page < MAX_PAGES

    def _named(
        self, task: Task, kind: Kind, document: dict[str, Any]
    ) -> Iterator[tuple[object, str, str | None]]:
        """Yield the links of a document, what each leads to, and the loop that this stands in."""
        for name, (linked, loop) in kind.links.items():
            if name in document:
                yield _id(document[name]), linked, loop
        if kind.member is not None:
            for member in items(document.get("Members"))[: self._max_documents + 1]:
                yield _id(member), kind.member, None
        if task.kind == "leak_detection":
            for excerpt in excerpts(document):
                if "DataSourceUri" in excerpt:
                    yield excerpt["DataSourceUri"], "detector", None
        for name in READINGS.get(task.kind, ()) if self._cited_sensors else ():
            reading = document.get(name)
            if isinstance(reading, dict) and "DataSourceUri" in reading:
                yield reading["DataSourceUri"], "sensor", None


READINGS: Mapping[str, Mapping[str, str]] = {
    "connector": {
        "SupplyTemperatureCelsius": "supply_temperature",
        "ReturnTemperatureCelsius": "return_temperature",
        "DeltaTemperatureCelsius": "delta_temperature",
        "FlowLitersPerMinute": "flow",
        "SupplyPressurekPa": "supply_pressure",
        "ReturnPressurekPa": "return_pressure",
        "DeltaPressurekPa": "delta_pressure",
        "HeatRemovedkW": "heat_removed",
        "ValvePositionPercent": "valve_position",
    },
    "pump": {
        "PumpSpeedPercent": "pump_speed",
        "InletPressurekPa": "pump_inlet_pressure",
        "ServiceHours": "service_time",
    },
    "filter": {"DeltaLiquidPressurekPa": "filter_delta_pressure", "ServiceHours": "service_time"},
    "reservoir": {"FluidLevelPercent": "reservoir_level", "InternalPressurekPa": "reservoir_pressure"},
    "cooling_loop": {"CoolantLevelPercent": "coolant_level"},
    "environment": {
        "TemperatureCelsius": "air_temperature",
        "HumidityPercent": "air_humidity",
        "DewPointCelsius": "dew_point",
    },
}
"""What is measured, by kind of document: property and point. Each property's unit is that of its point."""


def excerpts(leak_detection: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what the groups of a LeakDetection tell of their detectors."""
    for group in items(leak_detection.get("LeakDetectorGroups")):
        for excerpt in items(group.get("Detectors") if isinstance(group, dict) else None):
            if isinstance(excerpt, dict):
                yield excerpt


def items(value: object) -> list[Any]:
    """Return a list; what is none is empty."""
    return value if isinstance(value, list) else []


def _id(link: object) -> object:
    return link.get("@odata.id") if isinstance(link, dict) else None
