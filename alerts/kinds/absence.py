"""`absence`: something that should be heard of is not, judged against what still talks above it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from alerts.duration import Duration
from alerts.liveness import Source
from alerts.rule import Problem, Rule, Template
from alerts.state import Ints
from alerts.watcher import Context, Open, Tick, Watcher, kind
from contract.streams import STREAMS

STATUS = "collector_status"

_ENTITY = {"gpu": "gpu_uuid", "host": "host", "source": "source", "bus": "hall"}


class AbsenceRule(Rule):
    """Fires when something expected was not heard of for `after` while what it depends on was.

    `gpu`: listed in the inventory, and its host still sends rows of `on`. `host`: listed, and its collector still
    reports, or it never had one. `source`: once seen in `collector_status`, and the bus still moves. `bus`: nothing
    came on any stream. Nobody counts as silent before three of its own intervals. So each silence is told once, at the highest thing that fell silent.
    """

    words: ClassVar[frozenset[str]] = frozenset(
        {"entity", "host", "hall", "last_seen", "silent_seconds", "collector", "reason"}
    )

    expect: Literal["gpu", "host", "source", "bus"] = Field(description="What is expected.")
    after_us: Duration = Field(alias="after", description="How long it may be silent.")
    expires_us: Duration | None = Field(
        default=None, alias="expires", description="`source` only: how long until it is given up."
    )
    on: str = Field(default="", description="The stream it is expected on; `gpu` and `host` only.")
    entity: str | tuple[str, ...] = Field(default="", description="Column of `on` that names it.")

    @property
    @override
    def columns(self) -> tuple[str, ...]:
        return (self.entity or _ENTITY[self.expect],) if isinstance(self.entity, str) else self.entity

    @override
    def streams(self) -> tuple[str, ...]:
        return (self.on, STATUS) if self.on else (STATUS,)

    @override
    def problems(self) -> Iterator[Problem]:
        if (self.expect in ("gpu", "host")) != bool(self.on):
            yield "on", "`gpu` and `host` are expected on a stream, `source` and `bus` on none"
        if self.on in STREAMS and self.columns[0] not in STREAMS[self.on].by_name:
            yield "entity", f"{self.on} has no column {self.columns[0]!r}"
        if self.on in STREAMS and STREAMS[self.on].key != "host":
            yield "on", f"{self.on} is not partitioned by host"
        if len(self.columns) > 1:
            yield "entity", "one column names what is expected"
        if self.expires_us is not None and self.expect != "source":
            yield "expires", "only a source is given up by itself"
        for name in self.streams():
            if name not in STREAMS:
                yield "on", f"there is no stream {name!r}"
        for word in Template(self.summary).words():
            if word not in self.words:
                yield "summary", f"{{{word}}} is not one of {sorted(self.words)}"


@dataclass(slots=True)
class Silence:
    """Something that was not heard of for too long."""

    entity: str
    host: str | None
    since_us: int
    silent_us: int
    reason: str
    last_seen_us: int = 0
    more: dict[str, Any] = field(default_factory=dict)


@kind("absence", AbsenceRule)
class AbsenceWatcher(Watcher[AbsenceRule]):
    """Asks one of four judges at every tick."""

    def __init__(self, rule: AbsenceRule, context: Context, order: int) -> None:
        super().__init__(rule, context, order)
        self._judge: Judge = JUDGES[rule.expect](rule, context)
        self._since_us: dict[str, int] = {}
        """Since when each that is open is silent, by the engine's time."""

    @override
    def on_tick(self, tick: Tick) -> None:
        for entity in sorted(self.open):
            heard = self._judge.heard_us(entity)
            if heard > self._since_us.get(entity, 0):
                evidence = {"heard_again": tick.iso(heard)}
                self.end(entity, "cleared", self.at_tick(tick, evidence, heard))
        self._since_us = {entity: us for entity, us in self._since_us.items() if entity in self.open}
        for silence in list(self._judge.silences(tick)):
            if silence.entity not in self.open:
                self._report(silence, tick)
            elif self.rule.expires_us is not None and silence.silent_us >= self.rule.expires_us:
                self.end(silence.entity, "expired", self.at_tick(tick))
                self.forget(silence.entity)

    def _report(self, silence: Silence, tick: Tick) -> None:
        seen = tick.iso(silence.last_seen_us) if silence.last_seen_us else None
        self._since_us[silence.entity] = silence.since_us
        shown = {
            "reason": silence.reason,
            "last_seen": seen,
            "silent_seconds": silence.silent_us // 1_000_000,
            "counted_from": tick.iso(silence.since_us),
        } | silence.more
        words = shown | {"host": silence.host, "hall": self.context.hall, "last_seen": seen or "never"}
        self.fire(
            silence.entity,
            kind=self.rule.expect if self.rule.expect != "bus" else "hall",
            host=silence.host,
            began_us=tick.wall_us(silence.since_us),
            moment=self.at_tick(tick, shown, silence.last_seen_us),
            words=words,
        )

    @override
    def forget(self, entity: str) -> None:
        self._judge.forget(entity)

    @override
    def reopen(self, entity: str, alert: Open) -> None:
        self._since_us[entity] = alert.began_us

    @override
    def dump(self) -> dict[str, Any]:
        return {"since_us": self._since_us, "judge": self._judge.dump()}

    @override
    def load(self, saved: Mapping[str, Any]) -> None:
        self._since_us = dict(saved["since_us"])
        self._judge.load(saved["judge"])


class Judge:
    """What the four have in common."""

    def __init__(self, rule: AbsenceRule, context: Context) -> None:
        self.rule = rule
        self.context = context
        self.life = context.life
        self.topology = context.topology

    def heard_us(self, entity: str) -> int:
        """Return when an entity was last heard of."""
        raise NotImplementedError

    def silences(self, tick: Tick) -> Iterator[Silence]:
        """Yield everything that is silent for too long."""
        raise NotImplementedError

    def forget(self, entity: str) -> None:
        """Expect an entity no longer."""

    def dump(self) -> dict[str, Any]:
        return {}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take a dumped state over."""


class _Expected:
    """The listed assets of a kind as arrays, made anew when the inventory changes."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._version = -1

    def renew(self) -> bool:
        """Bring the arrays up to date; return whether they changed."""
        topology, rule = self._judge.topology, self._judge.rule
        if self._version == topology.version:
            return False
        self._version = topology.version
        assets = topology.expected(rule.expect)
        hosts = {name: topology.host_of(name) for name in assets}
        self.names = sorted(name for name, host in hosts.items() if host is not None)
        self.hosts = [str(hosts[name]) for name in self.names]
        self.since_us: Ints = np.array([assets[name].since_us for name in self.names], np.int64)
        return True


class GpuJudge(Judge):
    """A GPU is lost while its host still sends rows."""

    def __init__(self, rule: AbsenceRule, context: Context) -> None:
        super().__init__(rule, context)
        self._gpus = context.entities(rule.on, rule.columns)
        self._gpus.learn_beat()
        self._hosts = context.entities(rule.on, ("host",))
        self._expected = _Expected(self)
        self._ticked_us: Ints = np.zeros(0, np.int64)
        self._resumed_us: Ints = np.zeros(0, np.int64)

    @override
    def heard_us(self, entity: str) -> int:
        return int(self._gpus.received_us[self._gpus.number(entity)])

    @override
    def silences(self, tick: Tick) -> Iterator[Silence]:
        """Yield the GPUs that are missing on hosts that talk."""
        if self._expected.renew():
            self._gpu_at = np.array([self._gpus.number(name) for name in self._expected.names], np.int64)
            self._host_at = np.array([self._hosts.number(name) for name in self._expected.hosts], np.int64)
        self._notice_resumed()
        if not len(self._gpu_at):
            return
        seen, host_seen = self._gpus.received_us[self._gpu_at], self._hosts.received_us[self._host_at]
        base = np.maximum(np.maximum(seen, self._expected.since_us), self._resumed_us[self._host_at])
        base = np.maximum(base, self.life.began_us)
        may_be = self._gpus.silence_us(self.rule.after_us, self._gpu_at)
        for at in np.flatnonzero(host_seen - base >= may_be).tolist():
            yield Silence(
                entity=self._expected.names[at],
                host=self._expected.hosts[at],
                since_us=int(base[at]),
                silent_us=int(host_seen[at] - base[at]),
                reason="its host reports, this GPU does not",
                last_seen_us=int(seen[at]),
                more={"host_last_seen": tick.iso(int(host_seen[at]))},
            )

    def _notice_resumed(self) -> None:
        """Give the GPUs of a host that comes back time to do so, too."""
        seen = self._hosts.received_us[: len(self._hosts.names)]
        room = len(seen) - len(self._ticked_us)
        self._ticked_us = np.concatenate([self._ticked_us, np.zeros(room, np.int64)])
        self._resumed_us = np.concatenate([self._resumed_us, np.zeros(room, np.int64)])
        back = seen - self._ticked_us > self.rule.after_us
        self._resumed_us[back] = seen[back]
        self._ticked_us = seen.copy()

    @override
    def dump(self) -> dict[str, Any]:
        return {"ticked_us": self._ticked_us, "resumed_us": self._resumed_us}

    @override
    def load(self, saved: Mapping[str, Any]) -> None:
        self._ticked_us, self._resumed_us = saved["ticked_us"].copy(), saved["resumed_us"].copy()


class HostJudge(Judge):
    """A host is silent while its collector still reports."""

    def __init__(self, rule: AbsenceRule, context: Context) -> None:
        super().__init__(rule, context)
        self._hosts = context.entities(rule.on, rule.columns)
        self._hosts.learn_beat()
        self._expected = _Expected(self)

    @override
    def heard_us(self, entity: str) -> int:
        return int(self._hosts.received_us[self._hosts.number(entity)])

    @override
    def silences(self, tick: Tick) -> Iterator[Silence]:
        """Yield the hosts without rows whose collectors say that they try."""
        if self._expected.renew():
            self._at = np.array([self._hosts.number(name) for name in self._expected.names], np.int64)
        if not len(self._at):
            return
        base = np.maximum(self._hosts.received_us[self._at], self._expected.since_us)
        base = np.maximum(base, max(self.life.began_us, self.life.resumed_us))
        may_be = self._hosts.silence_us(self.rule.after_us, self._at)
        for at in np.flatnonzero(self.life.heard_us - base >= may_be).tolist():
            silence = self._judge(self._expected.names[at], int(base[at]), int(may_be[at]), tick)
            if silence is not None:
                yield silence

    def _judge(self, host: str, base_us: int, may_be_us: int, tick: Tick) -> Silence | None:
        stream = STREAMS[self.rule.on]
        until = min(tick.read_until_us(stream.name, stream.partition_of(host)), self.life.heard_us)
        source = self._collector(host)
        if source is None:
            reason, more = f"no collector of {stream.name} was ever seen for this host", {}
        elif source.state == "stopping":
            return None
        else:
            until, base_us = min(until, source.heard_us), max(base_us, source.resumed_us)
            reason = f"its collector reports, but no {stream.name} of this host"
            more = _shown(source, tick)
        if until - base_us < may_be_us:
            return None
        seen = int(self._hosts.received_us[self._hosts.number(host)])
        return Silence(host, host, base_us, until - base_us, reason, seen, more)

    def _collector(self, host: str) -> Source | None:
        """Return the source last heard of, among those that rows of the host come from."""
        names = self.life.feeders(host, self.rule.on)
        return max((self.life.sources[name] for name in names), key=lambda s: s.heard_us, default=None)


class SourceJudge(Judge):
    """A collector is silent when its status stops while the bus moves."""

    @override
    def heard_us(self, entity: str) -> int:
        source = self.life.sources.get(entity)
        return source.heard_us if source is not None else 0

    @override
    def silences(self, tick: Tick) -> Iterator[Silence]:
        """Yield the sources whose status no longer comes."""
        status = STREAMS[STATUS]
        soonest = self.life.heard_us - self.rule.after_us
        for name, source in self.life.sources.items():
            base = max(source.heard_us, self.life.resumed_us, self.life.began_us)
            if base > soonest or self._retired(source.host):
                continue
            until = min(tick.read_until_us(STATUS, status.partition_of(name)), self.life.heard_us)
            if until - base >= self.rule.after_us:
                reason = "it said that it stops" if source.state == "stopping" else "its status stopped"
                yield Silence(
                    name, source.host, base, until - base, reason, source.heard_us, _shown(source, tick)
                )

    def _retired(self, host: str | None) -> bool:
        asset = self.topology.assets.get(host or "")
        return asset is not None and not asset.active

    @override
    def forget(self, entity: str) -> None:
        if entity in self.life.sources:
            self.life.forget(entity)


class BusJudge(Judge):
    """The bus is silent when nothing comes on any stream, though everything was read."""

    @override
    def heard_us(self, entity: str) -> int:
        return self.life.heard_us

    @override
    def silences(self, tick: Tick) -> Iterator[Silence]:
        """Yield the hall where nothing comes at all."""
        base = max(self.life.heard_us, self.life.began_us)
        if tick.now_us - base >= self.rule.after_us and (self.life.error or not tick.behind):
            reason = self.life.error or "nothing came on any stream"
            more = {"sources_known": len(self.life.sources)}
            hall, seen = self.context.hall, self.life.heard_us
            yield Silence(hall, None, base, tick.now_us - base, reason, seen, more)


JUDGES: dict[str, type[Judge]] = {"gpu": GpuJudge, "host": HostJudge, "source": SourceJudge, "bus": BusJudge}


def _shown(source: Source, tick: Tick) -> dict[str, Any]:
    return {
        "collector": source.collector,
        "collector_state": source.state,
        "collector_last_seen": tick.iso(source.heard_us),
        "last_error_reason": source.last_error_reason,
        "last_error": source.last_error,
    }
