"""What the producer on a cluster does between its callers and its client, which is a fake here."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from kafka.future import Future

from contract.bus import Record
from contract.bus.kafka import producer as kafka_producer
from contract.bus.protocols import TopicInfo
from contract.errors import TransportError

RECORD = Record(key="host-01", headers={"ce_type": "t"}, body=b"{}")


class OneTopic:
    """A bus with one topic of two partitions."""

    def describe(self, topic: str) -> TopicInfo:
        return TopicInfo(topic=topic, log="log-1", partitions=2)


class HeldClient:
    """A client that acknowledges a record when the test says so."""

    def __init__(self) -> None:
        self.futures: list[Future] = []

    def send(self, *_: Any, **__: Any) -> Future:
        self.futures.append(Future())
        return self.futures[-1]

    def acknowledge(self, number: int) -> None:
        self.futures[number].success(Acknowledged(number))

    def close(self, timeout: float = 0) -> None: ...


class Acknowledged:
    def __init__(self, offset: int) -> None:
        self.offset = offset


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> HeldClient:
    held = HeldClient()
    monkeypatch.setattr(kafka_producer, "connect", lambda *_: held)
    return held


@pytest.fixture
def producer(client: HeldClient) -> kafka_producer.KafkaProducer:  # noqa: ARG001 - it is connected to it
    return kafka_producer.KafkaProducer(OneTopic(), {}, 30.0)  # type: ignore[arg-type]


def test_a_flush_waits_for_what_was_sent_before_it_and_not_for_as_many_of_what_came_after(
    producer: kafka_producer.KafkaProducer, client: HeldClient
) -> None:
    producer.send("topic", 0, RECORD)
    flush = threading.Thread(target=producer.flush)
    flush.start()
    producer.send("topic", 1, RECORD)
    client.acknowledge(1)
    flush.join(0.2)
    assert flush.is_alive()
    client.acknowledge(0)
    flush.join(5)
    assert not flush.is_alive()


def test_a_flush_returns_after_the_last_call_back_has(
    producer: kafka_producer.KafkaProducer, client: HeldClient
) -> None:
    may_return, told = threading.Event(), []

    def tell(answer: int | TransportError) -> None:
        may_return.wait(5)
        told.append(answer)

    producer.send("topic", 0, RECORD, tell)
    acknowledging = threading.Thread(target=client.acknowledge, args=(0,))
    acknowledging.start()
    with pytest.raises(TransportError, match="not everything"):
        producer.flush(0.1)
    may_return.set()
    producer.flush(5)
    assert told == [0]
    acknowledging.join(5)


def test_a_full_flight_holds_its_sender_until_some_of_it_has_landed(
    producer: kafka_producer.KafkaProducer, client: HeldClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_producer, "_FLIGHT_RECORDS", 4)
    for _ in range(4):
        producer.send("topic", 0, RECORD)
    sending = threading.Thread(target=producer.send, args=("topic", 0, RECORD))
    sending.start()
    sending.join(0.2)
    assert len(client.futures) == 4
    client.acknowledge(0)
    sending.join(5)
    assert len(client.futures) == 5


def test_whoever_waits_for_room_hears_that_the_producer_was_closed(
    producer: kafka_producer.KafkaProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_producer, "_FLIGHT_RECORDS", 1)
    monkeypatch.setattr(kafka_producer, "_CLOSE_SECONDS", 0.1)
    answers: list[object] = []
    producer.send("topic", 0, RECORD, answers.append)
    heard: list[TransportError] = []

    def send() -> None:
        with pytest.raises(TransportError) as raised:
            producer.send("topic", 0, RECORD)
        heard.append(raised.value)

    sending = threading.Thread(target=send)
    sending.start()
    producer.close()
    sending.join(5)
    assert [error.reason for error in heard] == ["closed"]
    assert [error.reason for error in answers if isinstance(error, TransportError)] == ["closed"]
