"""Collectors: CPU time of one poll of one host, or of one unit of the building.

Each is measured over the files or answers of a healthy device of full size, its second and later polls. The baseline
reads the same files, or the same bytes, and turns every number in them into an int, as a loop without judgement would.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import BenchRow, median_ratio

from contract.testing import START_US
from ingest.fabric.testing import ports_collector
from twin.fabric_tree import FabricTree
from twin.plan import draw_plan

POLLS = 30


def measure() -> list[BenchRow]:
    """Return the figures of all collectors."""
    return [fabric_ports()]


def fabric_ports() -> BenchRow:
    """Poll eight InfiniBand ports of a host that works: 20 ms every 10 s is a five-hundredth of a core."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tree = FabricTree(root, draw_plan(hosts=1).hosts[0])
        tree.step(10, 0.7)
        collector = ports_collector(
            root, expected=[{"devices": list(tree.devices), "speed_gbps": 400, "width": 4}]
        )
        files = [path for path in (root / "devices").rglob("*") if path.is_file()]
        at = iter(range(START_US, 2**62, 10_000_000))

        def poll() -> None:
            collector.collect(next(at))
            collector.cursor()

        def read() -> None:
            for path in files:
                text = path.read_text().strip()
                _ = int(text) if text.isdecimal() else 0

        ours, theirs, _ratio = median_ratio(lambda: _milliseconds(poll), lambda: _milliseconds(read))
    return BenchRow(
        name="poll eight ports of a host (fabric-ports)",
        value=ours,
        unit="ms CPU",
        baseline=theirs,
        goal="<= 20",
        holds=ours <= 20,
    )


def _milliseconds(work: Callable[[], None]) -> float:
    work()
    start = time.thread_time()
    for _ in range(POLLS):
        work()
    return (time.thread_time() - start) / POLLS * 1e3
