"""The sink: everything on the bus becomes rows in the lake, exactly once.

Every stream is gathered by its own `Intake` and committed to its own table. An intake that cannot commit is
emptied, its partitions are paused, and it begins again from the stored offsets after a while: memory stays
bounded, and the bus keeps what was not committed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from analytics.dead_letters import DeadLetterWriter
from analytics.intake import Intake, Span, Tally
from analytics.lake import Lake
from contract.backoff import backoff_seconds
from contract.bus.protocols import Bus, TopicPartition
from contract.clock import Clock, SystemClock
from contract.config import LakeSection
from contract.errors import CommitRefused, LogReplaced, LogTruncated, StoreError, TransportError
from contract.log import Log
from contract.metrics import Metrics
from contract.stream import Stream
from contract.streams import STREAMS

GROUP = "sink"
POLL_SECONDS = 0.2
"""Messages are fetched this often: many at a time cost a fraction of what one by one does."""
POLL_MESSAGES = 5_000

FLUSH_BYTES = 134_217_728
"""A stream's rows are committed when they take so much memory, however few they are."""

LOG_CLEANING_SECONDS = 3600.0
LAG_SECONDS = 10.0

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0

_SYSTEM_CLOCK = SystemClock()
_log = Log("sink")


@dataclass(slots=True)
class _Lane:
    """One stream's intake and how it fares."""

    intake: Intake
    flush_seconds: float
    owned: set[int] = field(default_factory=set)
    failures: int = 0
    retry_at: float | None = None
    snapshot_at: float = math.inf
    cleaning_at: float = 0.0

    @property
    def stream(self) -> Stream:
        return self.intake.stream

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.stream.topic, p) for p in sorted(self.owned)]


class Sink:
    """Reads every stream's topic and fills the lake. One thread; `run` returns when told to stop.

    Raises LogReplaced and LogTruncated where the bus is not the one before or lost what was not read, unless
    `accept_new_log` says to go on: then what is missing is noted in `dead_letters` and the table's history.
    """

    def __init__(
        self,
        section: LakeSection,
        bus: Bus,
        lake: Lake,
        *,
        synthetic: bool,
        clock: Clock = _SYSTEM_CLOCK,
        metrics: Metrics | None = None,
        accept_new_log: bool = False,
        streams: Iterable[Stream] = tuple(STREAMS.values()),
    ) -> None:
        self._section = section
        self._snapshot_seconds = lake.snapshot_seconds
        self._bus = bus
        self._clock = clock
        self._metrics = SinkMetrics(metrics or Metrics())
        self._reached = lake.reached
        self._letters = DeadLetterWriter(bus, synthetic=synthetic, reached=lake.reached)
        self._lanes = {
            stream.topic: _Lane(
                Intake(
                    stream, lake, self._letters, clock, synthetic=synthetic, accept_new_log=accept_new_log
                ),
                section.sparse_flush_seconds if stream.sparse else section.flush_seconds,
            )
            for stream in streams
        }
        bus.ensure_topics(lane.stream for lane in self._lanes.values())
        self._consumer = bus.consumer(GROUP)
        self._consumer.subscribe(list(self._lanes), self)
        self._polled_at = -POLL_SECONDS
        self._lag_at = 0.0

    def run(self, stop: threading.Event) -> None:
        """Sink until `stop` is set, then commit what was gathered."""
        failures = 0
        try:
            while not stop.is_set():
                try:
                    self._clock.wait(stop, self._polled_at + POLL_SECONDS - self._clock.monotonic())
                    self.step()
                    failures = 0
                except TransportError as error:
                    if not error.retryable:
                        raise
                    failures += 1
                    _log.warning("bus_away", reason=error.reason, error=str(error))
                    self._clock.wait(stop, _retry_seconds(failures))
            self.flush()
        finally:
            self.close()

    def step(self) -> None:
        """Fetch once, and commit what is due."""
        self._retry()
        self._polled_at = self._clock.monotonic()
        self._fetch()
        for lane in self._lanes.values():
            if self._due(lane):
                self._flush(lane)
        if self._clock.monotonic() >= self._lag_at:
            self._lag_at = self._clock.monotonic() + LAG_SECONDS
            self._show_lag()

    def flush(self) -> None:
        """Commit everything gathered."""
        for lane in self._lanes.values():
            if lane.owned and lane.retry_at is None:
                self._flush(lane)

    def close(self) -> None:
        self._letters.close()
        self._consumer.close()

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Take partitions over: whatever their streams had gathered is read again."""
        for lane, numbers in self._by_lane(partitions):
            lane.owned |= numbers
            self._load(lane)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for lane, numbers in self._by_lane(partitions):
            lane.owned -= numbers
            lane.intake.drop()
            if lane.owned:
                self._load(lane)

    def _by_lane(self, partitions: Sequence[TopicPartition]) -> list[tuple[_Lane, set[int]]]:
        ordered = sorted(partitions)
        return [
            (self._lanes[topic], {at.partition for at in run})
            for topic, run in groupby(ordered, attrgetter("topic"))
        ]

    def _fetch(self) -> None:
        try:
            messages = self._consumer.poll(POLL_SECONDS, POLL_MESSAGES)
        except (LogTruncated, LogReplaced) as error:
            self._go_on_from(error)
            return
        for topic, run in groupby(messages, attrgetter("topic")):
            self._lanes[topic].intake.take(list(run))
        self._reached("polled")

    def _go_on_from(self, error: LogTruncated | LogReplaced) -> None:
        """Commit what was read before the break, then let `load` judge it."""
        _log.error("bus_broke_off", reason=error.reason, error=str(error))
        for lane in self._lanes.values():
            if lane.owned and lane.retry_at is None:
                self._flush(lane)
                self._load(lane)

    def _due(self, lane: _Lane) -> bool:
        intake = lane.intake
        if intake.since is None or lane.retry_at is not None:
            return False
        full = intake.rows >= self._section.flush_rows or intake.bytes >= FLUSH_BYTES
        return full or self._clock.monotonic() - intake.since >= lane.flush_seconds

    def _flush(self, lane: _Lane) -> None:
        started = self._clock.monotonic()
        try:
            tally = lane.intake.flush()
        except CommitRefused as error:
            _log.warning("commit_refused", stream=lane.stream.name, error=str(error))
            self._metrics.refused.labels(lane.stream.name).inc()
            self._fail(lane, error)
            return
        except (StoreError, TransportError) as error:
            self._fail(lane, error)
            return
        lane.failures = 0
        now = self._clock.monotonic()
        self._metrics.show_flush(lane.stream.name, tally, now - started, self._clock.now_us())
        self._show_position(lane)
        if now >= lane.snapshot_at:
            self._snapshot(lane)
            lane.snapshot_at = now + self._snapshot_seconds

    def _snapshot(self, lane: _Lane) -> None:
        now = self._clock.monotonic()
        try:
            lane.intake.snapshot()
            if now >= lane.cleaning_at:
                lane.cleaning_at = now + LOG_CLEANING_SECONDS
                lane.intake.clean_log()
        except StoreError as error:
            self._fail(lane, error)

    def _load(self, lane: _Lane) -> None:
        """Begin a stream again from what is stored; later, when that cannot be read now."""
        topic, mine = lane.stream.topic, lane.partitions()
        try:
            info = self._bus.describe(topic)
            every = [TopicPartition(topic, p) for p in range(info.partitions)]
            begins, ends = self._consumer.begin_offsets(every), self._consumer.end_offsets(every)
            spans = {at.partition: Span(begins[at], ends[at]) for at in every}
            for at in mine:
                self._consumer.seek(at, begins[at])
            positions = lane.intake.load(info.log, spans, lane.owned)
        except (LogTruncated, LogReplaced):
            raise
        except (StoreError, TransportError) as error:
            self._fail(lane, error)
            return
        for at in mine:
            self._consumer.seek(at, positions[at.partition])
        self._consumer.resume(mine)
        lane.retry_at = None
        lane.snapshot_at = min(lane.snapshot_at, self._clock.monotonic() + self._snapshot_seconds)

    def _fail(self, lane: _Lane, error: StoreError | TransportError) -> None:
        """Empty a stream that cannot go on, stop its partitions, and come back later."""
        lane.intake.drop()
        self._consumer.pause(lane.partitions())
        # The first time at once: a refused commit is the usual reason, and needs only a fresh look.
        delay = _retry_seconds(lane.failures) if lane.failures else 0.0
        lane.failures += 1
        lane.retry_at = self._clock.monotonic() + delay
        self._metrics.failures.labels(lane.stream.name, error.reason).inc()
        _log.error(
            "stream_waits",
            stream=lane.stream.name,
            reason=error.reason,
            retry_seconds=round(delay, 1),
            error=str(error),
        )

    def _retry(self) -> None:
        now = self._clock.monotonic()
        for lane in self._lanes.values():
            if lane.owned and lane.retry_at is not None and lane.retry_at <= now:
                self._load(lane)

    def _show_position(self, lane: _Lane) -> None:
        """Tell the bus how far the table is: for a lag display, so a failure costs nothing."""
        topic = lane.stream.topic
        try:
            self._consumer.commit({TopicPartition(topic, p): at for p, at in lane.intake.positions.items()})
        except TransportError as error:
            _log.warning("position_not_shown", stream=lane.stream.name, error=str(error))

    def _show_lag(self) -> None:
        for lane in self._lanes.values():
            mine = lane.partitions()
            if mine and lane.retry_at is None:
                ends, positions = self._consumer.end_offsets(mine), lane.intake.positions
                behind = sum(ends[at] - positions.get(at.partition, 0) for at in mine)
                self._metrics.lag.labels(lane.stream.name).set(behind)


def _retry_seconds(failures: int) -> float:
    return backoff_seconds(failures, first_seconds=FIRST_RETRY_SECONDS, longest_seconds=LAST_RETRY_SECONDS)


class SinkMetrics:
    """What the sink tells about itself, by stream."""

    def __init__(self, metrics: Metrics) -> None:
        by_stream = ("stream",)
        self.rows = metrics.counter("sink_rows_total", "Rows committed.", by_stream)
        self.events = metrics.counter("sink_events_total", "Events committed.", by_stream)
        self.repeats = metrics.counter("sink_repeats_total", "Events dropped as repeats.", by_stream)
        self.dead = metrics.counter(
            "sink_dead_letters_total", "Messages that could not become rows.", ("stream", "reason")
        )
        self.rejected = metrics.counter(
            "sink_values_rejected_total", "Values that could not be true and became null.", ("reason",)
        )
        self.refused = metrics.counter(
            "sink_commits_refused_total", "Commits that another writer came before.", by_stream
        )
        self.failures = metrics.counter(
            "sink_failures_total", "Times a stream could not go on.", ("stream", "reason")
        )
        self.flush_seconds = metrics.histogram(
            "sink_flush_seconds",
            "Time from the decision to flush to the durable commit.",
            (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
            by_stream,
        )
        self.freshness = metrics.gauge(
            "sink_freshness_seconds", "Age of the oldest row of the newest commit, since the bus.", by_stream
        )
        self.lag = metrics.gauge("sink_lag_messages", "Messages on the bus and not in the lake.", by_stream)

    def show_flush(self, stream: str, tally: Tally, seconds: float, now_us: int) -> None:
        """Count one commit."""
        self.rows.labels(stream).inc(tally.rows)
        self.events.labels(stream).inc(tally.events)
        self.repeats.labels(stream).inc(tally.repeats)
        for reason, count in tally.dead.items():
            self.dead.labels(stream, reason).inc(count)
        for reason, count in tally.values_rejected.items():
            self.rejected.labels(reason).inc(count)
        self.flush_seconds.labels(stream).observe(seconds)
        if tally.oldest_received_us is not None:
            self.freshness.labels(stream).set((now_us - tally.oldest_received_us) / 1e6)
