"""A prober and a responder, each on a host of its own, find what a network between them does to packets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.histogram import Histogram, merge
from contract.streams.fabric import FABRIC_PROBES
from contract.streams.self import COLLECTOR_STATUS
from tests.suites.middlebox import way_of
from tests.suites.network import Child, Network, NetworkMissingError

pytestmark = pytest.mark.integration

FIRST_PORT, PORTS = 42_000, 24
LATE_SECONDS = 0.4

CONFIG = """\
[hall]
name = "netns"
synthetic = true

[[ingest.collectors]]
key_file = "{key}"
interval_seconds = 0.5
"""
PROBER = f"""\
collector = "fabric-mesh"
host = "a"
nics = [{{nic = "eth0", address = "{Network.addresses["a"]}", rail = 0, leaf = "l"}}]
targets = [{{host = "b", nic = "eth0", address = "{Network.addresses["b"]}", rail = 0, leaf = "l"}}]
source_ports = {PORTS}
first_source_port = {FIRST_PORT}
probe_interval_seconds = 0.005
late_after_seconds = {LATE_SECONDS}
lost_after_seconds = 1
recent_seconds = 4
"""
RESPONDER = f"""\
collector = "fabric-responder"
host = "b"
nics = [{{nic = "eth0", address = "{Network.addresses["b"]}"}}]
"""


class Hall:
    """The network with a prober on a and a responder on b."""

    def __init__(self, network: Network, prober: Child, responder: Child) -> None:
        self.network, self.prober, self.responder = network, prober, responder

    def watch(self, probes: int, **faults: Any) -> tuple[dict[str, Any], dict[str, float]]:
        """Let faults happen to so many probes at least; return the sums of the prober's rows, and the truth.

        Windows around the change are left out: they tell of both sides of it.
        """
        self.network.middle(**faults)
        self.prober.skip()
        seen = 0

        def enough(row: dict[str, Any]) -> bool:
            nonlocal seen
            seen += row["sent"]
            return bool(seen >= probes)

        self.prober.rows(FABRIC_PROBES.topic, until=lambda row: row["window_seconds"] > 0)
        self.prober.rows(FABRIC_PROBES.topic)
        self.prober.rows(FABRIC_PROBES.topic)
        rows = self.prober.rows(FABRIC_PROBES.topic, until=enough)
        return _together(rows), self.network.middle()


def _together(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the newest row, with sums instead of its counts and all its windows' latencies merged."""
    counts = ("sent", "answered", "late", "lost", "duplicates", "unsent")
    sums = {name: sum(row[name] for row in rows) for name in counts}
    rtt = merge(one for row in rows if (one := Histogram.from_row(row, "rtt")) is not None)
    return rows[-1] | sums | {"rtt": rtt}


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hall]:
    folder: Path = tmp_path_factory.mktemp("netns")
    (folder / "key").write_text("5a" * 32)
    for name, text in (("prober", PROBER), ("responder", RESPONDER)):
        (folder / f"{name}.toml").write_text(CONFIG.format(key=folder / "key") + text)
    try:
        with Network() as network:
            responder = network.collect("b", folder / "responder.toml")
            responder.rows(FABRIC_PROBES.topic)
            prober = network.collect("a", folder / "prober.toml")
            prober.rows(FABRIC_PROBES.topic, until=lambda row: row["answered"] > 0)
            yield Hall(network, prober, responder)
    except NetworkMissingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def quiet(hall: Hall) -> dict[str, Any]:
    """Return what the prober sees while nothing is wrong."""
    return hall.watch(400)[0]


def test_a_network_that_is_well_loses_nothing_and_has_no_dead_port(quiet: dict[str, Any]) -> None:
    assert quiet["lost"] == 0
    assert quiet["dead_port_count"] == 0
    assert quiet["sent"] == quiet["answered"] + quiet["late"]
    assert quiet["rtt"].count == quiet["answered"]
    assert quiet["path"] == "a/eth0>b/eth0"
    assert quiet["path_class"] == "same_leaf"


def test_loss_is_told_within_its_binomial_interval(hall: Hall) -> None:
    ratio = 0.05
    found, truth = hall.watch(800, loss=ratio)
    assert truth["lost"] > 0
    deviation = math.sqrt(found["sent"] * ratio * (1 - ratio))
    assert abs(found["lost"] - found["sent"] * ratio) <= 4 * deviation  # 6 in 100,000 runs are beyond
    assert found["sent"] == found["answered"] + found["late"] + found["lost"]
    assert found["dead_port_count"] == 0


def test_a_way_that_swallows_everything_is_found_by_the_source_ports_that_take_it(hall: Hall) -> None:
    ways, dead_way = 8, way_of(FIRST_PORT, 8)
    found, truth = hall.watch(600, dead_way=dead_way, ways=ways)
    taken = [str(port) for port in range(FIRST_PORT, FIRST_PORT + PORTS) if way_of(port, ways) == dead_way]
    assert truth["dead"] > 0
    assert 0 < len(taken) < PORTS
    assert found["dead_ports"] == ",".join(taken)
    assert found["dead_port_count"] == len(taken)
    assert hall.watch(200)[0]["dead_port_count"] == 0


def test_delay_that_is_added_on_the_way_is_recovered(hall: Hall, quiet: dict[str, Any]) -> None:
    found, truth = hall.watch(300, delay_us=5_000)
    added_us = (found["rtt"].percentile(0.5) - quiet["rtt"].percentile(0.5)) / 1000
    assert truth["held_us"] >= 5_000
    assert added_us == pytest.approx(truth["held_us"], abs=150, rel=0.10)
    assert found["lost"] == 0


def test_what_comes_after_the_time_out_is_late_and_not_lost(hall: Hall) -> None:
    found, _ = hall.watch(200, delay_us=round(LATE_SECONDS * 1.5e6))
    assert found["late"] == found["sent"]
    assert (found["answered"], found["lost"], found["duplicates"]) == (0, 0, 0)


def test_a_probe_that_the_network_repeats_is_answered_once_and_counted(hall: Hall) -> None:
    hall.responder.skip()
    found, truth = hall.watch(300, repeat=0.2)
    assert truth["repeated"] > 0
    assert (found["lost"], found["duplicates"]) == (0, 0)
    status = hall.responder.rows(
        COLLECTOR_STATUS.topic, until=lambda row: '"replayed"' in (row["rejections"] or "")
    )
    assert '"spoofed"' not in status[-1]["rejections"]
