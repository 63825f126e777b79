"""The consumer of the local bus: positions, and snapshots of the log read from them on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from contract.bus.local_tables import Place, find_partition
from contract.bus.protocols import Assignment, Message, TopicPartition
from contract.bus.sqlite import Database
from contract.clock import Clock
from contract.errors import LogReplaced, LogTruncated, TransportError

if TYPE_CHECKING:
    from contract.bus.local import LocalBus

_POLL_BYTES = 8 * 2**20
"""One poll returns no more, but always at least one message. More at once would not fit the processor's caches."""

_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.001, 0.04
"""A reader that waits looks soon at first, then 25 times a second: that costs less than 1 % of a core."""

_message: Callable[..., Message] = tuple.__new__  # half the time that Message(...) takes


@dataclass(slots=True)
class _Reader:
    """Where a consumer is in one partition."""

    id: int
    position: int | None = None
    paused: bool = False


class LocalConsumer:
    """Reads through a connection of its own. One thread at a time may use it."""

    def __init__(self, bus: LocalBus, database: Database, group: str, clock: Clock) -> None:
        self._bus, self._database, self._group, self._clock = bus, database, group, clock
        self._readers: dict[TopicPartition, _Reader] = {}
        self._assignment: Assignment | None = None
        self._subscribed: tuple[list[TopicPartition], Assignment] | None = None
        self._seen: tuple[int, int] | None = None
        """Version of the file that was read to its end."""
        self._turn = 0

    def subscribe(self, topics: Iterable[str], assignment: Assignment) -> None:
        infos = [self._bus.describe(topic) for topic in dict.fromkeys(topics)]
        partitions = [TopicPartition(info.topic, n) for info in infos for n in range(info.partitions)]
        self._subscribed = (partitions, assignment)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._assignment = self._subscribed = None
        self._take(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._readers[partition].position = offset
        self._seen = None

    def poll(self, timeout_seconds: float, max_messages: int = 10_000) -> list[Message]:
        self._tell_assignment()
        deadline = self._clock.monotonic() + timeout_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            version = self._database.version()
            if version != self._seen:
                messages = self._read(version, max_messages)
                if messages:
                    return messages
            left = deadline - self._clock.monotonic()
            if left <= 0:
                self._database.check_file()
                return []
            self._clock.sleep(min(pause, left))
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._readers[partition].paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._readers[partition].paused = False
        self._seen = None

    def positions(self) -> dict[TopicPartition, int]:
        return {p: reader.position for p, reader in self._readers.items() if reader.position is not None}

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: place.begins for partition, place in self._places(partitions).items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {partition: place.ends for partition, place in self._places(partitions).items()}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._bus.commit(self._group, offsets)

    def close(self) -> None:
        self._database.close()

    def _places(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Place]:
        with self._database.reading() as connection:
            return {partition: find_partition(connection, partition) for partition in partitions}

    def _take(self, partitions: Iterable[TopicPartition]) -> None:
        places = self._places(partitions)
        self._readers = {partition: _Reader(place.id) for partition, place in places.items()}
        self._seen = None

    def _tell_assignment(self) -> None:
        if self._subscribed is None:
            return
        partitions, assignment = self._subscribed
        if self._assignment is not None:
            self._assignment.revoked(list(self._readers))
            self._assignment = None
        self._take(partitions)
        assignment.assigned(partitions)
        # Only now: where `assigned` raises, the next poll calls it again.
        self._assignment, self._subscribed = assignment, None

    def _read(self, version: tuple[int, int], limit: int) -> list[Message]:
        """Return messages of one snapshot; move the positions only when all of them were read."""
        messages: list[Message] = []
        positions: dict[TopicPartition, int] = {}
        budget = _POLL_BYTES
        with self._database.reading() as connection:
            waiting = self._waiting(connection)
            for partition, count in share(waiting, limit).items():
                if budget <= 0:
                    break
                budget -= _fetch(connection, partition, self._readers[partition], count, budget, messages)
                positions[partition] = messages[-1].offset + 1
        for partition, position in positions.items():
            self._readers[partition].position = position
        self._turn += len(positions)
        if len(messages) == sum(waiting.values()):
            self._seen = version
        return messages

    def _waiting(self, connection: sqlite3.Connection) -> dict[TopicPartition, int]:
        """Return how many messages each partition has for us, first those that the last read did not come to."""
        ids = ",".join(str(reader.id) for reader in self._readers.values())
        found = connection.execute(f"SELECT id, begins, ends FROM partitions WHERE id IN ({ids})").fetchall()
        places = {id: Place(id, begins, ends) for id, begins, ends in found}
        counts = {
            partition: _count_waiting(partition, reader, places.get(reader.id))
            for partition, reader in self._readers.items()
            if not reader.paused
        }
        waiting = [(partition, count) for partition, count in counts.items() if count]
        turn = self._turn % len(waiting) if waiting else 0
        return dict(waiting[turn:] + waiting[:turn])


def _count_waiting(partition: TopicPartition, reader: _Reader, place: Place | None) -> int:
    topic, number = partition
    if place is None:
        raise LogReplaced(f"{topic} was deleted after it was assigned")
    if reader.position is None:
        raise TransportError("no_offset", f"{topic}/{number} was assigned and never given a position")
    if reader.position < place.begins:
        raise LogTruncated(topic, number, reader.position, place.begins)
    if reader.position > place.ends:
        raise LogReplaced(
            f"{topic}/{number} ends at offset {place.ends}, this reader had read to {reader.position}: "
            "it is another log, or an older copy"
        )
    return place.ends - reader.position


def _fetch(
    connection: sqlite3.Connection,
    partition: TopicPartition,
    reader: _Reader,
    count: int,
    budget: int,
    into: list[Message],
) -> int:
    """Add messages of one partition, until one reaches the budget of bytes; return how many bytes they have.

    What is done here per message costs every reader: keep it short.
    """
    topic, number = partition
    rows = connection.execute(
        f"SELECT offset, received_us, key, headers, body FROM messages_{reader.id}"
        " WHERE offset >= ? ORDER BY offset LIMIT ?",
        (reader.position, count),
    )
    kept, size = [], 0
    with closing(rows):
        for row in rows:
            kept.append(row)
            size += len(row[4])
            if size >= budget:
                break
    parsed = orjson.loads(b"[%b]" % b",".join([row[3] for row in kept]))
    into += [
        _message(Message, (topic, number, offset, received_us, key, headers, body))
        for (offset, received_us, key, _, body), headers in zip(kept, parsed, strict=True)
    ]
    return size


def share(available: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Split a limit: all get the same, and what one does not need goes to the others."""
    shares: dict[TopicPartition, int] = {}
    hungry = list(available)
    while hungry and limit > 0:
        portion = max(1, limit // len(hungry))
        for partition in hungry[:limit]:
            more = min(portion, available[partition] - shares.get(partition, 0))
            shares[partition] = shares.get(partition, 0) + more
            limit -= more
        hungry = [p for p in hungry if shares.get(p, 0) < available[p]]
    return shares
