"""The collector of a building management system's messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field

from contract.streams.coolant import COOLANT_EVENTS, COOLANT_LOOPS, COOLANT_READINGS, POWER_READINGS
from ingest.collector import CollectorConfig, Context, Reading, Rows, collector
from ingest.coolant.bms_points import PREFIX, BmsPoint, read_metadata, split_topic
from ingest.coolant.bms_record import Message, Place, RecordFollower
from ingest.coolant.leak import LeakMemory, LeakState
from ingest.coolant.loops import LoopConfig, LoopMemory
from ingest.coolant.readings import as_number, reading, text_of

MAX_POINTS = 50_000

_STALE_US = 200_000_000
"""A value is told on change and every 100 s (NVIDIA DSX Exchange, BMS contract): two were missed."""

_AHEAD_US, _OLDEST_US = 5_000_000, 366 * 86_400_000_000
"""A time of a message beyond these is that of a wrong clock; the reading's own is taken."""

_LEAKING, _NOT_LEAKING = frozenset({"Leak", "Fault"}), frozenset({"NoLeak", "NoFault"})


class BmsConfig(LoopConfig, CollectorConfig):
    """A record of a building's messages."""

    path: Path = Field(description="The file: it is followed while it grows.")
    interval_seconds: float = Field(
        default=1, gt=0, le=3600, description="Time from one reading to the next."
    )


@dataclass(slots=True)
class _Found:
    """Rows of one reading."""

    readings: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    power: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class _Latest:
    """The newest value of a point."""

    row: dict[str, Any]
    heard_us: int


@collector("coolant-bms", BmsConfig, (COOLANT_READINGS, COOLANT_EVENTS, POWER_READINGS, COOLANT_LOOPS))
class BmsCollector:
    """Follows a record of MQTT messages of a building management system, in the contract of NVIDIA DSX Exchange.

    ```toml
    [[ingest.collectors]]
    collector = "coolant-bms"
    path = "/var/lib/hallwatch/bms.jsonl"
    coolant = "pg25"
    ```

    The file holds one message a line: JSON objects with `topic` and `payload`, as `mosquitto_sub -F %j -t
    'BMS/v1/PUB/#'` writes them, or `offset,topic,payload` as in the examples of DSX Exchange, which are played at the
    pace of their offsets. What a point is comes from its metadata message and the table
    `ingest/coolant/bms_points.tsv`; setpoints and requests are told from measurements. Points of coolant, air and leak
    detectors become rows of `coolant_readings`, of the unit or rack they stand in; meters rows of `power_readings`.

    It needs the right to read the file.

    A reading costs the building nothing: whatever writes the file is the broker's one client. Here a message costs
    some 15 microseconds; at most 10,000 are taken at once. After a restart it learns again what points are: from 64 MiB of
    the record, half of it from the beginning, within half its timeout.

    A value whose quality is not 1 is kept as `bad`. A point that was not told again for 200 s is told once as
    `stale`, a detector as `sensor_fault`. Values of points whose metadata never came are counted as `no_metadata`,
    points nothing is kept of (sound, pressure of the room) as `not_kept`, a record too long to learn all of it again
    as `past_cut`. A file that is gone or not to be read is an error; one that became shorter is read from its
    beginning. Messages whose rows could not be sent are read again.
    """

    def __init__(self, config: BmsConfig, context: Context) -> None:
        self._clock = context.clock
        self._past_seconds = config.timeout_seconds / 2
        self._record = RecordFollower(config.path)
        self._points: dict[str, BmsPoint | None] = {}
        self._latest: dict[str, _Latest] = {}
        self._watts: dict[str, tuple[float, int]] = {}
        self._bits: dict[tuple[str, str], dict[str, tuple[str, bool]]] = defaultdict(dict)
        self._told_leaks = self._leaks = LeakMemory()
        self._next: Place | None = None
        """Behind the reading that is made; until its rows are queued it may have to be made again."""
        self._loops = LoopMemory(config, "bms")
        self._forgot = False

    def collect(self, now_us: int) -> Reading:
        self._next, self._leaks = None, self._told_leaks.copy()
        forgotten: Counter[str] = Counter()
        if self._forgot:
            self._learn(forgotten)
            self._forgot = False
        messages, rejected, place = self._record.read(now_us)
        rejected += forgotten
        skipped: Counter[str] = Counter()
        found = _Found()
        for message in messages:
            self._take(message, now_us, found, rejected, skipped)
        found.readings += self._stale(now_us)
        loops = self._loop_rows(now_us)
        rows = [
            Rows.gather(stream, part)
            for stream, part in (
                (COOLANT_READINGS, found.readings),
                (COOLANT_EVENTS, found.events),
                (POWER_READINGS, found.power),
                (COOLANT_LOOPS, loops),
            )
            if part
        ]
        self._next = place
        return Reading(rows=rows, rejected=rejected, skipped=skipped)

    def cursor(self) -> bytes:
        if self._next is not None:  # it is asked for when all rows of the reading are queued with it
            self._record.place, self._told_leaks, self._next = self._next, self._leaks, None
        place = self._record.place
        if place.start_us is None:
            return b""
        saved = {"offset": place.offset, "start_us": place.start_us}
        return orjson.dumps(saved | {"leaks": self._told_leaks.dump()})

    def restore(self, cursor: bytes) -> None:
        try:
            saved = orjson.loads(cursor)
            offset, start_us = int(saved["offset"]), int(saved["start_us"])
        except (ValueError, KeyError, TypeError):
            return
        if offset < 0:
            return
        self._record.place, self._forgot = Place(offset, start_us), True
        if isinstance(saved.get("leaks"), dict):
            self._told_leaks.load(saved["leaks"], self._clock.now_us())

    def close(self) -> None:
        """Nothing stays open between readings."""

    def _learn(self, rejected: Counter[str]) -> None:
        """Learn again what points are; of messages about one point the newest counts."""
        told_before: Counter[str] = Counter()
        for message in self._record.past(self._clock, self._past_seconds, rejected):
            split = split_topic(message.topic)
            if split is not None and split[0] == "Metadata":
                self._metadata(split[1], message.payload, told_before)

    def _take(
        self,
        message: Message,
        now_us: int,
        found: _Found,
        rejected: Counter[str],
        skipped: Counter[str],
    ) -> None:
        split = split_topic(message.topic)
        if split is None:
            skipped["other_topic"] += 1
        elif split[0] == "Metadata":
            self._metadata(split[1], message.payload, rejected)
        elif not isinstance(message.payload, dict):
            rejected["unreadable"] += 1
        elif split[1] not in self._points:
            rejected["no_metadata"] += 1
        elif (point := self._points[split[1]]) is None:
            skipped["not_kept"] += 1
        else:
            self._value(split[1], point, message.payload, now_us, found)

    def _metadata(self, name: str, payload: Any, rejected: Counter[str]) -> None:
        if name not in self._points and len(self._points) >= MAX_POINTS:
            rejected["too_many_points"] += 1
            return
        try:
            self._points[name] = read_metadata(name, payload if isinstance(payload, dict) else {})
        except ValueError:
            self._points[name] = None
            rejected["bad_metadata"] += 1

    def _value(
        self,
        name: str,
        point: BmsPoint,
        payload: Mapping[str, Any],
        now_us: int,
        found: _Found,
    ) -> None:
        quality = _quality(payload.get("quality"))
        row = {
            "ts": _time(payload.get("timestamp"), now_us),
            "equipment": point.equipment,
            "component": point.component,
            "label": point.label,
            "protocol": "bms",
            "source_uri": text_of(f"{PREFIX}Value/{name}", 1_024),
        }
        value = as_number(payload.get("value"))
        if point.point == "power":
            watts = None if value is None else value * point.factor
            quality = quality if value is not None else "bad"
            found.power.append(row | {"power_watts": watts, "quality": quality})
            if watts is not None and quality == "good":
                self._watts[point.equipment] = watts, now_us
            return
        row |= {"loop": point.loop, "role": point.role}
        if point.point in ("leak", "leak_fault"):
            self._leak(row, point, payload.get("value"), quality, now_us, found)
            return
        if point.point == "status":
            word = None if value is None else point.states.get(f"{value:g}", f"{value:g}")
            whole = reading("status", None, quality=quality if word else "bad", device_state=word, **row)
        else:
            value = None if value is None else value * point.factor + point.offset
            whole = reading(point.point, value, quality=quality, **row)
        whole["role"] = point.role
        found.readings.append(whole)
        self._latest[name] = _Latest(whole, now_us)

    def _leak(
        self,
        row: dict[str, Any],
        point: BmsPoint,
        value: object,
        quality: str,
        now_us: int,
        found: _Found,
    ) -> None:
        """Judge a detector by what it and the point about its health said last."""
        number = as_number(value)
        text = "" if number is None else f"{number:g}"
        word = point.states.get(text, {"0": "NoLeak", "1": "Leak"}.get(text, text))
        bits = self._bits[point.equipment, point.component]
        bits[point.point] = word, quality == "good" and word in _LEAKING | _NOT_LEAKING
        said, fit = bits.get("leak", ("", False))
        fault, sure = bits.get("leak_fault", ("NoFault", True))
        fit = fit and sure and fault in _NOT_LEAKING
        if said in _LEAKING:
            state: LeakState = "leak" if fit else "suspect"
        else:
            state = "dry" if fit else "sensor_fault"
        if "leak" not in bits:
            return  # of the detector itself nothing was heard yet
        name = f"{point.equipment}/{point.component}"
        heard = self._leaks.note(name, state, now_us, point.label)
        self._leaks.hear(name, now_us)
        found.readings.append(
            row
            | {
                "point": "leak",
                "quality": "good" if fit else "bad",
                "leak_state": state,
                "leak_before": heard.before,
                "device_state": word or None,
            }
        )
        if heard.news_after is not None:
            before = None if heard.news_after == "new" else heard.news_after
            place = {key: value for key, value in row.items() if key != "role"}
            event = {"event": "leak_changed", "leak_state": state, "state": word, "state_before": before}
            found.events.append(place | event)

    def _stale(self, now_us: int) -> Iterable[dict[str, Any]]:
        """Yield, once each, what was not told again in time."""
        for latest in self._latest.values():
            if latest.row["quality"] != "stale" and now_us - latest.heard_us > _STALE_US:
                latest.row = latest.row | {"ts": now_us, "quality": "stale"}
                yield latest.row
        for name in self._leaks.silent(now_us):
            equipment, _, component = name.rpartition("/")
            heard = self._leaks.note(name, "sensor_fault", now_us)
            if heard.news_after is not None:
                yield {
                    "ts": now_us,
                    "equipment": equipment,
                    "component": component,
                    "point": "leak",
                    "role": "measured",
                    "quality": "stale",
                    "leak_state": "sensor_fault",
                    "leak_before": heard.before,
                    "protocol": "bms",
                }

    def _loop_rows(self, now_us: int) -> list[dict[str, Any]]:
        watts = {
            equipment: watts
            for equipment, (watts, heard_us) in self._watts.items()
            if now_us - heard_us <= _STALE_US
        }
        return self._loops.rows((latest.row for latest in self._latest.values()), now_us, watts)


def _quality(value: object) -> str:
    if value is None:
        return "unknown"
    return "good" if value == 1 and not isinstance(value, bool) else "bad"


def _time(timestamp_ms: object, now_us: int) -> int:
    """Return when a message says that it was, where that can be."""
    number = as_number(timestamp_ms)
    if number is None:
        return now_us
    ts_us = number * 1000
    return int(ts_us) if now_us - _OLDEST_US <= ts_us <= now_us + _AHEAD_US else now_us
