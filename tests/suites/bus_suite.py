"""What every bus must do, written against the protocols alone.

A test class inherits BusSuite and gives it one fixture: `factory`, a callable without arguments that pickles and
opens another handle on the same bus, from any process.
"""

from __future__ import annotations

import multiprocessing
import threading
import time as wall
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from uuid import uuid4

import pytest

from contract.bus import AckCallback, Bus, Consumer, Message, Producer, Record, TopicPartition
from contract.errors import LogReplaced, TransportError
from contract.stream import Stream, text, time

Factory = Callable[[], Bus]

PATIENCE_SECONDS = 60.0
"""A test that waits longer has failed; a real broker on a busy machine needs some."""


def stream_of(partitions: int, name: str | None = None) -> Stream:
    """Return a stream whose topic nobody else uses."""
    return Stream(
        name=name or f"suite_{uuid4().hex}",
        family="self",
        version=1,
        key="host",
        partitions=partitions,
        interval=None,
        rows_per_second=1,
        doc="Made by a test.",
        columns=[time("ts", "When."), text("host", "Which.")],
    )


def record(body: bytes | str, key: str = "k", **headers: str) -> Record:
    """Return a record with some body."""
    return Record(key=key, headers=headers, body=body.encode() if isinstance(body, str) else body)


class Acks:
    """Gathers what a producer acknowledged, in order."""

    def __init__(self) -> None:
        self.results: list[tuple[int, int | TransportError]] = []

    def expect(self, number: int) -> AckCallback:
        """Return the call-back of the record with this number."""
        return lambda result: self.results.append((number, result))


class Assigned:
    """Takes every partition from its beginning and remembers what it was told."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.told: list[tuple[str, list[TopicPartition]]] = []

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("assigned", sorted(partitions)))
        for partition, offset in self.consumer.begin_offsets(partitions).items():
            self.consumer.seek(partition, offset)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("revoked", sorted(partitions)))


def send_all(bus: Bus, topic: str, partition: int, bodies: Sequence[str]) -> None:
    """Append records through a producer of their own."""
    with closing(bus.producer()) as producer:
        for body in bodies:
            producer.send(topic, partition, record(body))
        producer.flush()


def read_all(consumer: Consumer, count: int) -> list[Message]:
    """Poll until this many messages came."""
    messages: list[Message] = []
    deadline = wall.monotonic() + PATIENCE_SECONDS
    while len(messages) < count and wall.monotonic() < deadline:
        messages += consumer.poll(0.2)
    assert len(messages) == count
    return messages


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the bodies as text."""
    return [message.body.decode() for message in messages]


def write_stamped(factory: Factory, topic: str, writer: str, count: int) -> None:
    """Append numbered records as one of several processes."""
    with closing(factory()) as bus, closing(bus.producer()) as producer:
        for number in range(count):
            producer.send(topic, 0, record(f"{writer} {number}"))
        producer.flush(PATIENCE_SECONDS)


class BusSuite:
    """The contract; see the module."""

    @pytest.fixture
    def factory(self) -> Factory:
        raise NotImplementedError("the class that inherits this says how to open its bus")

    @pytest.fixture
    def bus(self, factory: Factory) -> Iterator[Bus]:
        with closing(factory()) as bus:
            yield bus

    @pytest.fixture
    def topic(self, bus: Bus) -> str:
        stream = stream_of(3)
        bus.ensure_topics([stream])
        return stream.topic

    @pytest.fixture
    def producer(self, bus: Bus) -> Iterator[Producer]:
        with closing(bus.producer()) as producer:
            yield producer

    @pytest.fixture
    def consumer(self, bus: Bus) -> Iterator[Consumer]:
        with closing(bus.consumer("suite")) as consumer:
            yield consumer

    # What is written is what is read.

    def test_messages_come_back_as_they_were_sent(
        self, topic: str, producer: Producer, consumer: Consumer
    ) -> None:
        sent = [
            Record(key="", headers={}, body=b""),
            Record(
                key="schlüssel ☃", headers={"ce_source": "gpu@höst/0", "b": "", "a": 'q"\\\n'}, body=b"{}"
            ),
            Record(
                key="k" * 200, headers={f"h{i}": "v" * 100 for i in range(20)}, body=bytes(range(256)) * 40
            ),
        ]
        for item in sent:
            producer.send(topic, 1, item)
        producer.flush()
        consumer.assign([TopicPartition(topic, 1)])
        consumer.seek(TopicPartition(topic, 1), 0)
        messages = read_all(consumer, len(sent))
        assert [(m.key, dict(m.headers), m.body) for m in messages] == [
            (r.key, dict(r.headers), r.body) for r in sent
        ]
        assert {(m.topic, m.partition) for m in messages} == {(topic, 1)}

    def test_offsets_count_from_zero_without_holes_in_each_partition(
        self, topic: str, producer: Producer, consumer: Consumer
    ) -> None:
        for number in range(300):
            producer.send(topic, number % 3, record(str(number)))
        producer.flush()
        partitions = [TopicPartition(topic, n) for n in range(3)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        messages = read_all(consumer, 300)
        for partition in partitions:
            mine = [m for m in messages if m.partition == partition.partition]
            assert [m.offset for m in mine] == list(range(100))
            assert texts(mine) == [str(n) for n in range(partition.partition, 300, 3)]

    def test_the_time_of_arrival_never_falls(self, topic: str, bus: Bus, consumer: Consumer) -> None:
        before = wall.time_ns() // 1000
        for burst in range(3):
            send_all(bus, topic, 0, [f"{burst} {n}" for n in range(20)])
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        times = [m.received_us for m in read_all(consumer, 60)]
        assert times == sorted(times)
        # Another machine may stamp them: its clock may differ by a minute, its unit may not.
        assert abs(times[0] - before) < 60_000_000

    def test_a_large_body_arrives_whole(self, topic: str, producer: Producer, consumer: Consumer) -> None:
        body = bytes(range(256)) * 2_000
        producer.send(topic, 0, record(body))
        producer.flush()
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert read_all(consumer, 1)[0].body == body

    def test_many_messages_keep_their_order(self, topic: str, bus: Bus, consumer: Consumer) -> None:
        send_all(bus, topic, 2, [str(n) for n in range(20_000)])
        consumer.assign([TopicPartition(topic, 2)])
        consumer.seek(TopicPartition(topic, 2), 0)
        assert texts(read_all(consumer, 20_000)) == [str(n) for n in range(20_000)]

    def test_two_processes_append_to_one_partition_without_loss(
        self, factory: Factory, topic: str, consumer: Consumer
    ) -> None:
        context = multiprocessing.get_context("spawn")
        writers = [
            context.Process(target=write_stamped, args=(factory, topic, name, 1_000)) for name in ("a", "b")
        ]
        for writer in writers:
            writer.start()
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        messages = read_all(consumer, 2_000)
        for writer in writers:
            writer.join(PATIENCE_SECONDS)
            assert writer.exitcode == 0
        assert [m.offset for m in messages] == list(range(2_000))
        for name in ("a", "b"):
            mine = [body for body in texts(messages) if body.startswith(name)]
            assert mine == [f"{name} {n}" for n in range(1_000)]

    # Producers.

    def test_each_record_is_acknowledged_once_with_its_offset(self, topic: str, producer: Producer) -> None:
        acks = Acks()
        for number in range(500):
            producer.send(topic, 0, record(str(number)), acks.expect(number))
        producer.flush()
        assert acks.results == [(number, number) for number in range(500)]

    def test_a_record_is_acknowledged_without_a_flush(self, topic: str, producer: Producer) -> None:
        acknowledged = threading.Event()
        producer.send(topic, 0, record("x"), lambda _: acknowledged.set())
        assert acknowledged.wait(PATIENCE_SECONDS)

    def test_flush_makes_everything_visible(self, topic: str, producer: Producer, consumer: Consumer) -> None:
        for number in range(100):
            producer.send(topic, 1, record(str(number)))
        producer.flush()
        assert consumer.end_offsets([TopicPartition(topic, 1)]) == {TopicPartition(topic, 1): 100}

    def test_flush_of_nothing_returns(self, producer: Producer) -> None:
        producer.flush()

    def test_closing_a_producer_writes_what_was_sent(self, topic: str, bus: Bus, consumer: Consumer) -> None:
        producer = bus.producer()
        for number in range(100):
            producer.send(topic, 0, record(str(number)))
        producer.close()
        assert consumer.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 100}

    def test_a_closed_producer_refuses(self, topic: str, bus: Bus) -> None:
        producer = bus.producer()
        producer.close()
        producer.close()
        with pytest.raises(TransportError) as caught:
            producer.send(topic, 0, record("x"))
        assert caught.value.reason == "closed"

    @pytest.mark.parametrize("partition", [3, -1])
    def test_a_partition_that_is_not_there_is_refused(
        self, topic: str, producer: Producer, partition: int
    ) -> None:
        with pytest.raises(TransportError) as caught:
            producer.send(topic, partition, record("x"))
        assert caught.value.reason == "no_topic"

    def test_refused_records_harm_no_other(self, topic: str, producer: Producer, consumer: Consumer) -> None:
        producer.send(topic, 0, record("before"))
        for bad_topic, bad, reason in (
            (f"{topic}.none", record("x"), "no_topic"),
            (topic, record(b"x" * (2**24 + 1)), "too_large"),
            (topic, record("x", header="v" * 2**20), "too_large"),
        ):
            with pytest.raises(TransportError) as caught:
                producer.send(bad_topic, 0, bad)
            assert caught.value.reason == reason
        producer.send(topic, 0, record("after"))
        producer.flush()
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert texts(read_all(consumer, 2)) == ["before", "after"]

    # Consumers.

    def test_reading_starts_anywhere_and_again(self, topic: str, bus: Bus, consumer: Consumer) -> None:
        send_all(bus, topic, 0, [str(n) for n in range(50)])
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        for start in (49, 0, 17):
            consumer.seek(partition, start)
            assert texts(read_all(consumer, 50 - start)) == [str(n) for n in range(start, 50)]
            assert consumer.positions() == {partition: 50}

    def test_a_waiting_reader_sees_what_another_handle_appends(
        self, factory: Factory, topic: str, consumer: Consumer
    ) -> None:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert consumer.poll(0.05) == []
        with closing(factory()) as other:
            writer = threading.Timer(0.2, send_all, (other, topic, 0, ["late"]))
            writer.start()
            messages = read_all(consumer, 1)
            writer.join()
        assert texts(messages) == ["late"]

    def test_a_poll_returns_no_more_than_asked(self, topic: str, bus: Bus, consumer: Consumer) -> None:
        send_all(bus, topic, 0, [str(n) for n in range(25)])
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        polled: list[Message] = []
        deadline = wall.monotonic() + PATIENCE_SECONDS
        while len(polled) < 25 and wall.monotonic() < deadline:
            messages = consumer.poll(0.2, max_messages=7)
            assert len(messages) <= 7
            polled += messages
            assert consumer.positions() == {TopicPartition(topic, 0): len(polled)}
        assert texts(polled) == [str(n) for n in range(25)]

    def test_a_busy_partition_does_not_starve_the_others(
        self, topic: str, bus: Bus, consumer: Consumer
    ) -> None:
        send_all(bus, topic, 0, ["hot"] * 5_000)
        send_all(bus, topic, 1, ["a"])
        send_all(bus, topic, 2, ["b"])
        partitions = [TopicPartition(topic, n) for n in range(3)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        seen: set[int] = set()
        polled = 0
        deadline = wall.monotonic() + PATIENCE_SECONDS
        while seen != {0, 1, 2} and wall.monotonic() < deadline:
            messages = consumer.poll(0.2, max_messages=100)
            polled += len(messages)
            seen |= {m.partition for m in messages}
        assert seen == {0, 1, 2}
        assert polled < 5_002

    def test_offsets_of_an_empty_partition_are_zero(self, topic: str, consumer: Consumer) -> None:
        partition = TopicPartition(topic, 2)
        assert consumer.begin_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([partition]) == {partition: 0}
        assert consumer.end_offsets([]) == {}

    def test_offsets_are_those_of_now(self, topic: str, bus: Bus, consumer: Consumer) -> None:
        partitions = [TopicPartition(topic, n) for n in range(3)]
        for count in (5, 10):
            send_all(bus, topic, 1, ["x"] * 5)
            assert consumer.end_offsets(partitions) == dict(zip(partitions, (0, count, 0), strict=True))
            assert consumer.begin_offsets(partitions) == dict.fromkeys(partitions, 0)

    def test_a_paused_partition_gives_nothing_and_loses_nothing(
        self, topic: str, bus: Bus, consumer: Consumer
    ) -> None:
        partitions = [TopicPartition(topic, n) for n in (0, 1)]
        consumer.assign(partitions)
        for partition in partitions:
            consumer.seek(partition, 0)
        send_all(bus, topic, 0, ["a0", "a1"])
        send_all(bus, topic, 1, ["b0"])
        consumer.pause([partitions[0]])
        assert texts(read_all(consumer, 1)) == ["b0"]
        assert consumer.poll(0.3) == []
        assert consumer.positions() == dict(zip(partitions, (0, 1), strict=True))
        consumer.resume([partitions[0]])
        assert texts(read_all(consumer, 2)) == ["a0", "a1"]

    def test_two_consumers_read_independently(self, topic: str, bus: Bus) -> None:
        send_all(bus, topic, 0, ["0", "1", "2"])
        partition = TopicPartition(topic, 0)
        with closing(bus.consumer("one")) as one, closing(bus.consumer("two")) as two:
            for consumer, start in ((one, 0), (two, 2)):
                consumer.assign([partition])
                consumer.seek(partition, start)
            assert texts(read_all(one, 3)) == ["0", "1", "2"]
            assert texts(read_all(two, 1)) == ["2"]
            assert one.poll(0.1) == []

    def test_a_partition_without_a_position_is_an_error(self, topic: str, consumer: Consumer) -> None:
        partitions = [TopicPartition(topic, n) for n in (0, 1)]
        consumer.assign(partitions)
        consumer.seek(partitions[0], 0)
        with pytest.raises(TransportError) as caught:
            consumer.poll(0.5)
        assert caught.value.reason == "no_offset"
        assert consumer.positions() == {partitions[0]: 0}

    def test_a_position_behind_the_end_means_another_log(
        self, topic: str, bus: Bus, consumer: Consumer
    ) -> None:
        send_all(bus, topic, 0, ["0", "1"])
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 3)
        with pytest.raises(LogReplaced):
            read_all(consumer, 1)
        consumer.seek(TopicPartition(topic, 0), 1)
        assert texts(read_all(consumer, 1)) == ["1"]

    def test_assigning_again_replaces_the_partitions(self, topic: str, bus: Bus, consumer: Consumer) -> None:
        send_all(bus, topic, 0, ["a"])
        send_all(bus, topic, 1, ["b"])
        for number, body in ((0, "a"), (1, "b")):
            partition = TopicPartition(topic, number)
            consumer.assign([partition])
            consumer.seek(partition, 0)
            assert texts(read_all(consumer, 1)) == [body]
            assert consumer.positions() == {partition: 1}

    def test_a_subscriber_is_told_its_partitions_within_poll(
        self, topic: str, bus: Bus, consumer: Consumer
    ) -> None:
        for partition in range(3):
            send_all(bus, topic, partition, [f"{partition} {n}" for n in range(10)])
        assigned = Assigned(consumer)
        consumer.subscribe([topic], assigned)
        assert assigned.told == []
        messages = read_all(consumer, 30)
        assert assigned.told == [("assigned", [TopicPartition(topic, n) for n in range(3)])]
        assert sorted(texts(messages)) == sorted(f"{p} {n}" for p in range(3) for n in range(10))

    def test_a_subscriber_takes_several_topics(self, topic: str, bus: Bus, consumer: Consumer) -> None:
        other = stream_of(1)
        bus.ensure_topics([other])
        send_all(bus, topic, 0, ["a"])
        send_all(bus, other.topic, 0, ["b"])
        consumer.subscribe([topic, other.topic], Assigned(consumer))
        messages = read_all(consumer, 2)
        assert {(m.topic, m.body) for m in messages} == {(topic, b"a"), (other.topic, b"b")}

    def test_subscribing_again_leaves_the_topics_of_before(
        self, topic: str, bus: Bus, consumer: Consumer
    ) -> None:
        other = stream_of(1)
        bus.ensure_topics([other])
        send_all(bus, topic, 0, ["a"])
        assigned = Assigned(consumer)
        consumer.subscribe([topic], assigned)
        read_all(consumer, 1)
        consumer.subscribe([other.topic], assigned)
        send_all(bus, topic, 0, ["not read"])
        send_all(bus, other.topic, 0, ["b"])
        assert texts(read_all(consumer, 1)) == ["b"]
        assert assigned.told[1:] == [
            ("revoked", [TopicPartition(topic, n) for n in range(3)]),
            ("assigned", [TopicPartition(other.topic, 0)]),
        ]

    def test_topics_that_are_not_there_cannot_be_read(self, topic: str, consumer: Consumer) -> None:
        missing = f"{topic}.none"
        for call in (
            lambda: consumer.assign([TopicPartition(missing, 0)]),
            lambda: consumer.assign([TopicPartition(topic, 3)]),
            lambda: consumer.subscribe([missing], Assigned(consumer)),
            lambda: consumer.end_offsets([TopicPartition(missing, 0)]),
            lambda: consumer.begin_offsets([TopicPartition(topic, 3)]),
        ):
            with pytest.raises(TransportError) as caught:
                call()
            assert caught.value.reason == "no_topic"

    def test_a_closed_consumer_refuses(self, topic: str, bus: Bus) -> None:
        consumer = bus.consumer("suite")
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        consumer.close()
        consumer.close()
        with pytest.raises(TransportError) as caught:
            consumer.poll(0.1)
        assert caught.value.reason == "closed"

    # The bus.

    def test_topics_are_made_once(self, factory: Factory, bus: Bus, topic: str) -> None:
        stream = stream_of(2)
        bus.ensure_topics([stream])
        first = bus.describe(stream.topic)
        with closing(factory()) as other:
            other.ensure_topics([stream])
            assert other.describe(stream.topic) == first
        assert first.topic == stream.topic
        assert first.partitions == 2
        assert first.log
        assert first.log != bus.describe(topic).log

    def test_a_topic_of_another_shape_is_refused(self, bus: Bus) -> None:
        stream = stream_of(2)
        bus.ensure_topics([stream])
        with pytest.raises(TransportError) as caught:
            bus.ensure_topics([stream_of(3, stream.name)])
        assert caught.value.reason == "replaced"
        assert bus.describe(stream.topic).partitions == 2

    def test_an_unknown_topic_is_not_described(self, bus: Bus) -> None:
        with pytest.raises(TransportError) as caught:
            bus.describe("hallwatch.nothing.v1")
        assert caught.value.reason == "no_topic"

    def test_what_a_group_committed_last_is_there_for_everybody(
        self, factory: Factory, topic: str, bus: Bus
    ) -> None:
        group = f"group-{uuid4().hex}"
        assert bus.committed(group) == {}
        send_all(bus, topic, 0, ["x"] * 10)
        with closing(bus.consumer(group)) as consumer:
            consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
            consumer.commit({TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 0})
            consumer.commit({TopicPartition(topic, 0): 7})
        with closing(factory()) as other:
            assert other.committed(group) == {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 0}
            send_all(other, topic, 0, ["x"] * 2)
            assert other.committed(group) == {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 0}
