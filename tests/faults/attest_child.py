"""A collector of evidence that is killed again and again: `python -m tests.faults.attest_child FOLDER KILLS`."""

from __future__ import annotations

import random
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.bus.local import LocalBus
from contract.clock import SystemClock
from contract.config import HallSection
from contract.metrics import Metrics
from contract.streams import STREAMS
from ingest.attestation.intake import AttestImportCollector, AttestImportConfig
from ingest.collector import Context
from ingest.source import Source, SourceMetrics
from ingest.spool import DirectOutlet
from tests.faults.kernel_log_child import kill_again_and_again


@contextmanager
def open_source(folder: Path) -> Iterator[Source]:
    """Open the source that reads `FOLDER/drop`, as `hallwatch collect` does."""
    clock, hall = SystemClock(), HallSection(name="test")
    bus = LocalBus(folder / "bus", fsync=False)
    bus.ensure_topics(STREAMS.values())
    config = AttestImportConfig(collector="attest-import", folder=folder / "drop")
    collector = AttestImportCollector(config, Context(hall=hall, clock=clock))
    try:
        metrics = SourceMetrics(Metrics())
        yield Source(config, collector, DirectOutlet(bus), hall, secrets.token_hex(8), clock, metrics)
    finally:
        collector.close()
        bus.close()


def live(folder: Path) -> None:
    """Read for ever, and say when that has begun."""
    with open_source(folder) as source:
        while True:
            source.poll()
            (folder / "alive").touch()
            time.sleep(random.uniform(0, 0.05))  # here the rows are stored and the files are not put away


def take_sign(folder: Path) -> bool:
    """Tell whether one has begun, and make ready for the next."""
    found = (folder / "alive").exists()
    (folder / "alive").unlink(missing_ok=True)
    return found


def main() -> None:
    """Kill the reader of a folder's evidence."""
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    kill_again_and_again(lambda: live(folder), kills, lambda: take_sign(folder))


if __name__ == "__main__":
    main()
