"""Run a program for what it prints, within a time and a size."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import BinaryIO, cast

from contract.errors import CollectError


def run_command(command: Sequence[str], *, timeout_seconds: float, most_bytes: int) -> bytes:
    """Return what a program prints, without a shell; raise CollectError: unreachable, timeout, bad_status, too_large.

    What it started is ended with it when it is late or prints too much.
    """
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
            )
        except OSError as error:
            raise CollectError("unreachable", f"{command[0]}: {error.strerror}") from error
        late = threading.Event()

        def end_late() -> None:
            late.set()
            _end(process)

        timer = threading.Timer(timeout_seconds, end_late)
        timer.start()
        try:
            with process, cast(BinaryIO, process.stdout) as output:
                printed = output.read(most_bytes + 1)
                if len(printed) > most_bytes:
                    _end(process)
        finally:
            timer.cancel()
        if late.is_set():
            raise CollectError("timeout", f"{command[0]} ran longer than {timeout_seconds:g} s")
        if len(printed) > most_bytes:
            raise CollectError("too_large", f"{command[0]} printed more than {most_bytes} bytes")
        if process.returncode != 0:
            complaints.seek(0)
            said = complaints.read(500).decode(errors="replace").strip()
            raise CollectError("bad_status", f"{command[0]} ended with {process.returncode}: {said}")
        return printed


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
