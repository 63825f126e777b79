"""The bus of one machine: a SQLite file that any number of processes append to and read at once.

It survives the death of any process at any moment and, with fsync, loss of power. Messages of one partition are
one table, so that appending and retention touch only its two ends.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import orjson

from contract.bus.protocols import (
    AckCallback,
    Assignment,
    Consumer,
    Message,
    Producer,
    Record,
    TopicInfo,
    TopicPartition,
)
from contract.bus.sqlite import Database, create_database, used_bytes
from contract.clock import Clock, SystemClock
from contract.codec import MAX_BODY_BYTES
from contract.errors import LogReplaced, LogTruncated, TransportError
from contract.log import Log
from contract.stream import Stream

FILE_NAME = "log.sqlite"
MAX_HEADER_BYTES = 65_536
"""Of key and headers together."""

_POLL_BYTES = 8 * 2**20
"""One poll returns no more, but always at least one message. More at once would not fit the processor's caches."""

_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.001, 0.04
"""A reader that waits looks soon at first, then 25 times a second: that costs less than 1 % of a core."""

_BATCH_RECORDS, _BATCH_BYTES = 2_000, 8 * 2**20
_QUEUE_RECORDS, _QUEUE_BYTES = 10_000, 64 * 2**20
_CLOSE_SECONDS = 30.0

_UPKEEP_EVERY_SECONDS = 1.0
_UPKEEP_CHUNKS = 50
_CHUNK_MESSAGES = 1_000
"""Deleted in one transaction, so that writers wait some milliseconds only."""

# AUTOINCREMENT: the id of a deleted partition never comes back, which is how its readers notice.
_TABLES = """
CREATE TABLE topics (name TEXT PRIMARY KEY, log TEXT NOT NULL, partitions INTEGER NOT NULL);
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    number INTEGER NOT NULL,
    begins INTEGER NOT NULL DEFAULT 0,
    ends INTEGER NOT NULL DEFAULT 0,
    received_us INTEGER NOT NULL DEFAULT 0,
    UNIQUE (topic, number)
);
CREATE TABLE cursors (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE commits (
    member TEXT,
    partition INTEGER,
    position INTEGER NOT NULL,
    PRIMARY KEY (member, partition)
) WITHOUT ROWID
"""
_log = Log("bus.local")
_message: Callable[..., Message] = tuple.__new__  # half the time that Message(...) takes
_SYSTEM_CLOCK = SystemClock()


class LocalBus:
    """A folder with the log; any number of these, in any number of processes, may be open on it.

    `clock` stamps messages and judges their age; waiting for the disk and for other writers takes real time, at
    most `wait_seconds`. Close its producers and consumers first. Every call may raise TransportError: unreachable,
    full, timeout, closed, replaced.
    """

    def __init__(
        self,
        path: Path,
        *,
        fsync: bool = True,
        clock: Clock = _SYSTEM_CLOCK,
        retention_hours: float = 72,
        retention_bytes: float = 20_000_000_000,
        wait_seconds: float = 10.0,
    ) -> None:
        self._clock = clock
        self._retention_us = retention_hours * 3_600_000_000
        self._retention_bytes = retention_bytes
        self._upkeep_at = -math.inf
        create_database(path / FILE_NAME, _TABLES, wait_seconds)

        def connect() -> Database:
            return Database(path / FILE_NAME, fsync=fsync, wait_seconds=wait_seconds)

        self._connect = connect
        self._database = connect()

    def ensure_topics(self, streams: Iterable[Stream]) -> None:
        for stream in streams:
            self.create_topic(stream.topic, stream.partitions)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic unless it is there; raise LogReplaced when it has another number of partitions."""
        with self._database.reading() as connection:
            found = _find_topic(connection, topic)
        if found is None:
            with self._database.writing() as connection:
                found = _find_topic(connection, topic) or _create_topic(connection, topic, partitions)
        if found.partitions != partitions:
            raise LogReplaced(
                f"{topic} has {found.partitions} partitions where {partitions} are declared; "
                "partitions are never added in place: declare a new version of the stream"
            )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages; raise TransportError(no_topic)."""
        with self._database.writing() as connection:
            if _find_topic(connection, topic) is None:
                raise _no_topic(topic)
            for (id,) in connection.execute("SELECT id FROM partitions WHERE topic = ?", (topic,)).fetchall():
                connection.execute(f"DROP TABLE messages_{id}")
                connection.execute("DELETE FROM commits WHERE partition = ?", (id,))
            connection.execute("DELETE FROM partitions WHERE topic = ?", (topic,))
            connection.execute("DELETE FROM topics WHERE name = ?", (topic,))

    def describe(self, topic: str) -> TopicInfo:
        with self._database.reading() as connection:
            found = _find_topic(connection, topic)
        if found is None:
            raise _no_topic(topic)
        return found

    def producer(self) -> Producer:
        return _LocalProducer(self)

    def consumer(self, group: str) -> Consumer:
        return _LocalConsumer(self, self._connect(), group, self._clock)

    def append(
        self, records: Sequence[tuple[str, int, Record]], cursors: Mapping[str, bytes] | None = None
    ) -> list[int]:
        """Append (topic, partition, record) and save named cursors, all or nothing; durable on return.

        Returns the offsets. Raises also TransportError: no_topic, too_large.
        """
        rows = [(topic, partition, encode_row(record)) for topic, partition, record in records]
        return self.append_rows(rows, cursors)

    def append_rows(
        self, rows: Sequence[tuple[str, int, Row]], cursors: Mapping[str, bytes] | None = None
    ) -> list[int]:
        """Do the same with records that are encoded already."""
        places: dict[tuple[str, int], list[int]] = {}
        for index, (topic, partition, _) in enumerate(rows):
            places.setdefault((topic, partition), []).append(index)
        offsets = [0] * len(rows)
        with self._database.writing() as connection:
            now_us = self._clock.now_us()
            for (topic, partition), indices in places.items():
                first = _append(connection, topic, partition, [rows[index][2] for index in indices], now_us)
                for offset, index in enumerate(indices, first):
                    offsets[index] = offset
            connection.executemany("REPLACE INTO cursors VALUES (?, ?)", (cursors or {}).items())
        self._keep_up()
        return offsets

    def cursor(self, name: str) -> bytes | None:
        """Return what was last saved under this name."""
        with self._database.reading() as connection:
            row = connection.execute("SELECT value FROM cursors WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def trim(self, partition: TopicPartition, before: int) -> None:
        """Delete the messages below an offset."""
        with self._database.writing() as connection:
            found = _find_partition(connection, partition)
            if before > found.begins:
                _delete_front(connection, found.id, min(before, found.ends))

    def enforce_retention(self) -> int:
        """Delete what is too old or too much, oldest first; return how many messages went.

        Appending does this by itself, a bounded piece each second.
        """
        deleted = 0
        while count := self._delete_chunk():
            deleted += count
        self._database.shrink()
        return deleted

    def used_bytes(self) -> int:
        """Return what the log takes on disk, without space that is free for new messages."""
        return self._database.used_bytes()

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Remember how far a group is; raise TransportError(no_topic)."""
        with self._database.writing() as connection:
            connection.executemany(
                "REPLACE INTO commits VALUES (?, ?, ?)",
                [(group, _find_partition(connection, p).id, offset) for p, offset in offsets.items()],
            )

    def lag(self, group: str) -> dict[TopicPartition, int]:
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT topic, number, max(ends - position, 0) FROM commits JOIN partitions ON id = partition"
                " WHERE member = ? ORDER BY topic, number",
                (group,),
            ).fetchall()
        return {TopicPartition(topic, number): lag for topic, number, lag in rows}

    def close(self) -> None:
        self._database.close()

    def _keep_up(self) -> None:
        now = self._clock.monotonic()
        if now < self._upkeep_at:
            return
        self._upkeep_at = now + _UPKEEP_EVERY_SECONDS
        try:
            for _ in range(_UPKEEP_CHUNKS):
                if not self._delete_chunk():
                    break
            self._database.shrink()
        except TransportError as error:
            # What was appended is durable: its writer must not hear of this. The next second tries again.
            _log.warning("retention_failed", reason=error.reason, error=error)

    def _delete_chunk(self) -> int:
        oldest_us = self._clock.now_us() - self._retention_us
        with self._database.writing() as connection:
            excess = used_bytes(connection) - self._retention_bytes
            before, count = _find_surplus(connection, excess, oldest_us)
            for id, offset in before.items():
                _delete_front(connection, id, offset)
        return count


class Row(NamedTuple):
    """A record as it is stored."""

    key: str
    headers: bytes
    body: bytes


def encode_row(record: Record) -> Row:
    """Check a record's size and encode its headers; raise TransportError(too_large)."""
    headers = orjson.dumps(record.headers if type(record.headers) is dict else dict(record.headers))
    if len(record.body) > MAX_BODY_BYTES:
        raise TransportError("too_large", f"a body of {len(record.body)} bytes, at most {MAX_BODY_BYTES}")
    size = len(headers) + len(record.key.encode())
    if size > MAX_HEADER_BYTES:
        raise TransportError("too_large", f"key and headers of {size} bytes, at most {MAX_HEADER_BYTES}")
    return Row(record.key, headers, record.body)


class _Place(NamedTuple):
    """A partition: the number of its table, and which offsets are in it."""

    id: int
    begins: int
    ends: int


def _no_topic(topic: str) -> TransportError:
    return TransportError("no_topic", f"there is no topic {topic}")


def _find_topic(connection: sqlite3.Connection, topic: str) -> TopicInfo | None:
    row = connection.execute("SELECT log, partitions FROM topics WHERE name = ?", (topic,)).fetchone()
    return row and TopicInfo(topic=topic, log=row[0], partitions=row[1])


def _create_topic(connection: sqlite3.Connection, topic: str, partitions: int) -> TopicInfo:
    info = TopicInfo(topic=topic, log=uuid4().hex, partitions=partitions)
    connection.execute("INSERT INTO topics VALUES (?, ?, ?)", (topic, info.log, partitions))
    for number in range(partitions):
        id = connection.execute(
            "INSERT INTO partitions (topic, number) VALUES (?, ?)", (topic, number)
        ).lastrowid
        connection.execute(
            f"CREATE TABLE messages_{id} (offset INTEGER PRIMARY KEY, received_us INTEGER NOT NULL,"
            " key TEXT NOT NULL, headers BLOB NOT NULL, body BLOB NOT NULL)"
        )
    return info


def _find_partition(connection: sqlite3.Connection, partition: TopicPartition) -> _Place:
    row = connection.execute(
        "SELECT id, begins, ends FROM partitions WHERE topic = ? AND number = ?", partition
    ).fetchone()
    if row is None:
        raise _no_topic("/".join(map(str, partition)))
    return _Place(*row)


def _append(
    connection: sqlite3.Connection, topic: str, partition: int, rows: Sequence[Row], now_us: int
) -> int:
    """Append to one partition; return the first offset."""
    id, _, first = _find_partition(connection, TopicPartition(topic, partition))
    [(received_us,)] = connection.execute(
        "UPDATE partitions SET ends = ?, received_us = max(received_us, ?) WHERE id = ? RETURNING received_us",
        (first + len(rows), now_us, id),
    ).fetchall()
    connection.executemany(
        f"INSERT INTO messages_{id} VALUES (?, ?, ?, ?, ?)",
        [(offset, received_us, *row) for offset, row in enumerate(rows, first)],
    )
    return first


def _delete_front(connection: sqlite3.Connection, id: int, before: int) -> None:
    connection.execute(f"DELETE FROM messages_{id} WHERE offset < ?", (before,))
    connection.execute("UPDATE partitions SET begins = ? WHERE id = ?", (before, id))


def _find_surplus(
    connection: sqlite3.Connection, excess_bytes: float, oldest_us: float
) -> tuple[dict[int, int], int]:
    """Return what retention deletes next, as the first offset to keep by partition id, and how many messages.

    The oldest of all partitions go first, until nothing is too old and the excess is gone.
    """
    places = connection.execute("SELECT id, ends - begins FROM partitions WHERE ends > begins").fetchall()
    # What a message takes in pages, at least: deleting too little is made good by the next chunk.
    mean_bytes = used_bytes(connection) / max(1, sum(count for _, count in places))
    fronts = [
        connection.execute(
            f"SELECT {id}, offset, received_us, length(body) FROM messages_{id}"
            f" ORDER BY offset LIMIT {_CHUNK_MESSAGES}"
        )
        for id, _ in places
    ]
    before: dict[int, int] = {}
    deleted = 0
    for id, offset, received_us, size in merge(*fronts, key=itemgetter(2)):
        if deleted == _CHUNK_MESSAGES or (excess_bytes <= 0 and received_us >= oldest_us):
            break
        before[id] = offset + 1
        deleted += 1
        excess_bytes -= max(size, mean_bytes)
    for front in fronts:
        front.close()
    return before, deleted


@dataclass(slots=True)
class _Sent:
    """A record that waits to be written."""

    topic: str
    partition: int
    row: Row
    on_ack: AckCallback | None


class _LocalProducer:
    """A queue and a thread that writes all that has gathered as one transaction.

    The first failure ends it: every record that waits, and all later ones, get the same error. So a partition
    never holds a record whose predecessor failed.
    """

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self._process = os.getpid()
        self._partitions: dict[str, int] = {}
        self._changed = threading.Condition()
        self._queue: deque[_Sent] = deque()
        self._queued_bytes = 0
        self._sent = self._acknowledged = 0
        self._closing = False
        self._error: TransportError | None = None
        self._thread = threading.Thread(target=self._run, name="bus-producer", daemon=True)
        self._thread.start()

    def send(self, topic: str, partition: int, record: Record, on_ack: AckCallback | None = None) -> None:
        if not 0 <= partition < self._count_partitions(topic):
            raise _no_topic(f"{topic}/{partition}")
        sent = _Sent(topic, partition, encode_row(record), on_ack)
        with self._changed:
            while self._is_full() and not self._unusable():
                self._changed.wait()
            if error := self._unusable():
                raise error
            self._queue.append(sent)
            self._queued_bytes += len(sent.row.body)
            self._sent += 1
            if len(self._queue) == 1:
                self._changed.notify_all()

    def flush(self, timeout_seconds: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            goal = self._sent
            while self._acknowledged < goal and self._error is None:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise TransportError("timeout", f"not everything was written in {timeout_seconds} s")
            if self._error is not None:
                raise self._error.with_traceback(None)

    def close(self) -> None:
        """Write what was sent, for at most 30 s; the rest fails."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            self._fail([], TransportError("closed", f"not written within {_CLOSE_SECONDS} s after closing"))

    def _unusable(self) -> TransportError | None:
        if self._error is not None:
            return self._error.with_traceback(None)
        if self._closing:
            return TransportError("closed", "this producer was closed")
        return None

    def _is_full(self) -> bool:
        return len(self._queue) >= _QUEUE_RECORDS or self._queued_bytes >= _QUEUE_BYTES

    def _count_partitions(self, topic: str) -> int:
        if self._process != os.getpid():
            raise TransportError("closed", "this producer belongs to the process that made it")
        count = self._partitions.get(topic)
        if count is None:
            count = self._partitions[topic] = self._bus.describe(topic).partitions
        return count

    def _run(self) -> None:
        try:
            while batch := self._take():
                self._write(batch)
        finally:
            self._end()

    def _take(self) -> list[_Sent]:
        """Wait for records; return the first of them, nothing when closed or dead."""
        with self._changed:
            while not self._queue and not self._closing:
                self._changed.wait()
            batch: list[_Sent] = []
            size = 0
            while self._queue and len(batch) < _BATCH_RECORDS and size < _BATCH_BYTES:
                batch.append(self._queue.popleft())
                size += len(batch[-1].row.body)
            self._queued_bytes -= size
            self._changed.notify_all()
            return batch

    def _write(self, batch: Sequence[_Sent]) -> None:
        try:
            offsets = self._bus.append_rows([(sent.topic, sent.partition, sent.row) for sent in batch])
        except TransportError as error:
            self._fail(batch, error)
        else:
            self._acknowledge(batch, offsets)

    def _fail(self, batch: Sequence[_Sent], error: TransportError) -> None:
        """Give an error to a batch and to all that waits behind it, and take no more."""
        with self._changed:
            self._error, self._closing = error, True
            failed = [*batch, *self._queue]
            self._queue.clear()
        self._acknowledge(failed, [error] * len(failed))

    def _acknowledge(self, batch: Sequence[_Sent], results: Sequence[int | TransportError]) -> None:
        for sent, result in zip(batch, results, strict=True):
            if sent.on_ack is not None:
                sent.on_ack(result)
        with self._changed:
            self._acknowledged += len(batch)
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            if self._error is None:
                self._error = TransportError("closed", "this producer was closed")
            self._changed.notify_all()


@dataclass(slots=True)
class _Reader:
    """Where a consumer is in one partition."""

    id: int
    position: int | None = None
    paused: bool = False


class _LocalConsumer:
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

    def _places(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, _Place]:
        with self._database.reading() as connection:
            return {partition: _find_partition(connection, partition) for partition in partitions}

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
        places = {id: _Place(id, begins, ends) for id, begins, ends in found}
        counts = {
            partition: _count_waiting(partition, reader, places.get(reader.id))
            for partition, reader in self._readers.items()
            if not reader.paused
        }
        waiting = [(partition, count) for partition, count in counts.items() if count]
        turn = self._turn % len(waiting) if waiting else 0
        return dict(waiting[turn:] + waiting[:turn])


def _count_waiting(partition: TopicPartition, reader: _Reader, place: _Place | None) -> int:
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
