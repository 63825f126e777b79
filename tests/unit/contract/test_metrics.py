"""A process's own metrics: one prefix, and a port that a person chooses."""

from __future__ import annotations

import socket
import threading

import pytest

from contract.errors import ConfigError
from contract.metrics import Metrics


def test_every_metric_carries_the_products_prefix() -> None:
    metrics = Metrics()
    metrics.counter("things", "Things.", ("kind",)).labels("a").inc(2)
    assert metrics.registry.get_sample_value("hallwatch_things_total", {"kind": "a"}) == 2


def test_a_port_that_is_taken_is_an_error_that_names_the_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"metrics_port = {port}") as raised:
            Metrics().serve(port)
    assert raised.value.reason == "in_use"


def test_port_0_serves_nothing() -> None:
    threads = threading.active_count()
    Metrics().serve(0)
    assert threading.active_count() == threads
