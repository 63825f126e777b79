"""Place and topology: any name that an alert or a row may carry leads to rack, loop, leaf and rail."""

from typing import Any

import pytest

from analytics.testing import SinkRig
from contract.streams.self import DEAD_LETTERS
from contract.streams.topology import INVENTORY

GUID = "0x58a2e10300123456"

ASSETS: list[dict[str, Any]] = [
    {"asset": "hall-1", "kind": "hall"},
    {"asset": "fws-1", "kind": "loop", "parent": "hall-1", "loop_kind": "fws"},
    {"asset": "tcs-1", "kind": "loop", "parent": "hall-1", "cdu": "cdu-1"},
    {"asset": "a01-manifold", "kind": "loop", "parent": "hall-1", "cdu": "cdu-1", "loop": "tcs-1"},
    {"asset": "cdu-1", "kind": "cdu", "parent": "hall-1", "loop": "fws-1"},
    {"asset": "cdu-2", "kind": "cdu", "parent": "a01"},
    {"asset": "a", "kind": "row", "parent": "hall-1"},
    {"asset": "a01", "kind": "rack", "parent": "a", "cdu": "cdu-1", "loop": "a01-manifold"},
    {"asset": "h1", "kind": "host", "parent": "a01", "trust_roots": "amd nvidia"},
    {"asset": "gpu-0", "kind": "gpu", "parent": "h1", "position": 0},
    {
        "asset": "h1/mlx5_0",
        "kind": "nic",
        "parent": "h1",
        "guid": GUID,
        "port": 1,
        "rail": 3,
        "leaf": "leaf-1",
    },
    {"asset": "h1/mlx5_0/2", "kind": "nic", "parent": "h1", "port": 2},
    {"asset": "leaf-1", "kind": "leaf", "parent": "a02", "rail": 3},
    {"asset": "a02", "kind": "rack", "parent": "a"},
    {"asset": "spine-1", "kind": "spine", "parent": "hall-1"},
    {"asset": "rail-3", "kind": "rail", "parent": "hall-1", "position": 3},
    {
        "asset": "h1/mlx5_0--leaf-1/7",
        "kind": "link",
        "parent": "leaf-1",
        "parent_port": "7",
        "child": "h1/mlx5_0",
        "rail": 3,
        "leaf": "leaf-1",
        "speed_gbps": 400,
    },
    {
        "asset": "leaf-1/31--spine-1",
        "kind": "link",
        "parent": "spine-1",
        "child": "leaf-1",
        "child_port": "31",
        "rail": 3,
        "leaf": "leaf-1",
    },
    {"asset": "leak-1", "kind": "detector", "parent": "a01"},
    {"asset": "leak-2", "kind": "detector", "parent": "tcs-1"},
    {"asset": "leak-3", "kind": "detector", "parent": "cdu-1"},
    {"asset": "pdu-1", "kind": "meter", "parent": "a01"},
    {"asset": "amd", "kind": "trust_root", "parent": "hall-1"},
]


class Hall(SinkRig):
    def __init__(self, folder):
        super().__init__(folder, streams=(INVENTORY, DEAD_LETTERS))
        self.versions = 0

    def list_assets(self, assets, **values):
        names = dict.fromkeys(name for asset in assets for name in asset)
        columns = {name: [asset.get(name) for asset in assets] for name in names}
        self.send(
            self.versions,
            stream=INVENTORY,
            source="inventory@hall-1/0",
            key="hall-1",
            rows=len(assets),
            **{"ts": [self.clock.now_us()] * len(assets), "state": "active", **columns, **values},
        )
        self.versions += 1
        self.drain(self.sink())

    def place(self, entity):
        """Return what is known of a name: the asset, row, rack, cdu, loop, host, leaf and rail."""
        query = (
            f"SELECT asset, \"row\", rack, cdu, loop, host, leaf, rail FROM place WHERE entity = '{entity}'"
        )
        return [tuple(value if value is not None else "-" for value in row) for row in self.rows(query)]


@pytest.fixture
def hall(tmp_path):
    hall = Hall(tmp_path)
    hall.list_assets(ASSETS)
    return hall


COOLED = ("a", "a01", "cdu-1", "a01-manifold")


def test_every_name_of_anything_leads_to_its_place(hall):
    nic = ("h1/mlx5_0", *COOLED, "h1", "leaf-1", 3)
    expected = {
        "gpu-0": ("gpu-0", *COOLED, "h1", "-", "-"),
        "h1": ("h1", *COOLED, "h1", "-", "-"),
        "h1/mlx5_0": nic,
        "h1/mlx5_0/1": nic,
        GUID: nic,
        f"{GUID}/1": nic,
        "h1/mlx5_0/2": ("h1/mlx5_0/2", *COOLED, "h1", "-", "-"),
        "leaf-1": ("leaf-1", "a", "a02", "-", "-", "-", "leaf-1", 3),
        "leaf-1/7": ("leaf-1", "a", "a02", "-", "-", "-", "leaf-1", 3),
        "leaf-1/31": ("leaf-1", "a", "a02", "-", "-", "-", "leaf-1", 3),
        "h1/mlx5_0--leaf-1/7": ("h1/mlx5_0--leaf-1/7", *COOLED, "h1", "leaf-1", 3),
        "leaf-1/31--spine-1": ("leaf-1/31--spine-1", "a", "a02", "-", "-", "-", "leaf-1", 3),
        "cdu-1": ("cdu-1", "-", "-", "cdu-1", "fws-1", "-", "-", "-"),
        "cdu-2": ("cdu-2", "a", "a01", "cdu-2", "-", "-", "-", "-"),
        "tcs-1": ("tcs-1", "-", "-", "cdu-1", "tcs-1", "-", "-", "-"),
        "a01-manifold": ("a01-manifold", "-", "-", "cdu-1", "a01-manifold", "-", "-", "-"),
        "fws-1": ("fws-1", "-", "-", "-", "fws-1", "-", "-", "-"),
        "leak-1": ("leak-1", *COOLED, "-", "-", "-"),
        "leak-2": ("leak-2", "-", "-", "cdu-1", "tcs-1", "-", "-", "-"),
        "leak-3": ("leak-3", "-", "-", "cdu-1", "fws-1", "-", "-", "-"),
        "pdu-1": ("pdu-1", *COOLED, "-", "-", "-"),
        "rail-3": ("rail-3", *["-"] * 7),
        "spine-1": ("spine-1", *["-"] * 7),
    }
    assert {entity: hall.place(entity) for entity in expected} == {e: [p] for e, p in expected.items()}


def test_each_asset_is_there_once_under_its_own_name(hall):
    found = hall.rows("SELECT entity FROM place WHERE entity = asset ORDER BY 1")
    assert found == sorted((asset["asset"],) for asset in ASSETS)
    assert hall.rows("SELECT entity FROM place GROUP BY 1 HAVING count(*) > 1") == []
    assert hall.rows("SELECT DISTINCT hall FROM place") == [("hall-1",)]


def test_parents_in_a_circle_end(hall):
    hall.list_assets(
        [{"asset": "x", "kind": "rack", "parent": "y"}, {"asset": "y", "kind": "row", "parent": "x"}]
    )
    assert hall.rows("SELECT entity, \"row\", rack FROM place WHERE entity IN ('x', 'y') ORDER BY 1") == [
        ("x", "y", "x"),
        ("y", "y", "x"),
    ]


def edges(hall, where="true"):
    return hall.rows(f"SELECT child, relation, parent FROM topology WHERE {where} ORDER BY ALL")


def test_what_joins_things_is_an_edge_with_its_relation(hall):
    assert edges(hall, "relation NOT IN ('stands_in', 'belongs_to')") == [
        ("a01", "cooled_by", "a01-manifold"),
        ("a01-manifold", "fed_by", "tcs-1"),
        ("cdu-1", "cooled_by", "fws-1"),
        ("h1", "trusts", "amd"),
        ("h1", "trusts", "nvidia"),
        ("h1/mlx5_0", "connects", "leaf-1"),
        ("h1/mlx5_0", "on_rail", "rail-3"),
        ("leaf-1", "connects", "spine-1"),
        ("leaf-1", "on_rail", "rail-3"),
        ("leak-1", "watches", "a01"),
        ("leak-2", "watches", "tcs-1"),
        ("leak-3", "watches", "cdu-1"),
        ("pdu-1", "measures", "a01"),
        ("tcs-1", "driven_by", "cdu-1"),
    ]
    assert ("gpu-0", "stands_in", "h1") in edges(hall)
    assert ("rail-3", "belongs_to", "hall-1") in edges(hall)


def test_a_cable_is_one_edge_with_its_ports_and_speed(hall):
    query = "SELECT child_kind, parent_kind, link, child_port, parent_port, speed_gbps FROM topology"
    assert hall.rows(f"{query} WHERE relation = 'connects' ORDER BY 1 DESC") == [
        ("nic", "leaf", "h1/mlx5_0--leaf-1/7", None, "7", 400),
        ("leaf", "spine", "leaf-1/31--spine-1", "31", None, None),
    ]


def test_what_is_retired_has_no_place_and_no_edge(hall):
    hall.clock.advance(60)
    gone = [asset for asset in ASSETS if asset["asset"] in ("h1/mlx5_0", "h1/mlx5_0--leaf-1/7")]
    hall.list_assets(gone, state="retired")
    assert hall.place(GUID) == hall.place("h1/mlx5_0") == []
    assert edges(hall, "child = 'h1/mlx5_0'") == []


def test_the_old_rows_of_a_map_without_loops_are_still_placed(tmp_path):
    """Versions written before a NIC had a port, or a rack a loop, hold nulls there."""
    hall = Hall(tmp_path)
    hall.list_assets(
        [
            {"asset": "a01", "kind": "rack", "parent": "a", "cdu": "cdu-1"},
            {"asset": "h1", "kind": "host", "parent": "a01"},
            {"asset": "h1/mlx5_0", "kind": "nic", "parent": "h1", "guid": GUID},
        ]
    )
    assert hall.place(f"{GUID}/1") == [("h1/mlx5_0", "-", "a01", "cdu-1", "-", "h1", "-", "-")]
    assert edges(hall, "relation = 'cooled_by'") == [("a01", "cooled_by", "cdu-1")]
