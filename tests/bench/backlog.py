"""How fast the lake catches up with a hall of 20,000 GPUs after an outage of the sink, while the hall goes on.

A backlog is put on the bus; then a producer goes on at 20,000 rows a second, and sinks, each a process of its own with
the shipped settings, start from the beginning: on a cluster two that share the table, on the local bus one. The figure is how many seconds of the hall's time it takes in per
second until it has caught up. Bodies are those of a gateway: Arrow, the events of one partition and second in one.

`python tests/bench/backlog.py --minutes 10 --bus kafka` measures an outage as long as one likes.
"""

from __future__ import annotations

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

import halldata
import pyarrow as pa
from bench import BenchRow
from typing_extensions import override

from analytics.lake import Lake
from analytics.query import connect
from analytics.sink import Sink
from contract.bus import Bus, Record, open_bus
from contract.codec import parse_arrow
from contract.config import BusSection, LakeSection
from contract.errors import TransportError
from contract.streams import STREAMS
from tests.suites.broker import Broker, BrokerMissingError

GPUS, ROWS_PER_SECOND = 20_000, 20_000
DRAWN_SECONDS = 4
CAUGHT_UP_SECONDS = 6.0
"""As far as the newest rows of a sink that keeps up may be behind: it commits every 5 seconds."""

PATIENCE_SECONDS = 20.0
FLAT = 1.2
MIB = 2**20


class Gateway:
    """Bodies of a hall, second by second for ever: drawn ones with the times and sequences of later seconds."""

    def __init__(self) -> None:
        hall = halldata.draw(GPUS, DRAWN_SECONDS, warm_up=10)
        drawn = list(halldata.messages(hall))
        per_second = len(drawn) // DRAWN_SECONDS
        self._seconds = [
            [(m, parse_arrow(m.body)) for m in halldata.gather(drawn[at : at + per_second], per_second)]
            for at in range(0, len(drawn), per_second)
        ]
        self._began_us = time.time_ns() // 1000

    def records(self, second: int) -> Iterator[tuple[str, int, Record]]:
        """Yield what a hall sends in one second: a body for each partition."""
        for message, table in self._seconds[second % DRAWN_SECONDS]:
            now_us = self._began_us + second * 1_000_000
            changed = {
                "ts": pa.repeat(pa.scalar(now_us, pa.int64()), table.num_rows).cast(
                    table.schema.field("ts").type
                ),
                "_seq": pa.repeat(pa.scalar(second, pa.int64()), table.num_rows),
            }
            yield (
                message.topic,
                message.partition,
                Record(message.key, message.headers, _encode(table, changed)),
            )


def _encode(table: pa.Table, changed: dict[str, Any]) -> bytes:
    for name, values in changed.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), values)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    body: bytes = sink.getvalue().to_pybytes()
    return body


def fill(bus: Bus, gateway: Gateway, seconds: int) -> None:
    """Put a backlog on the bus."""
    producer = bus.producer()
    for second in range(seconds):
        for topic, partition, record in gateway.records(second):
            producer.send(topic, partition, record)
    producer.flush(600)
    producer.close()


class GoingOn(threading.Thread):
    """Sends the hall's next seconds at the pace of the clock until the block ends."""

    def __init__(self, bus: Bus, gateway: Gateway, first_second: int) -> None:
        super().__init__(name="hall", daemon=True)
        self._bus, self._gateway, self._first = bus, gateway, first_second
        self._stopping = threading.Event()
        self.sent_seconds = first_second
        """How many seconds of the hall are on the bus."""
        self._error: TransportError | None = None

    @override
    def run(self) -> None:
        began = time.monotonic()
        try:
            with closing(self._bus.producer()) as producer:
                while not self._stopping.wait(began + self.sent_seconds - self._first - time.monotonic()):
                    for topic, partition, record in self._gateway.records(self.sent_seconds):
                        producer.send(topic, partition, record)
                    self.sent_seconds += 1
        except TransportError as error:
            self._error = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()
        if self._error is not None:
            # A sink that catches up with a hall that stands still has shown nothing.
            raise self._error


def run_sink(section: BusSection, lake: Path) -> None:
    """Sink until told to end."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    shipped = LakeSection(path=lake)
    Sink(shipped, open_bus(section), Lake(lake), synthetic=False).run(stop)


def catch_up(
    lake: Path, sink_pids: Sequence[int], hall: GoingOn, backlog_seconds: int
) -> tuple[float, list[int]]:
    """Return how long the sink took, and its resident bytes over that time."""
    began, sizes = time.monotonic(), list[int]()
    with connect(lake) as connection:
        while time.monotonic() - began < PATIENCE_SECONDS + backlog_seconds:
            time.sleep(0.5)
            sizes.append(max(map(_resident_bytes, sink_pids)))
            rows = connection.arrow("SELECT count(*) AS rows FROM gpu_samples")["rows"][0].as_py()
            if hall.sent_seconds - rows / ROWS_PER_SECOND <= CAUGHT_UP_SECONDS:
                return time.monotonic() - began, sizes
    return float("inf"), sizes


def _resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def measure(seconds: int = 90, kind: str = "kafka", sinks: int = 2) -> list[BenchRow]:
    """Return the rate of catching up and how the memory of the largest sink went."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hallwatch-bench-")))
        section = _bus(kind, folder, stack)
        bus = open_bus(section)
        bus.ensure_topics(STREAMS.values())
        stack.callback(bus.close)
        gateway = Gateway()
        fill(bus, gateway, seconds)
        (folder / "lake").mkdir()
        hall = stack.enter_context(GoingOn(bus, gateway, seconds))
        pids = [stack.enter_context(_Sink(section, folder / "lake")).pid for _ in range(sinks)]
        passed, sizes = catch_up(folder / "lake", pids, hall, seconds)
    third = max(1, len(sizes) // 3)
    growth = max(sizes[-third:]) / max(sizes[third : 2 * third] or sizes)
    return [
        BenchRow(
            name=f"backlog of {seconds} s, {kind}, sinks: {sinks}",
            value=seconds / passed,
            unit="times real time",
            baseline=1.0,
            goal=">= 5 while new data flows",
            holds=seconds / passed >= 5,
        ),
        BenchRow(
            name=f"sink memory over that backlog, {kind}",
            value=max(sizes) / MIB,
            unit="MiB",
            baseline=max(sizes[:third]) / MIB,
            goal=f"flat: last third <= {FLAT} of the middle",
            holds=growth <= FLAT,
        ),
    ]


def _bus(kind: str, folder: Path, stack: ExitStack) -> BusSection:
    if kind == "local":
        return BusSection(path=folder / "bus", fsync=False)
    try:
        broker = stack.enter_context(Broker(folder / "broker").start())
    except BrokerMissingError as error:
        raise SystemExit(str(error)) from error
    return BusSection(kind="kafka", servers=broker.servers)


class _Sink:
    """The sink in a process of its own, ended with the block."""

    def __init__(self, section: BusSection, lake: Path) -> None:
        text = section.model_dump_json(exclude_unset=True)
        self._process = subprocess.Popen([sys.executable, __file__, "sink", text, str(lake)])

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def main(arguments: Sequence[str]) -> None:
    """Measure, or be the sink of a measurement."""
    if arguments and arguments[0] == "sink":
        run_sink(BusSection.model_validate_json(arguments[1]), Path(arguments[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--bus", choices=("kafka", "local"), default="kafka")
    parser.add_argument("--sinks", type=int, default=2, help="the local bus gives all partitions to one")
    chosen = parser.parse_args(arguments)
    for row in measure(round(chosen.minutes * 60), chosen.bus, chosen.sinks):
        print(
            f"{row.name}: {row.value:.4g} {row.unit} (goal {row.goal}): {'holds' if row.holds else 'MISSED'}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
