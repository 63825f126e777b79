"""Messages and ticks in, transitions out: everything that the engine decides, and nothing it does.

A pure function of its state and what `apply` is given: run again on the same input it finds the same, which is how
a restart regains its state and how a rule is tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from alerts.arrival import Arrivals
from alerts.frame import Frame, Position, message_order
from alerts.projection import Projection
from alerts.quarantine import Quarantine
from alerts.ruleset import RuleSet
from alerts.watcher import KINDS, Context, Draft, Moment, Open, Tick, Watcher, dump_watcher, load_watcher
from contract.bus import Message
from contract.log import Log
from contract.reader import Batch, MarkKey, Marks, read_batch
from contract.stream import Stream
from contract.streams import BY_TOPIC, STREAMS

INVENTORY, STATUS = STREAMS["inventory"], STREAMS["collector_status"]

STATUS_PAUSE_US = 30_000_000
"""Three intervals of `collector_status`: a source not heard of for longer has to come back."""

MARKS_KEPT_US = 7 * 86_400_000_000
"""Longer than any bus or spool keeps what it might send again."""

_log = Log("evaluator")


class Evaluator:
    """The rules of one hall with their state."""

    def __init__(self, ruleset: RuleSet, hall: str, *, synthetic: bool | None = None) -> None:
        """`synthetic`: what every row must say of itself; None = either."""
        self.ruleset = ruleset
        self.hall = hall
        self.counts: Counter[tuple[str, str]] = Counter()
        """What was read so far, by (what, stream): rows, repeats, dead."""
        self._synthetic = synthetic
        self._context = Context(hall)
        self._marks: dict[str, Marks] = {}
        self._aged: dict[str, dict[MarkKey, tuple[int, int]]] = {}
        """Of every mark at the last dump: what it was, and when it last moved."""
        self._now_us = 0
        self._arrivals = Arrivals()
        kinds = KINDS.all()
        self.watchers: list[Watcher[Any]] = [
            kinds[rule.kind].watcher(rule, self._context, order) for order, rule in enumerate(ruleset.rules)
        ]
        self.quarantine = Quarantine(self._context, len(self.watchers))
        self._projections = {s.name: Projection(s, ruleset.expressions(s.name)) for s in self.streams}

    @property
    def streams(self) -> list[Stream]:
        return streams_of(self.ruleset)

    def apply(
        self,
        messages: Sequence[Message],
        tick: Tick | None,
        *,
        ticks: bool = True,
        error: str | None = None,
        start: bool = False,
    ) -> list[Draft]:
        """Take messages in the order they were read, then the passing of time.

        `tick` tells when the batch was read, None that nobody knows; `ticks`: whether time passes for the rules.
        `error`: why the bus could not be read. `start`: the engine started again, rules that broke are tried anew.
        """
        if start:
            self.quarantine.stopped.clear()
        if tick is not None:
            self._arrivals.begin(tick.now_us, tick.offset_us)
        else:
            self._arrivals.begin(None, 0)
        order = message_order(messages)
        for is_inventory, segment in groupby(messages, lambda message: message.topic == INVENTORY.topic):
            if is_inventory:
                self._read_inventory(list(segment), order)
            else:
                self._read_rows(list(segment), order)
        if tick is not None and ticks:
            self._tick(tick, error)
        return self._take_drafts()

    def adopt(self, ruleset: RuleSet, tick: Tick) -> tuple[Evaluator, list[Draft]]:
        """Return an evaluator of other rules with this one's memory, and the ends of what they no longer watch."""
        heir = Evaluator(ruleset, self.hall, synthetic=self._synthetic)
        heir.counts = self.counts
        heir.load(self.dump())
        continued = {watcher.rule.rule for watcher in heir.watchers if self._is_heir(watcher)}
        for watcher in self.watchers:
            if watcher.rule.rule not in continued:
                for entity in sorted(watcher.open):
                    watcher.end(
                        entity, "superseded", watcher.at_tick(tick, {"reason": "the rule is no more"})
                    )
        heir.quarantine.keep_only({rule.rule for rule in ruleset.rules}, tick)
        return heir, self._take_drafts() + heir._take_drafts()

    def _is_heir(self, watcher: Watcher[Any]) -> bool:
        return any(_identity(watcher) == _identity(old) for old in self.watchers)

    def _take_drafts(self) -> list[Draft]:
        drafts, self._context.drafts = self._context.drafts, []
        return sorted(drafts, key=lambda draft: draft.position)

    def _read(self, stream: Stream, messages: list[Message]) -> Batch:
        marks = self._marks.setdefault(stream.name, {})
        batch = read_batch(stream, messages, marks, synthetic=self._synthetic)
        self.counts["rows", stream.name] += batch.table.num_rows
        self.counts["repeats", stream.name] += batch.repeats
        self.counts["dead", stream.name] += len(batch.dead)
        return batch

    def _read_inventory(self, messages: list[Message], order: Mapping[int, int]) -> None:
        batch = self._read(INVENTORY, messages)
        frame = self._frame(batch, order)
        retired = self._context.topology.apply(batch.table, frame.received_us.tolist())
        if retired:
            last = messages[-1]
            (arrived_us,) = self._arrivals.times_us([last]).tolist()
            moment = Moment(
                position=Position(order[id(last)], 0, 0), ts_us=self._arrivals.wall_us(arrived_us)
            )
            for watcher in self._running():
                self._guard(watcher, lambda w: w.on_retired(retired, moment))
        if any(rule.on == INVENTORY.name for rule in self.ruleset.rules):
            self._watch(frame)

    def _read_rows(self, messages: list[Message], order: Mapping[int, int]) -> None:
        self._context.life.hear(int(self._arrivals.times_us(messages).max()))
        by_topic: dict[str, list[Message]] = {}
        for message in messages:
            by_topic.setdefault(message.topic, []).append(message)
        for topic, part in by_topic.items():
            batch = self._read(BY_TOPIC[topic], part)
            if batch.table.num_rows:
                self._watch(self._frame(batch, order))

    def _frame(self, batch: Batch, order: Mapping[int, int]) -> Frame:
        return Frame(batch, self._projections[batch.stream.name], order, self._arrivals)

    def _watch(self, frame: Frame) -> None:
        stream = frame.stream
        for entities in self._context.entities_of(stream.name):
            frame.numbers(entities)
        if stream is STATUS:
            self._context.life.note_status(frame.table, frame.received_us.tolist(), STATUS_PAUSE_US)
        for watcher in self._running():
            if stream.name in watcher.rule.streams():
                self._guard(watcher, lambda w: w.on_rows(frame))
        for text, reason in frame.truths.failed.items():
            for rule in self.ruleset.rules:
                if rule.on == stream.name and text in rule.conditions().values():
                    self.quarantine.note(rule.rule, reason)

    def _tick(self, tick: Tick, error: str | None) -> None:
        tick = replace(tick, behind=self._arrivals.read_until_us(tick.behind))
        self._arrivals.end(tick.now_us, tick.behind)
        self._now_us = tick.now_us
        self._context.life.tick(tick.now_us, error)
        for watcher in self._running():
            self._guard(watcher, lambda w: w.on_tick(tick))
        self.quarantine.on_tick(tick)
        for name in self.quarantine.recovered():
            for rule in self.ruleset.rules:
                if rule.rule == name:
                    for text in rule.conditions().values():
                        self._projections[rule.on].rejoin(text)

    def _running(self) -> Iterator[Watcher[Any]]:
        return (watcher for watcher in self.watchers if watcher.rule.rule not in self.quarantine.stopped)

    def _guard(self, watcher: Watcher[Any], call: Callable[[Watcher[Any]], None]) -> None:
        try:
            call(watcher)
        except Exception as error:  # noqa: BLE001 -- a kind is a plug-in: its fault must not stop its neighbours
            _log.error("rule_broke", rule=watcher.rule.rule, error=repr(error))
            self.quarantine.stop(watcher.rule.rule, repr(error)[:500])

    def believe(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take over transitions that cannot be judged again: what fires, and what no longer does."""
        watchers = {watcher.rule.rule: watcher for watcher in (*self.watchers, self.quarantine)}
        for row in rows:
            watcher = watchers.get(row["rule"])
            if watcher is None:
                continue
            entity = row["entity"]
            if row["transition"] == "firing":
                alert = Open(row["entity_kind"], row.get("host"), row["began"], row["summary"])
                watcher.open[entity] = alert
                watcher.reopen(entity, alert)
            elif watcher.open.pop(entity, None) is not None:
                watcher.forget(entity)

    def open_alerts(self) -> dict[tuple[str, str], int]:
        """Return when each firing alert began, by (rule, entity)."""
        return {
            (watcher.rule.rule, entity): alert.began_us
            for watcher in (*self.watchers, self.quarantine)
            for entity, alert in watcher.open.items()
        }

    def place_of(self, entity: str, host: str | None) -> str | None:
        """Return where an entity stands, as the inventory says."""
        topology = self._context.topology
        return topology.place_of(entity) or (topology.place_of(host) if host is not None else None)

    def skipped(self) -> dict[str, int]:
        """Return how many rows came too late for their entity, by stream."""
        return self._context.skipped()

    def dump(self) -> dict[str, Any]:
        """Return everything that a restart needs, for `alerts.state.pack`."""
        self._age_marks()
        marks = {name: [[*key, *value] for key, value in aged.items()] for name, aged in self._aged.items()}
        return {
            "digest": self.ruleset.digest,
            "now_us": self._now_us,
            "arrivals": self._arrivals.dump(),
            "context": self._context.dump(),
            "marks": marks,
            "watchers": {
                w.rule.rule: {"identity": list(_identity(w)), **dump_watcher(w)} for w in self.watchers
            },
            "quarantine": dump_watcher(self.quarantine),
        }

    def _age_marks(self) -> None:
        """Forget the marks of epochs that ended long ago: every start of a collector leaves some."""
        for name, marks in self._marks.items():
            old, aged = self._aged.get(name, {}), dict[MarkKey, tuple[int, int]]()
            for key, sequence in marks.items():
                known = old.get(key)
                moved_us = known[1] if known is not None and known[0] == sequence else self._now_us
                if self._now_us - moved_us < MARKS_KEPT_US:
                    aged[key] = (sequence, moved_us)
            self._aged[name] = aged
            self._marks[name] = {key: sequence for key, (sequence, _) in aged.items()}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take a dumped state over; what belongs to a rule that watches something else now is left behind."""
        self._context.load(saved["context"])
        self._now_us = saved["now_us"]
        self._arrivals.load(saved["arrivals"])
        for name, marks in saved["marks"].items():
            self._aged[name] = {MarkKey(*row[:3]): (row[3], row[4]) for row in marks}
            self._marks[name] = {key: sequence for key, (sequence, _) in self._aged[name].items()}
        load_watcher(self.quarantine, saved["quarantine"])
        for watcher in self.watchers:
            own = saved["watchers"].get(watcher.rule.rule)
            if own is not None and tuple(own["identity"]) == _identity(watcher):
                load_watcher(watcher, own)


def streams_of(ruleset: RuleSet) -> list[Stream]:
    """Return what has to be read: the rules' streams, the inventory and the state of the collectors."""
    names = {name for rule in ruleset.rules for name in rule.streams()}
    return [STREAMS[name] for name in sorted(names | {INVENTORY.name, STATUS.name})]


def _identity(watcher: Watcher[Any]) -> tuple[str, ...]:
    rule = watcher.rule
    return rule.rule, rule.kind, rule.on, *rule.columns
