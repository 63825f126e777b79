"""What happens to a process at a step: the nemesis arms one, and the process strikes itself when it gets there."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from contract.bus import AckCallback, Bus, Consumer, Difference, Producer, Record, TopicInfo, TopicPartition
from contract.clock import SystemClock
from contract.errors import TransportError
from contract.stream import Stream
from ingest.spool import Outgoing, Outlet
from tests.faults.nemesis.disk import fill
from tests.faults.nemesis.marks import Marks


class Steps:
    """Called with the name of every step reached, which it marks; thread-safe."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._lock = threading.Lock()
        self._step, self._left = "", 0
        self._act: Callable[[], None] = die

    def arm(self, step: str, count: int, what: str, place: str | None) -> None:
        """At the `count`-th arrival at a step die, halt, or fill the disk of a folder."""
        acts = {"die": die, "halt": halt, "fill": lambda: fill(Path(place or ""))}
        with self._lock:
            self._step, self._left, self._act = step, count, acts[what]

    def __call__(self, step: str) -> None:
        self._marks(step)
        with self._lock:
            if step != self._step:
                return
            self._left -= 1
            if self._left:
                return
            self._step = ""
        self._act()


def die() -> None:
    """End without any farewell."""
    os.kill(os.getpid(), signal.SIGKILL)


def halt() -> None:
    """Stand still until somebody says SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


class SkewedClock(SystemClock):
    """The machine's clock, set wrong; marks that somebody believed it."""

    def __init__(self, skew_seconds: float, marks: Marks) -> None:
        self.skew_seconds = skew_seconds
        self._marks = marks

    def now_us(self) -> int:
        if self.skew_seconds:
            self._marks("skewed")
        return super().now_us() + round(self.skew_seconds * 1e6)


class SteppedOutlet:
    """An outlet with a step before and after each put."""

    def __init__(self, outlet: Outlet, steps: Steps) -> None:
        self._outlet, self._steps = outlet, steps

    def put(self, records: Sequence[Outgoing], cursor: tuple[str, bytes] | None = None) -> None:
        self._steps("putting")
        self._outlet.put(records, cursor)
        self._steps("put")

    def cursor(self, name: str) -> bytes | None:
        return self._outlet.cursor(name)

    def depth(self) -> int:
        return self._outlet.depth()

    def close(self) -> None:
        self._outlet.close()


class SteppedBus:
    """A bus whose producers have a step before each send and after each acknowledgement."""

    def __init__(self, bus: Bus, steps: Steps) -> None:
        self._bus, self._steps = bus, steps

    def producer(self) -> Producer:
        return _SteppedProducer(self._bus.producer(), self._steps)

    def ensure_topics(self, streams: Iterable[Stream]) -> None:
        self._bus.ensure_topics(streams)

    def describe(self, topic: str) -> TopicInfo:
        return self._bus.describe(topic)

    def differences(self, topics: Iterable[str]) -> list[Difference]:
        return self._bus.differences(topics)

    def consumer(self, group: str) -> Consumer:
        return self._bus.consumer(group)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        return self._bus.committed(group)

    def close(self) -> None:
        self._bus.close()


class _SteppedProducer:
    def __init__(self, producer: Producer, steps: Steps) -> None:
        self._producer, self._steps = producer, steps

    def send(self, topic: str, partition: int, record: Record, on_ack: AckCallback | None = None) -> None:
        self._steps("sending")

        def acknowledge(result: int | TransportError) -> None:
            if on_ack is not None:
                on_ack(result)
            if not isinstance(result, TransportError):
                self._steps("acknowledged")

        self._producer.send(topic, partition, record, acknowledge)

    def flush(self, timeout_seconds: float = 30.0) -> None:
        self._producer.flush(timeout_seconds)

    def close(self) -> None:
        self._producer.close()
