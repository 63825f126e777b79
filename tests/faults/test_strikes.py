"""A fault that strikes nobody is found out: what came through it would prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.errors import LogReplaced, TransportError
from tests.faults.nemesis import rig as rigs
from tests.faults.nemesis.children import Site
from tests.faults.nemesis.disk import OWN_MOUNTS
from tests.faults.nemesis.marks import Marks, clear_marks
from tests.faults.nemesis.rig import QUICK, Child, NotStruckError, Rig, StuckError

pytestmark = pytest.mark.faults

RUN = Path(__file__).with_name("run.py")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A rig without a system; it waits for half a second."""
    rig = Rig(tmp_path, seed=1, bus="local", times=replace(QUICK, patience=0.5))
    rig.site = Site(
        folder=tmp_path, seed=1, bus="local", receiver_url="", servers="", quick=True, mutation=""
    )
    clear_marks(rig.site.marks)
    with rig.receiver:
        yield rig
    rig._kill_all()


def run_sink(rig: Rig, work: Callable[..., Any], *arguments: object) -> None:
    """Let a process that does some work be the sink."""
    process = rigs._processes.Process(target=work, args=arguments, daemon=True)
    process.start()
    ours, theirs = rigs._processes.Pipe()
    theirs.close()
    rig._children["sink"] = Child(process, ours)


def test_a_sink_that_feels_nothing_was_not_struck(rig: Rig) -> None:
    run_sink(rig, time.sleep, 60)
    Marks(rig.site.marks, "sink")("timeout")
    Marks(rig.site.marks, "engine")("full")
    with pytest.raises(NotStruckError, match="sink feels full"):
        rig.await_felt("sink", "full")


def test_a_sink_that_complains_or_is_dead_was_struck(rig: Rig) -> None:
    run_sink(rig, time.sleep, 60)
    Marks(rig.site.marks, "sink")("full")
    rig.await_felt("sink", "unwritable", "full")
    clear_marks(rig.site.marks)
    os.kill(rig.pid("sink"), signal.SIGKILL)
    rig.await_felt("sink", "full")


def test_what_was_felt_before_a_fault_does_not_count(rig: Rig) -> None:
    run_sink(rig, time.sleep, 60)
    Marks(rig.site.marks, "sink")("full")
    rig.chapter("another fault")
    with pytest.raises(NotStruckError):
        rig.await_felt("sink", "full")


def test_a_process_that_lives_on_or_ends_by_itself_was_not_killed_at_its_step(rig: Rig) -> None:
    run_sink(rig, time.sleep, 60)
    with pytest.raises(NotStruckError, match="did not reach"):
        rig.await_death("sink")
    rig.kill("sink")
    run_sink(rig, time.sleep, 0)
    with pytest.raises(NotStruckError, match="ended by itself"):
        rig.await_death("sink")


def test_a_bus_that_does_not_answer_now_is_asked_again(rig: Rig) -> None:
    asked: list[str] = []

    def ask() -> bool:
        asked.append("once more")
        if len(asked) == 1:
            raise TransportError("timeout", "no answer")
        return True

    rig.wait("the bus answers", ask)
    assert len(asked) == 2


def test_a_bus_that_never_answers_is_stuck_and_says_why(rig: Rig) -> None:
    def ask() -> bool:
        raise TransportError("timeout", "no answer")

    with pytest.raises(StuckError, match=r"the bus answers: .*no answer"):
        rig.wait("the bus answers", ask)


def test_a_bus_that_is_another_one_ends_the_waiting_at_once(rig: Rig) -> None:
    def ask() -> bool:
        raise LogReplaced("made again")

    with pytest.raises(LogReplaced):
        rig.wait("the bus answers", ask)


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """List what would be struck where nothing can be mounted: no `unshare` is on the path."""
    environment = {name: value for name, value in os.environ.items() if name != OWN_MOUNTS}
    return subprocess.run(
        [sys.executable, RUN, "--list", *arguments],
        env=environment | {"PATH": "", "HALLWATCH_NO_SKIP": ""} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_disk_faults_that_a_machine_refuses_are_named_and_fail_where_nothing_may_be_skipped() -> None:
    wanted = ("--bus", "local", "--only", "full_lake,kill_sink_polled")
    told = run(*wanted)
    assert told.returncode == 0
    assert "left out: full_lake, full_lake_at_commit" in told.stderr
    assert told.stdout.split() == ["seed", "1", "on", "local:", "kill_sink_polled"]
    assert run(*wanted, HALLWATCH_NO_SKIP="1").returncode == 1
    assert run("--bus", "local", "--only", "kill_sink_polled", HALLWATCH_NO_SKIP="1").returncode == 0


@pytest.mark.parametrize(
    "arguments", [("--only", "kil_sink"), ("--bus", "kafak"), ("--mutation", "marsk"), ("--seeds", "2-1")]
)
def test_a_run_that_would_strike_nothing_is_refused(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode != 0
