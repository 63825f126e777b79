"""A sink that kills itself at a chosen step: `python -m tests.faults.sink_child FOLDER STEP COUNT`."""

import os
import signal
import sys
import time
from pathlib import Path

from analytics.lake import Lake
from analytics.sink import Sink
from contract.bus.local import LocalBus
from contract.config import LakeSection
from contract.metrics import Metrics
from contract.streams.gpu import GPU_SAMPLES
from contract.streams.self import DEAD_LETTERS

STREAMS = (GPU_SAMPLES, DEAD_LETTERS)
GIVE_UP_SECONDS = 30.0


class Killer:
    """Ends the process, as kill -9 does, when a step is reached for the n-th time."""

    def __init__(self, step: str, count: int) -> None:
        self._step, self._left = step, count

    def __call__(self, step: str) -> None:
        if step == self._step:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def open_sink(folder: Path, killer: Killer) -> Sink:
    """Open a sink whose files hold some dozens of rows, and which snapshots its marks all the time."""
    section = LakeSection(path=folder / "lake", flush_seconds=0.05, sparse_flush_seconds=0.05, flush_rows=80)
    bus = LocalBus(folder / "bus", fsync=False)
    lake = Lake(section.path, snapshot_seconds=0.0, reached=killer)
    return Sink(section, bus, lake, synthetic=False, metrics=Metrics(), streams=STREAMS)


def main() -> None:
    """Sink until the moment of death; a sink that never gets there gives up."""
    folder, step, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    sink = open_sink(folder, Killer(step, count))
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while time.monotonic() < give_up:
        sink.step()


if __name__ == "__main__":
    main()
