"""The lake: one Delta table per stream, whose commits carry rows and bus offsets together.

The offset of every (log, partition) is a Delta application transaction `sink/{log}/{partition}` in the commit
that adds its rows, so both are there or neither. Two writers of one partition conflict and one is refused; two
writers of different partitions never meet.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Field, PostCommitHookProperties, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from analytics import deltalog
from analytics.parquet import (
    DATE_COLUMN,
    FRESH,
    Reached,
    WrittenFile,
    nothing,
    statistics_columns,
    to_lake,
    write_file,
)
from contract.errors import CommitRefused, StoreError
from contract.files import sync
from contract.log import Log
from contract.stream import Stream

CHECKPOINT_EVERY = 10
"""Versions between Delta checkpoints: each entry after the last costs every commit 4 ms."""

LOG_KEPT = "interval 1 days"
"""How far back a version can be named."""

# Checkpoints are written, and made durable, by `LakeTable`; old log entries are removed after a snapshot of the
# marks, which needs them no longer.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)

_log = Log("lake")


class Progress(NamedTuple):
    """How far a commit moves one partition: from the offset that must be stored, to the next one to read."""

    start: int | None
    end: int


class Lake:
    """A folder of Delta tables, one per stream.

    `marks_kept_hours` is how long a silent source's sequences are remembered: longer than bus and spool together
    keep an event, or a late resend would be stored twice. They are snapshotted every `snapshot_seconds`.
    """

    def __init__(
        self,
        path: Path,
        *,
        marks_kept_hours: float = 168.0,
        snapshot_seconds: float = 600.0,
        reached: Reached = nothing,
    ) -> None:
        self.path = path.resolve()
        self.marks_kept_hours = marks_kept_hours
        self.snapshot_seconds = snapshot_seconds
        self.reached = reached

    def table(self, stream: Stream) -> LakeTable | None:
        """Open a stream's table; None where there is none yet."""
        folder = self.path / stream.name
        if not deltalog.is_made(folder):
            return None
        table = LakeTable(folder, stream, reached=self.reached)
        table.add_new_columns()
        return table

    def create(self, stream: Stream, log: str, begins: Mapping[int, int]) -> LakeTable:
        """Make a stream's table, with the offset at which each partition begins; open it where it exists."""
        folder = self.path / stream.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            DeltaTable.create(
                folder,
                schema=table_schema(stream),
                mode="ignore",
                partition_by=[DATE_COLUMN],
                name=stream.name,
                description=stream.doc,
                configuration={
                    # Statistics of every column would double what a commit costs.
                    "delta.dataSkippingStatsColumns": ",".join(statistics_columns(stream)),
                    "delta.logRetentionDuration": LOG_KEPT,
                },
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(app_id(log, p), begin) for p, begin in begins.items()]
                ),
            )
            for made in (folder / "_delta_log", folder, self.path, self.path.parent):
                sync(made)
        except (DeltaError, OSError) as error:
            raise store_error(error, f"{folder} cannot be made") from error
        return LakeTable(folder, stream, reached=self.reached)


class LakeTable:
    """One stream's Delta table, as its writer holds it. Not for use by two threads."""

    def __init__(self, path: Path, stream: Stream, *, reached: Reached = nothing) -> None:
        self.path = path
        self.stream = stream
        self._reached = reached
        try:
            self._handle = DeltaTable(path)
        except (DeltaError, OSError) as error:
            raise store_error(error, f"{path} cannot be opened") from error
        self._offsets: dict[str, int | None] = {}
        self._checkpointed = self.version

    @property
    def version(self) -> int:
        """The version this object knows."""
        return self._handle.version()

    def refresh(self) -> None:
        """Take note of what others committed."""
        before = self.version
        try:
            self._handle.update_incremental()
        except (DeltaError, OSError) as error:
            raise store_error(error, f"{self.path} cannot be read") from error
        self._offsets |= deltalog.transactions(self.path, before, self.version)

    def add_new_columns(self) -> None:
        """Give the table the columns that its stream has gained; rows written before have null there.

        Raises StoreError(schema) where a column has changed its type: that needs a new version of the stream.
        """
        declared = DeltaSchema.from_arrow(table_schema(self.stream)).fields
        known = {field.name: field.type for field in self._handle.schema().fields}
        for field in declared:
            if known.get(field.name, field.type) != field.type:
                raise StoreError(
                    "schema", f"{self.path}: {field.name} is {known[field.name]}, declared is {field.type}"
                )
        new = [
            Field(field.name, field.type, nullable=True, metadata=field.metadata)
            for field in declared
            if field.name not in known
        ]
        if not new:
            return
        try:
            self._handle.alter.add_columns(new, post_commithook_properties=_NO_HOOKS)
        except (DeltaError, OSError) as error:
            raise store_error(error, f"{self.path}: columns cannot be added") from error
        self._sync_log()
        self.refresh()

    def offset(self, log: str, partition: int) -> int | None:
        """Return the next offset to read, as of `version`; None for a log this table never heard of."""
        app = app_id(log, partition)
        if app not in self._offsets:
            self._offsets[app] = self._handle.transaction_version(app)
        return self._offsets[app]

    def files(self) -> list[str]:
        """Return the files of `version`, as paths."""
        return [unquote(uri.removeprefix("file://")) for uri in self._handle.file_uris()]

    def write(self, rows: pa.Table) -> list[WrittenFile]:
        """Write rows with their LAKE_COLUMNS into new files, one per day; they belong to no version yet.

        Raises StoreError.
        """
        stored = to_lake(self.stream, rows, FRESH)
        written: list[WrittenFile] = []
        try:
            for day, part in _by_day(stored):
                written.append(write_file(self.path, self.stream, part, day, FRESH, self._reached))
        except (OSError, pa.ArrowException) as error:
            self.discard(written)
            raise store_error(error, f"{self.path}: no file could be written") from error
        return written

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Remove files that no version names."""
        for file in files:
            (self.path / file.path).unlink(missing_ok=True)

    def commit(
        self, log: str, progress: Mapping[int, Progress], files: Sequence[WrittenFile], note: str = ""
    ) -> None:
        """Add the files and move the partitions, both or neither; durable when it returns.

        Raises CommitRefused where a stored offset is not the writer's own start, StoreError where nothing was
        committed. After either the writer reloads; the files are gone.
        """
        self.refresh()
        self._check_starts(log, progress, files)
        self._reached("commit_begins")
        try:
            self._handle.create_write_transaction(
                [_add_action(file) for file in files],
                "append",
                self._handle.schema(),
                [DATE_COLUMN],
                commit_properties=CommitProperties(
                    custom_metadata={"hallwatch": note} if note else None,
                    app_transactions=[Transaction(app_id(log, p), at.end) for p, at in progress.items()],
                ),
                post_commithook_properties=_NO_HOOKS,
            )
        except Exception as error:  # noqa: BLE001 - whatever it was, the outcome is unknown
            self._settle(log, progress, files, error)
        self._reached("committed")
        self._sync_log()
        self._reached("commit_synced")

    def clean_log(self) -> None:
        """Remove log entries of more than LOG_KEPT that a checkpoint covers; raise StoreError.

        Each entry that lies there costs every commit: 20,000 of them 0.2 s. Call it only when the marks have been
        snapshotted since.
        """
        try:
            self._handle.cleanup_metadata()
        except (DeltaError, OSError) as error:
            raise store_error(error, f"{self.path}: the log cannot be cleaned") from error

    def _check_starts(self, log: str, progress: Mapping[int, Progress], files: Sequence[WrittenFile]) -> None:
        for partition, at in progress.items():
            stored = self.offset(log, partition)
            if stored != at.start:
                self.discard(files)
                raise CommitRefused(
                    f"{self.stream.name}/{partition}: offset {stored} is stored, this writer began at {at.start}"
                )

    def _settle(
        self, log: str, progress: Mapping[int, Progress], files: Sequence[WrittenFile], error: Exception
    ) -> None:
        """Find out whether a commit that raised happened; return when it did."""
        before = self.version
        self.refresh()
        stored = {p: self.offset(log, p) for p in progress}
        added = set(deltalog.files_added(self.path, before, self.version))
        if all(stored[p] == at.end for p, at in progress.items()) and added.issuperset(f.path for f in files):
            return
        self.discard(files)
        if any(stored[p] != at.start for p, at in progress.items()):
            raise CommitRefused(f"{self.stream.name}: another writer committed first: {error}") from error
        raise store_error(error, f"{self.path}: the commit failed") from error

    def _sync_log(self) -> None:
        """Make every entry since `version` durable, and checkpoint now and then."""
        newest = deltalog.newest_version(self.path, self.version)
        try:
            for version in range(self.version + 1, newest + 1):
                sync(deltalog.entry_path(self.path, version))
            sync(self.path / "_delta_log")
            if newest - self._checkpointed >= CHECKPOINT_EVERY:
                self._checkpointed = newest
                self._write_checkpoint()
        except (DeltaError, OSError) as error:
            raise store_error(error, f"{self.path}: the log is not durable") from error

    def _write_checkpoint(self) -> None:
        self.refresh()
        self._handle.create_checkpoint()
        self._reached("checkpoint_written")
        for made in (self.path / "_delta_log").glob(f"{self.version:020}.checkpoint*.parquet"):
            sync(made)
        sync(self.path / "_delta_log" / "_last_checkpoint")
        sync(self.path / "_delta_log")


def app_id(log: str, partition: int) -> str:
    """Return the Delta application id under which a partition's offset is stored."""
    return f"sink/{log}/{partition}"


def table_schema(stream: Stream) -> pa.Schema:
    """Return the Arrow schema of a stream's table, its partition column included."""
    return stream.lake_schema.append(
        pa.field(DATE_COLUMN, pa.date32(), metadata={"doc": "Day of `_received`, UTC: the partition."})
    )


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def store_error(error: Exception, doing: str) -> StoreError:
    """Turn what the file system or a library raised into one of the few reasons."""
    words = str(error)
    told = re.search(r"os error (\d+)", words)  # how a Rust library names an errno
    number = int(told[1]) if told else getattr(error, "errno", None)
    if number in _FULL:
        reason = "full"
    elif number == errno.ENOENT:
        reason = "unreadable"
    else:
        reason = "unwritable"
    return StoreError(reason, f"{doing}: {words[:500]}")


def _by_day(rows: pa.Table) -> list[tuple[date, pa.Table]]:
    days = pc.cast(rows.column("_received"), pa.date32())
    found = sorted(pc.unique(days).to_pylist())
    if len(found) == 1:
        return [(found[0], rows)]
    return [(day, rows.filter(pc.equal(days, pa.scalar(day, pa.date32())))) for day in found]


def _add_action(file: WrittenFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values={DATE_COLUMN: file.day},
        modification_time=file.modified_ms,
        data_change=True,
        stats=file.stats,
    )
