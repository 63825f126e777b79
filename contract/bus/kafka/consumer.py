"""The consumer on a cluster: positions of its own, and a watch on whether the logs are still the same.

kafka-python's consumer (seen with 3.0.12) returns nothing for ever while the cluster is away or a right is missing,
and goes on in a topic that was made again as if it were the old one. So what it fetched is handed out only after
the cluster has said which topics these are, and an idle consumer asks too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import kafka
from kafka import ConsumerRebalanceListener, errors
from kafka import TopicPartition as KafkaPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import MemberState, OffsetAndMetadata
from typing_extensions import override

from contract.bus.kafka.client import connect, transport_error
from contract.bus.local_consumer import share
from contract.bus.protocols import Assignment, Message, TopicPartition
from contract.clock import Clock
from contract.errors import LogReplaced, LogTruncated, TransportError

if TYPE_CHECKING:
    from contract.bus.kafka.bus import KafkaBus

_SETTINGS: dict[str, Any] = {
    # Positions come from the caller alone.
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "fetch_max_bytes": 8 * 2**20,
    "request_timeout_ms": 10_000,
    "allow_auto_create_topics": False,
    "metrics_enabled": False,
}

_GROUP_SETTINGS: dict[str, Any] = {
    "partition_assignment_strategy": [CooperativeStickyAssignor],
    "session_timeout_ms": 10_000,
    "heartbeat_interval_ms": 2_000,
}

_FETCH_RECORDS = 10_000
"""Taken from the client at once: enough that a partition with much to give hides no other."""

_FIRST_WAIT_SECONDS = 0.01
"""Without any waiting a member would never come to join its group."""

_CONFIRMED_SECONDS = 1.0
"""For so long the cluster's word holds that topics are the same: asking costs some milliseconds."""

_COMMIT_SECONDS, _CLOSE_SECONDS = 1.0, 2.0

_message: Callable[..., Message] = tuple.__new__  # half the time that Message(...) takes


@dataclass(slots=True)
class _Reader:
    """Where a consumer is in one partition, and what is fetched from there on."""

    position: int | None = None
    paused: bool = False
    fetched: deque[Any] = field(default_factory=deque)


class KafkaConsumer:
    """Reads through a client of its own. One thread at a time may use it."""

    def __init__(
        self, bus: KafkaBus, settings: dict[str, Any], group: str, clock: Clock, liveness_seconds: float
    ) -> None:
        self._bus, self._settings, self._group, self._clock = bus, settings, group, clock
        self._liveness_seconds = liveness_seconds
        self._client: Any = None
        self._readers: dict[TopicPartition, _Reader] = {}
        self._logs: dict[str, str] = {}
        """Which log each topic was when it was taken over."""
        self._confirmed_at = clock.monotonic()
        self._assignment: Assignment | None = None
        self._listener = _Listener()
        self._closed = False

    def subscribe(self, topics: Iterable[str], assignment: Assignment) -> None:
        wanted = list(dict.fromkeys(topics))
        self._identify(wanted)
        if self._assignment is None:
            self._connect({"group_id": self._group} | _GROUP_SETTINGS)
        self._assignment = assignment
        self._listener.client = self._client
        self._client.subscribe(wanted, listener=self._listener)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        infos = self._identify({at.topic for at in wanted})
        for topic, number in wanted:
            if not 0 <= number < infos[topic]:
                raise TransportError("no_topic", f"there is no partition {topic}/{number}")
        if self._assignment is not None or self._client is None:
            self._connect({"group_id": None, "group_instance_id": None})
        self._assignment = None
        self._client.assign([KafkaPartition(*at) for at in wanted])
        self._readers = {at: _Reader() for at in wanted}
        hold(self._client, wanted)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        reader = self._readers[partition]
        reader.position = offset
        reader.fetched.clear()
        if self._is_held(partition):
            self._client.seek(KafkaPartition(*partition), offset)
            if not reader.paused:
                self._client.resume(KafkaPartition(*partition))

    def poll(self, timeout_seconds: float, max_messages: int = 10_000) -> list[Message]:
        if self._closed:
            raise TransportError("closed", "this consumer was closed")
        self._tell_assignment()
        self._check_positions()
        if not self._waiting():
            self._fetch(timeout_seconds)
            self._tell_assignment()
            self._check_positions()
        self._confirm()
        return self._take(max_messages)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._readers[partition].paused = True
            if self._is_held(partition):
                self._client.pause(KafkaPartition(*partition))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            reader = self._readers[partition]
            reader.paused = False
            if reader.position is not None and self._is_held(partition):
                self._client.resume(KafkaPartition(*partition))

    def positions(self) -> dict[TopicPartition, int]:
        return {at: reader.position for at, reader in self._readers.items() if reader.position is not None}

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._bus.begin_offsets(partitions)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._bus.end_offsets(partitions)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self._assignment is None:
            self._bus.commit(self._group, offsets)
            return
        noted = {KafkaPartition(*at): OffsetAndMetadata(offset, "", -1) for at, offset in offsets.items()}
        try:
            self._client.commit(noted, timeout_ms=round(_COMMIT_SECONDS * 1000))
        except errors.KafkaError as error:
            raise transport_error(error, "committing offsets") from error

    def close(self) -> None:
        self._closed = True
        self._disconnect()

    def _connect(self, settings: dict[str, Any]) -> None:
        self._disconnect()
        self._client = connect(kafka.KafkaConsumer, self._settings | _SETTINGS | settings)

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close(autocommit=False, timeout_ms=round(_CLOSE_SECONDS * 1000))
        self._readers = {}
        self._listener = _Listener()

    def _identify(self, topics: Iterable[str]) -> dict[str, int]:
        """Note which logs the topics are; return how many partitions each has."""
        infos = self._bus.describe_all(topics)
        self._logs = {topic: info.log for topic, info in infos.items()}
        self._confirmed_at = self._clock.monotonic()
        return {topic: info.partitions for topic, info in infos.items()}

    def _is_held(self, partition: TopicPartition) -> bool:
        return self._client is not None and KafkaPartition(*partition) in self._client.assignment()

    def _tell_assignment(self) -> None:
        """Pass on what the group decided within the client's own poll, where nothing may be asked or awaited."""
        changes = self._listener.changes
        while changes and self._assignment is not None:
            gained, partitions = changes[0]
            if gained:
                self._readers |= {at: _Reader() for at in partitions}
                self._assignment.assigned(partitions)
            else:
                for at in partitions:
                    self._readers.pop(at, None)
                self._assignment.revoked(partitions)
            # Only now: where the callee raises, the next poll calls it again.
            changes.popleft()

    def _check_positions(self) -> None:
        for (topic, number), reader in self._readers.items():
            if reader.position is None and not reader.paused:
                raise TransportError("no_offset", f"{topic}/{number} was assigned and never given a position")

    def _waiting(self) -> dict[TopicPartition, int]:
        return {
            at: len(reader.fetched)
            for at, reader in self._readers.items()
            if reader.fetched and not reader.paused
        }

    def _fetch(self, timeout_seconds: float) -> None:
        if self._client is None:
            self._clock.sleep(timeout_seconds)
            return
        timeout_ms = max(timeout_seconds, _FIRST_WAIT_SECONDS) * 1000
        if self._assignment is not None and self._client.group_metadata().state is MemberState.REBALANCING:
            # A join that outlived the last poll is forgotten where new metadata had caused it: this member would
            # neither get partitions nor leave. Where it was not forgotten, this changes nothing.
            self._client._coordinator.request_rejoin()  # noqa: SLF001
        try:
            fetched = self._client.poll(timeout_ms=timeout_ms, max_records=_FETCH_RECORDS)
        except errors.OffsetOutOfRangeError as error:
            self._judge({TopicPartition(*at): offset for at, offset in error.args[0].items()})
            return
        except errors.LogTruncationError as error:
            self._confirm_now()
            raise LogReplaced(f"the cluster lost messages that were read already: {error}") from error
        except errors.KafkaError as error:
            raise transport_error(error, "reading") from error
        for at, records in fetched.items():
            if at in self._readers:
                self._readers[at].fetched.extend(records)

    def _judge(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Say why offsets are not there; say nothing where they are there now."""
        self._confirm_now()
        begins, ends = self._bus.begin_offsets(wanted), self._bus.end_offsets(wanted)
        for at, offset in wanted.items():
            if offset < begins[at]:
                raise LogTruncated(at.topic, at.partition, offset, begins[at])
            if offset > ends[at]:
                raise LogReplaced(
                    f"{at.topic}/{at.partition} ends at offset {ends[at]}, this reader had read to {offset}: "
                    "it is another log, or an older copy"
                )

    def _confirm(self) -> None:
        """Ask whether the topics are the same, before messages are handed out and when none come."""
        holds = _CONFIRMED_SECONDS if self._waiting() else self._liveness_seconds
        if self._clock.monotonic() - self._confirmed_at >= holds:
            self._confirm_now()

    def _confirm_now(self) -> None:
        try:
            infos = self._bus.describe_all(self._logs)
        except TransportError as error:
            if error.reason == "no_topic":
                raise LogReplaced(f"{error}: it was deleted after it was assigned") from error
            raise
        for topic, log in self._logs.items():
            if infos[topic].log != log:
                raise LogReplaced(f"{topic} was made again: it is {infos[topic].log}, and was {log}")
        self._confirmed_at = self._clock.monotonic()

    def _take(self, limit: int) -> list[Message]:
        """Return fetched messages, of each partition its share; move the positions behind them."""
        messages: list[Message] = []
        for at, count in share(self._waiting(), limit).items():
            topic, number = at
            reader = self._readers[at]
            take = reader.fetched.popleft
            messages += [
                _message(
                    Message,
                    (
                        topic,
                        number,
                        record.offset,
                        record.timestamp * 1000,
                        _text(record.key),
                        {name: _text(value) for name, value in record.headers},
                        record.value or b"",
                    ),
                )
                for record in (take() for _ in range(count))
            ]
            reader.position = messages[-1].offset + 1
        return messages


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what the group decides. It is called on the client's own thread, which must not wait for anything."""

    def __init__(self) -> None:
        self.client: Any = None
        self.changes: deque[tuple[bool, Sequence[TopicPartition]]] = deque()
        """(gained or lost, partitions), in order."""

    @override
    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        partitions = sorted(TopicPartition(*at) for at in assigned)
        hold(self.client, partitions)
        if partitions:
            self.changes.append((True, partitions))

    @override
    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        if partitions := sorted(TopicPartition(*at) for at in revoked):
            self.changes.append((False, partitions))

    @override
    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self.on_partitions_revoked(lost)


def hold(client: Any, partitions: Iterable[TopicPartition]) -> None:
    """Keep partitions from being read until somebody seeks: a client without a position looks for one itself."""
    for at in partitions:
        client.seek(KafkaPartition(*at), 0)
        client.pause(KafkaPartition(*at))


def _text(value: bytes | None) -> str:
    """Decode what anybody may have written."""
    return "" if value is None else value.decode(errors="replace")
