"""`hallwatch collect` as a process that is killed, doubled and left without room: nothing is lost, nothing doubled."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from contract.clock import SystemClock
from hallwatch import connect
from hallwatch.recordings.pages import PageRecording, serve
from twin.plan import draw_plan
from twin.run import Twin
from twin.scenario import Scenario

pytestmark = pytest.mark.faults

HOSTS = 3
CONFIG = """\
[hall]
name = "hall"
[bus]
fsync = false
[lake]
flush_seconds = 1
sparse_flush_seconds = 1
"""
TABLE = """\
[[ingest.collectors]]
collector = "gpu-dcgm"
host = "{host}"
url = "{url}"
interval_seconds = 0.1
"""
AUDIT = """\
WITH events AS (SELECT DISTINCT _source, _epoch, _seq, _partition, _offset FROM {stream}),
     epochs AS (SELECT count(*) AS events, count(DISTINCT _seq) AS sequences, max(_seq) + 1 AS expected,
                FROM events GROUP BY _source, _epoch)
SELECT count(*) AS epochs, sum(events) - sum(sequences) AS doubled, sum(expected) - sum(sequences) AS lost FROM epochs
"""


class Hall:
    """Three hosts whose pages never change, and the parts that were started on them."""

    def __init__(self, folder: Path, urls: dict[str, str]) -> None:
        self.folder = folder
        (folder / "hallwatch.toml").write_text(
            CONFIG + "".join(TABLE.format(host=host, url=url) for host, url in urls.items())
        )
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, part: str, *arguments: str) -> subprocess.Popen[bytes]:
        config = str(self.folder / "hallwatch.toml")
        with (self.folder / f"{part}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hallwatch", part, "--config", config, *arguments],
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        self._started.append(process)
        return process

    def log(self, part: str) -> str:
        """Return what the last process of a part has logged so far."""
        return (self.folder / f"{part}.log").read_text()

    def end(self, *parts: subprocess.Popen[bytes]) -> None:
        """Ask processes to end, one after the other."""
        for process in parts:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0

    def rows(self, stream: str = "gpu_samples") -> int:
        """Return how many rows the lake has now."""
        if not (self.folder / "lake").is_dir():
            return 0
        with connect(self.folder / "lake") as lake:
            ((count,),) = lake.sql(f"SELECT count(*) FROM {stream}").fetchall()
        return int(count)

    def audit(self, stream: str) -> tuple[int, int, int]:
        """Return of the lake: epochs, events that are there twice, events that are missing."""
        with connect(self.folder / "lake") as lake:
            (found,) = lake.sql(AUDIT.format(stream=stream)).fetchall()
        return int(found[0]), int(found[1]), int(found[2])

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def hall(tmp_path: Path) -> Iterator[Hall]:
    twin = Twin(draw_plan(hosts=HOSTS, seed=1), Scenario(injections=()), start_us=0)
    twin.step(1.0)
    pages = [
        PageRecording(name=host.name, seconds=(0.0,), pages=(twin.page(host.name),))
        for host in twin.plan.hosts
    ]
    with ExitStack() as stack:
        urls = {page.name: stack.enter_context(serve(page, SystemClock())) for page in pages}
        hall = Hall(tmp_path, urls)
        try:
            yield hall
        finally:
            hall.close()


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(300):
        if what():
            return
        time.sleep(0.1)
    raise AssertionError("did not happen within half a minute or so")


def test_killed_at_any_moment_it_loses_and_doubles_nothing(hall: Hall) -> None:
    sink = hall.start("sink")
    for _ in range(5):
        victim = hall.start("collect")
        wait_for((hall.folder / "bus" / "sources").is_dir)
        time.sleep(random.uniform(0.8, 2.0))
        victim.kill()
        victim.wait()
    last = hall.start("collect")
    before = hall.rows()
    wait_for(lambda: hall.rows() > before + HOSTS * 8 * 5)
    hall.end(last, sink)
    epochs, *bad = hall.audit("gpu_samples")
    assert epochs >= HOSTS
    assert bad == [0, 0]
    assert hall.audit("collector_status")[1:] == (0, 0)
    with connect(hall.folder / "lake") as lake:
        assert lake.sql("SELECT count(*) FROM dead_letters").fetchall() == [(0,)]
        assert lake.sql("SELECT DISTINCT count(*) FROM gpu_samples GROUP BY host, ts").fetchall() == [(8,)]


def test_a_device_is_collected_by_one_process(hall: Hall) -> None:
    first = hall.start("collect")
    wait_for(lambda: any(hall.folder.glob("bus/sources/*.claim")))
    second = hall.start("collect", "--once")
    assert second.wait(60) == 2
    assert hall.log("collect").startswith(f"hallwatch: process {first.pid} collects gpu-dcgm@")
    hall.end(first)
    assert not any(hall.folder.glob("bus/sources/*.claim"))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits another process, which only Linux can")
def test_without_room_it_waits_and_tells_and_then_goes_on_without_a_hole(hall: Hall) -> None:
    sink, collect = hall.start("sink"), hall.start("collect")
    wait_for(lambda: hall.rows() > 0)
    limits = resource.prlimit(collect.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(collect.pid, resource.RLIMIT_FSIZE, (100_000, limits[1]))  # enough for its log
    wait_for(lambda: hall.log("collect").count("source_failing") == HOSTS)
    resource.prlimit(collect.pid, resource.RLIMIT_FSIZE, limits)
    without_room = hall.rows()
    wait_for(lambda: hall.rows() > without_room + HOSTS * 8 * 10)
    hall.end(collect, sink)
    assert hall.audit("gpu_samples") == (HOSTS, 0, 0)
    assert hall.audit("collector_status") == (HOSTS, 0, 0)
    with connect(hall.folder / "lake") as lake:
        told = lake.sql("SELECT DISTINCT source FROM collector_status WHERE state = 'failing'").fetchall()
    assert len(told) == HOSTS
    events = [json.loads(line)["event"] for line in hall.log("collect").splitlines()]
    assert events.count("source_failing") == events.count("source_recovered") == HOSTS
    assert "events_lost" not in events
