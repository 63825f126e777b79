"""A hall on a cluster: readers share topics while they come, go, hang and die, and the lake has every event once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analytics.query import connect
from contract.bus import Consumer, TopicPartition
from contract.bus.kafka import consumer as kafka_consumer
from contract.bus.kafka.bus import KafkaBus
from contract.clock import SystemClock
from contract.codec import Event, encode_event
from contract.config import BusSection
from contract.errors import TransportError
from contract.streams.gpu import GPU_SAMPLES
from contract.testing import example_rows
from hallwatch.commands.lag import lag
from hallwatch.recordings.pages import PageRecording, serve
from ingest.spool import Outgoing, SpoolOutlet
from tests.suites.broker import Broker
from tests.suites.bus_suite import Assigned, stream_of
from twin.plan import draw_plan
from twin.run import Twin
from twin.scenario import Scenario

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]

PATIENCE_SECONDS = 90.0
HOSTS = 12
CONFIG = """\
[hall]
name = "hall"
[bus]
kind = "kafka"
servers = "{servers}"
[lake]
flush_seconds = 0.3
sparse_flush_seconds = 0.3
"""
TABLE = """\
[[ingest.collectors]]
collector = "gpu-dcgm"
host = "{host}"
url = "{url}"
interval_seconds = 0.2
"""
QUICK = {"session_timeout_ms": 2_000, "heartbeat_interval_ms": 300}
SINK = f"""
import sys
from contract.bus.kafka import consumer
from hallwatch.cli import main
consumer._GROUP_SETTINGS |= {QUICK}
main(["sink", "--config", sys.argv[1]])
"""
AUDIT = """\
SELECT _source, count(*), count(DISTINCT _seq), max(_seq) + 1 FROM gpu_samples WHERE _source LIKE '{}'
GROUP BY _source ORDER BY _source"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, start_broker: Callable[..., Broker]) -> Iterator[Broker]:
    """A broker that lets sessions be short, so that the dead are missed soon."""
    settings = {"group.min.session.timeout.ms": "1000"}
    with start_broker(tmp_path_factory.mktemp("kafka"), settings=settings) as broker:
        yield broker


@pytest.fixture
def open_bus(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KafkaBus]]:
    for setting, value in QUICK.items():
        monkeypatch.setitem(kafka_consumer._GROUP_SETTINGS, setting, value)
    opened: list[KafkaBus] = []

    def open_bus(**keys: Any) -> KafkaBus:
        opened.append(KafkaBus(BusSection(kind="kafka", servers=broker.servers, **keys)))
        return opened[-1]

    yield open_bus
    for bus in opened:
        bus.close()


def wait_until(true: Callable[[], bool], between: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        between()
        time.sleep(0.02)


def owned(consumer: Consumer) -> set[int]:
    return {at.partition for at in consumer.positions()}


def poll_all(*consumers: Consumer) -> Callable[[], None]:
    def poll() -> None:
        for consumer in consumers:
            consumer.poll(0.05)

    return poll


# Members.


def test_who_stays_keeps_what_does_not_move(open_bus: Callable[..., KafkaBus]) -> None:
    bus, stream = open_bus(), stream_of(4)
    bus.ensure_topics([stream])
    everything = [TopicPartition(stream.topic, number) for number in range(4)]
    with closing(bus.consumer(stream.name)) as first:
        told = Assigned(first)
        first.subscribe([stream.topic], told)
        wait_until(lambda: len(owned(first)) == 4, poll_all(first))
        with closing(bus.consumer(stream.name)) as second:
            second.subscribe([stream.topic], Assigned(second))
            both = poll_all(first, second)
            wait_until(lambda: len(owned(first)) == len(owned(second)) == 2, both)
            assert owned(first) | owned(second) == set(range(4))
            moved = sorted(TopicPartition(stream.topic, number) for number in owned(second))
            assert told.told == [("assigned", everything), ("revoked", moved)]
        wait_until(lambda: len(owned(first)) == 4, poll_all(first))
        assert told.told[2:] == [("assigned", moved)]


def test_a_named_member_that_restarts_soon_moves_nothing(open_bus: Callable[..., KafkaBus]) -> None:
    stays, restarts, stream = open_bus(group_instance_id="a"), open_bus(group_instance_id="b"), stream_of(4)
    stays.ensure_topics([stream])
    with closing(stays.consumer(stream.name)) as first:
        told = Assigned(first)
        first.subscribe([stream.topic], told)
        with closing(restarts.consumer(stream.name)) as second:
            second.subscribe([stream.topic], Assigned(second))
            wait_until(lambda: len(owned(first)) == len(owned(second)) == 2, poll_all(first, second))
            before, heard = owned(second), list(told.told)
        with closing(restarts.consumer(stream.name)) as again:
            again.subscribe([stream.topic], Assigned(again))
            wait_until(lambda: owned(again) == before, poll_all(first, again))
        assert told.told == heard


# Sinks.


class Writer(threading.Thread):
    """Hosts that send an event every now and then through a spool, until told to stop."""

    def __init__(self, folder: Path, servers: str) -> None:
        super().__init__(daemon=True)
        self._bus = KafkaBus(BusSection(kind="kafka", servers=servers))
        self._spool = SpoolOutlet(folder / "spool", self._bus, fsync=False)
        self._stopping = threading.Event()
        self.sent = 0

    def run(self) -> None:
        while not self._stopping.wait(0.05):
            self._spool.put([self._event(f"h{n:02}") for n in range(HOSTS)])
            self.sent += 1

    def _event(self, host: str) -> Outgoing:
        table = example_rows(GPU_SAMPLES, 1, host=host)
        event = Event(source=f"test@{host}/0", epoch="e", sequence=self.sent, table=table)
        return Outgoing(
            GPU_SAMPLES.topic, GPU_SAMPLES.partition_of(host), encode_event(GPU_SAMPLES, event, host)
        )

    def stop(self) -> None:
        """Send everything, and end."""
        self._stopping.set()
        self.join()
        wait_until(lambda: self._spool.depth() == 0)
        self._spool.close()
        self._bus.close()


class Sinks:
    """Sinks as processes, on one configuration, and what the lake has."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder = folder
        (folder / "hallwatch.toml").write_text(CONFIG.format(servers=broker.servers))
        self._started: list[subprocess.Popen[bytes]] = []
        self._bus = KafkaBus(BusSection(kind="kafka", servers=broker.servers))

    def start(self, *program: str) -> subprocess.Popen[bytes]:
        """Start a sink, or another part of hallwatch."""
        command = program or ("-c", SINK, str(self.folder / "hallwatch.toml"))
        with (self.folder / f"{len(self._started)}.log").open("wb") as log:
            started = subprocess.Popen([sys.executable, *command], stdout=log, stderr=subprocess.STDOUT)
        self._started.append(started)
        return started

    def await_members(self, count: int) -> None:
        """Wait until so many share the topics in peace."""

        def settled() -> bool:
            try:
                groups = self._bus._admin.ask("looking", lambda client: client.describe_groups(["sink"]))
            except TransportError:
                return False
            group = groups["sink"]
            return bool(group["group_state"] == "Stable" and len(group["members"]) == count)

        wait_until(settled)

    def await_progress(self) -> None:
        """Wait until everything that is on the bus now is in the lake."""
        ends = self._ends()
        wait_until(lambda: all(self._stored().get(at, 0) >= end for at, end in ends.items() if end))

    def _ends(self) -> dict[TopicPartition, int]:
        return self._bus.end_offsets(
            TopicPartition(GPU_SAMPLES.topic, number) for number in range(GPU_SAMPLES.partitions)
        )

    def _stored(self) -> dict[TopicPartition, int]:
        try:
            return self._bus.committed("sink")
        except TransportError:
            return {}

    def rows(self, sources: str) -> list[tuple[str, int, int, int]]:
        """Return per source: rows, different sequences, highest sequence and one."""
        with connect(self.folder / "lake") as lake:
            return lake.sql(AUDIT.format(sources)).fetchall()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def close(self) -> None:
        self._bus.close()
        for process in self._started:
            process.kill()
            process.wait()


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_two_sinks_on_one_table_lose_and_double_nothing_while_they_come_and_go(
    broker: Broker, tmp_path: Path
) -> None:
    with closing(Sinks(tmp_path, broker)) as sinks:
        first = sinks.start()
        sinks.await_members(1)
        writer = Writer(tmp_path, broker.servers)
        writer.start()
        second = sinks.start()
        sinks.await_members(2)
        sinks.await_progress()
        end(first)
        sinks.await_members(1)
        third = sinks.start()
        sinks.await_members(2)
        second.kill()
        sinks.await_members(1)
        sinks.await_progress()
        fourth = sinks.start()
        sinks.await_members(2)
        third.send_signal(signal.SIGSTOP)
        sinks.await_members(1)
        sinks.await_progress()
        third.send_signal(signal.SIGCONT)
        sinks.await_members(2)
        broker.kill()
        broker.restart()
        sinks.await_members(2)
        writer.stop()
        sinks.await_progress()
        end(third)
        end(fourth)
        expected = [(f"test@h{n:02}/0", *[writer.sent] * 3) for n in range(HOSTS)]
        assert sinks.rows("test@%") == expected, sinks.logs()
        assert writer.sent > 100


def test_devices_are_collected_while_the_cluster_is_away(broker: Broker, tmp_path: Path) -> None:
    twin = Twin(draw_plan(hosts=1, seed=1), Scenario(injections=()), start_us=0)
    twin.step(1.0)
    [host] = twin.plan.hosts
    page = PageRecording(name=host.name, seconds=(0.0,), pages=(twin.page(host.name),))
    with closing(Sinks(tmp_path, broker)) as hall, serve(page, SystemClock()) as url:
        config = hall.folder / "hallwatch.toml"
        table = TABLE.format(host=host.name, url=url)
        config.write_text(config.read_text() + table)
        broker.kill()
        collect = hall.start("-m", "hallwatch", "collect", "--config", str(config))
        spool = hall.folder / "ingest" / "spool" / "log.sqlite"
        wait_until(lambda: spool.exists() and spooled(spool) > 10)
        broker.restart()
        sink = hall.start()
        hall.await_members(1)
        hall.await_progress()
        end(collect)
        hall.await_progress()
        end(sink)
        assert spooled(spool) == 0
        [(_, rows, events, expected)] = hall.rows("gpu-dcgm@%")
        assert events == expected > 10
        assert rows == 8 * events
        answer = CliRunner().invoke(lag, ["--config", str(config)], catch_exceptions=False)
        assert answer.output.splitlines()[-1].startswith("0 messages waiting in")


def spooled(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as spool:
        try:
            ((count,),) = spool.execute("SELECT ends - begins FROM partitions").fetchall()
        except (sqlite3.OperationalError, ValueError):
            return 0  # it is being made
    return int(count)
