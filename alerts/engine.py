"""The alert engine: reads the bus, judges, journals, and only then tells.

One engine per hall. What it decides follows from the journal and the messages alone, so a restart replays what was
journaled since the last snapshot, finds the same transitions byte for byte, and goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from alerts.arrival import Timekeeper
from alerts.chain import GENESIS, Chain, Flaw, SignedHead, Signer, Transition, verify_chain
from alerts.courier import Checkpoint, Courier
from alerts.evaluator import Evaluator, streams_of
from alerts.intake import Intake, Reread
from alerts.journal import FILE, BatchRecord, Commit, Delivery, Journal, JournalLock
from alerts.notifier import Configured, build_notifiers
from alerts.ruleset import RuleSet, check_rules
from alerts.stage import Notice, Stage
from alerts.stages.route import Route
from alerts.state import pack, unpack
from alerts.watcher import Draft, Tick
from contract.bus import Bus, Message
from contract.clock import Clock, SystemClock
from contract.config import Config
from contract.errors import ConfigError, StoreError, TransportError
from contract.log import Log
from contract.metrics import Metrics
from contract.streams.alerts import ALERTS, NOTIFICATIONS

MAX_MESSAGES = 10_000
TICK_US = 1_000_000
LINGER_SECONDS = 0.2
"""A batch gathers for this long: the journal is synced once per batch, not once per message."""

SNAPSHOT_BATCHES = 120
"""What a restart after a crash replays at most."""

COMMIT_RETRY_SECONDS = 5.0

_log = Log("engine")


def _no_checkpoint(name: str) -> None:
    del name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What an engine needs beside the bus."""

    folder: Path
    hall: str
    synthetic: bool = False
    accept_new_log: bool = False
    """Go on where a log was replaced or truncated, or where history cannot be replayed; journaled."""
    old_head: Callable[[], str | None] = lambda: None
    """Hash of the last transition that the lake holds: what a new chain goes on from."""
    fsync: bool = True
    """Survive the loss of power too, as the bus does or does not."""
    snapshot_batches: int = SNAPSHOT_BATCHES
    max_messages: int = MAX_MESSAGES
    checkpoint: Checkpoint = _no_checkpoint


class Engine:
    """Moved by `step`, or run in a thread or process by `run`."""

    @classmethod
    def open(
        cls,
        config: Config,
        bus: Bus,
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
        accept_new_log: bool = False,
        old_head: Callable[[], str | None] = lambda: None,
    ) -> Engine:
        """Make the engine that a configuration describes; raise ConfigError, StoreError or TransportError."""
        options = EngineOptions(
            folder=config.engine.path,
            hall=config.hall.name,
            synthetic=config.hall.synthetic,
            fsync=config.bus.fsync,
            accept_new_log=accept_new_log,
            old_head=old_head,
        )
        ruleset, notifiers = (
            check_rules(config.engine.rules),
            build_notifiers(config.engine.notifiers, config.file_folder),
        )
        return cls(options, bus, ruleset, notifiers, clock=clock, metrics=metrics)

    def __init__(
        self,
        options: EngineOptions,
        bus: Bus,
        ruleset: RuleSet,
        notifiers: Sequence[Configured] = (),
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._options = options
        self._ruleset = ruleset
        self._clock = clock or SystemClock()
        self._metrics = _EngineMetrics(metrics or Metrics())
        self._checkpoint = options.checkpoint
        self._stop = threading.Event()
        with ExitStack() as opened:
            self._lock = JournalLock(options.folder)
            opened.callback(self._lock.release)
            self._journal = Journal(options.folder, fsync=options.fsync)
            opened.callback(self._journal.close)
            self._signer = Signer(options.folder, may_make=self._journal.is_new)
            bus.ensure_topics([ALERTS, NOTIFICATIONS])
            self._intake = Intake(bus, self._journal, options.hall, accept=options.accept_new_log)
            opened.callback(self._intake.close)
            self._begin()
            self._stages: list[Stage] = [Route({one.name: one.config.severities for one in notifiers})]
            self._courier = Courier(
                lambda: Journal(options.folder, fsync=options.fsync),
                bus,
                notifiers,
                hall=options.hall,
                synthetic=options.synthetic,
                clock=self._clock,
                count=self._metrics.count_notifications,
                checkpoint=options.checkpoint,
            )
            opened.pop_all()

    @property
    def public_key(self) -> Ed25519PublicKey:
        return self._signer.public_key

    def step(self, timeout_seconds: float = 0.0) -> bool:
        """Judge one batch of what is there and carry it on; return whether there was anything to do.

        Raises LogReplaced, LogTruncated or StoreError where going on would break the history.
        """
        messages, error = self._poll(timeout_seconds)
        now_us, offset_us = self._time.read()
        self._metrics.clock_steps.set(self._time.steps)
        ticks = now_us + offset_us - self._ticked_us >= TICK_US
        if not messages and not ticks and not self._starting:
            return False
        record = BatchRecord(
            number=self._last.number + 1,
            now_us=now_us,
            offset_us=offset_us,
            digest=self._ruleset.digest,
            ranges=self._intake.ranges(messages),
            tick=ticks,
            behind=self._intake.behind(error) if ticks else (),
            error=error,
            start=self._starting,
            accepted=self._intake.accepted(),
        )
        self._whole = False
        with self._metrics.evaluation.time():
            drafts = self._judge(record, messages)
            transitions = self._chain.extend(drafts, record.digest)
        self._commit(record, drafts, transitions)
        self._after(record, messages, transitions)
        return True

    def run(self, stop: threading.Event) -> None:
        """Judge and carry until `stop` is set; the courier works in threads of its own."""
        self._stop = stop
        self._courier.start()
        try:
            while not stop.is_set():
                began = self._clock.monotonic()
                self.step(timeout_seconds=LINGER_SECONDS)
                if not self._intake.was_full:
                    self._clock.wait(stop, LINGER_SECONDS - (self._clock.monotonic() - began))
        finally:
            self.close()

    def close(self) -> None:
        """Keep the state, so that the next start replays nothing, and give everything back."""
        if self._whole:
            self._save_snapshot()
        self._courier.close()
        self._intake.close()
        self._journal.close()
        self._lock.release()

    def _begin(self) -> None:
        """Regain the state that the journal describes, or begin a new chain."""
        hall = self._journal.meta("hall") or self._options.hall
        if hall != self._options.hall:
            raise ConfigError(
                "invalid",
                f"{self._journal.path} is the journal of hall {hall!r}, not of {self._options.hall!r}",
            )
        if self._journal.is_new:
            previous = self._intake.newest_alert() or self._options.old_head() or GENESIS
            self._journal.begin_chain(self._options.hall, previous)
            _log.info("chain_begun", chain=self._journal.chain, follows=previous[:12])
        self._journal.keep_rules(self._ruleset.digest, self._ruleset.texts)
        self._recover()
        known = self._evaluator.streams if self._journal.last_batch() is not None else []
        self._intake.go_on(streams_of(self._ruleset), known)
        self._last = self._journal.last_batch() or BatchRecord(number=0, now_us=0, digest="")
        self._time = Timekeeper(self._clock, self._last.now_us, self._last.offset_us)
        self._ticked_us = 0
        self._starting = True
        self._whole = False
        """The state is that of the last journaled batch, so it may be kept."""

    def _recover(self) -> None:
        snapshot = self._journal.latest_snapshot()
        after, saved = (snapshot[0], unpack(snapshot[1])) if snapshot is not None else (0, None)
        records = list(self._journal.batches_after(after))
        digest = saved["digest"] if saved else records[0].digest if records else self._ruleset.digest
        self._evaluator = self._evaluator_of(digest)
        if saved is not None:
            self._evaluator.load(saved)
        index, previous = self._journal.head_before(after)
        self._chain = self._chain_from(index, previous)
        if not records:
            return
        try:
            self._replay(records)
        except (TransportError, StoreError) as error:
            if not self._options.accept_new_log:
                raise
            _log.error("history_not_replayed", error=str(error), batches=len(records))
            self._intake.accept(f"history not replayed: {error}")
            self._reconcile(digest, saved, records)

    def _replay(self, records: Sequence[BatchRecord]) -> None:
        """Judge again what was judged, and find the same; raise StoreError(damaged) where not."""
        _log.info("replaying", batches=len(records))
        with Reread(self._intake, records) as reread:
            for record in records:
                drafts = self._judge(record, reread.messages(record.ranges))
                found = self._chain.extend(drafts, record.digest)
                written = self._journal.transitions_of(record.number)
                if found != written:
                    raise StoreError("damaged", _difference(record, found, written))

    def _reconcile(self, digest: str, saved: Any, records: Sequence[BatchRecord]) -> None:
        """Take the journal's word for what it cannot prove by replaying."""
        self._evaluator = self._evaluator_of(digest)
        if saved is not None:
            self._evaluator.load(saved)
        for record in records:
            self._evaluator.believe(
                transition.row() for transition in self._journal.transitions_of(record.number)
            )
        self._chain = self._chain_from(*self._journal.head())
        self._journal.save_snapshot(records[-1].number, pack(self._evaluator.dump()))

    def _chain_from(self, index: int, previous: str) -> Chain:
        options = self._options
        return Chain(
            self._journal.chain, options.hall, synthetic=options.synthetic, index=index, head=previous
        )

    def _evaluator_of(self, digest: str) -> Evaluator:
        same = digest == self._ruleset.digest
        ruleset = self._ruleset if same else RuleSet.from_texts(self._journal.rules(digest))
        return Evaluator(ruleset, self._options.hall, synthetic=self._options.synthetic)

    def _judge(self, record: BatchRecord, messages: Sequence[Message]) -> list[Draft]:
        """Return what a batch leads to; the only way into the evaluator, live and replayed."""
        behind = {(stream, partition): us for stream, partition, us in record.behind}
        own_us = record.now_us + record.offset_us
        tick = Tick(now_us=own_us, behind=behind, offset_us=record.offset_us)
        drafts: list[Draft] = []
        if record.digest != self._evaluator.ruleset.digest:
            same = record.digest == self._ruleset.digest
            ruleset = self._ruleset if same else RuleSet.from_texts(self._journal.rules(record.digest))
            self._evaluator, drafts = self._evaluator.adopt(ruleset, tick)
        return drafts + self._evaluator.apply(
            messages, tick, ticks=record.tick, error=record.error, start=record.start
        )

    def _poll(self, timeout_seconds: float) -> tuple[list[Message], str | None]:
        try:
            return self._intake.poll(timeout_seconds, self._options.max_messages), None
        except TransportError as error:
            if not error.retryable:
                raise
            _log.warning("bus_not_read", reason=error.reason, error=str(error))
            return [], f"the bus cannot be read: {error.reason}"

    def _commit(
        self, record: BatchRecord, drafts: Sequence[Draft], transitions: Sequence[Transition]
    ) -> None:
        """Journal a batch; where that fails, hold it and try again, for the state has moved on already."""
        notices = [Notice(t, draft) for t, draft in zip(transitions, drafts, strict=True)]
        told = notices
        for stage in self._stages:
            told = stage.apply(told)
        places = {n.transition.index: self._evaluator.place_of(n.draft.entity, n.draft.host) for n in notices}
        commit = Commit(
            record=record,
            transitions=transitions,
            head=self._signer.sign(transitions[-1], record.now_us) if transitions else None,
            places={index: place for index, place in places.items() if place is not None},
            quiet=frozenset(n.transition.index for n in notices if not n.draft.rule.notify),
            deliveries=[Delivery(n.notifier, n.transition.index) for n in told if n.notifier is not None],
            positions=self._intake.moved(),
        )
        self._checkpoint("before_commit")
        while True:
            try:
                self._journal.commit(commit)
                break
            except StoreError as error:
                if error.reason == "damaged":
                    raise
                _log.error("journal_not_written", reason=error.reason, error=str(error))
                self._metrics.journal_failures.inc()
                if self._clock.wait(self._stop, COMMIT_RETRY_SECONDS):
                    raise
        self._checkpoint("after_commit")

    def _after(
        self, record: BatchRecord, messages: Sequence[Message], transitions: Sequence[Transition]
    ) -> None:
        self._last, self._starting, self._whole = record, False, True
        self._ticked_us = record.now_us + record.offset_us if record.tick else self._ticked_us
        self._intake.committed()
        if record.number % self._options.snapshot_batches == 0:
            self._save_snapshot()
        self._metrics.observe(record, messages, transitions, self._evaluator)
        if not self._courier.is_running:
            self._courier.run_once()
        elif transitions:
            self._courier.wake()

    def _save_snapshot(self) -> None:
        body = pack(self._evaluator.dump())
        self._checkpoint("during_snapshot")
        try:
            self._journal.save_snapshot(self._last.number, body)
        except StoreError as error:
            # The journal is whole without it; a restart only replays more.
            _log.warning("no_snapshot", reason=error.reason, error=str(error))


def _difference(record: BatchRecord, found: Sequence[Transition], written: Sequence[Transition]) -> str:
    pairs = zip(found, written, strict=False)
    at = next(
        (at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), min(len(found), len(written))
    )
    shown = [one[at].body.decode()[:300] if at < len(one) else "nothing" for one in (found, written)]
    return (
        f"batch {record.number} replayed gives another history: {len(found)} transitions where "
        f"{len(written)} are journaled; at {at}: {shown[0]} where {shown[1]} is journaled. The journal or the "
        "bus was changed, or this version judges otherwise; --accept-new-log takes the journal's word"
    )


class _EngineMetrics:
    """The engine's own numbers; labels are streams, rules and notifiers, all bounded by configuration."""

    def __init__(self, metrics: Metrics) -> None:
        self.batches = metrics.counter("engine_batches", "Batches judged and journaled.")
        self.evaluation = metrics.histogram(
            "engine_evaluation_seconds",
            "Reading and judging one batch.",
            (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
        )
        self.clock_steps = metrics.gauge(
            "engine_clock_steps", "Times the wall clock was set, since the start."
        )
        self.journal_failures = metrics.counter("engine_journal_failures", "Commits that had to be repeated.")
        self._messages = metrics.counter("engine_messages", "Messages read.")
        self._read = metrics.gauge(
            "engine_read", "What was read since the start: rows, repeats, dead.", ("what", "stream")
        )
        self._skipped = metrics.gauge(
            "engine_rows_skipped", "Rows not newer than their entity's last, since the start.", ("stream",)
        )
        self._transitions = metrics.counter("engine_transitions", "Transitions.", ("rule", "transition"))
        self._quarantined = metrics.gauge("engine_rule_failing", "1: the rule cannot be judged.", ("rule",))
        self._behind = metrics.gauge("engine_partitions_behind", "Partitions not read to their end.")
        self._lag = metrics.gauge("engine_lag_seconds", "Age of the newest message of the last batch.")
        self._firing = metrics.gauge("engine_alerts_firing", "Alerts that fire.")
        self._notifications = metrics.counter(
            "engine_notifications", "Notifications by what became of them.", ("notifier", "outcome")
        )

    def count_notifications(self, notifier: str, outcome: str, number: int) -> None:
        self._notifications.labels(notifier, outcome).inc(number)

    def observe(
        self,
        record: BatchRecord,
        messages: Sequence[Message],
        transitions: Sequence[Transition],
        evaluator: Evaluator,
    ) -> None:
        self.batches.inc()
        self._messages.inc(len(messages))
        if messages:
            newest = max(message.received_us for message in messages)
            self._lag.set((record.now_us - newest) / 1e6)
        if record.tick:
            self._behind.set(len(record.behind))
            self._observe_state(evaluator)
        for transition in transitions:
            row = transition.row()
            self._transitions.labels(row["rule"], row["transition"]).inc()

    def _observe_state(self, evaluator: Evaluator) -> None:
        for (what, stream), number in evaluator.counts.items():
            self._read.labels(what, stream).set(number)
        for stream, number in evaluator.skipped().items():
            self._skipped.labels(stream).set(number)
        alerts = evaluator.open_alerts()
        self._firing.set(len(alerts))
        failing = {entity for rule, entity in alerts if rule == "rule-failing"}
        for watcher in evaluator.watchers:
            name = watcher.rule.rule
            self._quarantined.labels(name).set(name in failing)


@dataclass(frozen=True, slots=True)
class AlertList:
    """What the journal knows of alerts: rows of the alerts stream, times in microseconds."""

    firing: list[dict[str, Any]]
    history: list[dict[str, Any]]
    """Newest first."""


def current_alerts(folder: Path, *, history: int = 1_000) -> AlertList:
    """Return what fires now and the newest transitions; the engine may be running. Raises StoreError."""
    journal = _existing(folder)
    try:
        return AlertList(
            [transition.row() for transition in journal.firing()],
            [transition.row() for transition in journal.transitions(history)],
        )
    finally:
        journal.close()


def verify_journal(folder: Path, key: Ed25519PublicKey, heads: Iterable[SignedHead] = ()) -> list[Flaw]:
    """Check the journal's own history against its signed heads, and against heads kept elsewhere."""
    journal = _existing(folder)
    try:
        rows = [t.row() | {"_epoch": t.chain} for t in journal.all_transitions()]
        return verify_chain(rows, key, [*journal.heads(), *heads], anchors=journal.anchors())
    finally:
        journal.close()


def signed_heads(folder: Path) -> list[SignedHead]:
    """Return the signed heads that the journal keeps, to verify the lake's rows against. Raises StoreError."""
    journal = _existing(folder)
    try:
        return journal.heads()
    finally:
        journal.close()


def _existing(folder: Path) -> Journal:
    if not (folder / FILE).exists():
        raise StoreError("unreadable", f"{folder}: there is no journal; no engine ever ran here")
    return Journal(folder, read_only=True)
