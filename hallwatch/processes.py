"""The parts of hallwatch as child processes of one command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from contract.clock import Clock
from contract.errors import HallwatchError

STOP_SECONDS = 15.0
"""What draining may take before a part is killed; the sink's last flush is the longest step."""

_LIFELINE = "HALLWATCH_LIFELINE"
"""Set where standard input is a pipe that closes when the process that started this one is gone."""


class PartDiedError(HallwatchError):
    """A part ended by itself; its log says why."""

    reasons = frozenset({"part_died"})


@dataclass(slots=True)
class _Part:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    lifeline: int
    """Write end of its standard input; nothing is ever written."""


class Parts:
    """Starts `python -m hallwatch ...` processes, watches them, and ends them in the order of the data flow."""

    def __init__(self, logs: Path, clock: Clock) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._clock = clock
        self._parts: list[_Part] = []

    def start(self, name: str, *arguments: str) -> None:
        """Start one part; its output is added to a log file of its own. It ends when this process does."""
        log = self._logs / f"{name}.log"
        read_end, lifeline = os.pipe()
        with log.open("ab") as output, os.fdopen(read_end) as stdin:
            process = subprocess.Popen(
                [sys.executable, "-m", "hallwatch", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=stdin,
                # Ctrl-C reaches a whole process group: only this process may hear it, to end the parts in order.
                process_group=0,
                env=os.environ | {"PYTHONUNBUFFERED": "1", _LIFELINE: "1"},
            )
        self._parts.append(_Part(name, process, log, lifeline))

    def check(self) -> None:
        """Raise PartDiedError if one ended by itself."""
        for part in self._parts:
            code = part.process.poll()
            if code is not None:
                lines = part.log.read_text(errors="replace").splitlines()[-15:]
                raise PartDiedError(
                    "part_died", "\n".join([f"{part.name} ended with {code}; the end of {part.log}:", *lines])
                )

    def stop(self, *names: str) -> None:
        """End the named parts in the order they were named; where none is named all, the last started first."""
        wanted = [p for name in names for p in self._parts if p.name == name] if names else self._parts[::-1]
        for part in wanted:
            if part.process.poll() is None:
                part.process.send_signal(signal.SIGTERM)
                try:
                    part.process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    part.process.kill()
                    part.process.wait()
            os.close(part.lifeline)
            self._parts.remove(part)


def end_with_parent() -> None:
    """Let this process, if it is a part, end when the one that started it is gone, however that ended."""
    if os.environ.pop(_LIFELINE, None) is not None:
        threading.Thread(target=_watch_lifeline, name="lifeline", daemon=True).start()


def _watch_lifeline() -> None:
    while os.read(0, 1):
        pass
    # To the main thread by name: sent to the process, it would wait until that thread wakes by itself.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)
