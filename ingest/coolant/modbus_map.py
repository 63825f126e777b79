"""Register maps: what the registers of one model of unit mean, as data that users can write themselves.

The shipped ones are in `maps/`; docs/register-maps.md tells how to write one.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from contract.config import StrictConfig
from contract.errors import ConfigError
from contract.files import read_bounded
from contract.streams.coolant import LOOPS, POINTS
from contract.yamltext import Document, Place, as_value
from ingest.coolant.units import units_of

MAPS_FOLDER = Path(__file__).parent / "maps"
MAX_FILE_BYTES = 1_048_576
MAX_POINTS = 2_000

Function = Literal["holding", "input", "coil", "discrete"]
WordOrder = Literal["ABCD", "CDAB", "BADC", "DCBA"]
"""Order on the wire of the bytes of a 32-bit value, A the most significant."""

BIT_FUNCTIONS = frozenset({"coil", "discrete"})

_FORMATS = {"int16": ">h", "uint16": ">H", "int32": ">i", "uint32": ">I", "float32": ">f"}

METERS = {
    "power_watts": {"W": 1.0, "kW": 1000.0},
    "apparent_volt_amperes": {"VA": 1.0, "kVA": 1000.0},
    "energy_kilowatt_hours": {"kWh": 1.0, "Wh": 0.001},
    "voltage_volts": {"V": 1.0},
    "current_amperes": {"A": 1.0},
    "frequency_hertz": {"Hz": 1.0},
    "power_factor_ratio": {"ratio": 1.0, "percent": 0.01},
}
"""Columns of `power_readings` that a register may fill, and the factor of each unit."""


class Wraps(StrictConfig):
    """How a value that the unit computes itself, in too small a register, is made whole again."""

    at: int = Field(gt=0)
    factor: float
    flow: str
    warm: str
    cool: str


class PointEntry(StrictConfig):
    """One register, or one bit, and what it says."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)
    address: int = Field(ge=0, le=65_535)
    function: Function = "holding"
    type: Literal["int16", "uint16", "int32", "uint32", "float32", "bit"] = "uint16"
    word_order: WordOrder | None = None
    bit: int | None = Field(default=None, ge=0, le=15)
    scale: float = 1.0
    offset: float = 0.0
    unit: str | None = None
    missing: tuple[int, ...] = ()
    valid: tuple[float, float] | None = None
    wraps: Wraps | None = None
    point: str | None = None
    meter: str | None = None
    component: str | None = Field(default=None, min_length=1, max_length=255)
    loop: Literal["FWS", "TCS", "RowTCS", "rack", "coldplate", "none"] | None = None
    role: Literal["measured", "setpoint", "request"] = "measured"
    says: Literal["leak", "sensor_fault"] | None = None
    states: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Refuse what contradicts itself."""
        if (self.point is None) == (self.meter is None):
            raise ValueError("either `point` or `meter` says what it is")
        if (self.type == "bit") != (self.function in BIT_FUNCTIONS or self.bit is not None):
            raise ValueError("`type: bit` belongs to coils, discrete inputs and registers with a `bit`")
        if self.function in BIT_FUNCTIONS and self.bit is not None:
            raise ValueError("a coil or discrete input has no `bit`: it is one")
        if self.address + self.words > 65_536:
            raise ValueError("it reaches beyond the last address, 65535")
        self._check_meaning()
        return self

    def _check_meaning(self) -> None:
        if self.meter is not None:
            _one_of("meter", self.meter, METERS)
            _one_of("unit", self.unit, METERS[self.meter])
            return
        self._check_point(self.point or "")

    def _check_point(self, point: str) -> None:
        _one_of("point", point, POINTS)
        if (self.says is not None) != (self.point == "leak"):
            raise ValueError("`says` is what a set bit of a `leak` means: leak, or sensor_fault")
        if self.point == "leak" and (self.type != "bit" or self.component is None):
            raise ValueError("a leak is a `bit`, and `component` names its detector")
        if self.type == "bit" and self.point not in ("leak", "status"):
            raise ValueError(f"a bit is no {self.point}")
        if units := units_of(point):
            _one_of("unit", self.unit, units)

    @property
    def words(self) -> int:
        """How many addresses it takes."""
        return 2 if self.type in ("int32", "uint32", "float32") else 1

    def factor_and_offset(self) -> tuple[float, float]:
        """Return what turns the scaled value into the unit it is kept in."""
        if self.meter is not None:
            return METERS[self.meter][self.unit or ""], 0.0
        return units_of(self.point or "").get(self.unit or "", (1.0, 0.0))


class BlockLimits(StrictConfig):
    """How much the unit answers at once."""

    registers: int = Field(default=125, ge=1, le=125)
    bits: int = Field(default=2_000, ge=1, le=2_000)
    gap: int = Field(default=8, ge=0, le=100)


class RegisterMap(StrictConfig):
    """The whole file."""

    map: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64)
    maker: str = Field(min_length=1)
    model: str = Field(min_length=1)
    firmware: str = Field(min_length=1)
    source: str = Field(min_length=1)
    unit_id: int = Field(default=1, ge=0, le=255)
    word_order: WordOrder = "ABCD"
    loop: Annotated[str, Field(pattern="|".join(LOOPS))] | None = None
    block: BlockLimits = BlockLimits()
    points: tuple[PointEntry, ...] = Field(min_length=1, max_length=MAX_POINTS)

    def loop_of(self, entry: PointEntry) -> str | None:
        """Return the loop a point stands in: its own, else that of the map; `none` is none."""
        loop = entry.loop or self.loop
        return None if loop == "none" else loop


@dataclass(frozen=True, slots=True)
class Block:
    """Points that are read with one request."""

    function: Function
    address: int
    count: int
    entries: tuple[PointEntry, ...]

    def is_within(self, other: Block) -> bool:
        """Return whether another asks for all of it."""
        first, last = self.address - other.address, self.address + self.count - other.address
        return self.function == other.function and 0 <= first < last <= other.count

    def halves(self) -> tuple[Block, ...]:
        """Return it as two, or itself where there is nothing to split."""
        firsts = sorted({entry.address for entry in self.entries})
        if len(firsts) < 2:
            return (self,)
        middle = firsts[len(firsts) // 2]
        return (
            _block(self.function, [entry for entry in self.entries if entry.address < middle]),
            _block(self.function, [entry for entry in self.entries if entry.address >= middle]),
        )


def plan_blocks(register_map: RegisterMap) -> tuple[Block, ...]:
    """Return as few blocks as the limits of the unit allow, leak detectors first: a gap up to the limit is read along."""
    limits, blocks = register_map.block, []
    by_function = sorted(register_map.points, key=lambda entry: (entry.function, entry.address, entry.words))
    for function, entries in itertools.groupby(by_function, key=lambda entry: entry.function):
        most = limits.bits if function in BIT_FUNCTIONS else limits.registers
        block: list[PointEntry] = []
        for entry in entries:
            end = max((e.address + e.words for e in block), default=entry.address)
            if block and (
                entry.address - end > limits.gap or entry.address + entry.words - block[0].address > most
            ):
                blocks.append(_block(function, block))
                block = []
            block.append(entry)
        blocks.append(_block(function, block))
    return tuple(sorted(blocks, key=lambda block: all(entry.point != "leak" for entry in block.entries)))


def _block(function: Function, entries: Sequence[PointEntry]) -> Block:
    start = min(entry.address for entry in entries)
    return Block(function, start, max(e.address + e.words for e in entries) - start, tuple(entries))


def decode_value(entry: PointEntry, words: Sequence[int], word_order: WordOrder) -> float | None:
    """Return the value as the register means it, scaled but in its own unit; None where it says that there is none.

    `words` are the registers of the entry, or the one bit. Never raises.
    """
    if entry.type == "bit":
        return float(words[0] >> (entry.bit or 0) & 1)
    if entry.words == 1 and words[0] in entry.missing:
        return None
    data = b"".join(word.to_bytes(2, "big") for word in words)
    if entry.words == 2:
        order = entry.word_order or word_order
        data = bytes(data[order.index(letter)] for letter in "ABCD")
        if int.from_bytes(data, "big") in entry.missing:
            return None
    value = struct.unpack(_FORMATS[entry.type], data)[0] * entry.scale + entry.offset
    low, high = entry.valid or (-1e12, 1e12)
    return value if low <= value <= high else None  # NaN is in no range


def find_map(name: str) -> Path:
    """Return the file of a shipped map; raise ConfigError."""
    if name not in shipped():
        raise ConfigError(
            "unknown_name", f"there is no register map {name!r}; there are {', '.join(shipped())}"
        )
    return MAPS_FOLDER / f"{name}.yaml"


def shipped() -> list[str]:
    """Return the names of the shipped maps."""
    return sorted(path.stem for path in MAPS_FOLDER.glob("*.yaml"))


def read_map(path: Path) -> RegisterMap:
    """Read a map; raise ConfigError (unreadable, invalid) that names every mistake as `file:line`."""
    return parse_map(read_bounded(path, MAX_FILE_BYTES), str(path))


def parse_map(content: bytes, where: str) -> RegisterMap:
    """Do the same with the bytes of a file; `where` is its name in messages."""
    document = Document(where, _plain)
    values = document.load(content)
    if values is None:
        document.complain((), "empty; it begins with `map: NAME`")
    document.stop_if_wrong()
    try:
        found = RegisterMap.model_validate(values)
    except ValidationError as error:
        for problem in error.errors():
            document.complain(problem["loc"], _words(problem["type"], problem["msg"]))
        document.stop_if_wrong()
        raise
    for place, message in _contradictions(found):
        document.complain(place, message)
    document.stop_if_wrong()
    return found


def _plain(node: yaml.ScalarNode) -> Any:
    """Take a value for what it looks like, but `off` and `on` for the words that parts say of themselves."""
    value = as_value(node)
    return node.value if isinstance(value, bool) and node.value.lower() not in ("true", "false") else value


def _contradictions(found: RegisterMap) -> Iterator[tuple[Place, str]]:
    """Yield what is wrong between points."""
    names: dict[str, int] = {}
    for at, entry in enumerate(found.points):
        if entry.name in names:
            yield ("points", at, "name"), f"{entry.name!r} is the name of another point already"
        names.setdefault(entry.name, at)
        if entry.words > found.block.registers:
            yield ("points", at), "longer than one block"
    for at, entry in enumerate(found.points):
        if entry.wraps is None:
            continue
        for role in ("flow", "warm", "cool"):
            if getattr(entry.wraps, role) not in names:
                yield ("points", at, "wraps", role), f"there is no point {getattr(entry.wraps, role)!r}"


def _one_of(field: str, value: str | None, known: Iterable[str]) -> None:
    if value not in (words := list(known)):
        raise ValueError(f"{field}: {value!r} is none of {', '.join(words)}")


def _words(type: str, message: str) -> str:
    return {
        "extra_forbidden": "unknown key",
        "missing": "missing",
        "model_type": "a mapping belongs here, one `key: value` a line",
        "tuple_type": "a list belongs here, one `- item` a line",
    }.get(type, message.removeprefix("Value error, "))
