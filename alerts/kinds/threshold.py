"""`threshold`: a condition that holds for a while, entity by entity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field
from typing_extensions import override

from alerts.duration import Duration
from alerts.frame import Frame
from alerts.projection import FALSE, TRUE, UNKNOWN, Codes
from alerts.rule import Problem, Rule
from alerts.state import Arrays, Bools, Ints, turns_of
from alerts.watcher import Context, Open, Watcher, kind
from contract.streams import STREAMS

IDLE, PENDING, FIRING = 0, 1, 2


class ThresholdRule(Rule):
    """Fires when `when` held for long enough, ends when `clear` held for long enough.

    Time is the rows' own and counts only where it is known about: not across gaps, not up to a row that leaves the
    condition open. So a silent source neither fires nor ends anything.
    """

    when: str = Field(description="Condition: true, false or, where a column is null, unknown.")
    clear: str | None = Field(default=None, description="Condition that ends the alert; not `when`.")
    for_us: Duration = Field(default=0, alias="for", description="How long `when` must hold.")
    min_duty: float = Field(
        default=1.0, gt=0, le=1, description="Share of the known time that `when` must be true."
    )
    keep_firing_us: Duration = Field(
        default=0, alias="keep_firing", description="How long `clear` must hold, in time that is known about."
    )

    @override
    def conditions(self) -> dict[str, str]:
        return {"when": self.when} | ({"clear": self.clear} if self.clear is not None else {})

    @override
    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        stream = STREAMS.get(self.on)
        if stream is not None and stream.interval is None and (self.for_us or self.keep_firing_us):
            yield "for", f"{stream.name} holds events, not states: nothing holds between two rows"


@kind("threshold", ThresholdRule)
class ThresholdWatcher(Watcher[ThresholdRule]):
    """One small state machine per entity, all stepped at once."""

    def __init__(self, rule: ThresholdRule, context: Context, order: int) -> None:
        super().__init__(rule, context, order)
        self._entities = context.entities(rule.on, rule.columns)
        self._state = Arrays(
            phase=np.int8(IDLE),
            since_us=0,  # when it first held
            known_us=0,  # while pending: known time, ...
            false_us=0,  # ... and how much of it did not hold
            clear_us=-1,  # while firing: known time that it has been clear, -1 = not clear
        )
        self._active = 0  # entities that are not idle
        self._may_be_false_us = round((1 - rule.min_duty) * rule.for_us)

    @override
    def on_rows(self, frame: Frame) -> None:
        numbers = frame.numbers(self._entities)
        self._state.grow(len(self._entities.names))
        when = frame.codes(self.rule.when)
        order = frame.order(self._entities)
        held = when == TRUE
        if not self._active and not held.any():
            return
        involved = self._state["phase"] != IDLE
        involved[numbers[held & (numbers >= 0)]] = True
        rows = np.flatnonzero(order.fresh & (numbers >= 0) & involved[numbers])
        clear = _negated(when) if self.rule.clear is None else frame.codes(self.rule.clear)
        changed: dict[int, int | None] = {}
        for part in turns_of(rows, order.turn):
            at, ts, known = numbers[part], frame.ts_us[part], order.known_us[part]
            fires = self._step_pending(at, ts, known, when[part])
            ends = self._step_firing(at, known, when[part], clear[part])
            changed |= dict(
                zip(part[fires].tolist(), self._state["since_us"][at[fires]].tolist(), strict=True)
            )
            changed |= dict.fromkeys(part[ends].tolist())
        if changed:
            self._report(frame, numbers, changed)
        self._active = int(np.count_nonzero(self._state["phase"]))

    def _step_pending(self, at: Ints, ts: Ints, known: Ints, when: Codes) -> Bools:
        """Move what is idle or pending; return which fire.

        Known time counts as the row that ends it says. What was false for longer than `min_duty` leaves room for
        in `for` begins anew.
        """
        state, rule = self._state, self.rule
        pending = state["phase"][at] == PENDING
        counted = np.where(pending & (when != UNKNOWN), known, 0)
        state["known_us"][at] += counted
        state["false_us"][at] += np.where(when == FALSE, counted, 0)
        broken = pending & (state["false_us"][at] > self._may_be_false_us)
        if rule.min_duty == 1.0:
            broken = pending & (when == FALSE)
        begins = (when == TRUE) & ((state["phase"][at] == IDLE) | broken)
        for field, value in (("since_us", ts), ("known_us", 0), ("false_us", 0)):
            state[field][at] = np.where(begins, value, state[field][at])
        fires: Bools = (
            (begins | (pending & ~broken)) & (when == TRUE) & (state["known_us"][at] >= rule.for_us)
        )
        phase = np.where(begins, PENDING, np.where(broken, IDLE, state["phase"][at]))
        state["phase"][at] = np.where(fires, FIRING, phase)
        state["clear_us"][at] = np.where(fires, -1, state["clear_us"][at])
        return fires

    def _step_firing(self, at: Ints, known: Ints, when: Codes, clear: Codes) -> Bools:
        """Move what was firing before this row; return which end."""
        state = self._state
        firing = state["phase"][at] == FIRING
        clean = firing & (clear == TRUE) & (when != TRUE)
        dirty = firing & ~clean & ((clear == FALSE) | (when == TRUE))
        so_far = state["clear_us"][at]
        so_far = np.where(clean, np.where(so_far < 0, 0, so_far + known), np.where(dirty, -1, so_far))
        state["clear_us"][at] = so_far
        ends: Bools = clean & (so_far >= self.rule.keep_firing_us)
        state["phase"][at] = np.where(ends, IDLE, state["phase"][at])
        return ends

    def _report(self, frame: Frame, numbers: Ints, changed: Mapping[int, int | None]) -> None:
        """Draft the transitions of rows: since when the condition held where it fires, None where it ends."""
        rows = sorted(changed)
        for row, values in zip(rows, frame.values(rows), strict=True):
            name, began_us = self._entities.names[numbers[row]], changed[row]
            moment = self.at_row(frame, row, values)
            if began_us is None:
                self.end(name, "cleared", moment)
            else:
                host = values.get("host")
                kind = self.rule.columns[0]
                self.fire(name, kind=kind, host=host, began_us=began_us, moment=moment, words=values)

    @override
    def forget(self, entity: str) -> None:
        number = self._entities.number(entity)
        self._state.grow(number + 1)
        self._state["phase"][number] = IDLE
        self._active = int(np.count_nonzero(self._state["phase"]))

    @override
    def reopen(self, entity: str, alert: Open) -> None:
        number = self._entities.number(entity)
        self._state.grow(number + 1)
        for field, value in (("phase", FIRING), ("since_us", alert.began_us), ("clear_us", -1)):
            self._state[field][number] = value
        self._active = int(np.count_nonzero(self._state["phase"]))

    @override
    def dump(self) -> dict[str, Any]:
        numbers = np.flatnonzero(self._state["phase"])
        return {"numbers": numbers, "state": self._state.dump(numbers)}

    @override
    def load(self, saved: Mapping[str, Any]) -> None:
        self._state.load(saved["numbers"], saved["state"])
        self._active = len(saved["numbers"])


def _negated(codes: Codes) -> Codes:
    swapped: npt.NDArray[np.uint8] = np.array([TRUE, FALSE, UNKNOWN], np.uint8)
    return swapped[codes]
