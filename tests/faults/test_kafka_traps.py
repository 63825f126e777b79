"""What a Kafka cluster and its client do to whoever trusts them: each trap, and how the bus gets around it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import kafka
import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from contract.bus import Bus, Consumer, TopicPartition
from contract.bus.kafka import producer as kafka_producer
from contract.bus.kafka.bus import KafkaBus
from contract.bus.kafka.producer import KafkaProducer
from contract.config import BusSection
from contract.errors import ConfigError, LogReplaced, LogTruncated, TransportError
from ingest.spool import Outgoing, SpoolOutlet
from tests.suites.broker import Broker, find_ports
from tests.suites.bus_suite import Acks, Assigned, read_all, record, send_all, stream_of, texts

pytestmark = [pytest.mark.integration, pytest.mark.faults]

PATIENCE_SECONDS = 60.0


def section_of(broker: Broker) -> BusSection:
    return BusSection(kind="kafka", servers=broker.servers)


@pytest.fixture
def bus(file_broker: Broker) -> Iterator[KafkaBus]:
    """A bus that is soon impatient."""
    impatient = KafkaBus(section_of(file_broker), ack_timeout_seconds=1.0, liveness_seconds=0.5)
    with closing(impatient) as bus:
        yield bus


@pytest.fixture
def admin(file_broker: Broker) -> Iterator[kafka.KafkaAdminClient]:
    with closing(kafka.KafkaAdminClient(bootstrap_servers=file_broker.servers)) as admin:
        yield admin


def make_topic(bus: Bus, partitions: int = 1) -> str:
    stream = stream_of(partitions)
    bus.ensure_topics([stream])
    return stream.topic


def start_reading(consumer: Consumer, topic: str, offset: int = 0) -> None:
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek(TopicPartition(topic, 0), offset)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def poll_until_error(consumer: Consumer, kind: type[TransportError] = TransportError) -> TransportError:
    """Poll until an error comes; nothing may be read before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            assert consumer.poll(0.2) == []
        except kind as error:
            return error
    raise AssertionError("no error came")


def end_of(bus: KafkaBus, topic: str) -> int:
    return bus.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]


# The cluster goes away.


def test_a_killed_broker_costs_nothing_that_was_acknowledged_and_everybody_goes_on(
    file_broker: Broker, tmp_path: Path
) -> None:
    patient = KafkaBus(section_of(file_broker))
    topic = make_topic(patient)
    with (
        closing(patient) as bus,
        closing(SpoolOutlet(tmp_path / "spool", bus, fsync=False)) as spool,
        closing(bus.consumer("assigned")) as assigned,
        closing(bus.consumer(f"group-{topic}")) as member,
        closing(bus.producer()) as producer,
    ):
        acks = Acks()
        start_reading(assigned, topic)
        member.subscribe([topic], Assigned(member))
        for number in range(50):
            producer.send(topic, 0, record(f"direct {number}"), acks.expect(number))
        assert len(read_all(assigned, 50)) == len(read_all(member, 50)) == 50
        file_broker.kill()
        for number in range(50, 100):
            producer.send(topic, 0, record(f"direct {number}"), acks.expect(number))
        for number in range(50):
            spool.put([Outgoing(topic, 0, record(f"spooled {number}"))])
        file_broker.restart()
        producer.flush(PATIENCE_SECONDS)
        wait_until(lambda: spool.depth() == 0)
        late = read_patiently(assigned, 100)
        assert sorted(late) == sorted(read_patiently(member, 100))
        for kind, numbers in (("direct", range(50, 100)), ("spooled", range(50))):
            assert [text for text in late if text.startswith(kind)] == [f"{kind} {n}" for n in numbers]
        assert [number for number, _ in acks.results] == list(range(100))
        # A client that asked before the broker died would now refuse: a new one is made.
        assert bus.describe(topic).partitions == 1


def read_patiently(consumer: Consumer, count: int) -> list[str]:
    """Read on as the sink does: an error that can be retried is retried."""
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        try:
            found += texts(consumer.poll(0.2))
        except TransportError as error:
            if not error.retryable:
                raise
    return found


def test_a_producer_that_hears_nothing_fails_every_record_and_its_successor_sends_them(
    file_broker: Broker, bus: KafkaBus
) -> None:
    topic = make_topic(bus)
    acks, again = Acks(), Acks()
    with closing(bus.producer()) as producer:
        producer.send(topic, 0, record("before"), acks.expect(0))
        producer.flush()
        file_broker.kill()
        for number in (1, 2, 3):
            producer.send(topic, 0, record(str(number)), acks.expect(number))
        with pytest.raises(TransportError) as caught:
            producer.flush()
        assert caught.value.reason == "timeout"
        wait_until(lambda: len(acks.results) == 4)
        assert acks.results[0] == (0, 0)
        assert {getattr(result, "reason", None) for _, result in acks.results[1:]} == {"timeout"}
        with pytest.raises(TransportError):
            producer.send(topic, 0, record("x"))
        file_broker.restart()
    # Had the old client lived on, it would deliver by itself within a second.
    with closing(bus.producer()) as successor, closing(bus.consumer("c")) as consumer:
        start_reading(consumer, topic)
        assert texts(read_all(consumer, 1)) == ["before"]
        assert consumer.poll(1.5) == []
        for number in (1, 2, 3):
            successor.send(topic, 0, record(str(number)), again.expect(number))
        successor.flush()
        assert texts(read_all(consumer, 3)) == ["1", "2", "3"]
    assert again.results == [(1, 1), (2, 2), (3, 3)]


def test_who_waits_in_a_client_that_is_cut_off_hears_why_and_not_of_its_insides(
    bus: KafkaBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender waited for metadata while the watch gave its producer up: the client then raises RuntimeError."""
    topic = make_topic(bus)
    with closing(bus.producer()) as producer:
        assert isinstance(producer, KafkaProducer)

        def cut_off(*_: object, **__: object) -> None:
            producer._fail(TransportError("timeout", "nothing was acknowledged"))
            raise RuntimeError("NetworkSelector closed!")

        producer.send(topic, 0, record("before"))
        monkeypatch.setattr(producer._client, "send", cut_off)
        with pytest.raises(TransportError, match="nothing was acknowledged"):
            producer.send(topic, 0, record("x"))


def test_a_reader_hears_that_a_broker_hangs_and_goes_on_when_it_is_back(
    file_broker: Broker, bus: KafkaBus
) -> None:
    topic = make_topic(bus)
    with closing(bus.consumer("c")) as consumer:
        start_reading(consumer, topic)
        assert consumer.poll(0.1) == []
        file_broker.freeze()
        try:
            error = poll_until_error(consumer)
        finally:
            file_broker.thaw()
        assert (error.reason, error.retryable) == ("unreachable", True)
        send_patiently(bus, topic, ["late"])
        assert read_patiently(consumer, 1) == ["late"]


def send_patiently(bus: Bus, topic: str, bodies: Sequence[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            send_all(bus, topic, 0, bodies)
        except TransportError:
            assert time.monotonic() < deadline
        else:
            return


def test_sending_waits_when_too_much_is_in_flight(
    file_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_producer, "_FLIGHT_RECORDS", 50)
    acks = Acks()
    with closing(KafkaBus(section_of(file_broker))) as bus:
        topic = make_topic(bus)
        with closing(bus.producer()) as producer:
            producer.send(topic, 0, record("warm"))
            producer.flush()

            def send_many() -> None:
                for number in range(200):
                    producer.send(topic, 0, record(str(number)), acks.expect(number))

            sender = threading.Thread(target=send_many)
            file_broker.freeze()
            try:
                sender.start()
                wait_until(lambda: len(producer._flight) == 50)  # type: ignore[attr-defined]
                sender.join(0.5)
                assert sender.is_alive()
                assert acks.results == []
            finally:
                file_broker.thaw()
            sender.join(PATIENCE_SECONDS)
            producer.flush()
        assert acks.results == [(number, number + 1) for number in range(200)]


def test_closing_takes_bounded_time_while_the_cluster_is_away(file_broker: Broker) -> None:
    bus = KafkaBus(section_of(file_broker))
    topic = make_topic(bus)
    acks = Acks()
    producer, member = bus.producer(), bus.consumer(f"group-{topic}")
    member.subscribe([topic], Assigned(member))
    producer.send(topic, 0, record("warm"))
    assert texts(read_all(member, 1)) == ["warm"]
    file_broker.freeze()
    try:
        producer.send(topic, 0, record("x"), acks.expect(0))
        closers = [threading.Thread(target=one.close, daemon=True) for one in (producer, member, bus)]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join(PATIENCE_SECONDS)
            assert not closer.is_alive()
    finally:
        file_broker.thaw()
    [(number, result)] = acks.results
    assert number == 0
    assert isinstance(result, TransportError)


# One record spoils a producer.


def set_topic(admin: kafka.KafkaAdminClient, topic: str, **settings: str) -> None:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, named)])


def test_a_record_that_the_broker_refuses_ends_its_producer_with_the_cause(
    bus: KafkaBus, admin: kafka.KafkaAdminClient
) -> None:
    topic = make_topic(bus)
    set_topic(admin, topic, max_message_bytes="1000")
    acks = Acks()
    with closing(bus.producer()) as producer:
        producer.send(topic, 0, record(os.urandom(5_000)), acks.expect(0))
        with pytest.raises(TransportError) as caught:
            producer.flush()
        assert caught.value.reason == "too_large"
        with pytest.raises(TransportError) as caught:
            producer.send(topic, 0, record("small"))
        # A sender leaves out what is too large: the small one is not.
        assert caught.value.reason == "closed"
    [(_, result)] = acks.results
    assert getattr(result, "reason", None) == "too_large"
    send_all(bus, topic, 0, ["small"])
    assert end_of(bus, topic) == 1


def test_no_clock_of_a_sender_is_so_wrong_that_its_record_is_refused(
    bus: KafkaBus, file_broker: Broker
) -> None:
    topic = make_topic(bus)
    in_ten_years_ms = round((time.time() + 10 * 365 * 86_400) * 1000)
    with closing(kafka.KafkaProducer(bootstrap_servers=file_broker.servers)) as sender:
        sender.send(topic, b"x", partition=0, timestamp_ms=in_ten_years_ms).get(PATIENCE_SECONDS)
    with closing(bus.consumer("c")) as consumer:
        start_reading(consumer, topic)
        [message] = read_all(consumer, 1)
    assert abs(message.received_us / 1e6 - time.time()) < 60


def test_a_topic_deleted_under_a_producer_fails_what_is_sent_to_it(
    bus: KafkaBus, admin: kafka.KafkaAdminClient
) -> None:
    topic = make_topic(bus)
    with closing(bus.producer()) as producer:
        producer.send(topic, 0, record("x"))
        producer.flush()
        admin.delete_topics([topic])
        producer.send(topic, 0, record("y"))
        with pytest.raises(TransportError):
            producer.flush()


def test_what_others_wrote_without_key_or_text_is_read_all_the_same(
    bus: KafkaBus, file_broker: Broker
) -> None:
    topic = make_topic(bus)
    with closing(kafka.KafkaProducer(bootstrap_servers=file_broker.servers)) as sender:
        sender.send(topic, b"x", partition=0, headers=[("h", b"\xff")]).get(PATIENCE_SECONDS)
        sender.send(topic, None, key=b"\xfe", partition=0).get(PATIENCE_SECONDS)
    with closing(bus.consumer("c")) as consumer:
        start_reading(consumer, topic)
        found = [(m.key, dict(m.headers), m.body) for m in read_all(consumer, 2)]
    assert found == [("", {"h": "\ufffd"}, b"x"), ("\ufffd", {}, b"")]


# Another log behind the same name.


@pytest.mark.parametrize("count", [1, 20])
def test_a_topic_made_again_stops_its_readers_before_they_read_of_it(
    bus: KafkaBus, admin: kafka.KafkaAdminClient, count: int
) -> None:
    stream = stream_of(1)
    bus.ensure_topics([stream])
    topic, before = stream.topic, bus.describe(stream.topic).log
    send_all(bus, topic, 0, [f"old {n}" for n in range(5)])
    with closing(bus.consumer("c")) as consumer:
        start_reading(consumer, topic)
        read_all(consumer, 5)
        admin.delete_topics([topic])
        wait_until(lambda: topic not in admin.list_topics())
        bus.ensure_topics([stream])
        assert bus.describe(topic).log != before
        send_all(bus, topic, 0, [f"new {n}" for n in range(count)])
        time.sleep(1.0)  # the cluster's word holds for a second
        poll_until_error(consumer, LogReplaced)
        poll_until_error(consumer, LogReplaced)
        assert consumer.positions() == {TopicPartition(topic, 0): 5}


def test_a_topic_deleted_behind_a_reader_stops_it(bus: KafkaBus, admin: kafka.KafkaAdminClient) -> None:
    topic = make_topic(bus)
    with closing(bus.consumer("c")) as consumer:
        start_reading(consumer, topic)
        admin.delete_topics([topic])
        assert "deleted" in str(poll_until_error(consumer, LogReplaced))


def test_an_empty_cluster_at_the_same_address_stops_the_readers_of_the_old_one(
    file_broker: Broker, bus: KafkaBus
) -> None:
    stream = stream_of(1)
    bus.ensure_topics([stream])
    send_all(bus, stream.topic, 0, ["a", "b"])
    with closing(bus.consumer("c")) as consumer:
        start_reading(consumer, stream.topic)
        read_all(consumer, 2)
        file_broker.replace()
        bus.ensure_topics([stream])
        send_all(bus, stream.topic, 0, ["c", "d", "e"])
        poll_until_error(consumer, LogReplaced)


def test_a_reader_that_retention_overtook_is_told_exactly_what_it_lost(
    bus: KafkaBus, admin: kafka.KafkaAdminClient
) -> None:
    topic = make_topic(bus)
    send_all(bus, topic, 0, [str(n) for n in range(10)])
    admin.delete_records({kafka.TopicPartition(topic, 0): 6})
    with closing(bus.consumer("c")) as consumer:
        start_reading(consumer, topic, offset=2)
        error = poll_until_error(consumer, LogTruncated)
        assert isinstance(error, LogTruncated)
        assert (error.topic, error.partition, error.wanted, error.begins, error.lost) == (topic, 0, 2, 6, 4)
        consumer.seek(TopicPartition(topic, 0), error.begins)
        assert texts(read_all(consumer, 4)) == ["6", "7", "8", "9"]


def test_a_committed_offset_is_never_where_reading_begins(bus: KafkaBus) -> None:
    topic, group = make_topic(bus), "committed"
    send_all(bus, topic, 0, ["a", "b", "c"])
    bus.commit(group, {TopicPartition(topic, 0): 2})
    with closing(bus.consumer(group)) as consumer:
        consumer.subscribe([topic], Assigned(consumer))
        assert texts(read_all(consumer, 3)) == ["a", "b", "c"]
    with closing(bus.consumer(group)) as consumer:
        consumer.subscribe([topic], Sleeper())
        error = poll_until_error(consumer)
        assert error.reason == "no_offset"


@pytest.mark.parametrize("turn", range(3))
def test_a_member_joins_however_short_its_polls_are(bus: KafkaBus, turn: int) -> None:
    """A join that outlives a poll is forgotten by the client where new metadata had caused it."""
    del turn
    topic = make_topic(bus)
    send_all(bus, topic, 0, ["a"])
    with closing(bus.consumer(f"group-{topic}")) as consumer:
        consumer.subscribe([topic], Assigned(consumer))
        found: list[str] = []
        deadline = time.monotonic() + PATIENCE_SECONDS / 4
        while not found and time.monotonic() < deadline:
            found += texts(consumer.poll(0))
        assert found == ["a"]


class Sleeper:
    """Never says where it wants to read."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> None: ...

    def revoked(self, partitions: Sequence[TopicPartition]) -> None: ...


# Topics.


def test_topics_are_made_with_their_settings_and_what_differs_is_found(
    bus: KafkaBus, admin: kafka.KafkaAdminClient
) -> None:
    topic = make_topic(bus)
    assert bus.differences([topic]) == []
    set_topic(admin, topic, retention_ms="60000", message_timestamp_type="CreateTime")
    found = {(d.setting, d.wanted, d.found) for d in bus.differences([topic])}
    assert found == {
        ("retention.ms", str(72 * 3_600_000), "60000"),
        ("message.timestamp.type", "LogAppendTime", "CreateTime"),
    }


def test_a_topic_that_would_refuse_a_large_message_is_refused_at_the_start(
    bus: KafkaBus, admin: kafka.KafkaAdminClient
) -> None:
    stream = stream_of(1)
    bus.ensure_topics([stream])
    set_topic(admin, stream.topic, max_message_bytes="1000")
    with pytest.raises(TransportError, match=r"max\.message\.bytes is 1000 and must be 17825792") as caught:
        bus.ensure_topics([stream])
    assert caught.value.reason == "too_large"


def test_many_may_make_the_same_topics_at_once(file_broker: Broker) -> None:
    streams = [stream_of(2) for _ in range(3)]
    failures: list[Exception] = []

    def ensure() -> None:
        with closing(KafkaBus(section_of(file_broker))) as bus:
            try:
                bus.ensure_topics(streams)
            except TransportError as error:
                failures.append(error)

    threads = [threading.Thread(target=ensure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# A start that cannot succeed says why.


def test_more_copies_than_brokers_are_refused_with_the_cause(file_broker: Broker) -> None:
    section = BusSection(kind="kafka", servers=file_broker.servers, replication_factor=3)
    with closing(KafkaBus(section)) as bus, pytest.raises(TransportError, match="eplication factor"):
        bus.ensure_topics([stream_of(1)])


def test_a_broker_that_is_not_there_is_named_with_the_cause() -> None:
    (port,) = find_ports(1)
    with closing(KafkaBus(BusSection(kind="kafka", servers=f"127.0.0.1:{port}"))) as bus:
        with pytest.raises(TransportError, match=rf"127\.0\.0\.1:{port}.*ECONNREFUSED") as caught:
            bus.describe("t")
        assert caught.value.reason == "unreachable"


def test_something_else_on_the_port_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        section = BusSection(kind="kafka", servers=f"127.0.0.1:{other.getsockname()[1]}")
        with closing(KafkaBus(section)) as bus, pytest.raises(TransportError) as caught:
            bus.producer()
    assert caught.value.reason == "unreachable"


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    section = BusSection(kind="kafka", servers="a:1", ca_file=tmp_path / "ca.crt")
    with pytest.raises(ConfigError, match=r"ca\.crt") as caught:
        KafkaBus(section)
    assert caught.value.reason == "unreadable"
