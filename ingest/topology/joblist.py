"""Jobs as people or scripts write them where there is no Slurm: a YAML or a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, ValidationError, model_validator

from contract.config import StrictConfig
from contract.errors import ConfigError
from contract.yamltext import Place
from ingest.topology.handwritten import read_entry, words
from ingest.topology.hostlist import expand_hosts, expand_numbers, write_numbers

MAX_RANKS = 1_000_000
_MOST_LINES = 200_000
_MOST_ERRORS = 20


def _expands(text: str) -> str:
    if not expand_hosts(text):
        raise ValueError("a host belongs here, or a list like h[1-3,7]")
    return text


def _counts(text: str) -> str:
    expand_numbers(text)
    return text


Label = Annotated[str, Field(min_length=1, max_length=255)]
Role = Annotated[str, Field(pattern=r"^[^\s]+$", max_length=64)]
Hosts = Annotated[str, AfterValidator(_expands)]
Gpus = Annotated[str, AfterValidator(_counts)]
Ranks = Annotated[str, Field(pattern=r"^\d{1,7}(-\d{1,7})?$")]


class PartEntry(StrictConfig):
    """Hosts that do the same within a job."""

    hosts: Hosts
    role: Role | None = None
    gpus: Gpus | None = None
    ranks: Ranks | None = None

    @model_validator(mode="after")
    def _ranks_fit(self) -> Self:
        if self.ranks is not None:
            first, last = _ends(self.ranks)
            if not first <= last < MAX_RANKS:
                raise ValueError(f"ranks: {self.ranks!r} runs backwards, or beyond {MAX_RANKS}")
            hosts = len(expand_hosts(self.hosts))
            if (last - first + 1) % hosts:
                raise ValueError(f"ranks: {last - first + 1} ranks are not spread evenly over {hosts} hosts")
        return self


class _Job(StrictConfig):
    """What belongs to the whole job."""

    job: Annotated[str, Field(pattern=r"^[^\s]+$", max_length=64)]
    state: Literal["running", "suspended", "completed", "failed", "cancelled"] | None = None
    start: AwareDatetime | None = None
    end: AwareDatetime | None = None
    limit: AwareDatetime | None = None
    name: Label | None = None
    user: Label | None = None
    account: Label | None = None
    partition: Label | None = None

    @model_validator(mode="after")
    def _ends_after_it_began(self) -> Self:
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ValueError("end: before `start`")
        if self.state in ("running", "suspended") and self.end is not None:
            raise ValueError(f"end: of a job that is {self.state}")
        return self


class JobEntry(_Job):
    """A job of the YAML file: its hosts, or its parts."""

    hosts: Hosts | None = None
    role: Role | None = None
    gpus: Gpus | None = None
    ranks: Ranks | None = None
    parts: Annotated[tuple[PartEntry, ...], Field(max_length=10_000)] = ()

    @model_validator(mode="after")
    def _has_hosts(self) -> Self:
        if (self.hosts is None) == (not self.parts):
            raise ValueError("hosts: one of `hosts` and `parts` says where it runs")
        if self.parts and (self.gpus is not None or self.ranks is not None):
            raise ValueError("gpus, ranks: with `parts`, each part says its own")
        self.part_entries()
        return self

    def part_entries(self) -> tuple[PartEntry, ...]:
        """Return its parts; one where it names its hosts itself."""
        if self.hosts is None:
            return self.parts
        return (PartEntry(hosts=self.hosts, role=self.role, gpus=self.gpus, ranks=self.ranks),)


class JobsEntry(StrictConfig):
    """The whole YAML file."""

    jobs: tuple[JobEntry, ...]


class LineEntry(_Job, PartEntry):
    """A line of the CSV file: one part of a job."""


def read_yaml(content: bytes, where: str) -> list[dict[str, Any]]:
    """Return a row per job and host; raise ConfigError(invalid) that names each mistake with its line."""
    entry, document = read_entry(JobsEntry, content, where, "it begins with `jobs:`")
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for n, job in enumerate(entry.jobs):
        place: Place = ("jobs", n, "job")
        if job.job in seen:
            document.complain(place, f"{job.job!r} is on line {seen[job.job]} already")
        seen.setdefault(job.job, document.line(place))
        parts = dict[str, int]()
        for part in job.part_entries():
            rows += _rows(job, part, parts)
    document.stop_if_wrong()
    return rows


def read_csv(content: bytes, where: str) -> list[dict[str, Any]]:
    """Return a row per job and host of a table whose first line names its columns; lines of one job add up.

    Raises ConfigError(invalid) that names each mistake with its line.
    """
    rows: list[dict[str, Any]] = []
    errors: list[str] = []
    parts: dict[str, dict[str, int]] = {}
    try:
        lines = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        for values in lines:
            if lines.line_num > _MOST_LINES:
                errors.append(f"{where}:{lines.line_num}: more than {_MOST_LINES} lines")
                break
            try:
                entry = LineEntry.model_validate(_filled(values))
            except ValidationError as error:
                errors += [f"{where}:{lines.line_num}: {said}" for said in _complaints(error)]
            else:
                rows += _rows(entry, entry, parts.setdefault(entry.job, {}))
            if len(errors) >= _MOST_ERRORS:
                break
    except (csv.Error, UnicodeDecodeError) as error:
        errors.append(f"{where}: not CSV: {error}")
    if errors:
        raise ConfigError("invalid", "\n".join(errors[:_MOST_ERRORS]))
    return rows


def _filled(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the cells of a line that hold something; more cells than columns are an unknown key."""
    return {str(key or "too many cells"): value for key, value in values.items() if value not in ("", None)}


def _complaints(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"])
        said = words(problem["type"], problem["msg"])
        yield f"{place}: {said}" if place else said


def _rows(job: _Job, part: PartEntry, parts: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Yield a row per host of a part; `parts` counts what the job has on each host so far."""
    hosts = expand_hosts(part.hosts)
    gpus = expand_numbers(part.gpus) if part.gpus is not None else None
    first, last = _ends(part.ranks) if part.ranks is not None else (0, -1)
    share = (last - first + 1) // len(hosts)
    for n, host in enumerate(hosts):
        number = parts.get(host, 0)
        parts[host] = number + 1
        yield {
            "job": job.job,
            "host": host,
            "part": number,
            "state": job.state or ("completed" if job.end is not None else "running"),
            "role": part.role,
            "first_rank": first + n * share if share else None,
            "last_rank": first + (n + 1) * share - 1 if share else None,
            "gpus": None if gpus is None else len(gpus),
            "gpu_indexes": None if gpus is None else write_numbers(gpus),
            "start_ts": _microseconds(job.start),
            "end_ts": _microseconds(job.end),
            "limit_ts": _microseconds(job.limit),
            "name": job.name,
            "user": job.user,
            "account": job.account,
            "partition": job.partition,
        }


def _ends(ranks: str) -> tuple[int, int]:
    first, _, last = ranks.partition("-")
    return int(first), int(last or first)


def _microseconds(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1_000_000)
