"""The collector of jobs: only changes are sent, what ends ends once, and silence ends nothing."""

import os
import sys
from datetime import datetime
from pathlib import Path

import orjson
import pytest

from contract.config import HallSection
from contract.errors import CollectError, ConfigError
from contract.streams.topology import JOBS
from contract.testing import START_US, FakeClock
from ingest.collector import Context
from ingest.registry import read_table
from ingest.testing import rows_of
from ingest.topology.joblist import read_csv, read_yaml
from ingest.topology.jobs import JobsCollector, JobsConfig


def job(number, nodes="h1", state="RUNNING", **more):
    return {"job_id": number, "job_state": state, "nodes": nodes, "partition": "train-a", "name": "x", **more}


class Scheduler:
    """A file of Slurm's output and the collector that reads it."""

    def __init__(self, path: Path, **values) -> None:
        self.path = path
        self.values = values
        self.written = 0
        self.clock = FakeClock()
        self.start()

    def start(self, cursor: bytes = b"") -> None:
        config = JobsConfig(collector="jobs", path=self.path, **self.values)
        self.collector = JobsCollector(config, Context(hall=HallSection(name="demo"), clock=self.clock))
        if cursor:
            self.collector.restore(cursor)

    def says(self, *jobs, content: bytes | None = None) -> None:
        self.written += 1
        beside = self.path.with_suffix(".new")
        beside.write_bytes(orjson.dumps({"jobs": jobs}) if content is None else content)
        seconds = START_US // 1_000_000 + self.written
        os.utime(beside, (seconds, seconds))
        beside.replace(self.path)

    def look(self):
        """Return (job, host, state) of what one look sends."""
        self.rows = rows_of(self.collector.collect(START_US + 60_000_000), JOBS)
        self.collector.cursor()  # as the runner does when it has the rows
        return [(row["job"], row["host"], row["state"]) for row in self.rows]


@pytest.fixture
def slurm(tmp_path):
    return Scheduler(tmp_path / "jobs.json", roles={"train-*": "train", "*": "other"})


def test_what_did_not_change_is_not_sent_again(slurm):
    slurm.says(job(1), job(2, "h[2-3]"))
    assert slurm.look() == [("1", "h1", "running"), ("2", "h2", "running"), ("2", "h3", "running")]
    assert slurm.rows[0]["role"] == "train"
    assert slurm.look() == []
    slurm.says(job(1), job(2, "h[2-3]"), job(3, "h4"))
    assert slurm.look() == [("3", "h4", "running")]


def test_a_job_that_ends_says_how_once(slurm):
    slurm.says(job(1))
    slurm.look()
    slurm.says(job(1, state="FAILED", end_time=1_780_272_030))
    assert slurm.look() == [("1", "h1", "failed")]
    assert slurm.rows[0]["end_ts"] == datetime(2026, 6, 1, 0, 0, 30)  # noqa: DTZ001 - as the lake has it
    slurm.says()
    assert slurm.look() == []


def test_a_job_that_left_the_list_has_ended_now(slurm):
    slurm.says(job(1, "h[1-2]"), job(2, "h3"))
    slurm.look()
    slurm.says(job(1, "h1"))
    assert slurm.look() == [("1", "h2", "ended"), ("2", "h3", "ended")]
    assert {row["end_ts"] for row in slurm.rows} == {datetime(2026, 6, 1, 0, 1)}  # noqa: DTZ001
    slurm.says(job(1, "h1"), job(9, "h9"))
    assert slurm.look() == [("9", "h9", "running")]


def test_a_requeued_job_ends_and_begins_again(slurm):
    slurm.says(job(1))
    slurm.look()
    slurm.says(job(1, "", "PENDING"))
    assert slurm.look() == [("1", "h1", "ended")]
    slurm.says(job(1, restart_cnt=1))
    assert slurm.look() == [("1", "h1", "running")]
    assert slurm.rows[0]["restarts"] == 1


@pytest.mark.parametrize("content", [b"", b'{"jobs": [', b'{"jobs": [], "errors": ["away"]}'])
def test_an_answer_that_is_none_ends_nothing(slurm, content):
    slurm.says(job(1))
    slurm.look()
    slurm.says(content=content)
    for _ in range(2):
        with pytest.raises(CollectError):
            slurm.look()
    slurm.says(job(1))
    assert slurm.look() == []


def test_a_job_that_cannot_be_read_stays_as_it_was_and_holds_back_no_other(slurm):
    slurm.says(job(1, "h[1-2]"), job(2, "h3"))
    slurm.look()
    slurm.says(job(1, "h["), job(4, "h4"))
    assert slurm.look() == [("4", "h4", "running"), ("2", "h3", "ended")]
    slurm.says(job(1, "h["), job(4, "h4"))
    assert slurm.look() == []
    slurm.says(job(1, "h1"), job(4, "h4"))
    assert slurm.look() == [("1", "h2", "ended")]


@pytest.mark.parametrize("broken", [7, job(None), job(1, "h[", array_job_id=1, array_task_id="?")])
def test_where_nobody_can_tell_which_job_cannot_be_read_nothing_ends(slurm, broken):
    slurm.says(job(1), job(2, "h2"))
    slurm.look()
    slurm.says(broken, job(3, "h3"))
    assert slurm.look() == [("3", "h3", "running")]
    slurm.says(job(3, "h3"))
    assert slurm.look() == [("1", "h1", "ended"), ("2", "h2", "ended")]


def test_a_reading_whose_rows_were_not_taken_is_made_again(slurm):
    slurm.says(job(1), job(2, "h2"))
    slurm.look()
    before = slurm.collector.cursor()
    slurm.says(job(2, "h2", "COMPLETING"))
    told = [rows_of(slurm.collector.collect(START_US), JOBS) for _ in range(2)]  # nobody asks for the cursor
    assert [row["state"] for row in told[0]] == ["completing", "ended"]
    assert told[0] == told[1]
    assert slurm.collector.cursor() != before
    assert slurm.look() == []


def test_a_restart_sends_what_changed_meanwhile_and_nothing_else(slurm):
    slurm.says(job(1), job(2, "h2"))
    slurm.look()
    cursor = slurm.collector.cursor()
    slurm.start(cursor)
    assert slurm.look() == []
    slurm.says(job(2, "h2"))
    slurm.start(cursor)
    assert slurm.look() == [("1", "h1", "ended")]


@pytest.mark.parametrize("cursor", [b"x", b"x\x9c", b"\x00" * 40])
def test_a_cursor_that_cannot_be_read_sends_all(slurm, cursor):
    slurm.says(job(1))
    slurm.start(cursor)
    assert slurm.look() == [("1", "h1", "running")]


def test_a_file_that_nobody_writes_any_more_is_a_failure(tmp_path):
    slurm = Scheduler(tmp_path / "jobs.json", stale_after_seconds=120)
    slurm.says(job(1))
    slurm.look()
    slurm.clock.advance(121)
    assert slurm.look() == []
    slurm.clock.advance(1)
    with pytest.raises(CollectError) as raised:
        slurm.look()
    assert raised.value.reason == "no_data"


def test_a_file_that_is_not_there_is_unreachable_and_one_without_end_too_large(slurm, monkeypatch):
    with pytest.raises(CollectError) as raised:
        slurm.look()
    assert raised.value.reason == "unreachable"
    monkeypatch.setattr("ingest.topology.jobs.MAX_BYTES", 10)
    slurm.says(job(1))
    with pytest.raises(CollectError, match="larger than 10 bytes"):
        slurm.look()


def by_command(*command, **values):
    config = JobsConfig(collector="jobs", command=command, **values)
    return JobsCollector(config, Context(hall=HallSection(name="demo"), clock=FakeClock()))


def test_a_command_is_asked_each_time_without_a_shell():
    said = orjson.dumps({"jobs": [job(1, comment="$HOME")]}).decode()
    collector = by_command(
        sys.executable, "-c", f"print({said!r})", role_from="comment", roles={"$HOME": "train"}
    )
    [row] = rows_of(collector.collect(START_US), JOBS)
    assert (row["job"], row["role"]) == ("1", "train")
    collector.cursor()
    assert collector.collect(START_US).rows == []


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('no controller')", "bad_status"),
        ("import time; time.sleep(60)", "timeout"),
        ("import subprocess; subprocess.run(['sleep', '60'])", "timeout"),
        ("print('x' * 100_000_000)", "too_large"),
        ("print('squeue: error')", "unreadable"),
    ],
)
def test_a_command_that_fails_hangs_or_floods_is_a_failed_reading(program, reason, monkeypatch):
    monkeypatch.setattr("ingest.topology.jobs.MAX_BYTES", 1_000_000)
    seconds = 0.3 if reason == "timeout" else 30
    with pytest.raises(CollectError) as raised:
        by_command(sys.executable, "-c", program, timeout_seconds=seconds).collect(START_US)
    assert raised.value.reason == reason


def test_a_command_that_is_not_there_is_unreachable():
    with pytest.raises(CollectError) as raised:
        by_command("/nowhere/squeue").collect(START_US)
    assert raised.value.reason == "unreachable"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "one of `path` and `command`"),
        ({"path": "a.json", "command": ["squeue"]}, "one of `path` and `command`"),
        ({"path": "a.txt"}, "ends in none of"),
        ({"command": ["squeue"], "stale_after_seconds": 5}, "of a file only"),
        ({"path": "a.json", "role_from": "colour"}, "role_from"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(table, words):
    with pytest.raises(ConfigError, match=words):
        read_table({"collector": "jobs", **table}, "here")


LIST = """\
jobs:
- job: llama
  user: ann
  start: 2026-06-01T00:00:00Z
  hosts: h[1-2]
  gpus: 0-7
  role: train
  ranks: 0-15
- job: chat
  start: 2026-06-01T02:00:00+02:00
  end: 2026-06-01T01:00:00Z
  parts:
  - {hosts: h3, gpus: 0-3, role: prefill}
  - {hosts: h3, gpus: "4,5", role: decode, ranks: 4-5}
"""


def yaml_rows(text):
    return [{k: v for k, v in row.items() if v is not None} for row in read_yaml(text.encode(), "jobs.yaml")]


def test_a_list_of_jobs_spreads_ranks_over_hosts_in_their_order():
    first, second, prefill, decode = yaml_rows(LIST)
    assert first == {
        "job": "llama",
        "host": "h1",
        "part": 0,
        "state": "running",
        "role": "train",
        "first_rank": 0,
        "last_rank": 7,
        "gpus": 8,
        "gpu_indexes": "0-7",
        "start_ts": START_US,
        "user": "ann",
    }
    assert (second["host"], second["first_rank"], second["last_rank"]) == ("h2", 8, 15)
    assert (prefill["part"], prefill["role"], prefill["gpus"]) == (0, "prefill", 4)
    assert (decode["part"], decode["role"], decode["gpu_indexes"], decode["first_rank"]) == (
        1,
        "decode",
        "4-5",
        4,
    )
    assert (decode["state"], decode["start_ts"], decode["end_ts"]) == (
        "completed",
        START_US,
        START_US + 3_600_000_000,
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("hosts: h[1-2]", "hosts: h[1-", "jobs.yaml:5: jobs.0.hosts: 'h[1-' is no list of hosts"),
        (
            "gpus: 0-7",
            "gpus: all",
            "jobs.yaml:6: jobs.0.gpus: 'all' where a number or a range like 0-3 belongs",
        ),
        (
            "ranks: 0-15",
            "ranks: 0-14",
            "jobs.yaml:2: jobs.0: ranks: 15 ranks are not spread evenly over 2 hosts",
        ),
        ("- job: chat", "- job: llama", "jobs.yaml:9: jobs.1.job: 'llama' is on line 2 already"),
        (
            "  hosts: h[1-2]\n",
            "",
            "jobs.yaml:2: jobs.0: hosts: one of `hosts` and `parts` says where it runs",
        ),
        (
            "end: 2026-06-01T01",
            "end: 2026-05-01T01",
            "jobs.yaml:9: jobs.1: end: before `start`",
        ),
        (
            "start: 2026-06-01T00:00:00Z",
            "start: 2026-06-01T00:00:00",
            "jobs.yaml:4: jobs.0.start: Input should have timezone info",
        ),
        ("user: ann", "colour: red", "jobs.yaml:3: jobs.0.colour: unknown key"),
        ("role: prefill", "role: pre fill", "jobs.yaml:13: jobs.1.parts.0.role: String should match pattern"),
    ],
)
def test_a_mistake_in_a_list_is_named_with_its_line(old, new, expected):
    assert old in LIST
    with pytest.raises(ConfigError) as raised:
        yaml_rows(LIST.replace(old, new, 1))
    [line] = str(raised.value).split("\n")
    assert line.startswith(expected)


def test_a_table_of_jobs_adds_up_the_lines_of_one_job():
    text = "job,hosts,gpus,role,start\nchat,h3,0-3,prefill,2026-06-01T00:00:00Z\nchat,h3,4-7,decode,\nx,h[1-2],,,\n"
    rows = read_csv(b"\xef\xbb\xbf" + text.encode(), "jobs.csv")
    assert [(row["job"], row["host"], row["part"], row["role"]) for row in rows] == [
        ("chat", "h3", 0, "prefill"),
        ("chat", "h3", 1, "decode"),
        ("x", "h1", 0, None),
        ("x", "h2", 0, None),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("job,hosts\nx,h[1-\n", "jobs.csv:2: hosts: 'h[1-' is no list of hosts"),
        ("job,where\nx,h1\n", "jobs.csv:2: hosts: missing"),
        ("job,hosts\nx,h1,3\n", "jobs.csv:2: too many cells: unknown key"),
        ('job,hosts\n"x,h1\n', "jobs.csv: not CSV: unexpected end of data"),
    ],
)
def test_a_mistake_in_a_table_is_named_with_its_line(text, expected):
    with pytest.raises(ConfigError) as raised:
        read_csv(text.encode(), "jobs.csv")
    assert expected in str(raised.value)


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ConfigError, match="not CSV"):
        read_csv(b"job,hosts\n\xff\xfe\n", "jobs.csv")
