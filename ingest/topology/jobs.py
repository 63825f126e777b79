"""The collector of jobs: which run where."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self

import orjson
from pydantic import Field, model_validator

from contract.errors import CollectError, ConfigError
from contract.files import read_bounded
from contract.streams.topology import JOBS
from ingest.collector import CollectorConfig, Context, Reading, Rows, collector
from ingest.topology.command import run_command
from ingest.topology.joblist import read_csv, read_yaml
from ingest.topology.slurm import ACTIVE, JobList, RoleOf, read_jobs

MAX_BYTES = 268_435_456

_Key = tuple[str, str, int]
"""Job, host and part."""


class JobsConfig(CollectorConfig):
    """A scheduler, or a file that lists jobs."""

    path: Path | None = Field(
        default=None,
        description="A file: `.json` holds what Slurm prints, `.yaml` or `.csv` a list written by you.",
    )
    command: tuple[str, ...] = Field(
        default=(), description='Instead of a file: what prints it, like `["squeue", "--json"]`.'
    )
    interval_seconds: float = Field(
        default=30, gt=0, le=3600, description="Time from one reading to the next."
    )
    timeout_seconds: float = Field(
        default=25, gt=0, le=600, description="A reading that takes longer has failed."
    )
    stale_after_seconds: float | None = Field(
        default=None, gt=0, description="A file that was not written for so long counts as failed."
    )
    role_from: Literal["partition", "name", "account", "qos", "comment", "wckey"] = Field(
        default="partition", description="Slurm: what tells a job's role."
    )
    roles: dict[str, str] = Field(
        default_factory=dict,
        description='Slurm: role by pattern of that, like `{"train-*" = "train", "serve" = "inference"}`; the first '
        "that fits counts.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (not self.command):
            raise ValueError("one of `path` and `command` says where jobs are listed")
        if self.path is not None and self.path.suffix not in _READERS:
            raise ValueError(f"path: ends in none of {', '.join(_READERS)}")
        if self.command and self.stale_after_seconds is not None:
            raise ValueError("stale_after_seconds: of a file only")
        return self


@collector("jobs", JobsConfig, (JOBS,))
class JobsCollector:
    """Tells which job runs on which GPUs of which hosts, whose it is, and what its processes do there.

    ```toml
    [[ingest.collectors]]
    collector = "jobs"
    command = ["squeue", "--json"]        # or `scontrol show job --json`
    role_from = "partition"
    roles = {"train-*" = "train", "serve" = "inference"}
    ```

    Where a scheduler's output is written to a file, name it: `path = "/run/slurm/jobs.json"`. Without Slurm, list
    jobs in YAML, or in a CSV file with the columns job, hosts, role, gpus, ranks, start, end, user, account, name:

    ```yaml
    jobs:
      - job: llama-70b
        user: ann
        start: 2026-06-01T08:00:00Z       # with `end` it is over
        hosts: h100-a[01-02]-[01-04]      # as Slurm writes lists
        gpus: 0-7
        role: train
        ranks: 0-63                       # spread over the hosts in their order
      - job: chat
        parts:
          - {hosts: h100-b01-01, gpus: 0-3, role: prefill}
          - {hosts: h100-b01-01, gpus: 4-7, role: decode}
    ```

    Needs the right to see all users' jobs (Slurm's `PrivateData` may hide them), and nothing else. A poll costs
    Slurm's controller one `squeue` and us the reading of what it prints; a file is read only when it changes.

    A row is sent when a job's part on a host begins, changes or ends. A job that has left the list unseen is `ended`.
    One that is in it and cannot be read is counted and stays as it was; where not even its number can be, nothing ends.
    Where Slurm does not answer, or a file is unreadable, wrong or empty, nothing has ended: the reading has failed,
    and the jobs stay as they were.
    """

    def __init__(self, config: JobsConfig, context: Context) -> None:
        self._config = config
        self._clock = context.clock
        self._published: dict[_Key, dict[str, Any]] = {}
        self._cursor = b""
        self._next: tuple[dict[_Key, dict[str, Any]], bytes] | None = None
        """The two after the reading that is made; until its rows are queued it may have to be made again."""
        self._looks: tuple[int, ...] | None = None
        """What the file looked like when it was last read."""

    def collect(self, now_us: int) -> Reading:
        if self._next is not None:
            self._next = self._looks = None
        if self._config.path is None:
            content = run_command(
                self._config.command, timeout_seconds=self._config.timeout_seconds, most_bytes=MAX_BYTES
            )
            return self._compare(read_jobs(content, self._role_of), now_us)
        looks = self._look(self._config.path)
        if looks == self._looks:
            return Reading()
        try:
            content = read_bounded(self._config.path, MAX_BYTES)
            found = _READERS[self._config.path.suffix](content, str(self._config.path), self._role_of)
        except ConfigError as error:
            raise CollectError("unreadable", str(error)) from error
        if self._look(self._config.path) != looks:
            return Reading()  # it changes under the reading: the next one sees all of it
        self._looks = looks
        return self._compare(found, now_us)

    def cursor(self) -> bytes:
        if self._next is not None:  # it is asked for when all rows of the reading are queued with it
            (self._published, self._cursor), self._next = self._next, None
        return self._cursor

    def restore(self, cursor: bytes) -> None:
        try:
            rows = orjson.loads(zlib.decompress(cursor))
            self._published = {_key(row): row for row in rows}
        except (zlib.error, ValueError, TypeError, KeyError):
            return
        self._cursor = cursor

    def close(self) -> None:
        pass

    def _look(self, path: Path) -> tuple[int, ...]:
        try:
            stat = os.stat(path)  # noqa: PTH116 - one call, all fields
        except OSError as error:
            raise CollectError("unreachable", f"{path}: {error.strerror}") from error
        age, limit = self._clock.now_us() / 1e6 - stat.st_mtime, self._config.stale_after_seconds
        if limit is not None and age > limit:
            raise CollectError("no_data", f"{path} was not written for {age:.0f} s")
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _role_of(self, job: Mapping[str, Any]) -> str | None:
        said = job.get(self._config.role_from)
        if not isinstance(said, str):
            return None
        return next(
            (role for pattern, role in self._config.roles.items() if fnmatchcase(said, pattern)), None
        )

    def _compare(self, found: JobList, now_us: int) -> Reading:
        current = {_key(row): row for row in found.rows}
        changed = [row for key, row in current.items() if row != self._published.get(key)]
        gone = {
            key: row
            for key, row in self._published.items()
            if key not in current and found.unread.isdisjoint((row["job"], None))
        }
        ended = [
            {**row, "state": "ended", "end_ts": now_us, "limit_ts": None}
            for row in gone.values()
            if row["state"] in ACTIVE
        ]
        if changed or gone:
            kept = {key: row for key, row in self._published.items() if key not in gone}
            published = {**kept, **current}
            self._next = published, zlib.compress(orjson.dumps(list(published.values())), 1)
        sent = [*changed, *ended]
        return Reading(rows=[Rows.gather(JOBS, sent)] if sent else [], rejected=found.rejected)


def _key(row: Mapping[str, Any]) -> _Key:
    return row["job"], row["host"], row["part"]


_Reader = Callable[[bytes, str, RoleOf], JobList]

_READERS: dict[str, _Reader] = {
    ".json": lambda content, _where, role_of: read_jobs(content, role_of),
    ".yaml": lambda content, where, _role_of: JobList(rows=read_yaml(content, where)),
    ".yml": lambda content, where, _role_of: JobList(rows=read_yaml(content, where)),
    ".csv": lambda content, where, _role_of: JobList(rows=read_csv(content, where)),
}
