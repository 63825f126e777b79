"""What every bus offers. Every implementation passes one contract suite, `tests/suites/bus_suite.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from contract.errors import TransportError
from contract.stream import Stream


class TopicPartition(NamedTuple):
    """One ordered log of a topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """A message on its way to the bus."""

    key: str
    headers: Mapping[str, str]
    body: bytes


class Message(NamedTuple):
    """A message as the bus gives it."""

    topic: str
    partition: int
    offset: int
    received_us: int
    """When the bus appended it, by the bus's own wall clock: microseconds UTC. It may stand or fall where that is set."""
    key: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """Identity and shape of a topic. A topic deleted and made again has another `log`."""

    topic: str
    log: str
    partitions: int


class Difference(NamedTuple):
    """A setting of a topic that is not what it would be made with."""

    topic: str
    setting: str
    wanted: str
    found: str


AckCallback = Callable[[int | TransportError], None]
"""Called once per record: with its offset when it is durable, or with the error."""


class Producer(Protocol):
    """Appends records, in order within a partition.

    The first failure ends a producer: what waits and what is sent later fails too, so that no partition holds a
    record whose predecessor is missing. Make another one and send again, in order, all from the lowest that was
    not acknowledged. Call-backs run on another thread.
    """

    def send(self, topic: str, partition: int, record: Record, on_ack: AckCallback | None = None) -> None:
        """Queue a record; blocks when too much is in flight.

        Raises TransportError: no_topic, and too_large for a body above 16 MiB or key and headers above 64 KiB,
        which harm nothing else; closed; what ended the producer.
        """
        ...

    def flush(self, timeout_seconds: float = 30.0) -> None:
        """Return when everything sent is durable and acknowledged; raise TransportError when something is not."""
        ...

    def close(self) -> None:
        """Write what was sent, within a bounded time; raises nothing."""
        ...


class Assignment(Protocol):
    """Told when this consumer gains or loses partitions; called within `poll`."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Take partitions over: the callee seeks each to where it wants to read."""
        ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None: ...


class Consumer(Protocol):
    """Reads partitions in offset order, from where it was told to."""

    def subscribe(self, topics: Iterable[str], assignment: Assignment) -> None:
        """Share the topics' partitions with the other members of the group.

        `assignment` hears of them within the next polls. Raises TransportError(no_topic).
        """
        ...

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, whoever else does; each needs a `seek`. Raises TransportError(no_topic)."""
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read an assigned partition from `offset` on. Raises nothing: `poll` tells when it is gone."""
        ...

    def poll(self, timeout_seconds: float, max_messages: int = 10_000) -> list[Message]:
        """Return what is there, waiting at most `timeout_seconds` for the first message.

        Messages of one partition come in offset order, and no partition starves another. Raises LogTruncated
        when retention overtook the reader, LogReplaced when the topic was made again or ends before the
        position, TransportError(no_offset) where a partition was never given a position. After a raise nothing
        was read: positions are as before.
        """
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None: ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset to read of every assigned partition that has a position."""
        ...

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset that retention left."""
        ...

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset that the next appended message will have."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Show others how far this group is: advice for a lag display, never read back as truth."""
        ...

    def close(self) -> None: ...


class Bus(Protocol):
    """A place with topics."""

    def ensure_topics(self, streams: Iterable[Stream]) -> None:
        """Create what is missing; raise TransportError where a topic's shape differs from its stream."""
        ...

    def describe(self, topic: str) -> TopicInfo:
        """Return identity and shape; raise TransportError(no_topic)."""
        ...

    def differences(self, topics: Iterable[str]) -> list[Difference]:
        """Return how the settings of topics that are there differ from what they would be made with."""
        ...

    def producer(self) -> Producer: ...

    def consumer(self, group: str) -> Consumer: ...

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return what a group committed last, in every partition of which it ever did and that is still there."""
        ...

    def close(self) -> None: ...
