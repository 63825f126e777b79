"""`event_count`: so many events of one entity within a window."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from pydantic import Field
from typing_extensions import override

from alerts.duration import Duration
from alerts.frame import Frame
from alerts.projection import TRUE
from alerts.rule import Problem, Rule, column_problems
from alerts.watcher import Context, Moment, Open, Tick, Watcher, kind
from contract.streams import STREAMS

SET_BACK_US = 900_000_000
"""Time that falls by more than this within one source is a clock that was set. By less it may be the count of repeats
that a collector gathered: it has the time of the last of them, and comes minutes later."""

MAX_SOURCES = 16

MAX_KEPT = 1_000
"""Events remembered per entity: a count above this needs no more of them."""


class EventCountRule(Rule):
    """Fires at the `count`-th event within `within`; ends by itself when no more come for `expires`.

    Events that agree in the `burst_by` columns and follow each other within `burst_gap` are one: a line that the
    kernel repeats, or the same fault seen in the log, in a counter and in a last code.
    """

    when: str = Field(description="Condition that an event meets.")
    count: int = Field(default=1, ge=1, le=MAX_KEPT, description="How many events fire.")
    within_us: Duration = Field(default=600_000_000, alias="within", description="Window of event time.")
    distinct: str | None = Field(default=None, description="Count different values of this column instead.")
    burst_by: tuple[str, ...] = Field(default=(), description="Columns in which repeats agree.")
    burst_gap_us: Duration = Field(default=0, alias="burst_gap", description="How close repeats follow.")
    expires_us: Duration = Field(alias="expires", description="How long without an event ends the alert.")
    clear: str | None = Field(default=None, description="Condition on an event that ends the alert at once.")
    entity_else: str | None = Field(
        default=None, description="Column that names the entity where `entity` is null."
    )

    @override
    def conditions(self) -> dict[str, str]:
        return {"when": self.when} | ({"clear": self.clear} if self.clear is not None else {})

    @override
    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if bool(self.burst_by) != bool(self.burst_gap_us):
            yield "burst_by", "burst_by and burst_gap belong together"
        stream = STREAMS.get(self.on)
        if stream is None:
            return
        for name in (*self.burst_by, *([self.distinct] if self.distinct else [])):
            if name not in stream.by_name:
                yield "burst_by", f"{stream.name} has no column {name!r}"
        if self.entity_else is not None:
            yield from column_problems("entity_else", stream, self.entity_else)


@dataclass(slots=True)
class _History:
    """What is remembered of one entity: when its events were, newest last."""

    times_us: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    """What `distinct` counts, beside each time."""
    bursts: dict[str, int] = field(default_factory=dict)
    """When each burst was last fed."""
    newest_us: dict[str, int] = field(default_factory=dict)
    """By source, when its newest event was."""
    received_us: int = 0


@kind("event_count", EventCountRule)
class EventCountWatcher(Watcher[EventCountRule]):
    """Counts in event time, expires by the clock of the bus."""

    def __init__(self, rule: EventCountRule, context: Context, order: int) -> None:
        super().__init__(rule, context, order)
        self._entities = context.entities(rule.on, rule.columns, rule.entity_else)
        self._histories: dict[str, _History] = {}

    @override
    def on_rows(self, frame: Frame) -> None:
        numbers = frame.numbers(self._entities)
        counts = frame.codes(self.rule.when) == TRUE
        clears = frame.codes(self.rule.clear) == TRUE if self.rule.clear else np.zeros(len(counts), np.bool_)
        rows = np.flatnonzero((counts | clears) & (numbers >= 0))
        if not len(rows):
            return
        for row, values in zip(rows.tolist(), frame.values(rows), strict=True):
            name = self._entities.names[numbers[row]]
            if clears[row]:
                self._clear(name, self.at_row(frame, row, values))
                continue
            history = self._histories.setdefault(name, _History())
            history.received_us = max(history.received_us, int(frame.received_us[row]))
            ts_us = int(frame.ts_us[row])
            self._follow_clock(history, str(frame.sources[row]), ts_us)
            if not self._count(history, ts_us, values) or name in self.open:
                continue
            moment = self.at_row(frame, row, values)
            named = values[self.rule.columns[0]] is not None or self.rule.entity_else is None
            kind = self.rule.columns[0] if named else str(self.rule.entity_else)
            began, host = history.times_us[0], values.get("host")
            self.fire(name, kind=kind, host=host, began_us=began, moment=moment, words=values)

    def _follow_clock(self, history: _History, source: str, ts_us: int) -> None:
        """Move what is remembered with a clock that was set back, so that its distances stay."""
        back_us = history.newest_us.get(source, ts_us) - ts_us
        if back_us > SET_BACK_US:
            history.times_us = [us - back_us for us in history.times_us]
            history.bursts = {key: us - back_us for key, us in history.bursts.items()}
            history.newest_us = {name: us - back_us for name, us in history.newest_us.items()}
        history.newest_us[source] = max(ts_us, history.newest_us.get(source, ts_us))
        if len(history.newest_us) > MAX_SOURCES:
            del history.newest_us[next(iter(history.newest_us))]

    def _clear(self, name: str, moment: Moment) -> None:
        self._histories.pop(name, None)
        if name in self.open:
            self.end(name, "cleared", moment)

    def _count(self, history: _History, ts_us: int, values: Mapping[str, Any]) -> bool:
        """Add an event; return whether the window now holds enough."""
        if self.rule.burst_by and self._repeats(history, ts_us, values):
            return False
        at = bisect_right(history.times_us, ts_us)
        history.times_us.insert(at, ts_us)
        history.values.insert(at, str(values[self.rule.distinct]) if self.rule.distinct else "")
        old = bisect_left(history.times_us, history.times_us[-1] - self.rule.within_us)
        drop = max(old, len(history.times_us) - MAX_KEPT)
        del history.times_us[:drop], history.values[:drop]
        have = len(set(history.values)) if self.rule.distinct else len(history.times_us)
        return have >= self.rule.count

    def _repeats(self, history: _History, ts_us: int, values: Mapping[str, Any]) -> bool:
        key = "\0".join(str(values[name]) for name in self.rule.burst_by)
        last = history.bursts.get(key)
        history.bursts[key] = ts_us if last is None else max(last, ts_us)
        if len(history.bursts) > MAX_KEPT:
            del history.bursts[min(history.bursts, key=history.bursts.__getitem__)]
        return last is not None and abs(ts_us - last) <= self.rule.burst_gap_us

    @override
    def on_tick(self, tick: Tick) -> None:
        partitions = STREAMS[self.rule.on].partitions
        until = min(tick.read_until_us(self.rule.on, number) for number in range(partitions))
        keep = max(self.rule.expires_us, self.rule.within_us, self.rule.burst_gap_us)
        for name in sorted(self._histories):
            history = self._histories[name]
            silent = until - history.received_us
            if name in self.open and silent >= self.rule.expires_us:
                self.end(name, "expired", self.at_tick(tick, {"silent_seconds": silent // 1_000_000}))
            if name not in self.open and silent > keep:
                del self._histories[name]

    @override
    def on_retired(self, names: set[str], moment: Moment) -> None:
        super().on_retired(names, moment)
        for name in names & self._histories.keys():
            del self._histories[name]

    @override
    def reopen(self, entity: str, alert: Open) -> None:
        self._histories.setdefault(entity, _History()).received_us = alert.began_us

    @override
    def dump(self) -> dict[str, Any]:
        return {"histories": {name: asdict(history) for name, history in self._histories.items()}}

    @override
    def load(self, saved: Mapping[str, Any]) -> None:
        self._histories = {name: _History(**fields) for name, fields in saved["histories"].items()}
