"""The bus of a hall: a Kafka cluster.
Imports contract and kafka-python; nothing else may import kafka-python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract.clock import SYSTEM_CLOCK, Clock
from contract.errors import ConfigError

if TYPE_CHECKING:
    from contract.bus.kafka.bus import KafkaBus
    from contract.config import BusSection

__all__ = ["open_kafka"]


def open_kafka(section: BusSection, clock: Clock = SYSTEM_CLOCK) -> KafkaBus:
    """Open a bus on a cluster, without talking to it yet.

    Raises ConfigError: missing where the extra is not installed, unreadable for a file that is named.
    """
    try:
        from contract.bus.kafka.bus import KafkaBus
    except ImportError as error:
        raise ConfigError(
            "missing", f'[bus] kind = "kafka" needs the extra `kafka`, which is not installed: {error}'
        ) from error
    return KafkaBus(section, clock)
