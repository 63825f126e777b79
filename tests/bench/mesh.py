"""The fabric's probes: answers per second of a responder, what counting a latency costs, and percentiles in SQL.

A responder proves, remembers and signs every probe; the bare loop beside it sends back what it gets. Both serve one
sender in a process of its own, who keeps a few probes in flight. Ten million latencies are counted in a
thousand windows, written as rows of fabric_probes, merged in SQL, and compared with the exact percentiles.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Self

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from bench import BenchRow, median_ratio

from analytics.views import sql_macros
from contract.histogram import Histogram, Recorder, error_ratio, merge
from ingest.fabric.mesh_packet import PROBE, End, Keys, Packet, encode
from ingest.fabric.responder import Responder

PROBES = 4_000
IN_FLIGHT = 16
WINDOWS, VALUES_PER_WINDOW = 1_000, 10_000
RATIOS = (0.5, 0.99, 0.999)
LOOPBACK = "127.0.0.1"
KEYS = Keys([bytes(32)])


def measure() -> list[BenchRow]:
    """Return the figures; half of the bare loop's answers or more, and percentiles within the error of the buckets."""
    ours, bare, ratio = median_ratio(_answers_per_second, _echoes_per_second, rounds=9)
    recording, counting, cost = median_ratio(_records_per_second, _counts_per_second)
    latencies = _latencies()
    windows = [Histogram.of(part) for part in latencies]
    merges = _merges_per_second(windows)
    worst, seconds = _worst_error(windows, latencies)
    return [
        BenchRow(
            name="answer probes",
            value=ours,
            unit="probes/s",
            baseline=bare,
            goal=">= 0.5 x bare echo",
            holds=ratio >= 0.5,
        ),
        BenchRow(
            name="count a latency",
            value=1e6 / recording,
            unit="us",
            baseline=1e6 / counting,
            goal="<= 15 x a count in a dictionary",
            holds=cost >= 1 / 15,
        ),
        BenchRow(
            name="merge histograms",
            value=merges,
            unit="windows/s",
            baseline=None,
            goal=">= 5,000",
            holds=merges >= 5_000,
        ),
        BenchRow(
            name="1e7 latencies in 1,000 windows, merged in SQL",
            value=seconds,
            unit="s",
            baseline=None,
            goal="<= 2",
            holds=seconds <= 2,
        ),
        BenchRow(
            name="their p50, p99 and p99.9, worst error",
            value=worst,
            unit="share",
            baseline=None,
            goal="<= 0.0108",
            holds=worst <= error_ratio(),
        ),
    ]


def _answers_per_second() -> float:
    with _Asker() as asker:
        responder = Responder([End(LOOPBACK, port := _free_port())], KEYS, max_age_seconds=60)
        responder.open()
        try:
            return asker.ask(End(LOOPBACK, port))
        finally:
            responder.close()


def _echoes_per_second() -> float:
    with _Asker() as asker, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
        echo.bind((LOOPBACK, 0))
        echo.settimeout(0.2)
        stop = threading.Event()

        def run() -> None:
            while not stop.is_set():
                try:
                    content, sender = echo.recvfrom(65_535)
                except TimeoutError:
                    continue
                echo.sendto(content, sender)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            return asker.ask(End(*echo.getsockname()))
        finally:
            stop.set()
            thread.join()


class _Asker:
    """A process that asks for answers, so that it costs the one who answers nothing."""

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("fork")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_ask, args=(there,))
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.join()

    def ask(self, target: End) -> float:
        """Return how many answers a second a target gives."""
        self._here.send(target)
        rate: float = self._here.recv()
        return rate


def _ask(orders: Connection) -> None:
    """Ask a target, with a few probes in flight; send back how many answers came in a second."""
    target = orders.recv()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((LOOPBACK, 0))
        sender.settimeout(5)
        marks = End(*sender.getsockname()).mark + target.mark
        now_ns = time.time_ns()
        probes = [encode(Packet(PROBE, b"bench-01", n, now_ns), KEYS, marks) for n in range(PROBES)]
        start = time.perf_counter()
        for number, probe in enumerate(probes):
            sender.sendto(probe, target)
            if number >= IN_FLIGHT:
                sender.recv(65_535)
        for _ in range(IN_FLIGHT):
            sender.recv(65_535)
        orders.send(len(probes) / (time.perf_counter() - start))


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind((LOOPBACK, 0))
        port: int = one.getsockname()[1]
        return port


def _records_per_second() -> float:
    return _calls_per_second(Recorder().record)


def _counts_per_second() -> float:
    counts: dict[int, int] = {}

    def count(value: int) -> None:
        counts[value] = counts.get(value, 0) + 1

    return _calls_per_second(count)


def _calls_per_second(call: Callable[[int], object]) -> float:
    values = [9_000 + n * 37 % 5_000 for n in range(100_000)]
    start = time.thread_time()
    for value in values:
        call(value)
    return len(values) / (time.thread_time() - start)


def _latencies() -> list[npt.NDArray[np.int64]]:
    """Return a thousand windows: most near 9 us, one value in a hundred somewhere up to milliseconds."""
    rng = np.random.default_rng(7)
    windows = []
    for _ in range(WINDOWS):
        values = rng.lognormal(np.log(9_000), 0.08, VALUES_PER_WINDOW)
        slow = rng.random(VALUES_PER_WINDOW) < 0.01
        values[slow] += rng.pareto(1.7, int(slow.sum())) * 15_000
        windows.append(values.astype(np.int64))
    return windows


def _merges_per_second(windows: list[Histogram]) -> float:
    start = time.thread_time()
    merge(windows)
    return len(windows) / (time.thread_time() - start)


def _worst_error(windows: list[Histogram], latencies: list[npt.NDArray[np.int64]]) -> tuple[float, float]:
    """Merge in SQL; return the greatest error of a percentile, as a share of it, and the seconds it took."""
    parts = [window.columns("rtt") for window in windows]
    types = {"rtt_idx": pa.list_(pa.int16()), "rtt_cnt": pa.list_(pa.int32()), "rtt_schema": pa.int8()}
    rows = pa.table({name: pa.array([part[name] for part in parts], type) for name, type in types.items()})
    exact = np.quantile(np.concatenate(latencies), RATIOS, method="inverted_cdf")
    with duckdb.connect() as connection:
        connection.execute(sql_macros())
        connection.register("windows", rows)
        connection.execute("CREATE TABLE fabric_probes AS FROM windows")
        start = time.perf_counter()
        found = connection.execute(
            "SELECT p50_ns, p99_ns, p999_ns FROM histogram_merged('fabric_probes', 1, rtt_idx, rtt_cnt, rtt_schema)"
        ).fetchall()[0]
        seconds = time.perf_counter() - start
    return max(abs(a / b - 1) for a, b in zip(found, exact, strict=True)), seconds
