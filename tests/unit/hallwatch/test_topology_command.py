"""The map as a person asks for it: where something stands, and what changed between two maps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analytics.testing import SinkRig
from contract.errors import ConfigError, HallwatchError
from contract.streams.self import DEAD_LETTERS
from contract.streams.topology import INVENTORY
from hallwatch.commands.topology import topology
from ingest.topology.hallfile import parse_hall_file

GUID = "0x58a2e10300123456"
GPUS = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in range(3)]

OLD = f"""\
hall: demo
synthetic: true
loops:
- {{loop: tcs-1, kind: tcs, cdu: cdu-1, coolant: pg25, rated_flow_liters_per_minute: 900}}
cdus:
- {{cdu: cdu-1, model: XDU1350}}
leaves:
- {{leaf: leaf-1, rail: 0}}
- {{leaf: leaf-2, rail: 0}}
rows:
- row: a
  racks:
  - rack: a01
    loop: tcs-1
    hosts:
    - host: h1
      model: ND-H100-v5
      gpus:
      - {{index: 0, uuid: {GPUS[0]}}}
      - {{index: 1, uuid: {GPUS[1]}}}
      nics:
      - {{nic: mlx5_0, guid: {GUID}, speed_gbps: 400, leaf: leaf-1, leaf_port: 1/7}}
    - host: h2
  - {{rack: a02, loop: tcs-1}}
meters:
- {{meter: pdu-a01, at: a01}}
"""

NEW = (
    OLD.replace("leaf: leaf-1, leaf_port: 1/7", "leaf: leaf-2, leaf_port: 1/5")
    .replace("ND-H100-v5", "ND-H200-v5")
    .replace("    - host: h2\n", "")
    .replace(
        "{rack: a02, loop: tcs-1}",
        f"{{rack: a02, loop: tcs-1, hosts: [{{host: h2}}, {{host: h3, gpus: [{{index: 0, uuid: {GPUS[2]}}}], "
        "nics: [{nic: mlx5_0, leaf: leaf-1}]}]}",
    )
    .replace("- {meter: pdu-a01, at: a01}\n", "[]\n")
    .replace("meters:\n[]", "meters: []")
)


class Desk:
    """A folder with two files and a lake, and the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "old.yaml").write_text(OLD)
        (folder / "new.yaml").write_text(NEW)
        (folder / "hallwatch.toml").write_text('[hall]\nname = "demo"\ninventory = "new.yaml"\n')
        self.rig = SinkRig(folder, streams=(INVENTORY, DEAD_LETTERS))
        self.published = 0

    def publish(self, text: str) -> str:
        """Send a whole map as one version; return its digest."""
        file = parse_hall_file(text.encode(), "hall.yaml")
        rows = [{**asset, "state": "active", "version": file.digest} for asset in file.assets.values()]
        columns: dict[str, Any] = {
            name: [row.get(name) for row in rows] for name in {name for row in rows for name in row}
        }
        columns["ts"] = [self.rig.clock.now_us()] * len(rows)
        self.rig.send(
            self.published,
            stream=INVENTORY,
            source="inventory@demo/main",
            key="demo",
            rows=len(rows),
            **columns,
        )
        self.published += 1
        self.rig.drain(self.rig.sink())
        return file.digest

    def ask(self, *arguments: str) -> tuple[int, str]:
        config = ["--config", str(self.folder / "hallwatch.toml")]
        given = [str(self.folder / text) if text.endswith(".yaml") else text for text in arguments]
        done = CliRunner().invoke(topology, [*given, *config])
        if isinstance(done.exception, HallwatchError):
            raise done.exception
        return done.exit_code, done.output


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_tree_shows_what_stands_where_and_counts_what_is_many(desk: Desk) -> None:
    code, output = desk.ask("show", "--file", "old.yaml")
    assert code == 0
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[:5] == [
        "demo hall",
        "a row",
        "a01 rack, cooled by tcs-1 of cdu-1",
        "h1 host, ND-H100-v5, 2 GPUs, 1 NIC",
        "h2 host",
    ]
    assert "tcs-1 loop, tcs, driven by cdu-1, pg25, 900 l/min" in lines
    assert lines[-1].endswith("1 meter, 1 rail, 2 leaves, 1 link")


@pytest.mark.parametrize("name", [GUID, f"{GUID}/1", "h1/mlx5_0", "h1/mlx5_0/1"])
def test_every_name_of_a_nic_shows_its_place_and_its_cable(desk: Desk, name: str) -> None:
    _, output = desk.ask("show", "--file", "old.yaml", name)
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert lines[0] == "h1/mlx5_0, nic, rail 0"
    for line in ("rack a01", "host h1", "cdu cdu-1", "loop tcs-1", "leaf leaf-1"):
        assert line in lines
    assert "h1/mlx5_0 connects leaf-1/1/7 at 400 Gb/s" in lines


def test_a_name_that_is_not_there_is_answered_with_names_that_are(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="'h11' is not on the map; close to it: h1"):
        desk.ask("show", "--file", "old.yaml", "h11")


def test_the_lake_shows_the_map_of_any_time(desk: Desk) -> None:
    desk.publish(OLD)
    desk.rig.clock.advance(3600)
    desk.publish(NEW)
    places = {}
    for at in (["--at", "2026-06-01T00:30"], ["--at", "2026-06-01T03:30:00+02:00"], []):
        _, output = desk.ask("show", "h2", "--format", "json", *at)
        places[tuple(at)] = json.loads(output)["rack"]
    assert list(places.values()) == ["a01", "a02", "a02"]
    with pytest.raises(ConfigError, match="the lake held no map of the hall at 2026-05-01"):
        desk.ask("show", "--at", "2026-05-01")


CHANGES = [
    "~ host h1: model ND-H100-v5 -> ND-H200-v5",
    "> host h2 moved from a01 to a02",
    "+ host h3 added in a02 with 1 GPU, 1 NIC, 1 link",
    "- meter pdu-a01 retired from a01",
    "> link of h1/mlx5_0 moved from leaf-1/1/7 to leaf-2/1/5",
]


def test_two_files_are_compared_in_words_and_the_exit_code_tells(desk: Desk) -> None:
    code, output = desk.ask("diff", "old.yaml", "new.yaml")
    assert code == 1
    assert output.splitlines()[:-1] == CHANGES
    assert output.splitlines()[-1].endswith(": 1 added, 2 moved, 1 changed, 1 retired")
    code, output = desk.ask("diff", "old.yaml", "old.yaml")
    assert (code, output.splitlines()[-1].split(": ")[-1]) == (0, "no difference")


def test_the_lake_is_compared_with_a_file_and_with_itself(desk: Desk) -> None:
    version = desk.publish(OLD)
    assert desk.ask("diff")[1].splitlines()[:-1] == CHANGES
    assert desk.ask("diff", "old.yaml")[0] == 0
    desk.rig.clock.advance(3600)
    changed = OLD.replace("ND-H100-v5", "ND-H200-v5")
    desk.publish(changed)
    for old in (version[:8], "2026-06-01T00:10"):
        code, output = desk.ask("diff", old, "now")
        assert (code, output.splitlines()[:-1]) == (1, CHANGES[:1])


def test_what_comes_with_a_rack_is_counted_in_it(desk: Desk) -> None:
    (desk.folder / "more.yaml").write_text(
        OLD.replace(
            "- {rack: a02, loop: tcs-1}", "- {rack: a02, loop: tcs-1}\n  - {rack: a03, hosts: [{host: h9}]}"
        )
    )
    _, output = desk.ask("diff", "old.yaml", "more.yaml", "--format", "json")
    [change] = [json.loads(line) for line in output.splitlines()]
    assert (change["change"], change["asset"], change["with_it"]) == ("added", "a03", {"host": 1})


def test_a_faster_cable_is_told_at_its_nic_alone(desk: Desk) -> None:
    (desk.folder / "faster.yaml").write_text(OLD.replace("speed_gbps: 400", "speed_gbps: 800"))
    _, output = desk.ask("diff", "old.yaml", "faster.yaml")
    assert output.splitlines()[:-1] == ["~ nic h1/mlx5_0: speed_gbps 400 -> 800"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diff", "abcdef", "now"], "no version of the map begin with 'abcdef'"),
        (["diff", "none.yaml", "old.yaml"], "No such file"),
    ],
)
def test_a_side_that_is_not_there_is_told(desk: Desk, arguments: list[str], words: str) -> None:
    desk.publish(OLD)
    with pytest.raises(ConfigError, match=words):
        desk.ask(*arguments)


def test_what_is_no_side_at_all_is_a_matter_of_usage(desk: Desk) -> None:
    code, output = desk.ask("diff", "yesterday", "old.yaml")
    assert code == 2
    assert "'yesterday' is no file, no version and no time" in output
