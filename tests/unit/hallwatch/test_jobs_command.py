"""Who has which GPUs now, as the lake knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analytics.testing import SinkRig
from contract.streams.self import DEAD_LETTERS
from contract.streams.topology import JOBS
from hallwatch.commands.jobs import jobs


class Cluster(SinkRig):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, streams=(JOBS, DEAD_LETTERS))
        self.sent = 0

    def tell(self, job: str, hosts: list[str], **values: Any) -> None:
        self.clock.advance(60)
        now = [self.clock.now_us()] * len(hosts)
        row: dict[str, Any] = {"state": "running", "part": 0, "start_ts": now, **values}
        self.send(
            self.sent,
            stream=JOBS,
            source="jobs@hall-1/main",
            key=job,
            rows=len(hosts),
            ts=now,
            host=hosts,
            **row,
        )
        self.sent += 1

    def ask(self, *arguments: str) -> str:
        self.drain(self.sink())
        done = CliRunner().invoke(jobs, ["--lake", str(self.path), *arguments], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_each_job_is_a_line_with_its_gpus_and_its_first_hosts(cluster: Cluster) -> None:
    cluster.tell("4711", [f"h{n}" for n in range(6)], gpus=8, role="train", user="ann")
    cluster.tell("chat", ["h7", "h7"], part=[0, 1], gpus=4, role=["prefill", "decode"])
    cluster.tell("odd", ["h8"], state="suspended", start_ts=None)
    lines = [" ".join(line.split()) for line in cluster.ask().splitlines()]
    assert lines == [
        "since (UTC) job state role user GPUs hosts",
        "2026-06-01 00:01:00 4711 running train ann 48 h0, h1, h2, h3 and 2 more",
        "2026-06-01 00:02:00 chat running prefill+decode - 8 h7",
        "? odd suspended - - ? h8",
        "",
        "3 jobs on 8 hosts",
    ]


def test_a_job_that_ended_on_a_host_has_it_no_longer(cluster: Cluster) -> None:
    cluster.tell("4711", ["h1", "h2"], gpus=8)
    cluster.tell("4711", ["h2"], gpus=8, state="ended")
    cluster.tell("4712", ["h3"], gpus=8)
    cluster.tell("4712", ["h3"], gpus=8, state="failed")
    [row] = [json.loads(line) for line in cluster.ask("--format", "json").splitlines()]
    assert (row["job"], row["host"]) == ("4711", "h1")


def test_the_jobs_of_one_host_are_shown_with_all_their_hosts(cluster: Cluster) -> None:
    cluster.tell("4711", ["h1", "h2"], gpus=8)
    cluster.tell("4712", ["h3"], gpus=8)
    assert "4712" not in cluster.ask("--host", "h2")
    assert "h1, h2" in cluster.ask("--host", "h2")
    assert cluster.ask("--host", "h9") == "No job runs, as far as the lake knows.\n"
