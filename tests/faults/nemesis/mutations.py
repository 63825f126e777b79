"""Guards that can be taken away from a process: a nemesis that does not notice would prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import analytics.intake
from alerts import courier
from alerts.chain import Transition
from alerts.engine import Engine
from alerts.journal import BatchRecord
from alerts.watcher import Draft
from analytics.lake import LakeTable
from contract.errors import TransportError
from contract.streams.alerts import ALERTS
from ingest import spool


def commit_whatever_is_stored() -> None:
    """Let the sink commit without looking whether the stored offsets are still those it began at."""
    LakeTable._check_starts = lambda *_: None  # type: ignore[method-assign]


def forget_marks() -> None:
    """Let a sink that starts not know which events the lake holds."""
    analytics.intake.load_marks = lambda *_: {}  # type: ignore[attr-defined]


def publish_before_journaling() -> None:
    """Let the engine tell what it has not made durable."""
    commit = Engine._commit

    def publish_first(
        self: Engine, record: BatchRecord, drafts: Sequence[Draft], transitions: Sequence[Transition]
    ) -> None:
        publisher = self._courier._publisher
        with closing(publisher._bus.producer()) as producer:
            for transition in transitions:
                producer.send(ALERTS.topic, 0, courier._alert_record(publisher._source, transition))
            producer.flush()
        commit(self, record, drafts, transitions)

    Engine._commit = publish_first  # type: ignore[method-assign]


def go_on_behind_a_failure() -> None:
    """Let the forwarder go on behind what failed, not from the lowest that was not acknowledged."""
    acknowledge = spool._Flight.acknowledge

    def skip(self: spool._Flight, offset: int, error: TransportError | None) -> None:
        acknowledge(self, offset, error)
        if error is not None:
            self.lowest = self._next

    spool._Flight.acknowledge = skip  # type: ignore[method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    "offset_check": commit_whatever_is_stored,
    "marks": forget_marks,
    "journal_first": publish_before_journaling,
    "resend_order": go_on_behind_a_failure,
}
"""What removes each guard, by name."""
