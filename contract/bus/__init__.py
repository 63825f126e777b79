"""The bus: ordered, durable, at-least-once logs, behind two protocols.
local.py is one SQLite file for one machine, kafka/ a cluster; only kafka/ may import kafka-python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract.bus.protocols import (
    AckCallback,
    Assignment,
    Bus,
    Consumer,
    Difference,
    Message,
    Producer,
    Record,
    TopicInfo,
    TopicPartition,
)
from contract.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from contract.config import BusSection

__all__ = [
    "AckCallback",
    "Assignment",
    "Bus",
    "Consumer",
    "Difference",
    "Message",
    "Producer",
    "Record",
    "TopicInfo",
    "TopicPartition",
    "open_bus",
]


def open_bus(section: BusSection, clock: Clock = SYSTEM_CLOCK) -> Bus:
    """Open the bus that a configuration describes; raise TransportError or ConfigError where that fails."""
    if section.kind == "kafka":
        # Here, because kafka-python is an extra, and slow to import.
        from contract.bus.kafka import open_kafka

        return open_kafka(section, clock)
    # Here, because the codec imports this package for its types, and the local log imports the codec.
    from contract.bus.local import LocalBus

    return LocalBus.open(section, clock)
