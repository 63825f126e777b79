from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from contract.bus import AckCallback, Bus, Record, TopicPartition
from contract.bus.local import LocalBus
from contract.clock import SystemClock
from contract.codec import Event, encode_event, encode_events
from contract.errors import ConfigError, TransportError
from contract.streams.gpu import GPU_SAMPLES
from contract.testing import example_rows
from ingest import spool
from ingest.spool import DirectOutlet, Outgoing, SpoolOutlet, StdoutOutlet

PATIENCE_SECONDS = 30.0


class HurriedClock(SystemClock):
    """Waits a hundredth of what it is asked to; `pauses` are those between attempts."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    @override
    def wait(self, event: threading.Event, seconds: float) -> bool:
        if seconds != spool._IDLE_SECONDS:
            self.pauses.append(seconds)
        return super().wait(event, seconds / 100)


@dataclass(frozen=True, slots=True)
class Fault:
    """What one producer does after it took `after` records well.

    away: there is no producer at all. raises: `send` fails. fails: the acknowledgement is an error. silent: no
    acknowledgement ever comes, and nothing is kept. split: the same for partition 0, all goes well for others. unheard: nothing is acknowledged though it was kept, then
    `send` fails.
    """

    kind: Literal["away", "raises", "fails", "silent", "split", "unheard"]
    after: int = 0


class Kept(NamedTuple):
    topic: str
    partition: int
    record: Record


class FlakyBus:
    """Gives one producer per fault, then good ones; keeps what reached it, in order.

    `late` acknowledges from another thread, the newest first.
    """

    def __init__(self, *faults: Fault, late: bool = False, max_bytes: int = 1_000_000) -> None:
        self.faults = list(faults)
        self.late = late
        self.max_bytes = max_bytes
        self.kept: list[Kept] = []
        self.producers = 0
        self.reached = threading.Event()

    def producer(self) -> FlakyProducer:
        self.producers += 1
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None and fault.kind == "away":
            raise TransportError("unreachable", "nobody answers")
        return FlakyProducer(self, fault)

    def bodies(self) -> list[str]:
        return [kept.record.body.decode() for kept in self.kept]


class FlakyProducer:
    """Fail-stop, as the protocol asks: after its first failure nothing reaches the bus."""

    def __init__(self, bus: FlakyBus, fault: Fault | None) -> None:
        self._bus, self._fault, self._taken = bus, fault, 0
        self._late: list[Callable[[], None]] = []
        self._dead = False

    def send(self, topic: str, partition: int, record: Record, on_ack: AckCallback | None = None) -> None:
        assert on_ack is not None
        if self._dead:
            raise TransportError("unreachable", "the connection is gone")
        if len(record.body) > self._bus.max_bytes:
            raise TransportError("too_large", "the broker takes less")
        self._taken += 1
        fault = self._fault
        if fault is not None and fault.kind == "unheard":
            self._dead = self._taken > fault.after
            self._bus.kept.append(Kept(topic, partition, record))
            return
        if fault is not None and self._taken > fault.after and not (fault.kind == "split" and partition):
            self._fail(fault, on_ack)
            return
        self._bus.kept.append(Kept(topic, partition, record))
        self._acknowledge(partial(on_ack, len(self._bus.kept)))

    def _fail(self, fault: Fault, on_ack: AckCallback) -> None:
        if fault.kind in ("silent", "split"):
            return
        self._dead = True
        error = TransportError("unreachable", "the connection broke")
        if fault.kind == "raises":
            raise error
        on_ack(error)

    def _acknowledge(self, call: Callable[[], None]) -> None:
        if not self._bus.late:
            call()
            return
        self._late.append(call)
        if len(self._late) == 1:
            threading.Timer(0.01, self._release).start()

    def _release(self) -> None:
        calls, self._late = self._late, []
        for call in reversed(calls):
            call()

    def flush(self, timeout_seconds: float = 30.0) -> None:
        raise NotImplementedError("the spool waits for acknowledgements, never for all")

    def close(self) -> None:
        self._dead = True


def out(body: str, partition: int = 0, **headers: str) -> Outgoing:
    return Outgoing("t", partition, Record(key="k", headers=headers, body=body.encode()))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def drain(outlet: SpoolOutlet) -> None:
    wait_until(lambda: outlet.depth() == 0)


@pytest.fixture
def clock() -> HurriedClock:
    return HurriedClock()


@pytest.fixture
def open_spool(tmp_path: Path, clock: HurriedClock) -> Iterator[Callable[..., SpoolOutlet]]:
    opened: list[SpoolOutlet] = []

    def open_spool(bus: FlakyBus | LocalBus, max_bytes: int = 10**9) -> SpoolOutlet:
        opened.append(
            SpoolOutlet(
                tmp_path / "spool",
                cast(Bus, bus),
                max_bytes=max_bytes,
                fsync=False,
                clock=clock,
                ack_timeout_seconds=0.2,
            )
        )
        return opened[-1]

    yield open_spool
    for outlet in opened:
        if outlet._thread.is_alive():
            outlet.close()


AWAY = [Fault("away")] * 1_000


def test_events_reach_the_bus_as_they_were_put(open_spool: Callable[..., SpoolOutlet]) -> None:
    bus = FlakyBus()
    outlet = open_spool(bus)
    first = Outgoing("a", 3, Record(key="höst", headers={"ce_source": "s", "x": ""}, body=b"\x00\xff"))
    second = Outgoing("b", 0, Record(key="", headers={}, body=b""))
    outlet.put([first, second])
    drain(outlet)
    assert bus.kept == [Kept(*first), Kept(*second)]


def test_the_spool_feeds_a_real_bus(open_spool: Callable[..., SpoolOutlet], tmp_path: Path) -> None:
    with closing(LocalBus(tmp_path / "bus", fsync=False)) as bus:
        bus.create_topic("t", 2)
        outlet = open_spool(bus)
        for number in range(200):
            outlet.put([out(str(number), number % 2)])
        drain(outlet)
        outlet.close()
        with closing(bus.consumer("g")) as consumer:
            for partition in (0, 1):
                place = TopicPartition("t", partition)
                consumer.assign([place])
                consumer.seek(place, 0)
                bodies = [m.body.decode() for m in consumer.poll(0)]
                assert bodies == [str(n) for n in range(partition, 200, 2)]


def test_a_cursor_is_stored_with_its_events_and_outlives_the_process(
    open_spool: Callable[..., SpoolOutlet],
) -> None:
    outlet = open_spool(FlakyBus())
    assert outlet.cursor("c") is None
    outlet.put([out("a")], ("c", b"1"))
    outlet.put([], ("c", b"2"))
    assert outlet.cursor("c") == b"2"
    outlet.close()
    assert open_spool(FlakyBus()).cursor("c") == b"2"


def test_events_wait_while_the_bus_is_away(open_spool: Callable[..., SpoolOutlet]) -> None:
    bus = FlakyBus(*AWAY)
    outlet = open_spool(bus)
    for number in range(20):
        outlet.put([out(str(number))])
    assert outlet.depth() == 20
    wait_until(lambda: outlet.failures["unreachable"] > 0)
    bus.faults.clear()
    drain(outlet)
    assert bus.bodies() == [str(n) for n in range(20)]


def test_what_one_run_left_the_next_one_forwards(open_spool: Callable[..., SpoolOutlet]) -> None:
    outlet = open_spool(FlakyBus(Fault("silent", after=3)))
    for number in range(10):
        outlet.put([out(str(number))])
    wait_until(lambda: outlet.depth() == 7)
    outlet.close()
    bus = FlakyBus()
    outlet = open_spool(bus)
    drain(outlet)
    assert bus.bodies() == [str(n) for n in range(3, 10)]


@pytest.mark.parametrize("kind", ["raises", "fails", "silent"])
def test_after_a_failure_a_new_producer_sends_again_from_the_lowest_unacknowledged(
    open_spool: Callable[..., SpoolOutlet], kind: Literal["raises", "fails", "silent"]
) -> None:
    bus = FlakyBus(Fault(kind, after=4))
    outlet = open_spool(bus)
    outlet.put([out(str(number)) for number in range(10)])
    drain(outlet)
    assert bus.bodies() == [str(n) for n in range(10)]
    assert bus.producers == 2
    assert sum(outlet.failures.values()) == 1


def test_what_was_kept_but_never_acknowledged_is_sent_again(open_spool: Callable[..., SpoolOutlet]) -> None:
    bus = FlakyBus(Fault("unheard", after=4))
    outlet = open_spool(bus)
    outlet.put([out(str(number)) for number in range(10)])
    drain(outlet)
    assert bus.bodies() == [str(n) for n in (*range(5), *range(10))]


def test_an_acknowledgement_says_nothing_about_another_partition(
    open_spool: Callable[..., SpoolOutlet],
) -> None:
    bus = FlakyBus(Fault("split", after=3))
    outlet = open_spool(bus)
    outlet.put([out(str(number), number % 2) for number in range(8)])
    drain(outlet)
    assert bus.bodies() == ["0", "1", "2", "3", "5", "7", "4", "5", "6", "7"]


def test_acknowledgements_may_come_late_and_in_any_order(open_spool: Callable[..., SpoolOutlet]) -> None:
    bus = FlakyBus(late=True)
    outlet = open_spool(bus)
    for number in range(50):
        outlet.put([out(str(number), number % 7)])
    drain(outlet)
    assert bus.bodies() == [str(n) for n in range(50)]
    assert bus.producers == 1


def test_the_pauses_between_attempts_grow_to_half_a_minute_and_vary(
    open_spool: Callable[..., SpoolOutlet], clock: HurriedClock
) -> None:
    bus = FlakyBus(*AWAY[:12])
    outlet = open_spool(bus)
    wait_until(lambda: bus.producers == 13)
    full = [min(0.1 * 2**attempt, 30) for attempt in range(12)]
    assert all(most / 2 <= wait <= most for wait, most in zip(clock.pauses, full, strict=False))
    assert len({wait / most for wait, most in zip(clock.pauses, full, strict=False)}) > 6
    assert outlet.failures == {"unreachable": 12}


def test_progress_makes_the_pauses_short_again(
    open_spool: Callable[..., SpoolOutlet], clock: HurriedClock
) -> None:
    bus = FlakyBus(*AWAY[:6], Fault("raises", after=1), Fault("raises", after=1))
    outlet = open_spool(bus)
    outlet.put([out(str(number)) for number in range(5)])
    drain(outlet)
    assert clock.pauses[5] > 1
    assert clock.pauses[6] <= 0.1
    assert clock.pauses[7] <= 0.1


def test_a_full_spool_refuses_and_keeps_what_it_has(open_spool: Callable[..., SpoolOutlet]) -> None:
    bus = FlakyBus(*AWAY)
    outlet = open_spool(bus, max_bytes=2_000_000)
    stored = 0
    with pytest.raises(TransportError) as caught:  # noqa: PT012 - which put is the first refused is not known
        for number in range(100):
            outlet.put([out(str(number).ljust(50_000))], ("c", str(number).encode()))
            stored += 1
    assert caught.value.reason == "full"
    assert 10 < stored < 60
    assert outlet.cursor("c") == str(stored - 1).encode()
    assert outlet.depth() == stored
    bus.faults.clear()
    drain(outlet)
    assert [int(body) for body in bus.bodies()] == list(range(stored))
    wait_until(lambda: outlet._spool.used_bytes() < 500_000)
    outlet.put([out("again")])
    drain(outlet)


def test_an_event_that_the_bus_can_never_take_is_counted_and_passed_over(
    open_spool: Callable[..., SpoolOutlet],
) -> None:
    bus = FlakyBus(max_bytes=10)
    outlet = open_spool(bus)
    outlet.put([out("a"), out("x" * 11), out("b")])
    drain(outlet)
    assert bus.bodies() == ["a", "b"]
    assert outlet.refused == 1
    assert not outlet.failures


def test_two_processes_cannot_forward_one_spool(open_spool: Callable[..., SpoolOutlet]) -> None:
    outlet = open_spool(FlakyBus())
    with pytest.raises(ConfigError) as caught:
        open_spool(FlakyBus())
    assert caught.value.reason == "in_use"
    outlet.close()
    open_spool(FlakyBus()).put([out("a")])


def test_a_spool_that_cannot_be_opened_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite").write_bytes(b"precious " * 1_000)
    for _ in range(2):
        with pytest.raises(TransportError) as caught:
            SpoolOutlet(tmp_path, cast(Bus, FlakyBus()))
        assert caught.value.reason == "unreachable"


def test_a_closed_spool_refuses(open_spool: Callable[..., SpoolOutlet]) -> None:
    outlet = open_spool(FlakyBus())
    outlet.close()
    with pytest.raises(TransportError) as caught:
        outlet.put([out("a")])
    assert caught.value.reason == "closed"


faults = st.builds(
    Fault, st.sampled_from(["away", "raises", "fails", "silent", "split", "unheard"]), st.integers(0, 12)
)
batches = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=8)


@settings(max_examples=15)
@given(st.lists(faults, max_size=5), st.booleans(), batches)
def test_whatever_fails_every_event_arrives_and_first_arrivals_are_in_order(
    script: list[Fault], late: bool, sources: list[list[int]]
) -> None:
    bus = FlakyBus(*script, late=late)
    sent: dict[int, list[int]] = {0: [], 1: [], 2: []}
    with TemporaryDirectory() as folder:
        outlet = SpoolOutlet(
            Path(folder), cast(Bus, bus), fsync=False, clock=HurriedClock(), ack_timeout_seconds=0.05
        )
        with closing(outlet):
            for batch in sources:
                records = []
                for source in batch:
                    sent[source].append(len(sent[source]))
                    records.append(out(str(sent[source][-1]), source, ce_source=str(source)))
                outlet.put(records)
            drain(outlet)
    for source, numbers in sent.items():
        arrived = [int(k.record.body) for k in bus.kept if k.record.headers["ce_source"] == str(source)]
        assert list(dict.fromkeys(arrived)) == numbers


# Without a spool.


def test_on_one_machine_events_and_cursor_go_straight_into_the_log(tmp_path: Path) -> None:
    with closing(LocalBus(tmp_path, fsync=False)) as bus, closing(bus.consumer("g")) as consumer:
        bus.create_topic("t", 2)
        outlet = DirectOutlet(bus)
        outlet.put([out("a", 1), out("b", 1)], ("c", b"1"))
        with pytest.raises(TransportError):
            outlet.put([out("c", 1), out("d", 2)], ("c", b"2"))
        assert outlet.cursor("c") == bus.cursor("c") == b"1"
        assert outlet.depth() == 0
        outlet.close()
        assert consumer.end_offsets([TopicPartition("t", 1)]) == {TopicPartition("t", 1): 2}


class ClosedPipe(io.StringIO):
    @override
    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def gpu_events(count: int, rows: int) -> Sequence[Event]:
    return [
        Event(source="s", epoch="e", sequence=n, table=example_rows(GPU_SAMPLES, rows, host="h"))
        for n in range(count)
    ]


def test_standard_output_shows_one_line_per_event_with_its_columns() -> None:
    stream = io.StringIO()
    outlet = StdoutOutlet(stream)
    json_record = encode_event(GPU_SAMPLES, gpu_events(1, 2)[0], "h")
    arrow_record = encode_events(GPU_SAMPLES, gpu_events(2, 1), "h")
    outlet.put([Outgoing("t", 1, json_record), Outgoing("t", 2, arrow_record)], ("c", b"1"))
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["topic"], first["partition"]) == ("t", 1)
    assert first["headers"] == {
        "ce_source": "s",
        "ce_epoch": "e",
        "ce_sequence": "0",
        "content-type": "application/vnd.hallwatch.columns+json",
    }
    assert first["body"]["host"] == "h"
    assert first["body"]["gpu_uuid"] == ["gpu_uuid-0", "gpu_uuid-1"]
    assert second["body"]["_seq"] == [0, 1]
    assert second["body"]["host"] == ["h", "h"]
    assert outlet.cursor("c") == b"1"


def test_a_closed_standard_output_is_an_error() -> None:
    outlet = StdoutOutlet(ClosedPipe())
    with pytest.raises(TransportError) as caught:
        outlet.put([Outgoing("t", 0, encode_event(GPU_SAMPLES, gpu_events(1, 1)[0], "h"))], ("c", b"1"))
    assert caught.value.reason == "closed"
    assert outlet.cursor("c") is None
