"""The engine that the fault tests start and kill: `python -m tests.faults.engine_child FOLDER URL KILL GUARD`.

KILL is `step:count`: die by SIGKILL when that step is reached for that time, `-` = never. `asking` is `notifying`, but
a moment later, when the request is on its way. GUARD names what is taken away: the tests must then fail.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from alerts import courier
from alerts.engine import Engine, EngineOptions
from alerts.evaluator import Evaluator
from alerts.notifier import build_notifiers
from alerts.testing import rule_text, rules_of
from contract.bus.local import LocalBus
from contract.streams.alerts import ALERTS

RULES = rules_of(
    rule_text(for_="4s", min_duty=0.6, clear="temperature_margin_celsius > 3", keep_firing="2s"),
    rule_text(
        rule="xid",
        kind="event_count",
        on="gpu_events",
        when="code = 79",
        count=2,
        within="30s",
        expires="365d",
    ),
)


class Killer:
    """Counts how often a step is reached, and kills this process at the one that was asked for."""

    def __init__(self, plan: str) -> None:
        self._step, _, count = plan.partition(":")
        self._left = int(count or 0)

    def __call__(self, step: str) -> None:
        if step != self._step and (step, self._step) != ("notifying", "asking"):
            return
        self._left -= 1
        if self._left == 0 and self._step == "asking":
            threading.Timer(0.05, die).start()
        elif self._left == 0:
            die()


def die() -> None:
    """End without any farewell."""
    os.kill(os.getpid(), signal.SIGKILL)


def make_engine(folder: Path, url: str, checkpoint: Killer) -> Engine:
    """Return an engine of small batches and frequent snapshots."""
    options = EngineOptions(
        folder=folder / "engine", hall="demo", max_messages=7, snapshot_batches=4, checkpoint=checkpoint
    )
    bus = LocalBus(folder / "bus", fsync=False, retention_hours=1e6)
    notifiers = build_notifiers([{"notifier": "alertmanager", "url": url}] if url else [])
    return Engine(options, bus, RULES, notifiers)


def is_done(engine: Engine) -> bool:
    """Tell whether everything is read, published, told and reported."""
    intake, journal = engine._intake, engine._journal
    ends = intake.consumer.end_offsets(intake._partitions)
    carried = not (journal.outbox_depth() or journal.unpublished(1) or journal.unreported(1))
    return carried and intake.consumer.positions() == ends


def remove_guard(name: str) -> None:
    """Break one promise of the engine, so that a test can show what it is for."""
    if name == "replay":  # start from the snapshot as it is, as if nothing had been judged since
        Engine._replay = forget_to_replay  # type: ignore[method-assign,assignment]
    elif name == "marks":  # do not remember which events were judged
        load = Evaluator.load
        Evaluator.load = lambda self, saved: load(self, saved | {"marks": {}})  # type: ignore[method-assign,operator]
    elif name == "publish-then-mark":
        courier.Publisher.publish = mark_then_publish  # type: ignore[method-assign]
    elif name == "tell-then-settle":
        tell = courier.Teller._tell

        def settle_then_tell(self, waiting):
            self._journal.settle(self._name, [one.id for one in waiting], "delivered", 0, None)
            return tell(self, waiting)

        courier.Teller._tell = settle_then_tell  # type: ignore[method-assign]


def forget_to_replay(self: Engine, _: object) -> None:
    self._chain = self._chain_from(*self._journal.head())


def mark_then_publish(self: courier.Publisher) -> None:
    while transitions := self._journal.unpublished(courier.MAX_AT_ONCE):
        self._journal.mark_published(transitions[0].index, transitions[-1].index)
        self._checkpoint("published")
        self._send(ALERTS, [courier._alert_record(self._source, one) for one in transitions])


def main() -> None:
    """Run until everything is done, or until killed."""
    folder, url, plan, guard = sys.argv[1:]
    remove_guard(guard)
    engine = make_engine(Path(folder), url, Killer(plan))
    while not is_done(engine):
        engine.step(0.05)
    engine.close()


if __name__ == "__main__":
    main()
