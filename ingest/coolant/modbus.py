"""The collector of coolant units that speak Modbus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson
from pydantic import Field, model_validator
from typing_extensions import override

from contract.errors import CollectError, ConfigError
from contract.streams.coolant import (
    COOLANT_EVENTS,
    COOLANT_LOOPS,
    COOLANT_READINGS,
    POINTS,
    POWER_READINGS,
)
from ingest.collector import Context, EquipmentConfig, Reading, Rows, collector
from ingest.coolant.leak import LeakMemory, LeakState
from ingest.coolant.loops import LoopConfig, LoopMemory
from ingest.coolant.modbus_client import Framing, ModbusClient, Refused, RegisterReader
from ingest.coolant.modbus_map import (
    Block,
    PointEntry,
    RegisterMap,
    decode_value,
    find_map,
    plan_blocks,
    read_map,
)
from ingest.due import Due

_SPLIT_AFTER = frozenset({"illegal_address", "illegal_value", "device_failure", "wrong_size"})
"""What one register of a block can be to blame for."""

_ASK_AGAIN = frozenset({"device_busy", "acknowledge"})

_JOIN_SECONDS = 3_600.0
"""How often it is tried whether the unit answers whole blocks again."""


class ModbusConfig(LoopConfig, EquipmentConfig):
    """A unit that speaks Modbus."""

    address: str = Field(
        min_length=1, max_length=255, description="Host or IP address of the unit or its gateway."
    )
    port: int = Field(default=502, ge=1, le=65_535, description="Its TCP port.")
    map: str | None = Field(
        default=None, min_length=1, description="Its register map, by the name of a shipped one."
    )
    path: Path | None = Field(default=None, description="Its register map, where it is a file of your own.")
    unit_id: int | None = Field(
        default=None, ge=0, le=255, description="Its Modbus address; the map's where it is not given."
    )
    framing: Framing = Field(
        default="tcp", description="`tcp`; or `rtu`, for a serial gateway that passes frames on as they are."
    )

    @model_validator(mode="after")
    def _names_one_map(self) -> Self:
        """Refuse two maps or none, and one that is not shipped."""
        try:
            self._map_path()
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @override
    def anchored(self, folder: Path) -> Self:
        """Do so, and raise ConfigError for a map that is not there or has a mistake: only now its path is whole."""
        copy = super().anchored(folder)
        copy.read_map()
        return copy

    def read_map(self) -> RegisterMap:
        """Return the register map; raise ConfigError."""
        return read_map(self._map_path())

    def _map_path(self) -> Path:
        if self.map is not None and self.path is None:
            return find_map(self.map)
        if self.path is not None and self.map is None:
            return self.path
        raise ConfigError(
            "missing", "either `map` names a shipped register map, or `path` a file of your own"
        )


@dataclass(slots=True)
class _Answers:
    """What one reading gave, before it is rows."""

    values: dict[str, float | None] = field(default_factory=dict)
    """By name of the point; a point whose block was refused is not in it."""
    refused: dict[str, str] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    lost: CollectError | None = None


@collector("coolant-modbus", ModbusConfig, (COOLANT_READINGS, COOLANT_EVENTS, POWER_READINGS, COOLANT_LOOPS))
class ModbusCollector:
    """Reads a coolant unit over Modbus TCP, or RTU through a gateway, as a register map says.

    ```toml
    [[ingest.collectors]]
    collector = "coolant-modbus"
    equipment = "cdu-1"
    address = "10.0.8.11"
    map = "supermicro-cdu-200kw"
    ```

    It reads registers, coils and inputs, and never writes one. The maps that come with it are in
    `ingest/coolant/maps/`; to write your own, see [register maps](register-maps.md). Detectors become rows of
    `coolant_readings` with a leak state, and a change of one is an event; what the points of a loop say together
    (margin over the dew point, heat that is carried away, how long a pump runs) is a row of `coolant_loops`.

    It needs no account: Modbus has none. Whoever reaches the port can also write, so keep it to this machine.

    A reading costs the unit as few requests as the limits in its map allow, one after the other over one connection
    that is kept: two for the 200 kW map, 33 for a unit that answers one register at a time. Here it is about a
    millisecond of CPU.

    A block that the unit refuses costs only itself: its points are there as `bad`, its detectors as `sensor_fault`,
    and from the next reading on it is read in halves, until the register to blame is alone. Once an hour the whole block is
    tried again; where it is still refused, its parts are read at once and nothing is lost. A busy unit is asked once
    more. Detectors are read first. Where the time is over, what was read until then is sent, and the rest is `bad`. A unit
    that answers nothing is an error, and its loops and detectors stay what they were: silence is no flow of zero and
    no dry floor.
    """

    def __init__(
        self, config: ModbusConfig, context: Context, *, client: RegisterReader | None = None
    ) -> None:
        self._map = config.read_map()
        self._uri = f"modbus://{config.address}:{config.port}"
        self._client: RegisterReader = client or ModbusClient(
            config.address,
            config.port,
            unit_id=self._map.unit_id if config.unit_id is None else config.unit_id,
            framing=config.framing,
            timeout_seconds=config.timeout_seconds,
            clock=context.clock,
        )
        self._whole_blocks = self._blocks = plan_blocks(self._map)
        self._join_due = Due(_JOIN_SECONDS)
        self._loops = LoopMemory(config, "modbus")
        self._leaks = LeakMemory()
        self._clock = context.clock

    @property
    def blocks(self) -> tuple[Block, ...]:
        """What the next reading asks for."""
        return self._blocks

    def collect(self, now_us: int) -> Reading:
        answers = self._ask(self._whole_blocks if self._join_due.at(now_us) else self._blocks)
        readings = [self._reading(entry, answers) for entry in self._map.points if _is_plain(entry)]
        detectors, changes = self._detectors(answers, now_us)
        rows = [
            Rows.gather(stream, found)
            for stream, found in (
                (COOLANT_READINGS, readings + detectors),
                (COOLANT_EVENTS, changes),
                (POWER_READINGS, self._meters(answers)),
                (COOLANT_LOOPS, self._loops.rows(readings, now_us)),
            )
            if found
        ]
        return Reading(rows=rows, rejected=answers.rejected)

    def cursor(self) -> bytes:
        leaks = self._leaks.dump()
        return orjson.dumps(leaks) if leaks else b""

    def restore(self, cursor: bytes) -> None:
        try:
            saved = orjson.loads(cursor)
        except ValueError:
            return
        if isinstance(saved, dict):
            self._leaks.load(saved, self._clock.now_us())

    def close(self) -> None:
        self._client.close()

    def _ask(self, blocks: Sequence[Block]) -> _Answers:
        """Read blocks, those that met a busy unit once more; raise CollectError where it answers none of them."""
        answers = _Answers()
        self._client.begin()
        asked = [answer for block in blocks for answer in self._read_whole(block, answers)]
        asked = [
            (block, self._read(block, answers) if reason in _ASK_AGAIN else reason) for block, reason in asked
        ]
        for block, reason in asked:
            if reason is not None:
                answers.rejected[reason] += 1
                answers.refused |= {entry.name: reason for entry in block.entries}
        self._blocks = tuple(
            part
            for block, reason in asked
            for part in (block.halves() if reason in _SPLIT_AFTER else (block,))
        )
        if not answers.values:
            raise answers.lost or CollectError(
                "no_data", f"{self._uri}: every block was refused: {dict(answers.rejected)}"
            )
        self._make_whole(answers)
        return answers

    def _read_whole(self, block: Block, answers: _Answers) -> list[tuple[Block, str | None]]:
        """Read a block, or what it was split into where that is refused; return why there is nothing of each."""
        reason = self._read(block, answers)
        parts = [part for part in self._blocks if part.is_within(block)] if reason in _SPLIT_AFTER else []
        if len(parts) < 2:
            return [(block, reason)]
        return [(part, self._read(part, answers)) for part in parts]

    def _read(self, block: Block, answers: _Answers) -> str | None:
        """Read one block; return why there is nothing of it. Where the unit is lost, it is not asked again."""
        if answers.lost is not None and answers.lost.reason != "unreadable":
            return answers.lost.reason
        try:
            words = self._client.read(block.function, block.address, block.count)
        except Refused as refused:
            return refused.reason
        except CollectError as error:
            answers.lost = error
            return error.reason
        self._decode(block, words, answers)
        return None

    def _decode(self, block: Block, words: Sequence[int], answers: _Answers) -> None:
        for entry in block.entries:
            start = entry.address - block.address
            part = words[start : start + entry.words]
            answers.values[entry.name] = decode_value(entry, part, self._map.word_order)

    def _make_whole(self, answers: _Answers) -> None:
        """Put back what a value lost that its register is too small for."""
        for entry in self._map.points:
            if entry.wraps is None or answers.values.get(entry.name) is None:
                continue
            wraps, values = entry.wraps, answers.values
            flow, warm, cool = (values.get(name) for name in (wraps.flow, wraps.warm, wraps.cool))
            if flow is None or warm is None or cool is None:
                values[entry.name] = None
                continue
            value = values[entry.name] or 0.0
            turns = round((wraps.factor * flow * (warm - cool) - value) / wraps.at)
            values[entry.name] = value + turns * wraps.at

    def _reading(self, entry: PointEntry, answers: _Answers) -> dict[str, Any]:
        value = answers.values.get(entry.name)
        row = self._place(entry) | {
            "point": entry.point,
            "role": entry.role,
            "quality": "bad" if value is None else "good",
            "detail": answers.refused.get(entry.name),
        }
        unit = POINTS[entry.point or ""].unit
        if unit is None:
            return row | {"device_state": None if value is None else _state(entry, value)}
        if value is not None:
            factor, offset = entry.factor_and_offset()
            value = value * factor + offset
            known = POINTS[entry.point or ""]
            if not known.low <= value <= known.high:
                value, row["quality"] = None, "bad"
        return row | {"value": value, "unit": unit}

    def _detectors(self, answers: _Answers, now_us: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return one row per detector, out of one bit or two, and the events."""
        entries: dict[str | None, list[PointEntry]] = {}
        for entry in self._map.points:
            if entry.point == "leak":
                entries.setdefault(entry.component, []).append(entry)
        found = [self._detector(one, answers, now_us) for one in entries.values()]
        return [row for row, _ in found], [event for _, event in found if event is not None]

    def _detector(
        self, entries: Sequence[PointEntry], answers: _Answers, now_us: int
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return a detector's row, and the event where it says something new."""
        component = entries[0].component or ""
        bits = [(entry.says, answers.values.get(entry.name)) for entry in entries]
        fit = ("sensor_fault", 1.0) not in bits and all(value is not None for _, value in bits)
        if ("leak", 1.0) in bits:
            state: LeakState = "leak" if fit else "suspect"
        else:
            state = "dry" if fit else "sensor_fault"
        heard = self._leaks.note(component, state, now_us)
        place = self._place(entries[0]) | {"detail": answers.refused.get(entries[0].name)}
        row = place | {
            "point": "leak",
            "role": "measured",
            "quality": "good" if fit else "bad",
            "leak_state": state,
            "leak_before": heard.before,
        }
        self._leaks.hear(component, now_us)
        if heard.news_after is None:
            return row, None
        before = None if heard.news_after == "new" else heard.news_after
        event = {"event": "leak_changed", "leak_state": state, "state": state, "state_before": before}
        return row, place | event

    def _meters(self, answers: _Answers) -> list[dict[str, Any]]:
        """Return one row per meter, which may have several registers."""
        rows: dict[str | None, dict[str, Any]] = {}
        for entry in self._map.points:
            if entry.meter is None:
                continue
            value = answers.values.get(entry.name)
            row = rows.setdefault(
                entry.component,
                {
                    "component": entry.component,
                    "quality": "good",
                    "protocol": "modbus",
                    "source_uri": self._source(entry),
                },
            )
            row[entry.meter] = None if value is None else value * entry.factor_and_offset()[0]
            if value is None:
                row["quality"] = "bad"
        return list(rows.values())

    def _place(self, entry: PointEntry) -> dict[str, Any]:
        return {
            "component": entry.component,
            "label": entry.name,
            "loop": self._map.loop_of(entry),
            "protocol": "modbus",
            "source_uri": self._source(entry),
        }

    def _source(self, entry: PointEntry) -> str:
        return f"{self._uri}/{entry.function}/{entry.address}"


def _is_plain(entry: PointEntry) -> bool:
    return entry.point is not None and entry.point != "leak"


def _state(entry: PointEntry, value: float) -> str:
    """Return a part's own word: of the map where it has one, else the number."""
    number = f"{value:g}"
    return entry.states.get(number, number if entry.unit is None else f"{number} {entry.unit}")
