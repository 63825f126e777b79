"""The map beyond hosts: coolant, switches and cables, detectors and meters, and what a host is trusted by."""

import re
from pathlib import Path

import pytest

from contract.errors import ConfigError
from contract.streams.topology import ASSET_KINDS, INVENTORY
from ingest.topology.hallfile import parse_hall_file

GUID = "0x58a2e10300123456"

GOOD = f"""\
hall: demo
trust_roots:
- {{root: amd-genoa, fingerprint: "sha256:{"AB" * 32}"}}
- {{root: twin, fingerprint: {"01" * 32}, synthetic_only: true}}
loops:
- {{loop: fws-1, kind: FWS, coolant: water}}
- {{loop: tcs-1, kind: tcs, cdu: cdu-1, coolant: pg25, rated_flow_liters_per_minute: 900}}
- {{loop: a01-manifold, kind: rack, fed_by: tcs-1}}
cdus:
- {{cdu: cdu-1, at: a, loop: fws-1}}
- {{cdu: cdu-2}}
spines:
- {{spine: spine-1, model: QM9700}}
leaves:
- leaf: leaf-1
  at: a01
  rail: 3
  uplinks:
  - {{spine: spine-1, port: 1/31, spine_port: 1/2, speed_gbps: 400, width: 4}}
rows:
- row: a
  racks:
  - rack: a01
    loop: a01-manifold
    hosts:
    - host: h1
      confidential: snp
      policy: snp-production
      trust_roots: [amd-genoa]
      nics:
      - {{nic: mlx5_0, guid: {GUID}, speed_gbps: 400, width: 4, leaf: leaf-1, leaf_port: 1/1}}
      - {{nic: mlx5_0, port: 2, rail: 7}}
  - {{rack: a02, cdu: cdu-2}}
detectors:
- {{detector: leak-a01, at: a01}}
- {{detector: leak-cdu-1, at: cdu-1, model: rope}}
meters:
- {{meter: pdu-a01, at: a01}}
"""


def parse(text):
    return parse_hall_file(text.encode(), "hall.yaml")


def assets():
    return {
        name: {k: v for k, v in asset.items() if v is not None and k != "asset"}
        for name, asset in parse(GOOD).assets.items()
    }


def test_a_loop_knows_its_driver_through_the_loops_that_feed_it_and_so_does_the_rack():
    found = assets()
    assert found["tcs-1"] == {
        "kind": "loop",
        "parent": "demo",
        "cdu": "cdu-1",
        "loop_kind": "tcs",
        "coolant": "pg25",
        "rated_flow_liters_per_minute": 900.0,
    }
    assert (found["a01-manifold"]["cdu"], found["a01-manifold"]["loop"]) == ("cdu-1", "tcs-1")
    assert (found["a01"]["cdu"], found["a01"]["loop"]) == ("cdu-1", "a01-manifold")
    assert (found["a02"]["cdu"], found["a02"].get("loop")) == ("cdu-2", None)
    assert "cdu" not in found["fws-1"]
    assert (found["cdu-1"]["parent"], found["cdu-1"]["loop"]) == ("a", "fws-1")
    assert found["cdu-2"] == {"kind": "cdu", "parent": "demo"}


def test_a_cable_is_written_once_at_its_lower_end():
    found = assets()
    assert found["h1/mlx5_0--leaf-1/1/1"] == {
        "kind": "link",
        "parent": "leaf-1",
        "parent_port": "1/1",
        "child": "h1/mlx5_0",
        "host": "h1",
        "speed_gbps": 400,
        "width": 4,
        "rail": 3,
        "leaf": "leaf-1",
    }
    assert found["leaf-1/1/31--spine-1/1/2"] == {
        "kind": "link",
        "parent": "spine-1",
        "parent_port": "1/2",
        "child": "leaf-1",
        "child_port": "1/31",
        "leaf": "leaf-1",
        "rail": 3,
        "speed_gbps": 400,
        "width": 4,
    }


def test_a_nic_is_on_the_rail_of_its_leaf_unless_it_says_its_own():
    found = assets()
    assert found["h1/mlx5_0"]["rail"] == 3
    assert (found["h1/mlx5_0/2"]["rail"], found["h1/mlx5_0/2"]["port"]) == (7, 2)
    rails = {name: asset["position"] for name, asset in found.items() if asset["kind"] == "rail"}
    assert rails == {"rail-3": 3, "rail-7": 7}


def test_detectors_and_meters_are_for_what_they_are_at():
    found = assets()
    assert found["leak-cdu-1"] == {"kind": "detector", "parent": "cdu-1", "model": "rope"}
    assert found["pdu-a01"] == {"kind": "meter", "parent": "a01"}


def test_a_host_says_what_it_is_trusted_by_and_a_fingerprint_is_plain_hexadecimal():
    found = assets()
    assert found["h1"]["confidential"] == "snp"
    assert (found["h1"]["policy"], found["h1"]["trust_roots"]) == ("snp-production", "amd-genoa")
    assert found["amd-genoa"]["fingerprint"] == "ab" * 32
    assert (found["amd-genoa"]["synthetic_only"], found["twin"]["synthetic_only"]) == (False, True)


def test_every_row_of_the_map_fits_the_stream_and_every_kind_is_there():
    rows = [
        {**a, "hall": "demo", "state": "active", "version": "v", "ts": 0, "synthetic": False}
        for a in parse(GOOD).assets.values()
    ]
    names = {name for row in rows for name in row}
    _, rejected = INVENTORY.clean({name: [row.get(name) for row in rows] for name in names})
    assert not rejected
    assert {row["kind"] for row in rows} == set(ASSET_KINDS) - {"gpu"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "kind: tcs, cdu: cdu-1",
            "kind: tcs, cdu: cdu-9",
            "7: loops.1.cdu: there is no CDU 'cdu-9' in `cdus` (cdu-1, cdu-2)",
        ),
        ("kind: tcs, cdu", "kind: hot, cdu", "7: loops.1.kind: Input should be 'fws', 'tcs' or 'rack'"),
        (
            "coolant: pg25",
            "coolant: pg",
            "7: loops.1.coolant: 'pg' where water, dielectric, or glycol and its percentage like pg25 belongs",
        ),
        (
            "minute: 900",
            "minute: 0",
            "7: loops.1.rated_flow_liters_per_minute: Input should be greater than 0",
        ),
        (
            "fed_by: tcs-1",
            "fed_by: tcs-9",
            "8: loops.2.fed_by: there is no loop 'tcs-9' in `loops` (a01-manifold, fws-1, tcs-1)",
        ),
        (
            "fed_by: tcs-1",
            "fed_by: a01-manifold",
            "8: loops.2.fed_by: goes round in a circle: a01-manifold <- a01-manifold",
        ),
        (
            "fed_by: tcs-1",
            "fed_by: tcs-1, cdu: cdu-1",
            "8: loops.2.fed_by: beside `cdu`: a loop is driven by the one or fed by the other",
        ),
        (
            "kind: FWS",
            "kind: FWS, cdu: cdu-2",
            "6: loops.0.cdu: a loop of facility water is driven by no CDU of the hall",
        ),
        (
            "loop: fws-1}",
            "loop: tcs-1}",
            "10: cdus.0.loop: 'tcs-1' is no loop of kind fws; the loops that a CDU drives name it with `cdu`",
        ),
        ("at: a,", "at: b,", "10: cdus.0.at: there is no row or rack 'b'"),
        ("at: a,", "at: h1,", "10: cdus.0.at: there is no row or rack 'h1'"),
        (
            "  - {spine: spine-1,",
            "  - {spine: spine-2,",
            "19: leaves.0.uplinks.0.spine: there is no spine 'spine-2' in `spines` (spine-1)",
        ),
        (
            "loop: a01-manifold\n",
            "loop: a01-manifold\n    cdu: cdu-2\n",
            "25: rows.0.racks.0.cdu: 'cdu-2', but its loop a01-manifold is driven by cdu-1",
        ),
        (
            "[amd-genoa]",
            "[amd-genoa, amd]",
            "29: rows.0.racks.0.hosts.0.trust_roots.1: there is no trust root 'amd' in `trust_roots` (amd-genoa, twin)",
        ),
        (
            "[amd-genoa]",
            "[twin]",
            (
                "29: rows.0.racks.0.hosts.0.trust_roots.0: 'twin' vouches for the twin's rows alone, and this hall is "
                "not synthetic"
            ),
        ),
        (
            "confidential: snp",
            "confidential: tdx",
            "27: rows.0.racks.0.hosts.0.confidential: Input should be 'none', 'snp' or 'nitro'",
        ),
        (
            "AB" * 32,
            "AB" * 31,
            f"3: trust_roots.0.fingerprint: 'sha256:{'AB' * 31}' where a SHA-256 of 64 hexadecimal digits belongs",
        ),
        (
            "leaf: leaf-1, leaf_port",
            "leaf: leaf-2, leaf_port",
            "31: rows.0.racks.0.hosts.0.nics.0.leaf: there is no leaf 'leaf-2' in `leaves` (leaf-1)",
        ),
        (
            "leaf: leaf-1, leaf_port",
            "leaf_port",
            "31: rows.0.racks.0.hosts.0.nics.0.leaf_port: without `leaf`: of which switch?",
        ),
        (
            "width: 4, leaf: leaf-1",
            "rail: 2, leaf: leaf-1",
            "31: rows.0.racks.0.hosts.0.nics.0.rail: rail 2, but leaf-1 is of rail 3",
        ),
        (
            "port: 2, rail: 7",
            "port: 2, leaf: leaf-1, leaf_port: 1/1",
            "32: rows.0.racks.0.hosts.0.nics.1.leaf_port: a cable in leaf-1 at port '1/1' is on line 31 already",
        ),
        (
            "leaf_port: 1/1",
            "leaf_port: 1/31",
            "19: leaves.0.uplinks.0.port: a cable in leaf-1 at port '1/31' is on line 31 already",
        ),
        (
            "port: 2, rail: 7",
            "rail: 7",
            "32: rows.0.racks.0.hosts.0.nics.1.nic: the name 'h1/mlx5_0' is on line 31 already",
        ),
        (
            "leak-cdu-1, at: cdu-1",
            "leak-cdu-1, at: cdu-7",
            "36: detectors.1.at: there is nothing named 'cdu-7' where it could be",
        ),
        (
            "pdu-a01, at: a01",
            "pdu-a01, at: leak-a01",
            "38: meters.0.at: there is nothing named 'leak-a01' where it could be",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(old, new, expected):
    assert old in GOOD
    with pytest.raises(ConfigError) as raised:
        parse(GOOD.replace(old, new, 1))
    assert str(raised.value).split("\n") == [f"hall.yaml:{expected}"]


def test_a_host_that_proves_nothing_has_no_policy():
    with pytest.raises(ConfigError, match=r"hall.yaml:28: .*policy: of a host that is not") as raised:
        parse(GOOD.replace("confidential: snp", "confidential: none"))
    assert len(str(raised.value).split("\n")) == 2


def test_a_long_chain_of_loops_is_refused_without_following_all_of_it():
    loops = "".join(f"- {{loop: l{n}, kind: rack, fed_by: l{n + 1}}}\n" for n in range(5_000))
    with pytest.raises(ConfigError, match="more than 16 loops in a row, or a circle"):
        parse(f"hall: demo\nloops:\n{loops}- {{loop: l5000, kind: rack}}\n")


def test_the_example_in_the_documentation_is_a_map():
    page = Path(__file__).parents[3] / "docs" / "inventory.md"
    [example] = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert {asset["kind"] for asset in parse(example).assets.values()} == set(ASSET_KINDS)
