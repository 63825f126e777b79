"""A collector of a kernel log that is killed again and again: `python -m tests.faults.kernel_log_child FOLDER OUTLET KILLS`.

The process that is killed is a fork of this one, so that its life is spent reading, not importing.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.bus.local import LocalBus
from contract.clock import SystemClock
from contract.config import HallSection
from contract.metrics import Metrics
from contract.streams import STREAMS
from ingest.collector import Context
from ingest.gpu.kernel_log import KernelLogCollector, KernelLogConfig
from ingest.source import Source, SourceMetrics
from ingest.spool import DirectOutlet, Outlet, SpoolOutlet

LONGEST_LIFE_SECONDS = 0.4


@contextmanager
def open_source(folder: Path, kind: str) -> Iterator[tuple[Source, Outlet]]:
    """Open the source that reads `FOLDER/kern.log`, as `hallwatch collect` does, and where it puts its events."""
    clock, hall = SystemClock(), HallSection(name="test")
    bus = LocalBus(folder / "bus", fsync=False)
    bus.ensure_topics(STREAMS.values())
    outlet: Outlet = (
        DirectOutlet(bus) if kind == "direct" else SpoolOutlet(folder / "spool", bus, fsync=False)
    )
    config = KernelLogConfig(
        collector="gpu-kernel-log", host="h1", source="file", path=folder / "kern.log", start="beginning"
    )
    collector = KernelLogCollector(config, Context(hall=hall, clock=clock))
    try:
        metrics = SourceMetrics(Metrics())
        yield Source(config, collector, outlet, hall, secrets.token_hex(8), clock, metrics), outlet
    finally:
        outlet.close()
        bus.close()


def live(folder: Path, kind: str) -> None:
    """Read for ever."""
    with open_source(folder, kind) as (source, _):
        while True:
            source.poll()
            time.sleep(random.uniform(0, 0.005))


def kill_again_and_again(
    live: Callable[[], None], kills: int, begun: Callable[[], bool] = lambda: True
) -> None:
    """Let it live for a moment, from when it has begun, and kill it, so many times."""
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            try:
                live()
            finally:
                os._exit(1)
        while not begun():
            time.sleep(0.001)
        time.sleep(random.uniform(0.05, LONGEST_LIFE_SECONDS))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit("it died before it was killed")


def main() -> None:
    """Kill the reader of a folder's log."""
    folder, kind, kills = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    kill_again_and_again(lambda: live(folder, kind), kills)


if __name__ == "__main__":
    main()
