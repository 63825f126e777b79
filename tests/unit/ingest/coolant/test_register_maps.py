"""Register maps: what is read out of a file, what is refused with its line, and how blocks are planned."""

import math
import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ConfigError
from contract.streams.coolant import POINTS, UNITS
from ingest.coolant.modbus_map import (
    PointEntry,
    decode_value,
    find_map,
    parse_map,
    plan_blocks,
    read_map,
    shipped,
)

HEAD = """\
map: test
maker: Test
model: Test
firmware: "1"
source: test
"""


def points(*lines, head=HEAD):
    return parse_map(
        f"{head}points:\n{''.join(f'  - {line}' + chr(10) for line in lines)}".encode(), "my.yaml"
    )


def entry(**values):
    return PointEntry(name="p", address=0, point="flow", unit="L/min", **values)


def test_every_shipped_map_is_valid_and_stays_within_the_limits_of_its_unit():
    assert shipped() == ["meta-aalc-rpu", "supermicro-cdu-200kw"]
    for name in shipped():
        found = read_map(find_map(name))
        assert found.map == name
        for block in plan_blocks(found):
            most = found.block.bits if block.function in ("coil", "discrete") else found.block.registers
            assert block.count <= most


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{name: a, address: 1, point: flow}", "unit: None is none of L/min"),
        ("{name: a, address: 1, point: flow, unit: furlong}", "'furlong' is none of L/min"),
        ("{name: a, address: 1, point: flaw, unit: L/min}", "point: 'flaw' is none of supply_temperature"),
        ("{name: a, address: 70000, point: flow, unit: L/min}", "less than or equal to 65535"),
        ("{name: a, address: 65535, point: flow, unit: L/min, type: float32}", "beyond the last address"),
        ("{name: a, address: 1, point: flow, unit: L/min, colour: red}", "colour: unknown key"),
        ("{name: a, address: 1, point: leak, says: leak, component: x}", "a leak is a `bit`"),
        ("{name: a, address: 1, point: leak, type: bit, bit: 3, component: x}", "`says` is what a set bit"),
        ("{name: a, address: 1, type: bit, point: status}", "`type: bit` belongs to coils"),
        ("{name: a, address: 1, type: bit, bit: 2, point: flow, unit: L/min}", "a bit is no flow"),
        ("{name: a, address: 1, meter: power_watts, unit: L/min}", "'L/min' is none of W, kW"),
        ("{name: a, address: 1}", "either `point` or `meter`"),
        (
            "{name: a, address: 1, function: coil, type: bit, bit: 1, point: status}",
            "has no `bit`: it is one",
        ),
        (
            "{name: a, address: 1, point: heat_removed, unit: W, wraps: {at: 9, factor: 1, flow: x, warm: a, cool: a}}",
            "there is no point 'x'",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(line, complaint):
    with pytest.raises(ConfigError) as raised:
        points("{name: fine, address: 0, point: flow, unit: L/min}", line)
    assert str(raised.value).startswith("my.yaml:8: points.1")
    assert complaint in str(raised.value)
    assert raised.value.reason == "invalid"


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigError) as raised:
        points(
            "{name: fine, address: 0, point: flow, unit: L/min}",
            "{name: a, address: -1, point: flow, unit: L/min}",
            "{name: b, point: flow, unit: L/min}",
        )
    assert [line.split(":")[1] for line in str(raised.value).splitlines()] == ["8", "9"]


def test_a_name_given_twice_is_refused():
    with pytest.raises(ConfigError, match=r"my\.yaml:8: points\.1\.name: 'a' is the name of another point"):
        points(*["{name: a, address: 1, point: flow, unit: L/min}"] * 2)


@pytest.mark.parametrize("content", [b"", b"points: [", b"- 1", b"map: x", b"\xff\xfe\x00", b"a: &a [*a]"])
def test_what_is_no_map_is_refused(content):
    with pytest.raises(ConfigError) as raised:
        parse_map(content, "my.yaml")
    assert "my.yaml:" in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"mine\.yaml: No such file"):
        read_map(tmp_path / "mine.yaml")


def test_off_and_on_are_words_of_a_part_and_not_truths():
    found = points("{name: a, address: 0, point: status, states: {0: off, 1: on}}")
    assert found.points[0].states == {"0": "off", "1": "on"}


def test_the_example_of_the_documentation_is_a_map():
    text = (Path(__file__).parents[4] / "docs/register-maps.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert parse_map(example.encode(), "example").firmware == "2.4"
    for name in shipped():
        assert f"`{name}`" in text


def test_addresses_may_be_written_in_hexadecimal():
    assert points("{name: a, address: 0x9000, point: flow, unit: L/min}").points[0].address == 36_864


def test_near_registers_are_read_together_and_far_ones_apart():
    found = points(
        "{name: a, address: 0, point: flow, unit: L/min}",
        "{name: b, address: 9, point: flow, unit: L/min, type: float32}",
        "{name: c, address: 20, point: flow, unit: L/min}",
        "{name: d, address: 0, function: input, point: flow, unit: L/min}",
    )
    assert [(b.function, b.address, b.count) for b in plan_blocks(found)] == [
        ("holding", 0, 11),
        ("holding", 20, 1),
        ("input", 0, 1),
    ]


def test_no_block_is_longer_than_the_unit_answers():
    lines = [f"{{name: p{at}, address: {at * 2}, point: flow, unit: L/min, type: int32}}" for at in range(10)]
    found = points(*lines, head=HEAD + "block: {registers: 5}\n")
    assert [(b.address, b.count) for b in plan_blocks(found)] == [(0, 4), (4, 4), (8, 4), (12, 4), (16, 4)]


def test_a_block_is_split_until_one_address_is_left():
    found = points(*[f"{{name: p{at}, address: {at}, point: flow, unit: L/min}}" for at in range(3)])
    (block,) = plan_blocks(found)
    first, second = block.halves()
    assert [(b.address, b.count) for b in (first, second)] == [(0, 1), (1, 2)]
    assert first.halves() == (first,)


@pytest.mark.parametrize("order", ["ABCD", "CDAB", "BADC", "DCBA"])
@given(value=st.floats(width=32, min_value=-1e6, max_value=1e6))
def test_a_float_is_read_in_every_order_of_its_bytes(order, value):
    on_wire = bytes(struct.pack(">f", value)["ABCD".index(letter)] for letter in order)
    words = struct.unpack(">HH", on_wire)
    assert decode_value(entry(type="float32"), words, order) == value


@given(words=st.lists(st.integers(0, 65_535), min_size=2, max_size=2))
def test_no_pattern_of_bits_makes_a_value_that_is_no_number(words):
    for kind in ("float32", "int32", "uint32"):
        value = decode_value(entry(type=kind), words, "CDAB")
        assert value is None or math.isfinite(value)


@pytest.mark.parametrize(
    ("values", "words", "expected"),
    [
        ({"type": "int16"}, [65_516], -20),
        ({"type": "int16", "scale": 0.1}, [0xFF38], -20.0),
        ({"type": "uint16", "missing": (0xFFFF,)}, [0xFFFF], None),
        ({"type": "int32", "missing": (0x80000000,)}, [0x8000, 0], None),
        ({"type": "int16", "valid": (0, 100)}, [65_535], None),
        ({"type": "float32"}, [0x7FC0, 0], None),
        ({"type": "float32"}, [0x7F80, 0], None),
    ],
)
def test_signs_scales_and_words_for_nothing(values, words, expected):
    assert decode_value(entry(**values), words, "ABCD") == expected


def test_every_unit_of_a_point_leads_to_the_unit_it_is_kept_in():
    fahrenheit = PointEntry(name="p", address=0, point="air_temperature", unit="Fahrenheit")
    factor, offset = fahrenheit.factor_and_offset()
    assert 212 * factor + offset == pytest.approx(100)
    for name, point in POINTS.items():
        if point.unit is not None:
            assert PointEntry(name="p", address=0, point=name, unit=point.unit).factor_and_offset() == (1, 0)
    assert "Celsius" in UNITS
