"""The bus of one machine: a SQLite file that any number of processes append to and read at once.

It survives the death of any process at any moment and, with fsync, loss of power. Messages of one partition are
one table, so that appending and retention touch only its two ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from contract.bus.local_consumer import LocalConsumer
from contract.bus.local_producer import LocalProducer
from contract.bus.local_tables import (
    TABLES,
    Row,
    delete_front,
    encode_row,
    find_partition,
    find_surplus,
    find_topic,
    insert_messages,
    insert_topic,
    no_topic,
)
from contract.bus.protocols import Consumer, Difference, Producer, Record, TopicInfo, TopicPartition
from contract.bus.sqlite import Database, create_database, used_bytes
from contract.clock import SYSTEM_CLOCK, Clock
from contract.config import BusSection
from contract.errors import LogReplaced, TransportError
from contract.log import Log
from contract.stream import Stream

FILE_NAME = "log.sqlite"

_UPKEEP_EVERY_SECONDS = 1.0
_UPKEEP_CHUNKS = 50

_log = Log("bus.local")


class LocalBus:
    """A folder with the log; any number of these, in any number of processes, may be open on it.

    `clock` stamps messages and judges their age; waiting for the disk and for other writers takes real time, at
    most `wait_seconds`. Close its producers and consumers first. Every call may raise TransportError: unreachable,
    full, timeout, closed, replaced.
    """

    @classmethod
    def open(cls, section: BusSection, clock: Clock = SYSTEM_CLOCK) -> LocalBus:
        """Open the log that a configuration describes."""
        return cls(
            section.path,
            fsync=section.fsync,
            clock=clock,
            retention_hours=section.retention_hours,
            retention_bytes=section.retention_bytes,
        )

    def __init__(
        self,
        path: Path,
        *,
        fsync: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        retention_hours: float = 72,
        retention_bytes: float = 20_000_000_000,
        wait_seconds: float = 10.0,
    ) -> None:
        self._clock = clock
        self._retention_us = retention_hours * 3_600_000_000
        self._retention_bytes = retention_bytes
        self._upkeep_at = -math.inf
        self._opened_us, self._opened_at = clock.now_us(), clock.monotonic()
        create_database(path / FILE_NAME, TABLES, wait_seconds)

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
            found = find_topic(connection, topic)
        if found is None:
            with self._database.writing() as connection:
                found = find_topic(connection, topic) or insert_topic(connection, topic, partitions)
        if found.partitions != partitions:
            raise LogReplaced(
                f"{topic} has {found.partitions} partitions where {partitions} are declared; "
                "partitions are never added in place: declare a new version of the stream"
            )

    def delete_topic(self, topic: str) -> None:
        """Delete a topic with its messages; raise TransportError(no_topic)."""
        with self._database.writing() as connection:
            if find_topic(connection, topic) is None:
                raise no_topic(topic)
            for (id,) in connection.execute("SELECT id FROM partitions WHERE topic = ?", (topic,)).fetchall():
                connection.execute(f"DROP TABLE messages_{id}")
                connection.execute("DELETE FROM commits WHERE partition = ?", (id,))
            connection.execute("DELETE FROM partitions WHERE topic = ?", (topic,))
            connection.execute("DELETE FROM topics WHERE name = ?", (topic,))

    def describe(self, topic: str) -> TopicInfo:
        with self._database.reading() as connection:
            found = find_topic(connection, topic)
        if found is None:
            raise no_topic(topic)
        return found

    def differences(self, topics: Iterable[str]) -> list[Difference]:
        """Return nothing: topics have no settings of their own here."""
        del topics
        return []

    def producer(self) -> Producer:
        return LocalProducer(self)

    def consumer(self, group: str) -> Consumer:
        return LocalConsumer(self, self._connect(), group, self._clock)

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
                first = insert_messages(
                    connection, topic, partition, [rows[index][2] for index in indices], now_us
                )
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
            found = find_partition(connection, partition)
            if before > found.begins:
                delete_front(connection, found.id, min(before, found.ends))

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
                [(group, find_partition(connection, p).id, offset) for p, offset in offsets.items()],
            )

    def committed(self, group: str) -> dict[TopicPartition, int]:
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT topic, number, position FROM commits JOIN partitions ON id = partition WHERE member = ?",
                (group,),
            ).fetchall()
        return {TopicPartition(topic, number): offset for topic, number, offset in rows}

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
        # Where the clock is set forward, what was not read yet must not become too old at once.
        ran_us = round((self._clock.monotonic() - self._opened_at) * 1e6)
        oldest_us = min(self._clock.now_us(), self._opened_us + ran_us) - self._retention_us
        with self._database.writing() as connection:
            excess = used_bytes(connection) - self._retention_bytes
            before, count = find_surplus(connection, excess, oldest_us)
            for id, offset in before.items():
                delete_front(connection, id, offset)
        return count
