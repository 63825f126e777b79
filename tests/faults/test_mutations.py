"""The nemesis notices what it is there to notice: each guard that is taken away costs or doubles something."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.nemesis.matrix import KINDS

pytestmark = [pytest.mark.faults, pytest.mark.slow]

RUN = Path(__file__).with_name("run.py")
CASES = {
    "offset_check": ("overtaken_sink", "doubled"),
    "marks": ("resend_to_another_sink", "doubled"),
    "journal_first": ("kill_engine_expiring", "phantom"),
    "resend_order": ("locked_bus", "lost"),
}
"""The guard, the fault that finds that it is gone, and what that leads to."""


def start(fault: str, mutation: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, RUN, "--bus", "local", "--only", fault, "--mutation", mutation],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """Return what each mutated run printed; they wait most of the time, so they run at once."""
    runs = {mutation: start(fault, mutation) for mutation, (fault, _) in CASES.items()}
    found = {}
    try:
        for mutation, run in runs.items():
            found[mutation], _ = run.communicate(timeout=240)
            assert run.returncode == 1, found[mutation]
    finally:
        for run in runs.values():
            run.kill()
            run.wait()
    return found


@pytest.mark.parametrize("mutation", CASES)
def test_a_guard_that_is_gone_is_noticed(mutation: str, printed: dict[str, str]) -> None:
    [row] = [line for line in printed[mutation].splitlines() if line.startswith("| 1 | local | 1 |")]
    counts = dict(zip(KINDS, map(int, row.strip("| ").split(" | ")[4:-1]), strict=True))
    assert counts[CASES[mutation][1]] > 0, printed[mutation]
    assert counts["stuck"] == counts["died"] == counts["not_struck"] == 0, printed[mutation]


@pytest.mark.parametrize("mutation", CASES)
def test_what_the_processes_of_a_run_with_a_finding_wrote_is_kept(
    mutation: str, printed: dict[str, str]
) -> None:
    [kept] = re.findall(r"local-1: what its processes said: (.*)", printed[mutation])
    assert {"sink.log", "engine.log"} <= {log.name for log in Path(kept).iterdir()}
