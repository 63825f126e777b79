"""Both buses: messages a second that one core sends and reads, a cluster's beside bare loops of its client.

Messages are as collectors send them: 1 KiB, a key and six headers, over 24 partitions. The bare loops use
kafka-python with our settings: they hear of every acknowledgement, bound nothing, and decode no header. CPU time is
that of the whole process, so the client's own threads count, and the broker does not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import kafka
from bench import BenchRow, median_ratio

from contract.bus import Bus, Record, TopicPartition
from contract.bus.kafka import consumer as kafka_consumer
from contract.bus.kafka import producer as kafka_producer
from contract.bus.kafka.bus import KafkaBus
from contract.bus.local import LocalBus
from contract.config import BusSection
from tests.suites.broker import Broker, BrokerMissingError
from tests.suites.bus_suite import stream_of

MESSAGES = 24_000
PARTITIONS = 24
BODY = (b'{"ts":1780272000000000,"temperature_celsius":[41,42,43,44],"power_watts":[401.5,402.25]}' * 12)[
    :1024
]
HEADERS = {f"ce_header{n}": f"value-{n:08}" for n in range(6)}


def measure() -> list[BenchRow]:
    """Return the figures; a cluster is left out where no broker can run."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        local = stack.enter_context(closing(LocalBus(folder / "bus", fsync=False)))
        rows = list(_measure_local(local))
        try:
            broker = stack.enter_context(Broker(folder / "kafka").start())
        except BrokerMissingError as error:
            print(error, file=sys.stderr)
            return rows
        cluster = KafkaBus(BusSection(kind="kafka", servers=broker.servers))
        rows += _measure_cluster(stack.enter_context(closing(cluster)), {"bootstrap_servers": broker.servers})
    return rows


def _measure_local(bus: Bus) -> Iterator[BenchRow]:
    topic = _make_topic(bus)
    for name, rate in (("sent", _send(bus, topic)), ("read", _read(bus, topic))):
        yield BenchRow(
            name=f"local log, messages {name}",
            value=rate,
            unit="messages/s and core",
            baseline=None,
            goal="",
            holds=True,
        )


def _measure_cluster(bus: Bus, servers: dict[str, str]) -> Iterator[BenchRow]:
    filled, topic = _make_topic(bus), _make_topic(bus)
    _send(bus, filled)
    for name, ours, bare in (
        ("sent", lambda: _send(bus, topic), lambda: _send_bare(servers, topic)),
        ("read", lambda: _read(bus, filled), lambda: _read_bare(servers, filled)),
    ):
        rate, baseline, ratio = median_ratio(ours, bare, rounds=9)
        yield BenchRow(
            name=f"cluster, messages {name}",
            value=rate,
            unit="messages/s and core",
            baseline=baseline,
            goal=f">= 0.8 of the bare loop ({ratio:.2f})",
            holds=ratio >= 0.8,
        )


def _make_topic(bus: Bus) -> str:
    stream = stream_of(PARTITIONS)
    bus.ensure_topics([stream])
    return stream.topic


def _rate(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return MESSAGES / (time.process_time() - started)


def _send(bus: Bus, topic: str) -> float:
    with closing(bus.producer()) as producer:
        acknowledged: list[object] = []

        def work() -> None:
            for number in range(MESSAGES):
                record = Record(key="host-01", headers=HEADERS, body=BODY)
                producer.send(topic, number % PARTITIONS, record, acknowledged.append)
            producer.flush(120)

        return _rate(work)


def _send_bare(servers: dict[str, str], topic: str) -> float:
    headers = [(name, value.encode()) for name, value in HEADERS.items()]
    acknowledged: list[object] = []
    with closing(kafka.KafkaProducer(**servers, **kafka_producer._SETTINGS)) as producer:
        producer.partitions_for(topic)

        def work() -> None:
            for number in range(MESSAGES):
                future = producer.send(
                    topic, BODY, key=b"host-01", headers=headers, partition=number % PARTITIONS
                )
                future.add_callback(acknowledged.append)
                future.add_errback(acknowledged.append)
            producer.flush(120)

        return _rate(work)


def _read(bus: Bus, topic: str) -> float:
    with closing(bus.consumer("bench")) as consumer:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)

        def work() -> None:
            count = 0
            while count < MESSAGES:
                count += len(consumer.poll(1.0, 5_000))

        return _rate(work)


def _read_bare(servers: dict[str, str], topic: str) -> float:
    with closing(kafka.KafkaConsumer(**servers, **kafka_consumer._SETTINGS)) as consumer:
        partitions = [kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)

        def work() -> None:
            count = 0
            while count < MESSAGES:
                polled = consumer.poll(timeout_ms=1000, max_records=5_000)
                count += sum(len(records) for records in polled.values())

        return _rate(work)
