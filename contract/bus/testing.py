"""A bus in memory for unit tests: the protocols in their plainest form, and switches that break it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from contract.bus.protocols import (
    AckCallback,
    Assignment,
    Difference,
    Message,
    Record,
    TopicInfo,
    TopicPartition,
)
from contract.clock import SYSTEM_CLOCK, Clock
from contract.errors import LogTruncated, TransportError
from contract.stream import Stream


@dataclass(slots=True)
class _Topic:
    partitions: int
    log: str = field(default_factory=lambda: uuid.uuid4().hex)
    messages: list[list[Message]] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages = [[] for _ in range(self.partitions)]
        self.begins = [0] * self.partitions


class MemoryBus:
    """Every consumer of a topic gets all its partitions; nothing outlives the object.

    `fail_with` makes every send raise that error.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.topics: dict[str, _Topic] = {}
        self.commits: dict[str, dict[TopicPartition, int]] = {}
        self.fail_with: TransportError | None = None

    def ensure_topics(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            self.topics.setdefault(stream.topic, _Topic(stream.partitions))

    def describe(self, topic: str) -> TopicInfo:
        found = self.topic(topic)
        return TopicInfo(topic=topic, log=found.log, partitions=found.partitions)

    def topic(self, name: str) -> _Topic:
        if name not in self.topics:
            raise TransportError("no_topic", f"there is no topic {name}")
        return self.topics[name]

    def differences(self, topics: Iterable[str]) -> list[Difference]:
        """Return nothing: topics have no settings of their own here."""
        del topics
        return []

    def producer(self) -> MemoryProducer:
        return MemoryProducer(self)

    def consumer(self, group: str) -> MemoryConsumer:
        return MemoryConsumer(self, group)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return dict(self.commits.get(group, {}))

    def close(self) -> None:
        """Keep everything: the next `producer` or `consumer` finds it again."""

    def append(self, topic: str, partition: int, record: Record) -> int:
        """Append at once; return the offset."""
        log = self.topic(topic).messages[partition]
        received = max(self.clock.now_us(), log[-1].received_us if log else 0)
        log.append(Message(topic, partition, len(log), received, record.key, record.headers, record.body))
        return len(log) - 1

    def truncate(self, topic: str, partition: int, begins: int) -> None:
        """Do what retention does: forget everything before `begins`."""
        self.topic(topic).begins[partition] = begins

    def recreate(self, topic: str) -> None:
        """Delete a topic and make it again: the same name, another log."""
        self.topics[topic] = _Topic(self.topic(topic).partitions)

    def cut(self, topic: str, partition: int, end: int) -> None:
        """Lose the tail, as a restored backup does."""
        del self.topic(topic).messages[partition][end:]


class MemoryProducer:
    """Appends at once and acknowledges at once."""

    def __init__(self, bus: MemoryBus) -> None:
        self._bus = bus

    def send(self, topic: str, partition: int, record: Record, on_ack: AckCallback | None = None) -> None:
        if self._bus.fail_with is not None:
            raise self._bus.fail_with
        offset = self._bus.append(topic, partition, record)
        if on_ack is not None:
            on_ack(offset)

    def flush(self, timeout_seconds: float = 30.0) -> None:
        del timeout_seconds
        if self._bus.fail_with is not None:
            raise self._bus.fail_with

    def close(self) -> None:
        """Hold nothing that must be given back."""


class MemoryConsumer:
    """Reads in partition order; an empty poll moves an injected clock by its timeout."""

    def __init__(self, bus: MemoryBus, group: str) -> None:
        self._bus = bus
        self._group = group
        self._topics: list[str] = []
        self._assignment: Assignment | None = None
        self._waiting: list[TopicPartition] = []
        self._owned: list[TopicPartition] = []
        self._positions: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()

    def subscribe(self, topics: Iterable[str], assignment: Assignment) -> None:
        self._assignment = assignment
        self._waiting = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in range(self._bus.topic(topic).partitions)
        ]

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._owned = list(partitions)

    def give(self, partitions: Sequence[TopicPartition]) -> None:
        """Do what a rebalance does: hand these partitions over within the next poll."""
        self._waiting += partitions

    def take_away(self, partitions: Sequence[TopicPartition]) -> None:
        """Do what a rebalance does: revoke these partitions at once."""
        self._owned = [p for p in self._owned if p not in partitions]
        for partition in partitions:
            self._positions.pop(partition, None)
        if self._assignment is not None:
            self._assignment.revoked(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    def poll(self, timeout_seconds: float, max_messages: int = 10_000) -> list[Message]:
        if self._waiting and self._assignment is not None:
            given, self._waiting = self._waiting, []
            self._owned += given
            self._assignment.assigned(given)
        found: list[Message] = []
        for at in self._owned:
            if at not in self._paused:
                found += self._read(at, max_messages - len(found))
        if not found:
            self._bus.clock.sleep(timeout_seconds)
        return found

    def _read(self, at: TopicPartition, most: int) -> list[Message]:
        topic = self._bus.topic(at.topic)
        position = self._positions.get(at)
        if position is None:
            raise TransportError("no_offset", f"{at.topic}/{at.partition} was never given a position")
        if position < topic.begins[at.partition]:
            raise LogTruncated(at.topic, at.partition, position, topic.begins[at.partition])
        found = topic.messages[at.partition][position : position + most]
        self._positions[at] = position + len(found)
        return found

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused |= set(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._paused -= set(partitions)

    def positions(self) -> dict[TopicPartition, int]:
        return {at: self._positions[at] for at in self._owned if at in self._positions}

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: self._bus.topic(at.topic).begins[at.partition] for at in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: len(self._bus.topic(at.topic).messages[at.partition]) for at in partitions}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._bus.commits.setdefault(self._group, {}).update(offsets)

    def close(self) -> None:
        """Hold nothing that must be given back."""
