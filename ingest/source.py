"""One source: a collector with its schedule, its back-off, its events and its status."""

from __future__ import annotations

import math
import random
import threading
import traceback
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
import pyarrow as pa

from contract.backoff import backoff_seconds
from contract.clock import Clock
from contract.config import HallSection
from contract.errors import HallwatchError, TransportError
from contract.log import Log
from contract.metrics import Metrics
from contract.streams.self import COLLECTOR_STATUS
from ingest.collector import Collector, CollectorConfig, Reading, Rows
from ingest.sender import Sender
from ingest.spool import Outlet

_log = Log("ingest")

STATUS_SECONDS = 10.0
LONGEST_BACK_OFF_SECONDS = 10.0
"""A failing device is asked at least this often, so that its recovery is seen soon."""

_STUCK_SECONDS = 5.0  # beyond its timeout: the collector does not keep its promise

_CLOCK_BACK_US = 5_000_000
"""More than any daily correction."""

_LONGEST_ERROR = 4_000
_TINY = 1e-6  # a grid point reached is not missed by the rounding of its time

State = Literal["starting", "working", "failing", "stopping"]


class SourceMetrics:
    """What all sources of a process count together, by collector."""

    def __init__(self, metrics: Metrics) -> None:
        by = ("collector",)
        reason = ("collector", "reason")
        self.polls = metrics.counter("collector_polls", "Times a device was asked.", by)
        self.failures = metrics.counter("collector_failures", "Times it gave no usable answer.", reason)
        self.rows = metrics.counter("collector_rows", "Rows sent.", by)
        self.rejected = metrics.counter("collector_rejected", "Pieces that could not be read.", reason)
        self.skipped = metrics.counter("collector_skipped", "Pieces with nothing to keep.", reason)
        self.values = metrics.counter(
            "collector_values_rejected", "Values that cannot be true and became null.", reason
        )
        self.missed = metrics.counter(
            "collector_ticks_missed", "Readings left out because one took too long.", by
        )
        self.put_failures = metrics.counter(
            "collector_put_failures", "Times the outlet did not take events.", reason
        )
        self.clock_steps = metrics.counter("collector_clock_steps", "Times the wall clock went back.", by)
        self.seconds = metrics.histogram(
            "collector_poll_seconds", "How long a reading took.", (0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30), by
        )


@dataclass(slots=True)
class _Tally:
    """What `collector_status` tells, since the start of the process."""

    polls: int = 0
    polls_failed: int = 0
    rows: int = 0
    values_rejected: int = 0
    lines_rejected: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    last_success: int | None = None
    last_error_reason: str | None = None
    last_error: str | None = None
    poll_seconds: float | None = None


class Source:
    """Runs one collector instance. `run` takes a thread of its own; `watch` may be called from another."""

    def __init__(
        self,
        config: CollectorConfig,
        collector: Collector,
        outlet: Outlet,
        hall: HallSection,
        epoch: str,
        clock: Clock,
        metrics: SourceMetrics,
    ) -> None:
        self.name = source_name(config, hall)
        self._config = config
        self._collector = collector
        self._outlet = outlet
        self._hall = hall
        self._epoch = epoch
        self._clock = clock
        self._metrics = metrics
        self._events = Sender(outlet, self.name, epoch)
        self._statuses = Sender(outlet, self.name, epoch)
        self._status_lock = threading.Lock()
        self._tally = _Tally()
        self._state: State = "starting"
        self._failures = 0
        self._last_us = 0
        self._asked_at: float | None = None
        self._status_due = 0.0
        self._random = random.Random(zlib.crc32(self.name.encode()))
        # The map of the hall goes first: what hosts send is judged by it.
        self._phase = self._random.random() if config.subject else 0.0
        self._stored_cursor = outlet.cursor(self.name)
        if self._stored_cursor is not None:
            collector.restore(self._stored_cursor)

    @property
    def failing(self) -> bool:
        """Whether the last reading failed or could not be sent."""
        return self._failures > 0

    @property
    def timeout_seconds(self) -> float:
        """How long one reading may take."""
        return self._config.timeout_seconds

    def run(self, stop: threading.Event) -> None:
        """Read on a fixed grid until told to stop; then send what waits and a last status.

        The grid begins within the interval's first second, at a place that the name of the source decides, so that
        many sources spread. A reading that takes longer than the interval leaves out what it overlaps.
        """
        interval = self._config.interval_seconds
        base = self._clock.monotonic() + self._phase * min(interval, 1.0)
        due = base
        self.publish_status("starting")
        try:
            while not stop.is_set():
                now = self._clock.monotonic()
                if now >= due:
                    self.poll()
                    due = self._after(now, base)
                    continue
                if now >= self._status_due:
                    self.publish_status()
                self._clock.wait(stop, min(due, self._status_due) - self._clock.monotonic())
        finally:
            self.finish()

    def poll(self) -> bool:
        """Read and send once; return whether both succeeded. What an earlier poll could not send goes first."""
        try:
            self._put()
            self._read()
            self._put()
        except TransportError as error:
            self._metrics.put_failures.labels(self._config.collector, error.reason).inc()
            self._fail(error.reason, str(error))
        except HallwatchError as error:
            self._count_failure(error.reason)
            self._fail(error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - a defect in one collector must not end the others
            self._count_failure("internal")
            self._fail("internal", f"{type(error).__name__}: {error}", defect=error)
        else:
            self._succeed()
            return True
        return False

    def publish_status(self, state: State | None = None) -> None:
        """Send a row of collector_status, in a new state if one is given; what cannot be sent is left out."""
        with self._status_lock:
            self._state = state or self._state
            self._status_due = self._clock.monotonic() + STATUS_SECONDS
            try:
                self._statuses.put()
                self._statuses.queue(COLLECTOR_STATUS, COLLECTOR_STATUS.clean(self._status())[0])
                self._statuses.put()
            except TransportError as error:
                self._metrics.put_failures.labels(self._config.collector, error.reason).inc()

    def watch(self) -> None:
        """Tell of a collector that does not come back from a reading: its own thread cannot."""
        asked_at, now = self._asked_at, self._clock.monotonic()
        if asked_at is None or now < asked_at + self._config.timeout_seconds + _STUCK_SECONDS:
            return
        if now >= self._status_due:
            self._tally.last_error_reason = "timeout"
            self._tally.last_error = f"no answer for {now - asked_at:.0f} s"
            self.publish_status("failing")

    def finish(self) -> None:
        """Send what waits and a last status; close the collector."""
        try:
            self._put()
        except TransportError as error:
            _log.error("events_lost", source=self.name, reason=error.reason, error=str(error))
        self.publish_status("stopping")
        self._collector.close()

    def _read(self) -> None:
        now_us = self._now_us()
        self._tally.polls += 1
        self._metrics.polls.labels(self._config.collector).inc()
        self._asked_at = started = self._clock.monotonic()
        try:
            reading = self._collector.collect(now_us)
        finally:
            self._asked_at = None
            self._tally.poll_seconds = self._clock.monotonic() - started
            self._metrics.seconds.labels(self._config.collector).observe(self._tally.poll_seconds)
        self._tally.last_success = now_us
        self._count(reading)
        tables = [(rows.stream, self._clean(rows, now_us)) for rows in reading.rows]
        for stream, table in tables:
            self._events.queue(stream, table)
        cursor = self._collector.cursor()
        if cursor != (self._stored_cursor or b""):
            self._events.keep(cursor)
            self._stored_cursor = cursor

    def _clean(self, rows: Rows, now_us: int) -> pa.Table:
        count = len(rows)
        columns: dict[str, Any] = {"ts": [now_us] * count, "synthetic": [self._hall.synthetic] * count}
        if self._config.subject_column in rows.stream.by_name:
            columns[self._config.subject_column] = [self._config.subject] * count
        table, rejected = rows.stream.clean({**columns, **rows.columns})
        for (column, reason), number in rejected.items():
            self._tally.values_rejected += number
            self._tally.rejections[f"{column}:{reason}"] += number
            self._metrics.values.labels(self._config.collector, reason).inc(number)
        return table

    def _count(self, reading: Reading) -> None:
        for reason, number in reading.rejected.items():
            self._tally.lines_rejected += number
            self._tally.rejections[reason] += number
            self._metrics.rejected.labels(self._config.collector, reason).inc(number)
        for reason, number in reading.skipped.items():
            self._tally.rejections[reason] += number
            self._metrics.skipped.labels(self._config.collector, reason).inc(number)

    def _put(self) -> None:
        rows = self._events.rows
        self._events.put()
        self._tally.rows += rows
        self._metrics.rows.labels(self._config.collector).inc(rows)

    def _count_failure(self, reason: str) -> None:
        self._tally.polls_failed += 1
        self._metrics.failures.labels(self._config.collector, reason).inc()

    def _fail(self, reason: str, words: str, defect: Exception | None = None) -> None:
        self._failures += 1
        self._tally.last_error_reason, self._tally.last_error = reason, words[:_LONGEST_ERROR]
        if self._failures == 1:
            _log.warning("source_failing", source=self.name, reason=reason, error=words)
            if defect is not None:
                _log.error("defect", source=self.name, traceback="".join(traceback.format_exception(defect)))
            self.publish_status("failing")

    def _succeed(self) -> None:
        recovered, self._failures = self._failures > 0, 0
        if recovered:
            _log.info("source_recovered", source=self.name)
        if recovered or self._state == "failing":
            self.publish_status("working")
        self._state = "working"

    def _after(self, started: float, base: float) -> float:
        """Return when to read next: on the grid, or sooner or later where readings fail."""
        now, interval = self._clock.monotonic(), self._config.interval_seconds
        if self._failures:
            return now + backoff_seconds(
                self._failures,
                first_seconds=interval,
                longest_seconds=LONGEST_BACK_OFF_SECONDS,
                random=self._random,
            )
        tick, passed = (math.floor((t - base) / interval + _TINY) for t in (started, now))
        self._metrics.missed.labels(self._config.collector).inc(max(0, passed - tick))
        return base + (passed + 1) * interval

    def _now_us(self) -> int:
        """Return the wall time, which rises with every reading unless the clock was set back far.

        A little back is a daily correction: the rows wait for it. More means that the time before was wrong or that
        this one is, so it is told, and followed.
        """
        now_us = self._clock.now_us()
        back_us = self._last_us - now_us
        if back_us > 0:
            self._metrics.clock_steps.labels(self._config.collector).inc()
        if back_us > _CLOCK_BACK_US:
            words = f"the clock of this machine was set back by {back_us / 1e6:.0f} s"
            self._tally.last_error_reason, self._tally.last_error = "clock", words
            _log.error("clock_set_back", source=self.name, error=words)
            self._last_us = now_us
        else:
            self._last_us = max(now_us, self._last_us + 1)
        return self._last_us

    def _status(self) -> dict[str, list[Any]]:
        tally = self._tally
        row = {
            "ts": self._now_us(),
            "synthetic": self._hall.synthetic,
            "host": self._config.subject if self._config.subject_column == "host" else None,
            "source": self.name,
            "collector": self._config.collector,
            "epoch": self._epoch,
            "state": self._state,
            "last_sequences": orjson.dumps(self._events.sent).decode(),
            "spool_depth": self._outlet.depth(),
            "polls": tally.polls,
            "polls_failed": tally.polls_failed,
            "rows": tally.rows,
            "values_rejected": tally.values_rejected,
            "lines_rejected": tally.lines_rejected,
            "rejections": orjson.dumps(tally.rejections).decode(),
            "last_success": tally.last_success,
            "last_error_reason": tally.last_error_reason,
            "last_error": tally.last_error,
            "poll_seconds": tally.poll_seconds,
        }
        return {column: [value] for column, value in row.items()}


def source_name(config: CollectorConfig, hall: HallSection) -> str:
    """Return who a collector instance is on the bus; a collector without a subject reads the hall."""
    return f"{config.collector}@{config.subject or hall.name}/{config.instance}"
