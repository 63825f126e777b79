"""A collector's reading of one host of eight GPUs against the reference parser of the format on the same page.

The page is the twin's, in DCGM 4.6 names. Ours fetches it over HTTP, reads it and makes rows; the baseline is
`prometheus_client.parser` on the bytes alone: no HTTP, no rows. Both are CPU time of the measuring thread. The
second figure is what follows in the runner: the rows checked and encoded, beside the reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench import BenchRow, median_ratio
from prometheus_client.parser import text_string_to_metric_families

from contract.clock import SystemClock
from contract.codec import encode_json
from contract.config import HallSection
from ingest.collector import Context
from ingest.gpu.dcgm import DcgmCollector, DcgmConfig
from ingest.testing import stamped
from twin.exporter import Exporter
from twin.hall import Hall
from twin.plan import draw_plan
from twin.sensors import read
from twin.server import Exporters

REPEATS = 100


def measure() -> list[BenchRow]:
    """Return the figures; the reading must take at most 5 ms."""
    plan = draw_plan(hosts=1, seed=1)
    page = Exporter(plan.hosts[0], "4.6").page(read(Hall(plan)), 0, [True] * 8)
    with Exporters(1, lambda _: page) as exporters:
        config = DcgmConfig(collector="gpu-dcgm", host="h1", url=exporters.urls[0])
        collector = DcgmCollector(config, Context(hall=HallSection(name="bench"), clock=SystemClock()))
        rows = collector.collect(1).rows
        text = page.decode()
        ours, theirs, _ = median_ratio(
            lambda: _milliseconds(lambda: collector.collect(1)),
            lambda: _milliseconds(lambda: list(text_string_to_metric_families(text))),
        )
        sent = _milliseconds(lambda: [encode_json(part.stream, stamped(part)[0]) for part in rows])
        collector.close()
    return [
        BenchRow(
            name="read a host of 8 GPUs",
            value=ours,
            unit="ms CPU",
            baseline=theirs,
            goal="<= 5 ms",
            holds=ours <= 5,
        ),
        BenchRow(
            name="check and encode its rows",
            value=sent,
            unit="ms CPU",
            baseline=ours,
            goal="<= 20 ms",
            holds=sent <= 20,
        ),
    ]


def _milliseconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    for _ in range(REPEATS):
        work()
    return (time.thread_time() - start) / REPEATS * 1_000
