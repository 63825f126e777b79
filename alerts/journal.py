"""The engine's journal: one fsynced SQLite transaction per batch, from which a restart finds where it was.

A batch says which messages were read in which order, by which clocks and rules, what came out of it and who is to
be told. Only what is in here is ever published.
"""

from __future__ import annotations

import fcntl
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from alerts.chain import GENESIS, SignedHead, Transition
from contract.bus import TopicPartition
from contract.errors import ConfigError, StoreError

FILE = "journal.sqlite"
FORMAT = "1"

KEEP_TRANSITIONS = 200_000
"""Settled transitions kept for `hallwatch alerts`; the lake keeps them all."""

KEEP_SNAPSHOTS = 2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rulesets (digest TEXT PRIMARY KEY, texts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, log TEXT NOT NULL, next INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
);
CREATE TABLE IF NOT EXISTS transitions (
    chain_index INTEGER PRIMARY KEY, batch INTEGER NOT NULL, previous_hash TEXT NOT NULL, hash TEXT NOT NULL,
    body BLOB NOT NULL, published INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS unpublished ON transitions (chain_index) WHERE published = 0;
CREATE INDEX IF NOT EXISTS by_batch ON transitions (batch);
CREATE TABLE IF NOT EXISTS firing (
    fingerprint TEXT PRIMARY KEY, chain_index INTEGER NOT NULL, place TEXT, quiet INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS heads (
    chain_index INTEGER PRIMARY KEY, hash TEXT NOT NULL, signed_us INTEGER NOT NULL, signature TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS outbox (
    notifier TEXT NOT NULL, id INTEGER NOT NULL, chain_index INTEGER NOT NULL, place TEXT,
    due_us INTEGER NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,
    outcome TEXT, settled_us INTEGER, detail TEXT, reported INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (notifier, id)
);
CREATE INDEX IF NOT EXISTS waiting ON outbox (notifier, id) WHERE outcome IS NULL;
CREATE INDEX IF NOT EXISTS unreported ON outbox (notifier, id) WHERE outcome IS NOT NULL AND reported = 0;
CREATE TABLE IF NOT EXISTS snapshots (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Range:
    """Messages read one after the other: offsets `begin` to before `end` of one partition."""

    log: str
    topic: str
    partition: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Everything that went into one batch beside the messages themselves."""

    number: int
    now_us: int
    """The wall clock."""
    digest: str
    """Of the rule set that judged it."""
    offset_us: int = 0
    """How far the engine's own time is ahead of the wall clock."""
    ranges: tuple[Range, ...] = ()
    tick: bool = False
    behind: tuple[tuple[str, int, int], ...] = ()
    """At a tick: (stream, partition, time up to which it is read) of what is not read to its end."""
    error: str | None = None
    """At a tick: why the bus could not be read."""
    start: bool = False
    """The first batch after a start."""
    lake: tuple[str, ...] = ()
    """Answers of the lake that were used, in order."""
    accepted: tuple[str, ...] = ()
    """Replaced or truncated logs that an operator accepted."""


class Waiting(NamedTuple):
    """A notification that a notifier has still to deliver."""

    id: int
    place: str | None
    attempts: int
    due_us: int
    transition: Transition


@dataclass(frozen=True, slots=True)
class Delivery:
    """A transition and who is to be told of it."""

    notifier: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What one transaction of the journal holds."""

    record: BatchRecord
    transitions: Sequence[Transition] = ()
    head: SignedHead | None = None
    places: Mapping[int, str] = field(default_factory=dict)
    """Where what a transition is about stands, by its index."""
    quiet: frozenset[int] = frozenset()
    """Transitions that are recorded and told to nobody."""
    deliveries: Sequence[Delivery] = ()
    positions: Mapping[TopicPartition, tuple[str, int]] = field(default_factory=dict)
    """Positions to set beside those the ranges give: (log, next offset)."""


class JournalLock:
    """Held while an engine runs: a second one on the same journal does not start."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "engine.lock"
        self._file: IO[str] = path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise ConfigError(
                "in_use",
                f"{path}: another engine runs on this journal; one hall has one engine, so stop that one first",
            ) from error

    def release(self) -> None:
        self._file.close()


class Journal:
    """One connection to the journal; a thread that needs it opens its own."""

    def __init__(self, folder: Path, *, read_only: bool = False, fsync: bool = True) -> None:
        """Open the journal, or make it unless `read_only`; raise StoreError.

        Without `fsync` it survives the death of a process, not the loss of power.
        """
        self.path = folder / FILE
        with _store_errors(self.path):
            if not read_only:
                folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?mode={'ro' if read_only else 'rwc'}",
                uri=True,
                timeout=30,
                isolation_level=None,
                check_same_thread=False,
            )
            if not read_only:
                self._prepare(fsync=fsync)
        if self.meta("format") != FORMAT:
            raise StoreError("schema", f"{self.path}: written in format {self.meta('format')}, not {FORMAT}")

    def _prepare(self, *, fsync: bool) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        # FULL: every commit is synced to the disk before it counts.
        self._db.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'OFF'}")
        self._db.executescript(_SCHEMA)
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('format', ?)", (FORMAT,))

    @property
    def is_new(self) -> bool:
        return self.meta("chain") is None

    def begin_chain(self, hall: str, previous_hash: str = GENESIS) -> None:
        """Begin a chain that goes on from another one's head."""
        values = {"chain": secrets.token_hex(8), "hall": hall, "genesis": previous_hash}
        with self._transaction():
            self._db.executemany("INSERT INTO meta VALUES (?, ?)", values.items())

    @property
    def chain(self) -> str:
        return self.meta("chain") or ""

    def meta(self, name: str) -> str | None:
        row = self._one("SELECT value FROM meta WHERE name = ?", name)
        return str(row[0]) if row else None

    def head(self) -> tuple[int, str]:
        """Return the index of the next transition and the hash before it."""
        row = self._one("SELECT chain_index, hash FROM transitions ORDER BY chain_index DESC LIMIT 1")
        return (row[0] + 1, row[1]) if row else (0, self.meta("genesis") or GENESIS)

    def head_before(self, number: int) -> tuple[int, str]:
        """Return what `head` returned after batch `number`."""
        row = self._one(
            "SELECT chain_index, previous_hash FROM transitions WHERE batch > ? ORDER BY chain_index LIMIT 1",
            number,
        )
        return (row[0], row[1]) if row else self.head()

    def keep_rules(self, digest: str, texts: str) -> None:
        with self._transaction():
            self._db.execute("INSERT OR IGNORE INTO rulesets VALUES (?, ?)", (digest, texts))

    def rules(self, digest: str) -> str:
        row = self._one("SELECT texts FROM rulesets WHERE digest = ?", digest)
        if row is None:
            raise StoreError("damaged", f"{self.path}: the rules {digest[:12]} are not kept")
        return str(row[0])

    def commit(self, commit: Commit) -> None:
        """Make a batch durable as a whole, or raise StoreError and change nothing."""
        record = commit.record
        with self._transaction():
            text = orjson.dumps(asdict(record)).decode()
            self._db.execute("INSERT INTO batches VALUES (?, ?)", (record.number, text))
            reached = dict(commit.positions)
            reached |= {TopicPartition(r.topic, r.partition): (r.log, r.end) for r in record.ranges}
            self._db.executemany(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)",
                [(*partition, *place) for partition, place in reached.items()],
            )
            if commit.transitions:
                self._commit_transitions(commit)

    def _commit_transitions(self, commit: Commit) -> None:
        number = commit.record.number
        self._db.executemany(
            "INSERT INTO transitions (chain_index, batch, previous_hash, hash, body) VALUES (?, ?, ?, ?, ?)",
            [(t.index, number, t.previous_hash, t.hash, t.body) for t in commit.transitions],
        )
        places = {
            transition.index: self._keep_firing(commit, transition) for transition in commit.transitions
        }
        if commit.head is not None:
            head = commit.head
            values = (head.index, head.hash, head.signed_us, head.signature)
            self._db.execute("INSERT INTO heads VALUES (?, ?, ?, ?)", values)
        next_id = {name: self._next_id(name) for name in {d.notifier for d in commit.deliveries}}
        for delivery in commit.deliveries:
            name, index = delivery.notifier, delivery.index
            self._db.execute(
                "INSERT INTO outbox (notifier, id, chain_index, place) VALUES (?, ?, ?, ?)",
                (name, next_id[name], index, places[index]),
            )
            next_id[name] += 1
        self._db.executemany(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)",
            [(f"outbox/{name}", str(number)) for name, number in next_id.items()],
        )

    def _keep_firing(self, commit: Commit, transition: Transition) -> str | None:
        """Note what fires; return the place, which for an end is that of its beginning."""
        row, place = transition.row(), commit.places.get(transition.index)
        if row["transition"] == "firing":
            quiet = transition.index in commit.quiet
            values = (row["fingerprint"], transition.index, place, quiet)
            self._db.execute("INSERT OR REPLACE INTO firing VALUES (?, ?, ?, ?)", values)
            return place
        gone = self._one("DELETE FROM firing WHERE fingerprint = ? RETURNING place", row["fingerprint"])
        return gone[0] if gone else place

    def _next_id(self, notifier: str) -> int:
        return int(self.meta(f"outbox/{notifier}") or 0)

    def save_snapshot(self, number: int, body: bytes) -> None:
        """Keep the state after batch `number`, and drop what no restart can need any more."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (number, body))
            kept = self._all("SELECT number FROM snapshots ORDER BY number DESC LIMIT ?", KEEP_SNAPSHOTS)
            oldest = kept[-1][0]
            self._db.execute("DELETE FROM snapshots WHERE number < ?", (oldest,))
            self._db.execute("DELETE FROM batches WHERE number < ?", (oldest,))
            self._prune(oldest)

    def _prune(self, oldest: int) -> None:
        """Drop settled history beyond what is kept; firing alerts and what is on its way stay."""
        index, _ = self.head()
        row = self._one(
            "SELECT min(least) FROM (SELECT min(chain_index) AS least FROM firing"
            " UNION ALL SELECT min(chain_index) FROM transitions WHERE published = 0 OR batch > ?"
            " UNION ALL SELECT min(chain_index) FROM outbox WHERE outcome IS NULL OR reported = 0)",
            oldest,
        )
        needed = row[0] if row and row[0] is not None else index
        before = min(needed, index - KEEP_TRANSITIONS)
        last = self._one("SELECT hash FROM transitions WHERE chain_index = ?", before - 1)
        if before <= 0 or last is None:
            return
        self._db.execute("INSERT OR REPLACE INTO meta VALUES ('anchor', ?)", (f"{before}/{last[0]}",))
        self._db.execute("DELETE FROM transitions WHERE chain_index < ?", (before,))
        self._db.execute("DELETE FROM outbox WHERE chain_index < ?", (before,))
        self._db.execute("DELETE FROM heads WHERE chain_index < ?", (before,))

    def latest_snapshot(self) -> tuple[int, bytes] | None:
        row = self._one("SELECT number, body FROM snapshots ORDER BY number DESC LIMIT 1")
        return (row[0], row[1]) if row else None

    def batches_after(self, number: int) -> Iterator[BatchRecord]:
        """Yield the batches after a snapshot, in order."""
        for (text,) in self._all("SELECT record FROM batches WHERE number > ? ORDER BY number", number):
            yield _record(text)

    def last_batch(self) -> BatchRecord | None:
        row = self._one("SELECT record FROM batches ORDER BY number DESC LIMIT 1")
        return _record(row[0]) if row else None

    def transitions_of(self, number: int) -> list[Transition]:
        return self._transitions("batch = ? ORDER BY chain_index", number)

    def transitions(self, limit: int = 1_000) -> list[Transition]:
        """Return the newest transitions, newest first."""
        return self._transitions("true ORDER BY chain_index DESC LIMIT ?", limit)

    def all_transitions(self) -> list[Transition]:
        """Return everything kept, oldest first."""
        return self._transitions("true ORDER BY chain_index")

    def firing(self) -> list[Transition]:
        """Return the transition that opened each firing alert."""
        return self._transitions("chain_index IN (SELECT chain_index FROM firing) ORDER BY chain_index")

    def unpublished(self, limit: int) -> list[Transition]:
        return self._transitions("published = 0 ORDER BY chain_index LIMIT ?", limit)

    def _transitions(self, where: str, *values: Any) -> list[Transition]:
        chain = self.chain
        rows = self._all(
            f"SELECT chain_index, previous_hash, hash, body FROM transitions WHERE {where}", *values
        )
        return [Transition(chain, *row) for row in rows]

    def mark_published(self, first: int, last: int) -> None:
        with self._transaction():
            self._db.execute(
                "UPDATE transitions SET published = 1 WHERE chain_index BETWEEN ? AND ?", (first, last)
            )

    def heads(self) -> list[SignedHead]:
        """Return every signed head that is kept, oldest first."""
        rows = self._all("SELECT chain_index, hash, signed_us, signature FROM heads ORDER BY chain_index")
        chain = self.chain
        return [
            SignedHead(chain=chain, index=index, hash=digest, signed_us=at, signature=signature)
            for index, digest, at, signature in rows
        ]

    def head_over(self, index: int) -> SignedHead | None:
        """Return the first signed head that covers a transition."""
        row = self._one(
            "SELECT chain_index, hash, signed_us, signature FROM heads WHERE chain_index >= ?"
            " ORDER BY chain_index LIMIT 1",
            index,
        )
        if row is None:
            return None
        return SignedHead(chain=self.chain, index=row[0], hash=row[1], signed_us=row[2], signature=row[3])

    def anchors(self) -> dict[str, tuple[int, str]]:
        """Return where the kept history begins, for `verify_chain`."""
        text = self.meta("anchor")
        if text is None:
            return {}
        index, _, digest = text.partition("/")
        return {self.chain: (int(index), digest)}

    def positions(self) -> dict[TopicPartition, tuple[str, int]]:
        """Return the log and the next offset to read of every partition read so far."""
        rows = self._all("SELECT topic, partition, log, next FROM positions")
        return {TopicPartition(topic, partition): (log, offset) for topic, partition, log, offset in rows}

    def waiting(self, notifier: str, limit: int) -> list[Waiting]:
        """Return what a notifier has still to tell, oldest first.

        Only what is published: nobody is told what the history does not hold.
        """
        rows = self._all(
            "SELECT o.id, o.place, o.attempts, o.due_us,"
            " t.chain_index, t.previous_hash, t.hash, t.body"
            " FROM outbox o JOIN transitions t USING (chain_index)"
            " WHERE o.notifier = ? AND o.outcome IS NULL AND t.published = 1 ORDER BY o.id LIMIT ?",
            notifier,
            limit,
        )
        chain = self.chain
        return [_waiting(chain, row) for row in rows]

    def firing_aloud(self) -> list[Waiting]:
        """Return the transition that opened each firing alert which people are told about."""
        rows = self._all(
            "SELECT -1, f.place, 0, 0, t.chain_index, t.previous_hash, t.hash, t.body"
            " FROM firing f JOIN transitions t USING (chain_index)"
            " WHERE f.quiet = 0 AND t.published = 1 ORDER BY t.chain_index"
        )
        chain = self.chain
        return [_waiting(chain, row) for row in rows]

    def settle(
        self, notifier: str, ids: Sequence[int], outcome: str, now_us: int, detail: str | None
    ) -> None:
        """Note that notifications are delivered or given up."""
        with self._transaction():
            self._db.executemany(
                "UPDATE outbox SET outcome = ?, settled_us = ?, detail = ?, attempts = attempts + 1"
                " WHERE notifier = ? AND id = ?",
                [(outcome, now_us, detail, notifier, id) for id in ids],
            )

    def postpone(self, notifier: str, ids: Sequence[int], due_us: int, detail: str) -> None:
        """Note a failed attempt and when the next one is due."""
        with self._transaction():
            self._db.executemany(
                "UPDATE outbox SET due_us = ?, detail = ?, attempts = attempts + 1"
                " WHERE notifier = ? AND id = ?",
                [(due_us, detail, notifier, id) for id in ids],
            )

    def unreported(self, limit: int) -> list[dict[str, Any]]:
        """Return settled notifications that are not on the bus yet, each notifier's in order."""
        names = ("notifier", "id", "chain_index", "attempts", "outcome", "settled_us", "detail", "body")
        rows = self._all(
            "SELECT o.notifier, o.id, o.chain_index, o.attempts, o.outcome, o.settled_us, o.detail, t.body"
            " FROM outbox o JOIN transitions t USING (chain_index)"
            " WHERE o.outcome IS NOT NULL AND o.reported = 0 ORDER BY o.notifier, o.id LIMIT ?",
            limit,
        )
        return [dict(zip(names, row, strict=True)) for row in rows]

    def mark_reported(self, keys: Sequence[tuple[str, int]]) -> None:
        with self._transaction():
            self._db.executemany("UPDATE outbox SET reported = 1 WHERE notifier = ? AND id = ?", keys)

    def outbox_depth(self) -> int:
        row = self._one("SELECT count(*) FROM outbox WHERE outcome IS NULL")
        return int(row[0]) if row else 0

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _store_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        rows = self._all(sql, *values)
        return rows[0] if rows else None

    def _all(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with _store_errors(self.path), closing(self._db.execute(sql, values)) as cursor:
            return cursor.fetchall()


def _waiting(chain: str, row: tuple[Any, ...]) -> Waiting:
    id, place, attempts, due_us, *transition = row
    return Waiting(id, place, attempts, due_us, Transition(chain, *transition))


def _record(text: str) -> BatchRecord:
    values = orjson.loads(text)
    values["ranges"] = tuple(Range(**r) for r in values["ranges"])
    values["behind"] = tuple(tuple(b) for b in values["behind"])
    return BatchRecord(**values | {"lake": tuple(values["lake"]), "accepted": tuple(values["accepted"])})


@contextmanager
def _store_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "full" in text:
            raise StoreError("full", f"{path}: no room left: {text}") from error
        if "malformed" in text or "not a database" in text:
            raise StoreError("damaged", f"{path}: {text}") from error
        reason = "unreadable" if "unable to open" in text else "unwritable"
        raise StoreError(reason, f"{path}: {text}") from error
    except OSError as error:
        raise StoreError("unwritable", f"{path}: {error.strerror or error}") from error
