"""Parts end when they are told to, and when the process that started them is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contract.clock import SystemClock
from hallwatch.processes import PartDiedError, Parts

PARENT = """
import signal, sys, time
from pathlib import Path
from contract.clock import SystemClock
from hallwatch.processes import Parts
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it
folder = Path(sys.argv[1])
Parts(folder, SystemClock()).start("twin", "twin", "run", "--hosts", "1", "--quiet", "--folder", str(folder))
while not (folder / "endpoints.json").exists():
    time.sleep(0.05)
print("started", flush=True)
time.sleep(60)
"""


def processes_with(word: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in command:
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="counts processes in /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_the_parent_its_parts_end_too(tmp_path: Path, end: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        assert len(processes_with(str(tmp_path))) == 2
        parent.send_signal(end)
        assert parent.wait(10) == -end
        for _ in range(200):
            if not processes_with(str(tmp_path)):
                break
            time.sleep(0.1)
        assert processes_with(str(tmp_path)) == []
    finally:
        parent.kill()
        parent.communicate()


def test_a_part_that_is_stopped_ends_in_order(tmp_path: Path) -> None:
    parts = Parts(tmp_path / "logs", SystemClock())
    parts.start("twin", "twin", "run", "--hosts", "1", "--quiet", "--folder", str(tmp_path))
    for _ in range(200):
        if (tmp_path / "endpoints.json").exists():
            break
        time.sleep(0.1)
    parts.check()
    parts.stop("twin")
    assert (tmp_path / "logs/twin.log").read_text() == ""
    parts.check()


def test_a_part_that_ended_by_itself_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    parts = Parts(tmp_path, SystemClock())
    parts.start("sink", "sink", "--config", str(tmp_path / "none.toml"))
    with pytest.raises(PartDiedError, match=r"(?s)sink ended with 2.*none\.toml"):
        check_for_a_while(parts)
    parts.stop()


def check_for_a_while(parts: Parts) -> None:
    for _ in range(300):
        parts.check()
        time.sleep(0.1)
