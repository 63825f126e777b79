"""The alerts of a hall as they are raised: followed on the bus, as anybody may.

Demo and replay tell them to a person and judge them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from contract.bus import Consumer, TopicPartition, open_bus
from contract.clock import Clock
from contract.config import Config
from contract.reader import Marks, read_batch
from contract.streams.alerts import ALERTS


@dataclass(frozen=True, slots=True)
class Found:
    """One alert, or its end, as the bus carried it."""

    rule: str
    entity: str
    host: str | None
    severity: str
    summary: str
    at_us: int
    """When it was so: the time of the row that decided."""
    told_us: int
    """When the bus had the alert."""
    fires: bool = True


class AlertWatch:
    """Follows the alerts on the bus as anybody may, from now on."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._marks: Marks = {}
        partition = TopicPartition(ALERTS.topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, consumer.end_offsets([partition])[partition])

    def poll(self) -> list[Found]:
        """Return the alerts that began to fire since the last call."""
        return [found for found in self.poll_all() if found.fires]

    def poll_all(self) -> list[Found]:
        """Return the alerts that began to fire since the last call, and those that ended."""
        batch = read_batch(ALERTS, self._consumer.poll(0.0), self._marks)
        rows = batch.table.set_column(0, "ts", batch.table.column("ts").cast(pa.int64()))
        told_us = [event.message.received_us for event in batch.events for _ in range(event.rows)]
        return [
            Found(
                rule=row["rule"],
                entity=row["entity"],
                host=row["host"],
                severity=row["severity"],
                summary=row["summary"],
                at_us=row["ts"],
                told_us=told,
                fires=row["transition"] == "firing",
            )
            for row, told in zip(rows.to_pylist(), told_us, strict=True)
        ]


@contextmanager
def watch_alerts(config: Config, clock: Clock) -> Iterator[AlertWatch]:
    """Open the bus beside the running parts and follow its alerts."""
    bus = open_bus(config.bus, clock)
    bus.ensure_topics([ALERTS])
    consumer = bus.consumer("watch")
    try:
        yield AlertWatch(consumer)
    finally:
        consumer.close()
        bus.close()
