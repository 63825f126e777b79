"""The bus: ordered, durable, at-least-once logs, behind two protocols.
kafka.py is the only importer of kafka-python; local.py is one SQLite file for one machine."""

from contract.bus.protocols import (
    AckCallback,
    Assignment,
    Bus,
    Consumer,
    Message,
    Producer,
    Record,
    TopicInfo,
    TopicPartition,
)

__all__ = [
    "AckCallback",
    "Assignment",
    "Bus",
    "Consumer",
    "Message",
    "Producer",
    "Record",
    "TopicInfo",
    "TopicPartition",
]
