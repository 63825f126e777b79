"""What Slurm says of its jobs: the JSON of `squeue --json` and `scontrol show job --json`, from 21.08 on.

Slurm REST API, `job_info` of data_parser v0.0.37 to v0.0.43: a number became an object {set, infinite, number}, a
state became a list, the nodes of `job_resources` changed shape. The flat text `nodes` is in all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from contract.errors import CollectError
from ingest.topology.hostlist import expand_hosts, expand_numbers, write_numbers

MAX_PARTS = 200_000
"""Jobs times hosts in one answer."""

_STATES = {
    "RUNNING": "running",
    "CONFIGURING": "running",
    "RESIZING": "running",
    "SUSPENDED": "suspended",
    "STOPPED": "suspended",
    "COMPLETING": "completing",
    "COMPLETED": "completed",
    "FAILED": "failed",
    "BOOT_FAIL": "failed",
    "LAUNCH_FAILED": "failed",
    "SPECIAL_EXIT": "failed",
    "CANCELLED": "cancelled",
    "REVOKED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "NODE_FAIL": "node_failed",
    "OUT_OF_MEMORY": "out_of_memory",
    "PREEMPTED": "preempted",
}
"""squeue(1), JOB STATE CODES; what is not here holds no host."""

ACTIVE = frozenset({"running", "suspended", "completing"})
"""States in which a job has its hosts."""

_NO_VALUE = 4_294_967_294  # and one more for infinite: Slurm's NO_VAL and INFINITE (slurm.h)
_GPUS = re.compile(r"\bgpu(?::[^:(),]{1,64})?:(\d{1,4})(?:\(IDX:([\d,-]{0,255})\))?")
_ALLOCATED = re.compile(r"(?:^|,)gres/gpu=(\d{1,9})(?:,|$)")

_IDENTITY = ("job_id", "array_job_id", "array_task_id", "het_job_id", "het_job_offset")

RoleOf = Callable[[Mapping[str, Any]], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    """The jobs of one list, and what of it could not be read."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """One per job and host."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Jobs that could not be read, by reason."""
    unread: set[str | None] = field(default_factory=set)
    """Who those are; None: one of whom that cannot be told."""


def read_jobs(content: bytes, role_of: RoleOf) -> JobList:
    """Read a list of jobs; a job without hosts makes no row.

    Raises CollectError: unreadable, bad_status (Slurm's own errors), too_large.
    """
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise CollectError("unreadable", f"not JSON: {error}") from error
    jobs = answer.get("jobs") if isinstance(answer, dict) else None
    if not isinstance(jobs, list):
        raise CollectError("unreadable", "no list `jobs`: is this the output of `squeue --json`?")
    if errors := answer.get("errors"):
        raise CollectError("bad_status", f"Slurm says: {_said(errors)}")
    found = JobList()
    for job in jobs:
        try:
            found.rows.extend(_parts(job, role_of))
        except (ValueError, TypeError, AttributeError, KeyError):
            found.rejected["job"] += 1
            found.unread.add(_unread_identity(job))
        if len(found.rows) > MAX_PARTS:
            raise CollectError("too_large", f"more than {MAX_PARTS} parts of jobs")
    return found


def _parts(job: Mapping[str, Any], role_of: RoleOf) -> Iterator[dict[str, Any]]:
    state = _state(job.get("job_state"))
    hosts = expand_hosts(_text(job.get("nodes")) or "") if state is not None else []
    if not hosts or state is None:
        return
    active, end_us = state in ACTIVE, _time_us(job.get("end_time"))
    shared = {
        "job": _identity(job),
        "part": 0,
        "state": state,
        "role": role_of(job),
        "start_ts": _time_us(job.get("start_time")),
        "end_ts": None if active else end_us,
        "limit_ts": end_us if active else None,
        "name": _text(job.get("name")),
        "user": _text(job.get("user_name")) or _digits(job.get("user_id")),
        "account": _text(job.get("account")),
        "partition": _text(job.get("partition")),
        "restarts": _number(job.get("restart_cnt")),
    }
    for host, (gpus, indexes) in zip(hosts, _gpus(job, len(hosts)), strict=True):
        yield {**shared, "host": host, "gpus": gpus, "gpu_indexes": indexes}


def _identity(job: Mapping[str, Any]) -> str:
    """Return a job's name as `squeue` prints it."""
    array, task = _number(job.get("array_job_id")), _number(job.get("array_task_id"))
    if array and task is not None:
        return f"{array}_{task}"
    leader, offset = _number(job.get("het_job_id")), _number(job.get("het_job_offset"))
    if leader and offset is not None:
        return f"{leader}+{offset}"
    number = _number(job["job_id"])
    if not number:
        raise ValueError("a job without a number")
    return str(number)


def _unread_identity(job: Any) -> str | None:
    """Return the name of a job that cannot be read; None where a part of its name cannot be, either."""
    if not isinstance(job, Mapping):
        return None
    numbers = [job.get(name) for name in _IDENTITY]
    plain = [number.get("number") if isinstance(number, Mapping) else number for number in numbers]
    if not all(number is None or type(number) is int for number in plain):
        return None
    try:
        return _identity(job)
    except (ValueError, KeyError):
        return None


def _state(value: Any) -> str | None:
    """Return our word for a state and its flags; a job that still completes has its hosts, however it ended."""
    said = re.split(r"[\s,+]+", value) if isinstance(value, str) else list(value or ())
    words = [_STATES.get(str(word).upper()) for word in said[:16]]
    if "completing" in words:
        return "completing"
    return next((word for word in words if word is not None), None)


def _gpus(job: Mapping[str, Any], hosts: int) -> list[tuple[int | None, str | None]]:
    """Return count and indexes of the GPUs on each host, in the order of the hosts; null where nobody says."""
    details = job.get("gres_detail")
    if isinstance(details, list) and len(details) == hosts:
        return [_detail(str(detail)) for detail in details]
    allocated = _text(job.get("tres_alloc_str"))
    if allocated is None:
        return [(None, None)] * hosts
    total = _ALLOCATED.search(allocated)
    count, rest = divmod(int(total[1]) if total else 0, hosts)
    return [(count if rest == 0 else None, None)] * hosts


def _detail(text: str) -> tuple[int, str | None]:
    """Read what a job has of one host, as in `gpu:h100:8(IDX:0-7),nic:1`."""
    count, indexes = 0, set[int]()
    for found, listed in _GPUS.findall(text[:4_096]):
        count += int(found)
        if listed:
            indexes.update(expand_numbers(listed))
    return count, write_numbers(sorted(indexes)) if len(indexes) == count and count else None


def _number(value: Any) -> int | None:
    """Return a number of any version of the API; None where it is not set, infinite or no number."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _NO_VALUE else None


def _time_us(value: Any) -> int | None:
    seconds = _number(value)
    return seconds * 1_000_000 if seconds else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _digits(value: Any) -> str | None:
    number = _number(value)
    return None if number is None else str(number)


def _said(errors: Any) -> str:
    """Return Slurm's own words, shortened."""
    first = errors[0] if isinstance(errors, list) else errors
    words = first.get("description") or first.get("error") if isinstance(first, Mapping) else first
    return str(words)[:500]
