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
    """Read for ever."""
    with open_source(folder) as source:
        while True:
            source.poll()
            time.sleep(random.uniform(0, 0.005))


if __name__ == "__main__":
    kill_again_and_again(lambda: live(Path(sys.argv[1])), int(sys.argv[2]))
