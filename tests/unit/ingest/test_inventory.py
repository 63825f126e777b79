"""The hall's own map: what people write, every mistake they make, and what is published of it."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contract.config import HallSection
from contract.errors import CollectError, ConfigError
from contract.streams.topology import INVENTORY
from contract.testing import FakeClock
from ingest.collector import Context
from ingest.testing import rows_of
from ingest.topology.hallfile import parse_hall_file, read_hall_file
from ingest.topology.inventory import InventoryCollector, InventoryConfig

UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{n}" for n in range(4)]

GOOD = f"""\
hall: demo
synthetic: true
cdus:
- {{cdu: cdu-1, model: XDU1350}}
rows:
- row: a
  racks:
  - rack: a01
    cdu: cdu-1
    hosts:
    - host: h1
      model: ND-H100-v5
      gpus:
      - {{index: 0, uuid: {UUIDS[0]}, pci_bus_id: 00000000:53:00.0, model: NVIDIA H100 80GB HBM3}}
      - {{index: 1, uuid: {UUIDS[1]}, pci_bus_id: "0001:a8:00.0"}}
      nics:
      - {{nic: mlx5_0, guid: 0x58a2e10300123456, speed_gbps: 400}}
    - host: 1234
"""


def parse(text, **options):
    return parse_hall_file(text.encode() if isinstance(text, str) else text, "hall.yaml", **options)


def mistakes(text, **options):
    with pytest.raises(ConfigError) as raised:
        parse(text, **options)
    return str(raised.value).split("\n")


def test_every_asset_has_its_place_and_its_properties():
    file = parse(GOOD)
    assert (file.hall, file.synthetic, len(file.digest)) == ("demo", True, 64)
    said = {name: {k: v for k, v in asset.items() if v is not None} for name, asset in file.assets.items()}
    inside = {"parent": "h1", "host": "h1"}
    assert said == {
        "demo": {"asset": "demo", "kind": "hall"},
        "cdu-1": {"asset": "cdu-1", "kind": "cdu", "parent": "demo", "model": "XDU1350"},
        "a": {"asset": "a", "kind": "row", "parent": "demo"},
        "a01": {"asset": "a01", "kind": "rack", "parent": "a", "cdu": "cdu-1"},
        "h1": {"asset": "h1", "kind": "host", "parent": "a01", "host": "h1", "model": "ND-H100-v5"},
        UUIDS[0]: {
            "asset": UUIDS[0],
            "kind": "gpu",
            **inside,
            "model": "NVIDIA H100 80GB HBM3",
            "position": 0,
            "pci_bus_id": "00000000:53:00.0",
        },
        UUIDS[1]: {
            "asset": UUIDS[1],
            "kind": "gpu",
            **inside,
            "position": 1,
            "pci_bus_id": "00000001:A8:00.0",
        },
        "h1/mlx5_0": {
            "asset": "h1/mlx5_0",
            "kind": "nic",
            **inside,
            "guid": "0x58a2e10300123456",
            "port": 1,
            "speed_gbps": 400,
        },
        "1234": {"asset": "1234", "kind": "host", "parent": "a01", "host": "1234"},
    }


def test_a_plain_value_is_the_text_that_is_written():
    """YAML 1.1 would make a number in base sixty, a number, a truth and an octal number of these."""
    for name in ("53:00", "1234", "yes", "010", "1e3", "~x", "null-1"):
        file = parse(f"hall: demo\nrows: [{{row: {name}}}]\n")
        assert name in file.assets


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "host: 1234",
            "host: h1",
            "hall.yaml:18: rows.0.racks.0.hosts.1.host: the name 'h1' is on line 11 already",
        ),
        (
            "host: 1234",
            "host: a",
            "hall.yaml:18: rows.0.racks.0.hosts.1.host: the name 'a' is on line 6 already",
        ),
        (
            UUIDS[1],
            UUIDS[0],
            f"hall.yaml:15: rows.0.racks.0.hosts.0.gpus.1.uuid: the name '{UUIDS[0]}' is on line 14 already",
        ),
        (
            "{index: 1",
            "{index: 0",
            "hall.yaml:15: rows.0.racks.0.hosts.0.gpus.1.index: a GPU of this host with index '0' is on line 14 already",
        ),
        (
            '"0001:a8:00.0"',
            '"0000:53:00.0"',
            (
                "hall.yaml:15: rows.0.racks.0.hosts.0.gpus.1.pci_bus_id: a GPU of this host with PCI address "
                "'00000000:53:00.0' is on line 14 already"
            ),
        ),
        (
            "    - host: 1234",
            "    - {host: h2, nics: [{nic: mlx5_0, guid: 0x58a2e10300123456}]}",
            "hall.yaml:18: rows.0.racks.0.hosts.1.nics.0.guid: the GUID '0x58a2e10300123456' is on line 17 already",
        ),
        (
            "    cdu: cdu-1",
            "    cdu: cdu-9",
            "hall.yaml:9: rows.0.racks.0.cdu: there is no CDU 'cdu-9' in `cdus` (cdu-1)",
        ),
        ("  model: ND-H100-v5", "  colour: red", "hall.yaml:12: rows.0.racks.0.hosts.0.colour: unknown key"),
        (
            UUIDS[0],
            "GPU-12",
            (
                "hall.yaml:14: rows.0.racks.0.hosts.0.gpus.0.uuid: 'GPU-12' where a UUID like "
                "GPU-8f3a9c1e-0123-4567-89ab-0123456789ab belongs"
            ),
        ),
        (
            "pci_bus_id: 00000000:53:00.0",
            "pci_bus_id: 53:00.0",
            (
                "hall.yaml:14: rows.0.racks.0.hosts.0.gpus.0.pci_bus_id: '53:00.0' where a PCI address like "
                "00000000:53:00.0 belongs"
            ),
        ),
        (
            "0x58a2e10300123456",
            "58a2",
            "hall.yaml:17: rows.0.racks.0.hosts.0.nics.0.guid: '58a2' where a port GUID like 0x58a2e10300123456 belongs",
        ),
        (
            "{index: 0, uuid",
            "{index: first, uuid",
            (
                "hall.yaml:14: rows.0.racks.0.hosts.0.gpus.0.index: Input should be a valid integer, unable to parse "
                "string as an integer"
            ),
        ),
        ("- host: 1234", "- {model: x}", "hall.yaml:18: rows.0.racks.0.hosts.1.host: missing"),
        (
            "- row: a\n",
            "- row: a/b\n",
            "hall.yaml:6: rows.0.row: 'a/b' where a name without spaces, / and @ belongs",
        ),
        ("synthetic: true", "hall: demo", "hall.yaml:2: hall: again, first on line 1"),
        ("  model: ND-H100-v5", "  [1, 2]: x", "hall.yaml:12: a key that is no text"),
    ],
)
def test_a_mistake_is_named_with_its_line(old, new, expected):
    assert old in GOOD
    assert mistakes(GOOD.replace(old, new, 1)) == [expected]


def test_a_mistake_is_on_the_line_it_says():
    text = (
        "hall: demo\nrows:\n- row: a\n  racks:\n  - rack: r1\n    hosts:\n    - host: h1\n      colour: red\n"
    )
    assert mistakes(text) == ["hall.yaml:8: rows.0.racks.0.hosts.0.colour: unknown key"]


def test_several_mistakes_are_named_at_once_in_the_order_of_the_file():
    text = (
        GOOD.replace("cdu: cdu-1\n", "cdu: cdu-9\n")
        .replace("host: 1234", "host: h1")
        .replace("index: 1", "index: 0")
    )
    assert [line.split(":")[1] for line in mistakes(text)] == ["9", "15", "18"]


def test_a_file_full_of_mistakes_names_the_first_twenty():
    hosts = "".join(f"    - host: bad name {n}\n" for n in range(100))
    found = mistakes(f"hall: demo\nrows:\n- row: a\n  racks:\n  - rack: r\n    hosts:\n{hosts}")
    assert len(found) == 21
    assert found[-1] == "hall.yaml: and 80 more"


def test_the_file_must_be_of_this_hall_and_this_kind():
    assert mistakes(GOOD, hall="other", synthetic=False) == [
        "hall.yaml:1: hall: 'demo', but the configuration says 'other'",
        "hall.yaml:2: synthetic: true, but the configuration says false",
    ]
    assert parse(GOOD, hall="demo", synthetic=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "hall.yaml:1: empty; it begins with `hall: NAME`"),
        ("# nothing\n", "hall.yaml:1: empty; it begins with `hall: NAME`"),
        ("a: [", "hall.yaml:2: not YAML: did not find expected node content"),
        ("a: 1\n---\nb: 1\n", "hall.yaml:2: not YAML: but found another document"),
        (b"\xff\xfe\x00", "hall.yaml:1: not YAML: incomplete UTF-16 character"),
        ("[" * 100_000, "hall.yaml:1: not YAML: exceeded maximum nesting depth"),
        ("x", "hall.yaml:1: a mapping belongs here, one `key: value` a line"),
        ("hall: a\nrows: {}\n", "hall.yaml:2: rows: a list belongs here, one `- item` a line"),
        ("hall: {a: &x [1, 2], b: *x}\n", "hall.yaml:1: hall.b: an alias; write the values out"),
    ],
)
def test_what_is_no_map_is_refused_with_its_line(text, expected):
    assert expected in mistakes(text)


def test_aliases_cannot_blow_a_small_file_up():
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 30))
    assert "an alias" in mistakes("l0: &l0 [x]\n" + levels)[0]


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_bytes_make_anything_but_a_map_or_a_named_mistake(content):
    try:
        parse(content)
    except ConfigError as error:
        assert str(error).startswith("hall.yaml:")  # noqa: PT017 - either outcome is right


LEAF = st.none() | st.booleans() | st.integers() | st.text(max_size=10)
TREE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
    st.sampled_from(["hall", "rows", "racks", "rack", "row", "hosts", "host", "gpus", "uuid", "index", "cdus", "cdu"]),
    inner, max_size=5), max_leaves=20)  # fmt: skip


@given(TREE)
def test_no_tree_makes_anything_but_a_map_or_named_mistakes(tree):
    try:
        parse(yaml.safe_dump(tree))
    except ConfigError as error:
        for line in str(error).split("\n"):
            assert line.startswith("hall.yaml:")


def test_an_absent_or_huge_file_is_unreadable(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="No such file"):
        read_hall_file(tmp_path / "none.yaml")
    monkeypatch.setattr("ingest.topology.hallfile.MAX_FILE_BYTES", 10)
    (tmp_path / "big.yaml").write_text(GOOD)
    with pytest.raises(ConfigError, match="larger"):
        read_hall_file(tmp_path / "big.yaml")


class Map:
    """A file and the collector that watches it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.written = 0
        self.restart(b"")

    def restart(self, cursor: bytes) -> None:
        config = InventoryConfig(collector="inventory", path=self.path)
        hall = HallSection(name="demo", synthetic=True)
        self.collector = InventoryCollector(config, Context(hall=hall, clock=FakeClock()))
        if cursor:
            self.collector.restore(cursor)

    def write(self, text: str) -> None:
        """Replace the file as an editor does; its time differs even on a coarse file system."""
        self.written += 1
        beside = self.path.with_suffix(".new")
        beside.write_text(text)
        os.utime(beside, ns=(self.written * 10**9, self.written * 10**9))
        beside.replace(self.path)

    def look(self) -> dict[str, str]:
        """Return asset -> state of what one look publishes."""
        reading = self.collector.collect(1)
        self.rows = rows_of(reading, INVENTORY)
        assert len(reading.rows) <= 1
        self.collector.cursor()  # as the runner does when it has the rows
        return {row["asset"]: row["state"] for row in self.rows}


@pytest.fixture
def map_file(tmp_path):
    file = Map(tmp_path / "hall.yaml")
    file.write(GOOD)
    return file


def test_the_first_version_is_published_whole_and_once(map_file):
    assert list(map_file.look()) == ["demo", "cdu-1", "a", "a01", "h1", *UUIDS[:2], "h1/mlx5_0", "1234"]
    assert {row["state"] for row in map_file.rows} == {"active"}
    assert len({row["version"] for row in map_file.rows}) == 1
    assert {row["hall"] for row in map_file.rows} == {"demo"}
    assert map_file.look() == {}


def test_a_change_publishes_only_what_changed_and_a_removal_is_a_state(map_file):
    map_file.look()
    before = map_file.rows[0]["version"]
    map_file.write(GOOD.replace("ND-H100-v5", "ND-H200-v5").replace("    - host: 1234\n", ""))
    assert map_file.look() == {"h1": "active", "1234": "retired"}
    assert map_file.rows[0]["model"] == "ND-H200-v5"
    assert map_file.rows[1]["kind"] == "host"
    assert {row["version"] for row in map_file.rows}.isdisjoint({before})
    map_file.write(GOOD)
    assert map_file.look() == {"h1": "active", "1234": "active"}


def test_a_version_whose_rows_were_not_taken_is_published_again(map_file):
    map_file.look()
    before = map_file.collector.cursor()
    map_file.write(GOOD.replace("    - host: 1234\n", ""))
    told = [rows_of(map_file.collector.collect(1), INVENTORY) for _ in range(2)]  # nobody asks for the cursor
    assert [row["asset"] for row in told[0]] == ["1234"]
    assert told[0] == told[1]
    assert map_file.collector.cursor() != before
    assert map_file.look() == {}


def test_a_gpu_that_moves_is_one_changed_row(map_file):
    map_file.look()
    gpu = next(line for line in GOOD.splitlines(keepends=True) if UUIDS[1] in line)
    moved = GOOD.replace(gpu, "").replace("    - host: 1234\n", f"    - host: 1234\n      gpus:\n{gpu}")
    map_file.write(moved)
    assert map_file.look() == {UUIDS[1]: "active"}
    assert map_file.rows[0]["parent"] == "1234"


def test_a_large_map_is_several_events_that_each_fit_a_message(map_file, monkeypatch):
    monkeypatch.setattr("ingest.topology.inventory._MOST_ROWS", 4)
    reading = map_file.collector.collect(1)
    assert [len(rows) for rows in reading.rows] == [4, 4, 1]
    assert len({row["asset"] for row in rows_of(reading, INVENTORY)}) == 9


def test_a_change_of_nothing_but_words_publishes_nothing(map_file):
    map_file.look()
    map_file.write("# moved to another folder\n" + GOOD)
    assert map_file.look() == {}


def test_a_restart_publishes_nothing_again_and_what_changed_meanwhile(map_file):
    map_file.look()
    cursor = map_file.collector.cursor()
    map_file.restart(cursor)
    assert map_file.collector.cursor() == cursor
    assert map_file.look() == {}
    map_file.write(GOOD.replace("    - host: 1234\n", ""))
    map_file.restart(cursor)
    assert map_file.look() == {"1234": "retired"}


@pytest.mark.parametrize("cursor", [b"x", b"x\x9c", b"\x00" * 40])
def test_a_cursor_that_cannot_be_read_publishes_the_whole_map(map_file, cursor):
    map_file.restart(cursor)
    assert len(map_file.look()) == 9


def test_a_wrong_new_version_keeps_the_old_and_stays_an_error_until_it_is_right(map_file):
    map_file.look()
    cursor = map_file.collector.cursor()
    map_file.write(GOOD.replace("cdu: cdu-1\n", "cdu: cdu-9\n"))
    for _ in range(2):
        with pytest.raises(CollectError, match=r"hall\.yaml:9: .*there is no CDU 'cdu-9'") as raised:
            map_file.look()
        assert raised.value.reason == "unreadable"
    assert map_file.collector.cursor() == cursor
    map_file.write(GOOD.replace("    - host: 1234\n", ""))
    assert map_file.look() == {"1234": "retired"}


def test_a_map_that_vanishes_is_an_error_and_retires_nothing(map_file):
    map_file.look()
    map_file.path.unlink()
    with pytest.raises(CollectError) as raised:
        map_file.look()
    assert raised.value.reason == "unreachable"
    map_file.write(GOOD)
    assert map_file.look() == {}


def test_a_file_that_changes_under_the_reading_is_left_for_the_next_look(map_file, monkeypatch):
    real = read_hall_file

    def read_and_disturb(path, **options):
        file = real(path, **options)
        if map_file.written == 1:
            map_file.write(GOOD.replace("    - host: 1234\n", ""))
        return file

    monkeypatch.setattr("ingest.topology.inventory.read_hall_file", read_and_disturb)
    assert map_file.look() == {}
    assert "1234" not in map_file.look()
    assert len(map_file.rows) == 8
