"""The tables of the local log, and what is done to them within one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from heapq import merge
from operator import itemgetter
from typing import NamedTuple
from uuid import uuid4

import orjson

from contract.bus.protocols import Record, TopicInfo, TopicPartition
from contract.bus.sqlite import used_bytes
from contract.codec import MAX_BODY_BYTES
from contract.errors import TransportError

MAX_HEADER_BYTES = 65_536
"""Of key and headers together."""

_CHUNK_MESSAGES = 1_000
"""Deleted in one transaction, so that writers wait some milliseconds only."""

# AUTOINCREMENT: the id of a deleted partition never comes back, which is how its readers notice.
TABLES = """
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


class Place(NamedTuple):
    """A partition: the number of its table, and which offsets are in it."""

    id: int
    begins: int
    ends: int


def no_topic(topic: str) -> TransportError:
    """Return the error for a topic or partition that is not there."""
    return TransportError("no_topic", f"there is no topic {topic}")


def find_topic(connection: sqlite3.Connection, topic: str) -> TopicInfo | None:
    """Return a topic; None where there is none of that name."""
    row = connection.execute("SELECT log, partitions FROM topics WHERE name = ?", (topic,)).fetchone()
    return row and TopicInfo(topic=topic, log=row[0], partitions=row[1])


def insert_topic(connection: sqlite3.Connection, topic: str, partitions: int) -> TopicInfo:
    """Make a topic that is not there yet, with a log identity of its own."""
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


def find_partition(connection: sqlite3.Connection, partition: TopicPartition) -> Place:
    """Return where a partition is; raise TransportError(no_topic)."""
    row = connection.execute(
        "SELECT id, begins, ends FROM partitions WHERE topic = ? AND number = ?", partition
    ).fetchone()
    if row is None:
        raise no_topic("/".join(map(str, partition)))
    return Place(*row)


def insert_messages(
    connection: sqlite3.Connection, topic: str, partition: int, rows: Sequence[Row], now_us: int
) -> int:
    """Append to one partition; return the first offset. Raises TransportError(no_topic)."""
    id, _, first = find_partition(connection, TopicPartition(topic, partition))
    [(received_us,)] = connection.execute(
        "UPDATE partitions SET ends = ?, received_us = max(received_us, ?) WHERE id = ? RETURNING received_us",
        (first + len(rows), now_us, id),
    ).fetchall()
    connection.executemany(
        f"INSERT INTO messages_{id} VALUES (?, ?, ?, ?, ?)",
        [(offset, received_us, *row) for offset, row in enumerate(rows, first)],
    )
    return first


def delete_front(connection: sqlite3.Connection, id: int, before: int) -> None:
    """Delete the messages of a partition below an offset."""
    connection.execute(f"DELETE FROM messages_{id} WHERE offset < ?", (before,))
    connection.execute("UPDATE partitions SET begins = ? WHERE id = ?", (before, id))


def find_surplus(
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
