"""The parts of hallwatch as child processes of one command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from contract.clock import Clock
from contract.errors import HallwatchError

STOP_SECONDS = 15.0
"""What draining may take before a part is killed; the sink's last flush is the longest step."""


class PartDiedError(HallwatchError):
    """A part ended by itself; its log says why."""

    reasons = frozenset({"part_died"})


@dataclass(slots=True)
class _Part:
    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Parts:
    """Starts `python -m hallwatch ...` processes, watches them, and ends them in the order of the data flow."""

    def __init__(self, logs: Path, clock: Clock) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = logs
        self._clock = clock
        self._parts: list[_Part] = []

    def start(self, name: str, *arguments: str) -> None:
        """Start one part; its output goes to a log file of its own."""
        log = self._logs / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "hallwatch", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                # Ctrl-C reaches a whole process group: only this process may hear it, to end the parts in order.
                process_group=0,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        self._parts.append(_Part(name, process, log))

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
        """End the named parts (all, if none is named) one after the other, in the order they were named."""
        wanted = [p for name in names for p in self._parts if p.name == name] if names else self._parts[::-1]
        for part in wanted:
            if part.process.poll() is None:
                part.process.send_signal(signal.SIGTERM)
                try:
                    part.process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    part.process.kill()
                    part.process.wait()
            self._parts.remove(part)
