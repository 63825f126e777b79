"""A Kafka cluster is a bus like any other: the contract suite against a real broker."""

from __future__ import annotations

from functools import partial

import pytest

from contract.bus import open_bus
from contract.config import BusSection
from tests.suites.broker import Broker
from tests.suites.bus_suite import BusSuite, Factory

pytestmark = pytest.mark.integration


class TestKafkaBus(BusSuite):
    @pytest.fixture
    def factory(self, kafka_broker: Broker) -> Factory:
        return partial(open_bus, BusSection(kind="kafka", servers=kafka_broker.servers))
