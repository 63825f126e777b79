"""The bus on a Kafka cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka import TopicPartition as KafkaPartition
from kafka import errors
from kafka.admin import OffsetSpec
from kafka.structs import OffsetAndMetadata

from contract.bus.kafka.client import Admin, client_settings
from contract.bus.kafka.consumer import KafkaConsumer
from contract.bus.kafka.producer import KafkaProducer
from contract.bus.kafka.topics import compare_topics, find_topics, make_topics, refuse_small
from contract.bus.protocols import Consumer, Difference, Producer, TopicInfo, TopicPartition
from contract.clock import SYSTEM_CLOCK, Clock
from contract.config import BusSection
from contract.errors import LogReplaced, TransportError
from contract.log import Log
from contract.stream import Stream

_log = Log("bus.kafka")


class KafkaBus:
    """A cluster, reached when it is first asked something; any thread may use the bus itself.

    A topic's `log` is the id that the cluster gave it: another one when it is made again, or on another cluster.
    Every call may raise TransportError: unreachable, denied, closed.
    """

    def __init__(
        self,
        section: BusSection,
        clock: Clock = SYSTEM_CLOCK,
        *,
        ack_timeout_seconds: float = 30.0,
        liveness_seconds: float = 5.0,
    ) -> None:
        """Take a configuration; raises ConfigError for files that cannot be read.

        A producer that hears nothing of the cluster for `ack_timeout_seconds` has failed; a consumer that gets no
        messages asks whether the cluster is there after `liveness_seconds`.
        """
        self._section, self._clock = section, clock
        self._settings = client_settings(section)
        self._admin = Admin(self._settings)
        self._ack_timeout_seconds, self._liveness_seconds = ack_timeout_seconds, liveness_seconds

    def ensure_topics(self, streams: Iterable[Stream]) -> None:
        """Create what is missing; other settings than ours are logged.

        Raises LogReplaced where a topic has another number of partitions, TransportError(too_large) where it
        would not take every message.
        """
        wanted = {stream.topic: stream.partitions for stream in streams}
        found = find_topics(self._admin, wanted)
        if missing := {topic: count for topic, count in wanted.items() if topic not in found}:
            make_topics(self._admin, missing, self._section)
            found |= find_topics(self._admin, missing)
        for topic, count in wanted.items():
            info = found.get(topic)
            if info is not None and info.partitions != count:
                raise LogReplaced(
                    f"{topic} has {info.partitions} partitions where {count} are declared; "
                    "partitions are never added in place: declare a new version of the stream"
                )
        self._check_settings(wanted)

    def differences(self, topics: Iterable[str]) -> list[Difference]:
        """Return how topics that are there differ from what they would be made with."""
        return compare_topics(self._admin, topics, self._section)

    def describe(self, topic: str) -> TopicInfo:
        return self.describe_all([topic])[topic]

    def describe_all(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Return identity and shape of several topics; raise TransportError(no_topic)."""
        wanted = list(topics)
        found = find_topics(self._admin, wanted)
        for topic in wanted:
            if topic not in found:
                raise TransportError("no_topic", f"there is no topic {topic}")
        return found

    def producer(self) -> Producer:
        return KafkaProducer(self, self._settings, self._ack_timeout_seconds)

    def consumer(self, group: str) -> Consumer:
        settings = self._settings | {"group_instance_id": self._section.group_instance_id}
        return KafkaConsumer(self, settings, group, self._clock, self._liveness_seconds)

    def begin_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, OffsetSpec.EARLIEST)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._offsets(partitions, OffsetSpec.LATEST)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Note how far a group is that nobody has subscribed with."""
        wanted = {KafkaPartition(*at): OffsetAndMetadata(offset, "", -1) for at, offset in offsets.items()}

        def note(client: Any) -> None:
            for at, kind in client.alter_group_offsets(group, wanted).items():
                if kind is not errors.NoError:
                    raise kind(f"{at.topic}/{at.partition}")

        self._admin.ask("committing offsets", note)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        found = self._admin.ask("asking for offsets", lambda client: client.list_group_offsets([group]))
        offsets = {TopicPartition(*at): noted.offset for at, noted in found.get(group, {}).items()}
        topics = find_topics(self._admin, {at.topic for at in offsets})
        return {at: offset for at, offset in offsets.items() if offset >= 0 and at.topic in topics}

    def close(self) -> None:
        self._admin.close()

    def _offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        wanted = {KafkaPartition(*at): spec for at in partitions}
        if not wanted:
            return {}
        found = self._admin.ask(
            "asking where logs begin and end", lambda client: client.list_partition_offsets(wanted)
        )
        return {TopicPartition(*at): place.offset for at, place in found.items()}

    def _check_settings(self, topics: Iterable[str]) -> None:
        try:
            differences = self.differences(topics)
        except TransportError as error:
            # Whoever only writes or reads may not be allowed to see them.
            _log.debug("settings_not_compared", reason=error.reason, error=error)
            return
        for topic, setting, wanted, found in differences:
            _log.warning("topic_differs", topic=topic, setting=setting, wanted=wanted, found=found)
        refuse_small(differences)
