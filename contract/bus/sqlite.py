"""One SQLite file that threads and processes share: opening, transactions, and errors in the bus's own words."""

from __future__ import annotations

import fcntl
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from contract.errors import LogReplaced, TransportError
from contract.files import sync

_APPLICATION_ID = 0x48574C47
_FORMAT = 1
"""Of the tables; a file of another format is refused."""

_PAGE_BYTES = 16_384
"""Several messages of 2 KB fit one page: half the disk and half the CPU that pages of 4 KB take."""

_CHECKPOINT_PAGES = 1_024
_WAL_BYTES = 64 * 2**20
"""Above this the write-ahead log is emptied as soon as no reader is in it."""

_FREE_BYTES = 2**20
"""SQLite reports some failures on a full disk as plain I/O errors; below this much space it is full."""

_REASONS = {
    sqlite3.SQLITE_BUSY: ("timeout", "others kept it locked for too long"),
    sqlite3.SQLITE_LOCKED: ("timeout", "others kept it locked for too long"),
    sqlite3.SQLITE_PROTOCOL: ("timeout", "others kept it locked for too long"),
    sqlite3.SQLITE_FULL: ("full", "the disk is full; free some space"),
    sqlite3.SQLITE_TOOBIG: ("too_large", "a value is larger than SQLite takes"),
    sqlite3.SQLITE_READONLY: ("unreachable", "it is read-only; check owner, permissions and mount"),
    sqlite3.SQLITE_CANTOPEN: (
        "unreachable",
        "it cannot be opened; check that it and its folder can be written",
    ),
    sqlite3.SQLITE_PERM: ("unreachable", "permission denied"),
    sqlite3.SQLITE_NOTADB: ("unreachable", "it is no log of ours; move it away or name another folder"),
    sqlite3.SQLITE_ERROR: (
        "unreachable",
        "it lacks what a log of ours has; move it away or restore a backup",
    ),
    sqlite3.SQLITE_CORRUPT: ("unreachable", "it is damaged; move it away or restore a backup"),
    sqlite3.SQLITE_IOERR: ("unreachable", "the disk reports an error"),
}
_MAY_BE_FULL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})

_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_held: list[Database] = []
"""Those that wait for a fork to be over."""

_leaked: list[sqlite3.Connection] = []
"""Of the parent process, never to be closed here."""


class Database:
    """One connection, opened when first needed, for one thread at a time; every failure is a TransportError.

    It stays with the file it saw first: another file in its place raises LogReplaced. It is closed while its
    process forks, so parent and child may both go on with it.
    """

    def __init__(self, file: Path, *, fsync: bool, wait_seconds: float) -> None:
        self._file, self._fsync, self._wait_seconds = file, fsync, wait_seconds
        self._identity: str | None = None
        self._closed = False
        self._generation = 0
        self._inode = 0
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        _databases.add(self)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run a block as the file's only writer, all or nothing; durable when the block is left."""
        with self._transaction(self._wait_to_write) as connection:
            self.check_file()
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Run a block on one snapshot of the file."""
        with self._transaction(_begin) as connection:
            yield connection

    def version(self) -> tuple[int, int]:
        """Return what changes when another connection has committed."""
        with self._session() as connection:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            return self._generation, version

    def used_bytes(self) -> int:
        """Return the size of the pages in use, without those that wait to be used again."""
        with self._session() as connection:
            return used_bytes(connection)

    def shrink(self) -> None:
        """Give some space back to the file system where much is free; a bounded piece of work."""
        with self._session() as connection:
            pages, free = _pages(connection)
            if free > max(pages // 4, _CHECKPOINT_PAGES):
                # As a script: `execute` stops after the first page.
                connection.executescript(f"PRAGMA incremental_vacuum({_CHECKPOINT_PAGES})")
            wal = self._file.with_name(f"{self._file.name}-wal")
            if wal.exists() and wal.stat().st_size > _WAL_BYTES:
                connection.execute("PRAGMA busy_timeout = 100")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                connection.execute(f"PRAGMA busy_timeout = {round(self._wait_seconds * 1000)}")

    def check_file(self) -> None:
        """Raise LogReplaced when the path no longer leads to the open file."""
        if self._inode != _inode(self._file):
            raise LogReplaced(f"{self._file} was removed or replaced while it was open")

    def close(self) -> None:
        """Close for good; later use raises TransportError(closed)."""
        with self._lock:
            self._closed = True
            self._disconnect()

    def hold(self) -> bool:
        """Close the connection and let nobody open it until `release`; return False where others never let go."""
        if not self._lock.acquire(timeout=self._wait_seconds):
            return False
        self._disconnect()
        return True

    def release(self) -> None:
        """Let others in again."""
        self._lock.release()

    def leave_parent(self) -> None:
        """Start anew in a process that was just forked."""
        if (
            self._connection is not None
        ):  # it could not be held: SQLite must never see it again in this process
            _leaked.append(self._connection)
            self._connection, self._closed = None, True
        self._lock = threading.Lock()

    @contextmanager
    def _transaction(self, begin: Callable[[sqlite3.Connection], None]) -> Iterator[sqlite3.Connection]:
        with self._session() as connection:
            begin(connection)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _wait_to_write(self, connection: sqlite3.Connection) -> None:
        """Begin to write, looking every other millisecond whether the present writer is done.

        SQLite by itself looks less and less often, and so lets late-comers pass for seconds.
        """
        deadline = time.monotonic() + self._wait_seconds
        connection.execute("PRAGMA busy_timeout = 5")
        try:
            while not _begin_immediate(connection):
                if time.monotonic() > deadline:
                    raise TransportError("timeout", f"{self._file}: others kept it locked for too long")
        finally:
            connection.execute(f"PRAGMA busy_timeout = {round(self._wait_seconds * 1000)}")

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        if not self._lock.acquire(timeout=self._wait_seconds):
            raise TransportError("timeout", f"{self._file}: another thread kept it for too long")
        try:
            yield self._connect()
        except sqlite3.Error as error:
            if not hasattr(error, "sqlite_errorcode"):
                raise
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                self._disconnect()
            raise explain(error, self._file) from error
        finally:
            self._lock.release()

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise TransportError("closed", f"{self._file} was closed here")
        if self._connection is None:
            connection = _connect(self._file, "rw", self._wait_seconds)
            try:
                connection.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
                self._recognise(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._generation += 1
        return self._connection

    def _recognise(self, connection: sqlite3.Connection) -> None:
        (identity,) = connection.execute("SELECT id FROM identity").fetchone()
        if self._identity not in (None, identity):
            raise LogReplaced(f"{self._file} is another log than the one read before")
        self._identity = identity
        self._inode = _inode(self._file)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _begin(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")


def _begin_immediate(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        return False
    return True


def create_database(file: Path, tables: str, wait_seconds: float) -> None:
    """Make the file with its tables unless it is there; any number of processes may try at once.

    Raises TransportError: unreachable, full, timeout.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY)
    except OSError as error:
        raise TransportError(
            "unreachable", f"{file.parent}: {error.strerror}; a folder that can be written belongs here"
        ) from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with closing(_connect(file, "rwc", wait_seconds)) as connection:
            if not _is_ours(connection, file):
                _create_tables(connection, tables)
                # The new names of the file and of its folder.
                sync(file.parent)
                sync(file.parent.parent)
    except sqlite3.Error as error:
        raise explain(error, file) from error
    finally:
        os.close(folder)


def explain(error: sqlite3.Error, file: Path) -> TransportError:
    """Return the TransportError that says what happened to the file and what to do."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    reason, words = _REASONS.get(code, ("unreachable", "it cannot be used"))
    if code in _MAY_BE_FULL and _free_bytes(file.parent) < _FREE_BYTES:
        reason, words = _REASONS[sqlite3.SQLITE_FULL]
    return TransportError(reason, f"{file}: {words} ({error})")


def used_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the pages in use, as this transaction sees them."""
    pages, free = _pages(connection)
    return (pages - free) * _PAGE_BYTES


def _pages(connection: sqlite3.Connection) -> tuple[int, int]:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return pages, free


def _connect(file: Path, mode: str, wait_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(file))}?mode={mode}",
        uri=True,
        timeout=wait_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=1_024,
    )
    try:
        # Some distributions build SQLite so that it overwrites deleted rows with zeros, at twice the cost.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA cache_size = -8192")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_ours(connection: sqlite3.Connection, file: Path) -> bool:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (format,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == 0 and tables == 0:
        return False
    if application != _APPLICATION_ID:
        raise TransportError("unreachable", f"{file} is the database of another program; name another folder")
    if format != _FORMAT:
        raise TransportError(
            "unreachable", f"{file} has format {format}, this version reads {_FORMAT}; move it away"
        )
    return True


def _create_tables(connection: sqlite3.Connection, tables: str) -> None:
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {_FORMAT}")
    for statement in tables.split(";"):
        connection.execute(statement)
    connection.execute("CREATE TABLE identity (id TEXT NOT NULL)")
    connection.execute("INSERT INTO identity VALUES (?)", (secrets.token_hex(16),))
    connection.execute("COMMIT")


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except FileNotFoundError:
        return 0


def _free_bytes(folder: Path) -> int:
    try:
        status = os.statvfs(folder)
    except OSError:
        return _FREE_BYTES
    return status.f_bavail * status.f_frsize


# SQLite counts the locks of a process in its memory. A child that inherits an open connection inherits the counts
# but not the locks, and may then write where it must not (sqlite.org/howtocorrupt.html, 2.6).


def _before_fork() -> None:
    _held[:] = [database for database in list(_databases) if database.hold()]


def _after_fork_in_parent() -> None:
    for database in _held:
        database.release()
    _held.clear()


def _after_fork_in_child() -> None:
    _held.clear()
    for database in list(_databases):
        database.leave_parent()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)
