"""A prober and a responder find their addresses in their own tables, or in the map of the hall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from contract.config import HallSection
from contract.errors import ConfigError
from contract.testing import FakeClock
from ingest.collector import Context
from ingest.fabric.mesh import MeshCollector, MeshConfig
from ingest.fabric.responder import ResponderCollector, ResponderConfig

MAP = """\
hall: demo
leaves: [{leaf: leaf-0, rail: 0}, {leaf: leaf-1, rail: 1}]
rows:
- row: a
  racks:
  - rack: a01
    hosts:
    - host: h1
      nics:
      - {nic: m0, leaf: leaf-0, address: 10.0.0.1}
      - {nic: m0, port: 2, leaf: leaf-1, address: 10.1.0.1}
      - {nic: m1, leaf: leaf-1}
    - {host: h2, nics: [{nic: m0, leaf: leaf-0, address: 10.0.0.2}, {nic: m1, leaf: leaf-1, address: "fd00::0:2"}]}
"""


@pytest.fixture
def context(tmp_path: Path) -> Context:
    (tmp_path / "hall.yaml").write_text(MAP)
    (tmp_path / "key").write_text("ab" * 32)
    return Context(hall=HallSection(name="demo", inventory=tmp_path / "hall.yaml"), clock=FakeClock())


def mesh(context: Context, **values: Any) -> MeshCollector:
    key = context.hall.inventory.with_name("key") if context.hall.inventory else Path("key")
    config = {"collector": "fabric-mesh", "host": "h1", "key_file": key}
    return MeshCollector(MeshConfig.model_validate(config | values), context)


def test_the_paths_of_a_host_are_drawn_from_the_map(context: Context) -> None:
    routes = mesh(context)._routes
    assert {(route.path.name, route.path.path_class) for route in routes} == {
        ("h1/m0>h2/m0", "same_leaf"),
        ("h1/m0/2>h2/m1", "same_leaf"),
        ("h1/m0>h2/m1", "cross_rail"),
        ("h1/m0/2>h2/m0", "cross_rail"),
    }
    assert {route.path.target.address for route in routes} == {"10.0.0.2", "fd00::2"}


def test_named_targets_are_probed_from_every_port_of_the_host(context: Context) -> None:
    target = {"host": "other", "nic": "eth0", "address": "192.0.2.9", "port": 99}
    routes = mesh(context, targets=[target])._routes
    assert [(route.path.name, route.port) for route in routes] == [
        ("h1/m0>other/eth0", 99),
        ("h1/m0/2>other/eth0", 99),
    ]


def test_a_responder_answers_at_all_addresses_of_its_host(context: Context) -> None:
    assert context.hall.inventory is not None
    config = ResponderConfig(
        collector="fabric-responder", host="h1", key_file=context.hall.inventory.with_name("key")
    )
    responder = ResponderCollector(config, context)
    assert [(nic.name, nic.address) for nic in responder._nics] == [
        ("h1/m0", "10.0.0.1"),
        ("h1/m0/2", "10.1.0.1"),
    ]


def test_a_host_that_the_map_gives_no_address_is_told_what_is_missing(context: Context) -> None:
    with pytest.raises(ConfigError, match="addresses into the map"):
        mesh(context, host="h3")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nics": [{"nic": "a", "address": "10.0.0"}]}, "where an IP address belongs"),
        ({"late_after_seconds": 2, "lost_after_seconds": 1}, "lost_after_seconds"),
        ({"packet_bytes": 63}, "packet_bytes"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused(
    context: Context, values: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        mesh(context, **values)
