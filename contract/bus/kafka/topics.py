"""Topics: how they are made, what is wrong with those that are there, and who they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType

from contract.bus.kafka.client import Admin, transport_error
from contract.bus.protocols import Difference, TopicInfo
from contract.codec import MAX_BODY_BYTES
from contract.config import BusSection
from contract.errors import TransportError

MAX_BATCH_BYTES = MAX_BODY_BYTES + 2**20
"""The largest message, its headers, and what Kafka puts around them."""

_SIZE = "max.message.bytes"
_READY_SECONDS = 30.0


def topic_settings(section: BusSection) -> dict[str, str]:
    """Return what a topic is made with (Apache Kafka documentation, Topic Configs)."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": str(round(section.retention_hours * 3_600_000)),
        "retention.bytes": "-1",
        # The producer has compressed already.
        "compression.type": "producer",
        _SIZE: str(MAX_BATCH_BYTES),
        # The time of arrival is the broker's, and no clock of a sender can be so wrong that it is refused.
        "message.timestamp.type": "LogAppendTime",
        "min.insync.replicas": str(max(1, section.replication_factor - 1)),
    }


def find_topics(admin: Admin, names: Iterable[str]) -> dict[str, TopicInfo]:
    """Return those topics that are there; raise TransportError, denied where one may not be seen."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    found = {}
    for topic in admin.ask("describing topics", lambda client: client.describe_topics(wanted)):
        kind = errors.for_code(topic["error_code"])
        if kind is errors.NoError:
            info = TopicInfo(
                topic=topic["name"], log=str(topic["topic_id"]), partitions=len(topic["partitions"])
            )
            found[info.topic] = info
        elif kind is not errors.UnknownTopicOrPartitionError:
            raise transport_error(kind(), f"describing the topic {topic['name']}")
    return found


def make_topics(admin: Admin, partitions: Mapping[str, int], section: BusSection) -> None:
    """Make topics, and wait until they can be used; one that somebody else makes at the same time is as good.

    Raises TransportError.
    """
    wanted = {
        name: {
            "num_partitions": count,
            "replication_factor": section.replication_factor,
            "configs": topic_settings(section),
        }
        for name, count in partitions.items()
    }
    made = admin.ask("making topics", lambda client: client.create_topics(wanted, raise_errors=False))
    for topic in made["topics"]:
        kind = errors.for_code(topic["error_code"])
        if kind not in (errors.NoError, errors.TopicAlreadyExistsError):
            raise transport_error(kind(topic.get("error_message") or ""), f"making the topic {topic['name']}")
    names, patience_ms = list(wanted), round(_READY_SECONDS * 1000)
    admin.ask("waiting for topics", lambda client: client.wait_for_topics(names, timeout_ms=patience_ms))


def compare_topics(admin: Admin, names: Iterable[str], section: BusSection) -> list[Difference]:
    """Return what of topics that are there differs from what they would be made with; raise TransportError."""
    wanted = topic_settings(section)
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(wanted)) for name in names]
    if not resources:
        return []

    def describe(client: Any) -> Any:
        return client.describe_configs(resources, config_filter="all")

    found = admin.ask("describing the settings of topics", describe).get("topic", {})
    return [
        Difference(topic, key, value, str(settings[key]["value"]))
        for topic, settings in sorted(found.items())
        for key, value in wanted.items()
        if key in settings and str(settings[key]["value"]) != value
    ]


def refuse_small(differences: Iterable[Difference]) -> None:
    """Raise TransportError(too_large) where a topic would refuse a message that may be sent.

    Such a message would end one producer after the other, and hold up all that comes after it.
    """
    for topic, setting, wanted, found in differences:
        if setting == _SIZE and int(found) < int(wanted):
            raise TransportError("too_large", f"{topic}: {setting} is {found} and must be {wanted} at least")
