"""A host's collector over any tree of files, with a clock that is as right as the test says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contract.config import HallSection
from contract.testing import FakeClock
from ingest.collector import Context
from ingest.host.host import HostCollector, MachineConfig
from ingest.host.timekeeping import ClockState


class FakeTimekeeper:
    """Answers with `now`."""

    def __init__(self, now: ClockState | None = None) -> None:
        self.now = now

    def state(self) -> ClockState | None:
        return self.now


def host_collector(
    procfs: Path, sysfs: Path, *, timekeeper: FakeTimekeeper | None = None, **config: Any
) -> HostCollector:
    """Return the collector of `h1`."""
    return HostCollector(
        MachineConfig(collector="host", host="h1", procfs_root=procfs, sysfs_root=sysfs, **config),
        Context(hall=HallSection(name="test"), clock=FakeClock()),
        timekeeper=timekeeper or FakeTimekeeper(),
    )
