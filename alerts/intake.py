"""Reads the bus for the engine: from where the journal says, in an order that can be read again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Self

from alerts.journal import BatchRecord, Journal, Range
from contract.bus import Bus, Message, TopicPartition
from contract.errors import LogReplaced, LogTruncated, StoreError, TransportError
from contract.log import Log
from contract.reader import read_batch
from contract.stream import Stream
from contract.streams import BY_TOPIC
from contract.streams.alerts import ALERTS

REREAD_TRIES = 30
REREAD_WAIT_SECONDS = 1.0
REREAD_BUFFER = 20_000

_log = Log("intake")


class Intake:
    """One consumer over every partition that the rules need."""

    def __init__(self, bus: Bus, journal: Journal, hall: str, *, accept: bool) -> None:
        """`accept`: go on where a log is another or shorter than the journal knows."""
        self.bus = bus
        self.consumer = bus.consumer(f"engine/{hall}")
        self.was_full = False
        """The last poll gave as much as it may: more is waiting."""
        self._journal = journal
        self._accept = accept
        self._logs: dict[str, str] = {}
        self._partitions: list[TopicPartition] = []
        self._received_us: dict[TopicPartition, int] = {}
        self._moved: dict[TopicPartition, tuple[str, int]] = {}
        self._accepted: list[str] = []

    def newest_alert(self) -> str | None:
        """Return the hash of the last transition on the bus, whoever wrote it."""
        partition = TopicPartition(ALERTS.topic, 0)
        self.consumer.assign([partition])
        begin = self.consumer.begin_offsets([partition])[partition]
        end = self.consumer.end_offsets([partition])[partition]
        if begin == end:
            return None
        self.consumer.seek(partition, end - 1)
        messages = self.consumer.poll(REREAD_WAIT_SECONDS)
        hashes = read_batch(ALERTS, messages, {}).table.column("hash").to_pylist()
        return str(hashes[-1]) if hashes else None

    def go_on(self, streams: Iterable[Stream], known: Iterable[Stream]) -> None:
        """Take over every partition of `streams`; of those not in `known`, the journal's positions are stale.

        Topology is read from its beginning, everything else that is new from its end. Raises LogReplaced or
        LogTruncated where the bus is not the one that was read before.
        """
        streams, read_before = list(streams), {stream.topic for stream in known}
        self.bus.ensure_topics(streams)
        infos = [self.bus.describe(stream.topic) for stream in streams]
        self._logs = {info.topic: info.log for info in infos}
        self._partitions = [TopicPartition(i.topic, number) for i in infos for number in range(i.partitions)]
        begins = self.consumer.begin_offsets(self._partitions)
        ends = self.consumer.end_offsets(self._partitions)
        journaled = self._journal.positions()
        self.consumer.assign(self._partitions)
        for partition in self._partitions:
            begin, end = begins[partition], ends[partition]
            place = journaled.get(partition) if partition.topic in read_before else None
            if place is None:
                start = begin if BY_TOPIC[partition.topic].family == "topology" else end
                self._move(partition, start)
            else:
                self.consumer.seek(partition, self._resume(partition, place, begin, end))

    def _resume(self, partition: TopicPartition, place: tuple[str, int], begin: int, end: int) -> int:
        """Return where to go on in a partition that was read before."""
        log, position = place
        try:
            check_log(partition, self._logs[partition.topic], log)
            check_offset(partition, position, begin, end)
        except TransportError as error:
            if not self._accept:
                raise
            self.accept(str(error))
            self._move(partition, begin)
            return begin
        return position

    def _move(self, partition: TopicPartition, offset: int) -> None:
        self.consumer.seek(partition, offset)
        self._moved[partition] = (self._logs[partition.topic], offset)

    def accept(self, what: str) -> None:
        """Note for the journal that a break in what was read is accepted."""
        _log.warning("accepted", what=what)
        self._accepted.append(what)

    def poll(self, timeout_seconds: float, max_messages: int) -> list[Message]:
        """Return the next messages; raise TransportError."""
        self.was_full = False
        try:
            messages = self.consumer.poll(timeout_seconds, max_messages)
        except LogTruncated as error:
            if not self._accept:
                raise
            self.accept(str(error))
            self._move(TopicPartition(error.topic, error.partition), error.begins)
            return []
        self.was_full = len(messages) >= max_messages
        for message in messages:
            self._received_us[TopicPartition(message.topic, message.partition)] = message.received_us
        return messages

    def ranges(self, messages: Sequence[Message]) -> tuple[Range, ...]:
        """Describe messages so that they can be read again in the same order."""
        ranges: list[Range] = []
        topic, number, begin, end = "", -1, 0, 0
        for message in messages:
            if message.partition != number or message.topic != topic or message.offset < end:
                if number >= 0:
                    ranges.append(Range(self._logs[topic], topic, number, begin, end))
                topic, number, begin = message.topic, message.partition, message.offset
            end = message.offset + 1
        if number >= 0:
            ranges.append(Range(self._logs[topic], topic, number, begin, end))
        return tuple(ranges)

    def behind(self, error: str | None) -> tuple[tuple[str, int, int], ...]:
        """Return (stream, partition, time up to which it is read) of what is not read to its end."""
        behind = []
        positions = self.consumer.positions()
        try:
            ends = self.consumer.end_offsets(self._partitions) if error is None else {}
        except TransportError:
            ends = {}
        for partition in self._partitions:
            if partition not in ends or positions.get(partition, 0) < ends[partition]:
                read_until = self._received_us.get(partition, 0)
                behind.append((BY_TOPIC[partition.topic].name, partition.partition, read_until))
        return tuple(behind)

    def moved(self) -> dict[TopicPartition, tuple[str, int]]:
        """Return positions that were set, not read to, since the last commit."""
        return dict(self._moved)

    def accepted(self) -> tuple[str, ...]:
        return tuple(self._accepted)

    def committed(self) -> None:
        """Forget what the journal now holds."""
        self._moved, self._accepted = {}, []

    def close(self) -> None:
        self.consumer.close()


def check_log(partition: TopicPartition, found: str, journaled: str) -> None:
    """Raise LogReplaced where a topic is not the one that the journal has read."""
    if found != journaled:
        raise LogReplaced(
            f"{partition.topic} is another log than the journal has read: {found}, not {journaled}"
        )


def check_offset(partition: TopicPartition, wanted: int, begin: int, end: int) -> None:
    """Raise where a log does not reach from or to an offset that was read before: LogTruncated or LogReplaced."""
    topic, number = partition
    if wanted > end:
        raise LogReplaced(f"{topic}/{number} ends at {end}, the journal has read to {wanted}")
    if wanted < begin:
        raise LogTruncated(topic, number, wanted, begin)


class Reread:
    """Reads journaled batches again, in their order."""

    def __init__(self, intake: Intake, records: Sequence[BatchRecord]) -> None:
        self._intake = intake
        self._buffers: dict[TopicPartition, deque[Message]] = {}
        self._wanted: dict[TopicPartition, Range] = {}
        """What is needed of each partition, from the first range to the last."""
        for record in records:
            for r in record.ranges:
                partition = TopicPartition(r.topic, r.partition)
                first = self._wanted.get(partition, r)
                self._wanted[partition] = replace(r, begin=first.begin)

    def __enter__(self) -> Self:
        consumer = self._intake.consumer
        begins, ends = consumer.begin_offsets(self._wanted), consumer.end_offsets(self._wanted)
        logs = {topic: self._intake.bus.describe(topic).log for topic, _ in self._wanted}
        for partition, wanted in self._wanted.items():
            check_log(partition, logs[partition.topic], wanted.log)
            check_offset(partition, wanted.begin, begins[partition], ends[partition])
            check_offset(partition, wanted.end, begins[partition], ends[partition])
        self._buffers = {partition: deque() for partition in self._wanted}
        consumer.assign(self._wanted)
        for partition, wanted in self._wanted.items():
            consumer.seek(partition, wanted.begin)
        return self

    def __exit__(self, *_: object) -> None:
        self._buffers = {}

    def messages(self, ranges: Iterable[Range]) -> list[Message]:
        """Return the messages of ranges; raise LogTruncated, LogReplaced or StoreError where they are gone."""
        return [message for r in ranges for message in self._take(r)]

    def _take(self, wanted: Range) -> list[Message]:
        partition = TopicPartition(wanted.topic, wanted.partition)
        buffer = self._buffers[partition]
        tries = 0
        while not buffer or buffer[-1].offset < wanted.end - 1:
            if not self._fill():
                tries += 1
            if tries == REREAD_TRIES:
                text = f"{wanted.topic}/{wanted.partition}: offsets to {wanted.end} cannot be read again"
                raise StoreError("damaged", text)
        taken = []
        while buffer and buffer[0].offset < wanted.end:
            taken.append(buffer.popleft())
        return taken

    def _fill(self) -> bool:
        consumer = self._intake.consumer
        full = [p for p, buffer in self._buffers.items() if len(buffer) >= REREAD_BUFFER]
        consumer.resume(self._buffers)
        consumer.pause(full)
        messages = consumer.poll(REREAD_WAIT_SECONDS)
        for message in messages:
            self._buffers[TopicPartition(message.topic, message.partition)].append(message)
        return bool(messages)
