"""Carries what the journal holds to the bus and to the notifiers, and marks what arrived.

Everything is repeated until it is acknowledged, in order: a transition is published before anybody is told of it,
and told before a notification is recorded. Each notifier has a thread, so a slow receiver delays only itself.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import orjson

from alerts.chain import Transition
from alerts.journal import Journal, Waiting
from alerts.notifier import Configured, Notification
from contract.backoff import backoff_seconds
from contract.bus import Bus, Producer, Record
from contract.clock import Clock
from contract.codec import encode_columns, headers_of
from contract.errors import HallwatchError, NotifyError, TransportError
from contract.log import Log
from contract.stream import Stream
from contract.streams.alerts import ALERTS, NOTIFICATIONS

MAX_AT_ONCE = 500
FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 60.0
GIVE_UP_ATTEMPTS = 1_440
"""A receiver that takes nothing for a day is not waited for any longer; counted, for clocks are set."""

IDLE_SECONDS = 1.0
ALIVE_US = 60_000_000

_log = Log("courier")

Checkpoint = Callable[[str], None]
"""Called with the name of every step that a crash could fall on; tests die there."""

Count = Callable[[str, str, int], None]
"""Told what became of notifications: notifier, outcome, how many."""


class Courier:
    """Publishes transitions and notifications, and runs the notifiers."""

    def __init__(
        self,
        open_journal: Callable[[], Journal],
        bus: Bus,
        configured: Iterable[Configured],
        *,
        hall: str,
        synthetic: bool,
        clock: Clock,
        count: Count,
        checkpoint: Checkpoint,
    ) -> None:
        """`open_journal`: called once per thread, which then owns the connection."""
        self._publisher = Publisher(
            open_journal(), bus, hall=hall, synthetic=synthetic, checkpoint=checkpoint
        )
        self._tellers = [
            Teller(open_journal(), one, hall=hall, clock=clock, count=count, checkpoint=checkpoint)
            for one in configured
        ]
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def run_once(self) -> None:
        """Carry everything that is due, in the calling thread; a failure is left for the next call."""
        _attempt(self._publisher.publish)
        for teller in self._tellers:
            _attempt(teller.tell)
        _attempt(self._publisher.report)

    def start(self) -> None:
        """Carry from now on, in threads of its own."""
        works = [self._publisher.carry, *(teller.tell for teller in self._tellers)]
        for work in works:
            thread = threading.Thread(target=self._run, args=(work,), name="courier", daemon=True)
            self._threads.append(thread)
            thread.start()

    @property
    def is_running(self) -> bool:
        return bool(self._threads)

    def wake(self) -> None:
        """Say that there is something new."""
        self._wake.set()

    def close(self, timeout_seconds: float = 15.0) -> None:
        """Stop the threads and give everything back; what is not carried stays in the journal."""
        self._stopping.set()
        self._wake.set()
        workers: list[Publisher | Teller] = [self._publisher, *self._tellers]
        for thread, worker in zip_longest(self._threads, workers):
            if thread is not None:
                thread.join(timeout_seconds)
            # One that still waits for its receiver keeps its connection, and ends with the process.
            if thread is None or not thread.is_alive():
                worker.close()

    def _run(self, work: Callable[[], None]) -> None:
        failures = 0
        while not self._stopping.is_set():
            failures = 0 if _attempt(work) else failures + 1
            if failures:
                self._stopping.wait(_retry_seconds(failures))
            else:
                self._wake.wait(IDLE_SECONDS)
                self._wake.clear()


def _retry_seconds(failures: int) -> float:
    return backoff_seconds(failures, first_seconds=FIRST_RETRY_SECONDS, longest_seconds=LAST_RETRY_SECONDS)


def _attempt(work: Callable[[], None]) -> bool:
    try:
        work()
    except HallwatchError as error:
        _log.warning("courier_waits", reason=error.reason, error=str(error))
        return False
    except Exception:  # noqa: BLE001 - an engine that judges while nobody is told would be the worst of all
        _log.error("defect", traceback=traceback.format_exc())
        return False
    return True


class Publisher:
    """Puts transitions and notifications on the bus, each in its order, and marks what the bus has."""

    def __init__(
        self, journal: Journal, bus: Bus, *, hall: str, synthetic: bool, checkpoint: Checkpoint
    ) -> None:
        self._journal = journal
        self._bus = bus
        self._source = f"engine/{hall}"
        self._synthetic = synthetic
        self._checkpoint = checkpoint
        self._producer: Producer | None = None

    def carry(self) -> None:
        """Publish and report what is due."""
        self.publish()
        self.report()

    def publish(self) -> None:
        """Send transitions until all are on the bus; raise TransportError or StoreError."""
        while transitions := self._journal.unpublished(MAX_AT_ONCE):
            self._send(ALERTS, [_alert_record(self._source, transition) for transition in transitions])
            self._checkpoint("published")
            self._journal.mark_published(transitions[0].index, transitions[-1].index)

    def report(self) -> None:
        """Send one row for every settled notification; raise TransportError or StoreError."""
        while settled := self._journal.unreported(MAX_AT_ONCE):
            chain = self._journal.chain
            records = [
                _notification_record(self._source, chain, row, synthetic=self._synthetic) for row in settled
            ]
            self._send(NOTIFICATIONS, records)
            self._checkpoint("reported")
            self._journal.mark_reported([(row["notifier"], row["id"]) for row in settled])

    def _send(self, stream: Stream, records: Sequence[Record]) -> None:
        try:
            self._producer = self._producer or self._bus.producer()
            for record in records:
                self._producer.send(stream.topic, 0, record)
            self._producer.flush()
        except Exception:
            # A producer that failed is replaced, and everything unmarked goes again, in order.
            self._drop_producer()
            raise

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.close()
            except TransportError as error:
                _log.warning("producer_closed_badly", error=str(error))

    def close(self) -> None:
        self._drop_producer()
        self._journal.close()


def _alert_record(source: str, transition: Transition) -> Record:
    row = transition.row()
    body = encode_columns(ALERTS, {name: [value] for name, value in row.items()})
    headers = headers_of(ALERTS, source, transition.chain, transition.index)
    return Record(key=row["rule"], headers=headers, body=body)


def _notification_record(source: str, chain: str, settled: Mapping[str, Any], *, synthetic: bool) -> Record:
    alert = orjson.loads(settled["body"])
    row = {
        "ts": settled["settled_us"],
        "host": alert.get("host"),
        "synthetic": synthetic,
        "outbox_id": settled["id"],
        "chain_index": settled["chain_index"],
        "fingerprint": alert["fingerprint"],
        "notifier": settled["notifier"],
        "idempotency_key": idempotency_key(chain, settled["chain_index"], settled["notifier"]),
        "outcome": settled["outcome"],
        "attempts": settled["attempts"],
        "detail": settled["detail"],
    }
    body = encode_columns(NOTIFICATIONS, {name: [value] for name, value in row.items()})
    # Each notifier settles at its own pace, so each has a sequence of its own.
    headers = headers_of(NOTIFICATIONS, source, f"{chain}/{settled['notifier']}", settled["id"])
    return Record(key=settled["notifier"], headers=headers, body=body)


def idempotency_key(chain: str, index: int, notifier: str) -> str:
    """Return what every repeat of one notification carries."""
    return f"{chain}/{index}/{notifier}"


class Teller:
    """Tells one notifier what waits for it, oldest first: an end never overtakes its beginning."""

    def __init__(
        self,
        journal: Journal,
        configured: Configured,
        *,
        hall: str,
        clock: Clock,
        count: Count,
        checkpoint: Checkpoint,
    ) -> None:
        self._journal = journal
        self._name = configured.name
        self._notifier = configured.notifier
        self._severities = frozenset(configured.config.severities)
        self._hall = hall
        self._clock = clock
        self._count = count
        self._checkpoint = checkpoint
        self._refreshed_at = -math.inf

    def tell(self) -> None:
        """Tell what is due, and renew what fires where the notifier wants that; raise StoreError or NotifyError."""
        while waiting := self._journal.waiting(self._name, self._notifier.batch_size):
            wait_us = waiting[0].due_us - self._clock.now_us()
            # Nothing is put off for longer than the longest retry: what says so was written by another clock.
            if 0 < wait_us <= LAST_RETRY_SECONDS * 1e6 or not self._tell(waiting):
                return
        self._refresh()

    def _tell(self, waiting: Sequence[Waiting]) -> bool:
        """Tell a batch; return whether it is settled."""
        ids, now_us = [one.id for one in waiting], self._clock.now_us()
        self._checkpoint("notifying")
        try:
            said = self._notifier.notify([self._notification(one) for one in waiting])
        except NotifyError as error:
            return self._put_off(waiting, error)
        except Exception as error:  # noqa: BLE001 -- a notifier is a plug-in: its fault must not end its thread
            _log.error("notifier_broke", notifier=self._name, error=repr(error))
            return self._put_off(waiting, NotifyError("unreachable", repr(error)))
        self._checkpoint("notified")
        self._journal.settle(self._name, ids, "delivered", now_us, said)
        self._count(self._name, "delivered", len(ids))
        return True

    def _put_off(self, waiting: Sequence[Waiting], error: NotifyError) -> bool:
        first, now_us = waiting[0], self._clock.now_us()
        if error.reason == "rejected" and len(waiting) > 1:
            # One of them is what the receiver does not want: find it by telling them one by one.
            return all(self._tell([one]) for one in waiting)
        if error.reason == "rejected" or first.attempts >= GIVE_UP_ATTEMPTS:
            ids = [one.id for one in waiting]
            _log.error("notification_given_up", notifier=self._name, error=str(error))
            self._journal.settle(self._name, ids, "given_up", now_us, str(error)[:1_000])
            self._count(self._name, "given_up", len(ids))
            return True
        due_us = now_us + round(_retry_seconds(first.attempts + 1) * 1e6)
        self._journal.postpone(self._name, [one.id for one in waiting], due_us, str(error)[:1_000])
        self._count(self._name, error.reason, 1)
        return False

    def _refresh(self) -> None:
        now_us, now = self._clock.now_us(), self._clock.monotonic()
        every = self._notifier.refresh_seconds
        if every is None or now - self._refreshed_at < every:
            return
        aloud = [self._notification(one) for one in self._journal.firing_aloud()]
        firing = [one for one in aloud if one.row["severity"] in self._severities]
        last = self._journal.last_batch()
        alive = last is not None and abs(now_us - last.now_us) < ALIVE_US
        self._notifier.refresh(firing, now_us, alive=alive, hall=self._hall)
        self._refreshed_at = now

    def _notification(self, one: Waiting) -> Notification:
        transition = one.transition
        return Notification(
            key=idempotency_key(transition.chain, transition.index, self._name),
            hall=self._hall,
            told_us=self._clock.now_us(),
            place=one.place,
            row=transition.row(),
            head=self._journal.head_over(transition.index),
        )

    def close(self) -> None:
        self._notifier.close()
        self._journal.close()
