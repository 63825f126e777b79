"""What a rule kind is: a model of its rule and a watcher that turns rows and ticks into transitions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

from alerts.frame import Frame, Position, as_json, iso
from alerts.liveness import Life
from alerts.rule import Rule, Template
from alerts.state import Entities
from alerts.topology import Topology
from contract.registry import Registry
from contract.streams import STREAMS

EndReason = Literal["cleared", "superseded", "expired", "operator"]

MAX_ENTITY_BYTES = 512
AT_TICK = 2**62
"""Message position of what a tick decides: behind every row of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A transition that has no number in the chain yet."""

    position: Position
    ts_us: int
    rule: Rule
    transition: Literal["firing", "ended"]
    end_reason: EndReason | None
    entity_kind: str
    entity: str
    host: str | None
    summary: str
    began_us: int
    evidence_ts_us: int | None
    evidence: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What decided, and when."""

    position: Position
    ts_us: int
    evidence_ts_us: int | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """A firing alert."""

    entity_kind: str
    host: str | None
    began_us: int
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The engine's own time, which never jumps, and how far each partition is read by it."""

    now_us: int
    behind: Mapping[tuple[str, int], int]
    """(stream, partition) to the time up to which it is read, of every partition not read to its end."""
    offset_us: int = 0
    """How far the engine's time is ahead of the wall clock: not 0 once that was set."""

    def read_until_us(self, stream: str, partition: int) -> int:
        """Return the time up to which everything in a partition was seen."""
        return self.behind.get((stream, partition), self.now_us)

    def read_to_end(self, stream: str) -> bool:
        return all(name != stream for name, _ in self.behind)

    def wall_us(self, own_us: int) -> int:
        """Return a time of the engine as people are shown it; 0, which is never, stays 0."""
        return own_us - self.offset_us if own_us else 0

    def iso(self, own_us: int) -> str:
        """Return a time of the engine as people read it."""
        return iso(self.wall_us(own_us))


class Context:
    """What all watchers of one engine share."""

    def __init__(self, hall: str) -> None:
        self.hall = hall
        self.topology = Topology()
        self.life = Life()
        self.drafts: list[Draft] = []
        self._entities: dict[tuple[str, tuple[str, ...], str | None], Entities] = {}

    def entities(self, stream: str, columns: Sequence[str], otherwise: str | None = None) -> Entities:
        """Return the entities of a stream under one naming: rules that name alike share them."""
        key = (stream, tuple(columns), otherwise)
        if key not in self._entities:
            self._entities[key] = Entities(STREAMS[stream], columns, otherwise)
        return self._entities[key]

    def entities_of(self, stream: str) -> list[Entities]:
        return [entities for (name, _, _), entities in self._entities.items() if name == stream]

    def skipped(self) -> dict[str, int]:
        """Return how many rows were too late for their entity, by stream."""
        counts: dict[str, int] = {}
        for (stream, _, _), entities in self._entities.items():
            counts[stream] = counts.get(stream, 0) + entities.skipped
        return counts

    def dump(self) -> dict[str, Any]:
        naming = [
            {"stream": stream, "columns": columns, "otherwise": otherwise, "entities": entities.dump()}
            for (stream, columns, otherwise), entities in self._entities.items()
        ]
        return {"topology": self.topology.dump(), "life": self.life.dump(), "naming": naming}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.topology.load(saved["topology"])
        self.life.load(saved["life"])
        for naming in saved["naming"]:
            key = (naming["stream"], tuple(naming["columns"]), naming["otherwise"])
            if key in self._entities:
                self._entities[key].load(naming["entities"])


_Rule = TypeVar("_Rule", bound=Rule)


class Watcher(Generic[_Rule]):
    """Watches one rule. Kinds override what they need.

    Everything a watcher does must follow from its state, the rows and the tick alone: no clock, no randomness,
    no order of a set. Otherwise a restart finds another history than the one it wrote.
    """

    def __init__(self, rule: _Rule, context: Context, order: int) -> None:
        self.rule = rule
        self.context = context
        self.order = order
        """Place of the rule in its set: breaks ties between transitions of one row."""
        self.open: dict[str, Open] = {}
        """The firing alerts, by entity."""
        self._summary = Template(rule.summary)

    def on_rows(self, frame: Frame) -> None:
        """Take rows of one of the rule's streams, in the order they were read."""

    def on_tick(self, tick: Tick) -> None:
        """Take the passing of time, about once a second, after the rows of its batch."""

    def on_retired(self, names: set[str], moment: Moment) -> None:
        """Take assets out of service: end what is open about them, and about what stands on a retired host."""
        for entity in sorted(self.open):
            if entity in names or self.open[entity].host in names:
                self.end(entity, "superseded", moment)
                self.forget(entity)

    def forget(self, entity: str) -> None:
        """Drop what is known about an entity whose alert was ended from outside."""

    def reopen(self, entity: str, alert: Open) -> None:
        """Take over that an alert fires, from a history that cannot be judged again."""

    def dump(self) -> dict[str, Any]:
        """Return the state beyond `open`."""
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take a dumped state over."""

    def fire(
        self,
        entity: str,
        *,
        kind: str,
        host: str | None,
        began_us: int,
        moment: Moment,
        words: Mapping[str, Any],
    ) -> None:
        """Open an alert."""
        summary = self._summary.fill({**words, "entity": entity})[:1_000]
        self.open[entity] = Open(kind, host, began_us, summary)
        self._draft(entity, self.open[entity], "firing", None, moment)

    def end(self, entity: str, reason: EndReason, moment: Moment) -> None:
        """Close an open alert."""
        self._draft(entity, self.open.pop(entity), "ended", reason, moment)

    def at_row(self, frame: Frame, row: int, values: Mapping[str, Any]) -> Moment:
        """Return the moment of a row; `values` are the row's own."""
        ts: int = values["ts"]
        position = frame.position(row, self.order)
        return Moment(position=position, ts_us=ts, evidence_ts_us=ts, evidence=frame.evidence(values))

    def at_tick(
        self, tick: Tick, evidence: Mapping[str, Any] | None = None, evidence_ts_us: int | None = None
    ) -> Moment:
        """Return the moment of a tick; `evidence_ts_us` is of the engine's time."""
        return Moment(
            position=Position(AT_TICK, 0, self.order),
            ts_us=tick.wall_us(tick.now_us),
            evidence_ts_us=tick.wall_us(evidence_ts_us or 0) or None,
            evidence=as_json(evidence) if evidence else None,
        )

    def _draft(
        self,
        entity: str,
        alert: Open,
        transition: Literal["firing", "ended"],
        reason: EndReason | None,
        moment: Moment,
    ) -> None:
        self.context.drafts.append(
            Draft(
                position=moment.position._replace(rule=self.order),
                ts_us=moment.ts_us,
                rule=self.rule,
                transition=transition,
                end_reason=reason,
                entity_kind=alert.entity_kind,
                entity=shorten(entity),
                host=alert.host,
                summary=alert.summary,
                began_us=alert.began_us,
                evidence_ts_us=moment.evidence_ts_us,
                evidence=moment.evidence,
            )
        )


def dump_watcher(watcher: Watcher[Any]) -> dict[str, Any]:
    """Return everything that a watcher remembers."""
    return {"open": {name: asdict(alert) for name, alert in watcher.open.items()}, "own": watcher.dump()}


def load_watcher(watcher: Watcher[Any], saved: Mapping[str, Any]) -> None:
    """Give a watcher its memory back."""
    watcher.open = {name: Open(**fields) for name, fields in saved["open"].items()}
    watcher.load(saved["own"])


def shorten(entity: str) -> str:
    """Return a name that fits the alerts stream; a cut one ends in a digest, so that two never meet."""
    if len(entity.encode()) <= MAX_ENTITY_BYTES:
        return entity
    digest = hashlib.sha256(entity.encode()).hexdigest()[:16]
    return entity.encode()[: MAX_ENTITY_BYTES - 20].decode(errors="ignore") + "..." + digest


@dataclass(frozen=True, slots=True)
class Kind:
    """A rule kind: how its rule is written, and who watches it."""

    model: type[Rule]
    watcher: Callable[[Any, Context, int], Watcher[Any]]


KINDS: Registry[Kind] = Registry("alerts.kinds")

_Watcher = TypeVar("_Watcher", bound=Callable[..., Watcher[Any]])


def kind(name: str, model: type[Rule]) -> Callable[[_Watcher], _Watcher]:
    """Register a watcher class as a rule kind."""

    def decorate(watcher: _Watcher) -> _Watcher:
        KINDS.add(name, Kind(model, watcher))
        return watcher

    return decorate
