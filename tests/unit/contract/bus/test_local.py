from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.bus import Consumer, Message, TopicPartition, local_consumer, local_producer, open_bus
from contract.bus.local import LocalBus
from contract.bus.local_consumer import share
from contract.bus.local_producer import LocalProducer
from contract.config import BusSection
from contract.errors import LogReplaced, LogTruncated, TransportError
from contract.testing import FakeClock
from tests.suites.bus_suite import Acks, Assigned, BusSuite, Factory, read_all, record, texts

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class TestLocalBus(BusSuite):
    @pytest.fixture
    def factory(self, tmp_path: Path) -> Factory:
        return partial(LocalBus, tmp_path / "bus", fsync=False)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bus"


@pytest.fixture
def open_log(folder: Path, clock: FakeClock) -> Iterator[Callable[..., LocalBus]]:
    opened: list[LocalBus] = []

    def open_log(**settings: float) -> LocalBus:
        opened.append(LocalBus(folder, fsync=False, clock=clock, **settings))
        opened[-1].create_topic("t", 2)
        return opened[-1]

    yield open_log
    for bus in opened:
        bus.close()


@pytest.fixture
def bus(open_log: Callable[..., LocalBus]) -> LocalBus:
    return open_log()


@pytest.fixture
def consumer(bus: LocalBus) -> Iterator[Consumer]:
    with closing(bus.consumer("g")) as consumer:
        yield consumer


def append(bus: LocalBus, partition: int, *bodies: str) -> list[int]:
    return bus.append([("t", partition, record(body)) for body in bodies])


def start(consumer: Consumer, *partitions: TopicPartition, offset: int = 0) -> None:
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, offset)


def reason_of(call: Callable[[], object]) -> str:
    with pytest.raises(TransportError) as caught:
        call()
    return caught.value.reason


# Appending.


def test_append_returns_the_offsets_in_the_order_of_the_records(bus: LocalBus, consumer: Consumer) -> None:
    append(bus, 1, "x")
    order = [(1, "a"), (0, "b"), (1, "c"), (0, "d")]
    assert bus.append([("t", partition, record(body)) for partition, body in order]) == [1, 0, 2, 1]
    start(consumer, ZERO, ONE)
    found = {(m.partition, m.offset): m.body for m in read_all(consumer, 5)}
    assert found == {(1, 0): b"x", (1, 1): b"a", (0, 0): b"b", (1, 2): b"c", (0, 1): b"d"}


def test_cursors_are_saved_with_the_records_or_not_at_all(bus: LocalBus, consumer: Consumer) -> None:
    assert bus.cursor("c") is None
    bus.append([("t", 0, record("a"))], {"c": b"1", "empty": b""})
    assert (bus.cursor("c"), bus.cursor("empty")) == (b"1", b"")
    records = [("t", 0, record("b")), ("t", 9, record("nowhere"))]
    assert reason_of(lambda: bus.append(records, {"c": b"2"})) == "no_topic"
    assert bus.cursor("c") == b"1"
    assert consumer.end_offsets([ZERO]) == {ZERO: 1}
    bus.append([], {"c": b"3"})
    assert bus.cursor("c") == b"3"


def test_the_largest_body_fits_and_one_byte_more_does_not(bus: LocalBus, consumer: Consumer) -> None:
    largest = b"x" * 16_777_216
    bus.append([("t", 0, record(largest))])
    assert reason_of(lambda: bus.append([("t", 0, record(largest + b"x"))])) == "too_large"
    start(consumer, ZERO)
    assert read_all(consumer, 1)[0].body == largest


def test_the_time_of_arrival_stands_still_while_the_clock_is_set_back(
    bus: LocalBus, consumer: Consumer, clock: FakeClock
) -> None:
    times = [clock.now_us()]
    append(bus, 0, "a")
    clock.advance(-3_600)
    append(bus, 0, "b")
    times.append(times[0])
    append(bus, 1, "c")
    clock.advance(3_600.5)
    append(bus, 0, "d")
    times.append(times[0] + 500_000)
    start(consumer, ZERO)
    assert [m.received_us for m in read_all(consumer, 3)] == times


def test_what_one_handle_appended_another_reads(bus: LocalBus, folder: Path) -> None:
    append(bus, 0, "a")
    with closing(LocalBus(folder)) as other, closing(other.consumer("g")) as consumer:
        start(consumer, ZERO)
        assert texts(read_all(consumer, 1)) == ["a"]
        assert other.append([("t", 0, record("b"))]) == [1]
        assert append(bus, 0, "c") == [2]


def test_with_fsync_every_commit_reaches_the_disk(folder: Path) -> None:
    for fsync, level in ((True, 2), (False, 1)):
        with closing(LocalBus(folder, fsync=fsync)) as bus, bus._database.reading() as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# Producers.


def test_the_first_failure_ends_a_producer(bus: LocalBus, consumer: Consumer) -> None:
    bus.create_topic("u", 1)
    acks = Acks()
    with closing(bus.producer()) as producer:
        producer.send("u", 0, record("0"), acks.expect(0))
        producer.flush()
        bus.delete_topic("u")
        producer.send("u", 0, record("1"), acks.expect(1))
        assert reason_of(producer.flush) == "no_topic"
        assert reason_of(lambda: producer.send("t", 0, record("2"), acks.expect(2))) == "no_topic"
        assert reason_of(producer.flush) == "no_topic"
    (first, second) = acks.results
    assert first == (0, 0)
    assert second[0] == 1
    assert isinstance(second[1], TransportError)
    assert consumer.end_offsets([ZERO]) == {ZERO: 0}


def test_all_that_waits_fails_with_the_record_that_failed(
    bus: LocalBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def fail(*_: object) -> list[int]:
        started.set()
        go_on.wait(60)
        raise TransportError("full", "no space")

    monkeypatch.setattr(bus, "append_rows", fail)
    acks = Acks()
    with closing(bus.producer()) as producer:
        producer.send("t", 0, record("x"), acks.expect(0))
        assert started.wait(60)
        for number in range(1, 5_000):
            producer.send("t", 0, record("x"), acks.expect(number))
        go_on.set()
        assert reason_of(producer.flush) == "full"
    assert [number for number, _ in acks.results] == list(range(5_000))
    assert {type(result) for _, result in acks.results} == {TransportError}


def test_a_call_back_that_raises_ends_its_producer_loudly(
    bus: LocalBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))

    def fail(_: int | TransportError) -> None:
        raise ZeroDivisionError

    producer = bus.producer()
    producer.send("t", 0, record("x"), fail)
    assert reason_of(producer.flush) == "closed"
    assert reason_of(lambda: producer.send("t", 0, record("y"))) == "closed"
    producer.close()
    assert raised == [ZeroDivisionError]


def test_sending_waits_while_too_much_is_in_flight(
    bus: LocalBus, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_producer, "_QUEUE_RECORDS", 10)
    monkeypatch.setattr(local_producer, "_BATCH_RECORDS", 5)
    sent: list[int] = []
    with closing(bus.producer()) as producer:

        def send() -> None:
            for number in range(100):
                producer.send("t", 0, record(str(number)))
                sent.append(number)

        producer.send("t", 1, record("x"))
        sender = threading.Thread(target=send)
        with bus._database.writing():
            sender.start()
            sender.join(0.3)
            assert sender.is_alive()
            assert len(sent) <= 15
        sender.join()
        producer.flush()
    start(consumer, ZERO)
    assert texts(read_all(consumer, 100)) == [str(n) for n in range(100)]


def test_flush_gives_up_after_its_timeout(bus: LocalBus) -> None:
    with closing(bus.producer()) as producer:
        producer.send("t", 0, record("x"))
        producer.flush()
        with bus._database.writing():
            producer.send("t", 0, record("x"))
            assert reason_of(lambda: producer.flush(0.05)) == "timeout"
        producer.flush()


def test_closing_waits_no_longer_than_it_may(bus: LocalBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_producer, "_CLOSE_SECONDS", 0.05)
    acks = Acks()
    producer = LocalProducer(bus)
    producer.send("t", 0, record("0"), acks.expect(0))
    producer.flush()
    monkeypatch.setattr(local_producer, "_BATCH_RECORDS", 1)
    with bus._database.writing():
        for number in (1, 2, 3):
            producer.send("t", 0, record("x"), acks.expect(number))
        producer.close()
        results = dict(acks.results)
        assert isinstance(results[3], TransportError)
    producer._thread.join()
    with closing(bus.consumer("g")) as consumer:
        # The batch that was being written may have come through, nothing behind it.
        assert consumer.end_offsets([ZERO])[ZERO] <= 2


# Consumers.


def test_a_poll_on_a_clock_that_is_driven_takes_no_real_time(consumer: Consumer, clock: FakeClock) -> None:
    start(consumer, ZERO)
    before = clock.monotonic()
    assert consumer.poll(3_600) == []
    assert clock.monotonic() - before == pytest.approx(3_600)


def test_a_poll_returns_a_bounded_number_of_bytes_but_never_nothing(
    bus: LocalBus, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_consumer, "_POLL_BYTES", 1_000)
    append(bus, 0, *["x" * 400] * 4, "y" * 5_000, "z")
    append(bus, 1, "w")
    start(consumer, ZERO, ONE)
    polls = [consumer.poll(0) for _ in range(5)]
    assert all(polls[:3])
    assert [sum(len(m.body) for m in poll) for poll in polls if len(poll) > 1] != []
    assert max(sum(len(m.body) for m in poll[:-1]) for poll in polls if poll) < 1_000
    mine = [m for poll in polls for m in poll if m.partition == 0]
    assert [m.offset for m in mine] == list(range(6))


def test_large_messages_of_one_partition_do_not_starve_another(
    bus: LocalBus, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_consumer, "_POLL_BYTES", 1_000)
    append(bus, 0, *["x" * 5_000] * 10)
    append(bus, 1, "a")
    start(consumer, ZERO, ONE)
    assert [[m.partition for m in consumer.poll(0)] for _ in range(3)] == [[0], [1, 0], [0]]


def test_an_assignment_that_failed_is_told_again(bus: LocalBus, consumer: Consumer) -> None:
    append(bus, 0, "a")

    class FailsFirst(Assigned):
        calls = 0

        def assigned(self, partitions: Sequence[TopicPartition]) -> None:
            self.calls += 1
            if self.calls == 1:
                raise TransportError("timeout", "the lake was away")
            super().assigned(partitions)

    assignment = FailsFirst(consumer)
    consumer.subscribe(["t"], assignment)
    assert reason_of(lambda: consumer.poll(0)) == "timeout"
    assert texts(consumer.poll(0)) == ["a"]
    assert assignment.told == [("assigned", [ZERO, ONE])]


def test_subscribing_again_revokes_first(bus: LocalBus, consumer: Consumer) -> None:
    bus.create_topic("u", 1)
    assigned = Assigned(consumer)
    consumer.subscribe(["t"], assigned)
    consumer.poll(0)
    consumer.subscribe(["u"], assigned)
    consumer.poll(0)
    assert assigned.told == [
        ("assigned", [ZERO, ONE]),
        ("revoked", [ZERO, ONE]),
        ("assigned", [TopicPartition("u", 0)]),
    ]


def test_a_reader_that_retention_overtook_is_told_exactly_what_it_lost(
    bus: LocalBus, consumer: Consumer
) -> None:
    append(bus, 0, *"abcdefgh")
    append(bus, 1, "x")
    start(consumer, ZERO, ONE)
    consumer.seek(ZERO, 2)
    bus.trim(ZERO, 5)
    with pytest.raises(LogTruncated) as caught:
        consumer.poll(0)
    error = caught.value
    assert (error.topic, error.partition, error.wanted, error.begins, error.lost) == ("t", 0, 2, 5, 3)
    assert consumer.positions() == {ZERO: 2, ONE: 0}
    consumer.seek(ZERO, consumer.begin_offsets([ZERO])[ZERO])
    assert sorted(texts(read_all(consumer, 4))) == ["f", "g", "h", "x"]


def test_a_partition_emptied_by_retention_goes_on_counting(bus: LocalBus, consumer: Consumer) -> None:
    append(bus, 0, "a", "b")
    bus.trim(ZERO, 99)
    assert consumer.begin_offsets([ZERO]) == consumer.end_offsets([ZERO]) == {ZERO: 2}
    assert append(bus, 0, "c") == [2]
    start(consumer, ZERO, offset=2)
    assert texts(read_all(consumer, 1)) == ["c"]


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_deleted_behind_a_reader_stops_it(bus: LocalBus, consumer: Consumer, again: bool) -> None:
    append(bus, 0, "a", "b")
    before = bus.describe("t").log
    start(consumer, ZERO)
    read_all(consumer, 2)
    bus.delete_topic("t")
    if again:
        bus.create_topic("t", 2)
        append(bus, 0, "c", "d", "e")
        assert bus.describe("t").log != before
    for _ in range(2):
        with pytest.raises(LogReplaced):
            consumer.poll(0)


def test_a_deleted_topic_takes_what_was_committed_along(bus: LocalBus, consumer: Consumer) -> None:
    append(bus, 0, "a")
    consumer.commit({ZERO: 0})
    bus.delete_topic("t")
    assert bus.committed("g") == {}
    assert reason_of(lambda: bus.delete_topic("t")) == "no_topic"
    assert reason_of(lambda: bus.describe("t")) == "no_topic"


def test_an_older_copy_of_the_file_stops_its_readers(open_log: Callable[..., LocalBus], folder: Path) -> None:
    bus = open_log()
    append(bus, 0, "a", "b")
    bus.close()
    backup = (folder / "log.sqlite").read_bytes()
    bus = open_log()
    append(bus, 0, "c")
    bus.close()
    (folder / "log.sqlite").write_bytes(backup)
    bus = open_log()
    with closing(bus.consumer("g")) as consumer:
        start(consumer, ZERO, offset=3)
        with pytest.raises(LogReplaced):
            consumer.poll(0)


@pytest.mark.parametrize("again", [False, True])
def test_a_log_removed_while_it_is_open_takes_and_gives_nothing_more(
    open_log: Callable[..., LocalBus], folder: Path, tmp_path: Path, again: bool
) -> None:
    bus = open_log()
    append(bus, 0, "a")
    with closing(bus.consumer("g")) as consumer:
        start(consumer, ZERO)
        read_all(consumer, 1)
        folder.rename(tmp_path / "away")
        if again:
            append(open_log(), 0, "other", "log")
        for _ in range(2):
            with pytest.raises(LogReplaced):
                append(bus, 0, "b")
            with pytest.raises(LogReplaced):
                consumer.poll(0)


def test_a_handle_that_opens_the_file_anew_notices_another_log(
    open_log: Callable[..., LocalBus], folder: Path, tmp_path: Path
) -> None:
    bus = open_log()
    with bus._database.reading() as connection:
        connection.execute("PRAGMA query_only = ON")
    assert reason_of(lambda: append(bus, 0, "a")) == "unreachable"  # which closed its connection
    folder.rename(tmp_path / "away")
    append(open_log(), 0, "other")
    for call in (lambda: append(bus, 0, "a"), lambda: bus.describe("t")):
        assert reason_of(call) == "replaced"


# Retention.


def bodies_left(bus: LocalBus) -> dict[int, list[str]]:
    with closing(bus.consumer("look")) as consumer:
        consumer.assign([ZERO, ONE])
        for partition, offset in consumer.begin_offsets([ZERO, ONE]).items():
            consumer.seek(partition, offset)
        messages: list[Message] = []
        while more := consumer.poll(0):
            messages += more
    return {number: [m.body[:8].decode() for m in messages if m.partition == number] for number in (0, 1)}


def test_messages_older_than_the_retention_are_deleted(
    open_log: Callable[..., LocalBus], clock: FakeClock
) -> None:
    bus = open_log(retention_hours=2)
    append(bus, 0, "a", "b")
    clock.advance(3_600)
    append(bus, 0, "c")
    append(bus, 1, "d")
    clock.advance(3_600)
    assert bus.enforce_retention() == 0
    clock.advance(1)
    assert bus.enforce_retention() == 2
    assert bodies_left(bus) == {0: ["c"], 1: ["d"]}
    clock.advance(3_600)
    assert bus.enforce_retention() == 2
    assert bodies_left(bus) == {0: [], 1: []}


def test_appending_enforces_retention_once_a_second(
    open_log: Callable[..., LocalBus], clock: FakeClock
) -> None:
    bus = open_log(retention_hours=1)
    append(bus, 0, "a")
    clock.advance(3_601)
    append(bus, 1, "b")
    assert bodies_left(bus) == {0: [], 1: ["b"]}


def test_above_the_size_the_oldest_go_first_whatever_their_partition(
    open_log: Callable[..., LocalBus], clock: FakeClock
) -> None:
    bus = open_log(retention_bytes=1_000_000)
    for number in range(200):
        clock.advance(0.001)
        append(bus, number % 2, f"{number:03}".ljust(10_000))
    assert bus.used_bytes() > 1_500_000
    deleted = bus.enforce_retention()
    assert 0 < deleted < 200
    assert 800_000 < bus.used_bytes() <= 1_000_000
    left = bodies_left(bus)
    assert sorted(int(body) for bodies in left.values() for body in bodies) == list(range(deleted, 200))
    assert bus.enforce_retention() == 0


def test_a_log_at_its_size_stays_there(
    open_log: Callable[..., LocalBus], clock: FakeClock, folder: Path
) -> None:
    bus = open_log(retention_bytes=2_000_000)
    for number in range(1_500):
        clock.advance(0.1)
        append(bus, number % 2, "x" * 20_000)
    assert bus.used_bytes() < 3_000_000
    bus.close()
    assert (folder / "log.sqlite").stat().st_size < 5_000_000


def test_space_that_is_not_needed_goes_back_to_the_file_system(
    open_log: Callable[..., LocalBus], folder: Path
) -> None:
    bus = open_log()
    append(bus, 0, *["x" * 1_000_000] * 60)
    bus.trim(ZERO, 60)
    for _ in range(10):
        bus.enforce_retention()
    bus.close()
    assert (folder / "log.sqlite").stat().st_size < 30_000_000


def test_retention_that_fails_does_not_fail_the_append(
    bus: LocalBus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise TransportError("timeout", "busy")

    append(bus, 0, "a")
    monkeypatch.setattr(bus, "_delete_chunk", fail)
    clock.advance(60)
    assert append(bus, 0, "b") == [1]


# The file.


def test_a_writer_that_waits_too_long_says_so(open_log: Callable[..., LocalBus], folder: Path) -> None:
    bus = open_log(wait_seconds=0.05)
    with closing(sqlite3.connect(folder / "log.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert reason_of(lambda: append(bus, 0, "a")) == "timeout"
        other.execute("ROLLBACK")
    assert append(bus, 0, "a") == [0]


def test_a_reader_reads_while_a_writer_writes(bus: LocalBus, consumer: Consumer, folder: Path) -> None:
    append(bus, 0, "a")
    start(consumer, ZERO)
    with closing(sqlite3.connect(folder / "log.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert texts(consumer.poll(0)) == ["a"]


def test_a_file_that_is_no_database_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "log.sqlite").write_bytes(b"precious " * 1_000)
    assert reason_of(lambda: LocalBus(folder)) == "unreachable"
    assert (folder / "log.sqlite").read_bytes() == b"precious " * 1_000


def test_the_database_of_another_program_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    with closing(sqlite3.connect(folder / "log.sqlite")) as other:
        other.execute("CREATE TABLE precious (a)")
    assert reason_of(lambda: LocalBus(folder)) == "unreachable"
    with closing(sqlite3.connect(folder / "log.sqlite")) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("precious",)]


def test_a_log_of_a_later_format_is_refused(bus: LocalBus, folder: Path) -> None:
    bus.close()
    with closing(sqlite3.connect(folder / "log.sqlite")) as other:
        other.execute("PRAGMA user_version = 2")
    with pytest.raises(TransportError, match="format 2"):
        LocalBus(folder)


def test_a_damaged_file_is_an_error_and_not_a_crash(open_log: Callable[..., LocalBus], folder: Path) -> None:
    bus = open_log()
    append(bus, 0, *["x" * 1_000] * 100)
    bus.close()
    file = folder / "log.sqlite"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 & ~0xFFF])
    assert reason_of(lambda: append(open_log(), 0, "y")) == "unreachable"


@pytest.mark.parametrize("application", [0, 0x48574C47])
def test_a_file_that_lacks_our_tables_is_an_error_that_says_what_to_do(
    folder: Path, application: int
) -> None:
    folder.mkdir()
    with closing(sqlite3.connect(folder / "log.sqlite")) as connection:
        connection.execute(f"PRAGMA application_id = {application}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute("CREATE TABLE topics (name TEXT)")
    before = (folder / "log.sqlite").read_bytes()
    with pytest.raises(TransportError, match=r"move it away|name another folder") as caught:
        LocalBus(folder).describe("t")
    assert caught.value.reason == "unreachable"
    assert (folder / "log.sqlite").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert reason_of(lambda: LocalBus(tmp_path / "file" / "bus")) == "unreachable"
    assert reason_of(lambda: LocalBus(tmp_path / "file")) == "unreachable"


def test_a_file_that_may_only_be_read_refuses_to_append(bus: LocalBus) -> None:
    with bus._database.reading() as connection:
        connection.execute("PRAGMA query_only = ON")
    assert reason_of(lambda: append(bus, 0, "a")) == "unreachable"


def test_a_closed_bus_refuses(bus: LocalBus) -> None:
    bus.close()
    bus.close()
    for call in (lambda: append(bus, 0, "a"), lambda: bus.describe("t"), lambda: bus.cursor("c")):
        assert reason_of(call) == "closed"


def create_and_append(folder: Path) -> None:
    with closing(LocalBus(folder, fsync=False)) as bus:
        bus.create_topic("t", 5)
        bus.append([("t", 0, record("x"))])


def test_many_may_create_the_same_log_at_once(folder: Path) -> None:
    threads = [threading.Thread(target=create_and_append, args=(folder,)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with closing(LocalBus(folder)) as bus, closing(bus.consumer("g")) as consumer:
        assert consumer.end_offsets([ZERO]) == {ZERO: 12}


FORKED = """
import os, sys, threading, time
from contextlib import closing
from pathlib import Path
from contract.bus import Record, TopicPartition
from contract.bus.local import LocalBus

bus = LocalBus(Path(sys.argv[1]), wait_seconds=30)
bus.create_topic("t", 1)
x = ("t", 0, Record(key="", headers={}, body=b"x"))
bus.append([x])
consumer, producer = bus.consumer("g"), bus.producer()
consumer.assign([TopicPartition("t", 0)])
consumer.seek(TopicPartition("t", 0), 0)
assert len(consumer.poll(0)) == 1
# Another thread is in the middle of a transaction: the child must inherit nothing of it.
inside = threading.Event()
def hold():
    with bus._database.writing():
        inside.set()
        time.sleep(0.2)
threading.Thread(target=hold).start()
inside.wait()
child = os.fork()
assert consumer._database._connection is None
for _ in range(50):
    bus.append([x])
assert consumer.poll(1)
if child == 0:
    try:
        producer.send("t", 0, x[2])
    except Exception as error:
        assert error.reason == "closed"
    producer.close()
    time.sleep(0.5)
    bus.append([x] * 5)
    os._exit(0)
# The parent closes first: what the child appends after that must stay.
consumer.close()
producer.close()
bus.close()
assert os.waitpid(child, 0)[1] == 0
bus = LocalBus(Path(sys.argv[1]))
print(bus.consumer("g").end_offsets([TopicPartition("t", 0)])[TopicPartition("t", 0)])
"""


def test_a_forked_process_goes_on_with_connections_of_its_own(folder: Path) -> None:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.stdout, answer.stderr) == ("106\n", "")


def test_the_configuration_opens_the_bus(folder: Path, clock: FakeClock) -> None:
    section = BusSection(path=folder, fsync=False, retention_hours=1)
    with closing(open_bus(section, clock)) as bus:
        assert isinstance(bus, LocalBus)
        bus.create_topic("t", 2)
        append(bus, 0, "a")
        clock.advance(3_601)
        assert bus.enforce_retention() == 1


@given(
    st.dictionaries(st.builds(TopicPartition, st.just("t"), st.integers(0, 9)), st.integers(1, 50)),
    st.integers(0, 200),
)
def test_a_limit_is_shared_fairly(available: dict[TopicPartition, int], limit: int) -> None:
    shares = share(available, limit)
    assert sum(shares.values()) == min(limit, sum(available.values()))
    assert all(0 < count <= available[partition] for partition, count in shares.items())
    unmet = [shares.get(p, 0) for p in available if shares.get(p, 0) < available[p]]
    assert all(abs(a - b) <= 1 for a, b in pairwise(unmet))
    assert not unmet or max(shares.values(), default=0) <= max(unmet) + 1


def test_a_clock_that_is_set_forward_deletes_nothing_that_was_not_read(
    bus: LocalBus, consumer: Consumer, clock: FakeClock
) -> None:
    append(bus, 0, "a")
    clock.set(10_000 * 3_600)
    append(bus, 0, "b")
    assert bus.enforce_retention() == 0
    start(consumer, ZERO)
    assert texts(read_all(consumer, 2)) == ["a", "b"]
