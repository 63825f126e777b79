"""Announced work on the bus: writing it, and reading all of it back, whether the lake has it yet or not."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from analytics.query import connect
from contract.bus import Bus, Message, TopicPartition
from contract.codec import Event, encode_event
from contract.config import Config
from contract.errors import ConfigError, StoreError, TransportError
from contract.reader import Marks, read_batch
from contract.stream import TIME_TYPE
from contract.streams.topology import MAINTENANCE, SCOPES
from hallwatch.topology import HallMap, MapSql, map_from_file, map_from_lake

_ALL = TopicPartition(MAINTENANCE.topic, 0)
_POLL_SECONDS = 10.0


class Scope(NamedTuple):
    """Where work is done: a column of the view `place` and its value, or one asset."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One announcement; times are microseconds UTC."""

    window_id: str
    action: Literal["planned", "started", "ended"]
    start_us: int
    end_us: int
    scopes: Sequence[Scope]
    effects: Sequence[str]
    reason: str | None
    announced_by: str | None

    def state(self, now_us: int) -> str:
        """Return planned, open, over or ended, as the view `maintenance_windows` does."""
        if self.action == "ended":
            return "ended"
        if self.start_us > now_us:
            return "planned"
        return "open" if self.end_us > now_us else "over"

    def end(self, now_us: int, by: str | None) -> Window:
        """Return this window as it is when somebody ends it; one that was planned never opens."""
        return replace(
            self, action="ended", end_us=now_us, start_us=min(self.start_us, now_us), announced_by=by
        )


def new_window_id() -> str:
    """Return an identity that no other window has."""
    return secrets.token_hex(4)


def announce(bus: Bus, window: Window, config: Config, now_us: int) -> None:
    """Write an announcement; return when the bus has it. Raises TransportError."""
    rows = [(scope, effect) for scope in window.scopes for effect in window.effects]
    table = MAINTENANCE.table(
        {
            "ts": [now_us] * len(rows),
            "synthetic": [config.hall.synthetic] * len(rows),
            "window_id": [window.window_id] * len(rows),
            "action": [window.action] * len(rows),
            "start_ts": [window.start_us] * len(rows),
            "end_ts": [window.end_us] * len(rows),
            "scope_kind": [scope.kind for scope, _ in rows],
            "scope": [scope.name for scope, _ in rows],
            "effect": [effect for _, effect in rows],
            "reason": [window.reason] * len(rows),
            "announced_by": [window.announced_by] * len(rows),
        }
    )
    source = f"maintenance@{config.hall.name}/{window.window_id}"
    event = Event(source=source, epoch=secrets.token_hex(8), sequence=0, table=table)
    bus.ensure_topics([MAINTENANCE])
    with closing(bus.producer()) as producer:
        key = window.window_id
        partition = MAINTENANCE.partition_of(key)
        producer.send(MAINTENANCE.topic, partition, encode_event(MAINTENANCE, event, key))
        producer.flush()


def read_windows(bus: Bus, config: Config) -> list[Window]:
    """Return the newest announcement of every window, in the lake or on the bus, by when it opens."""
    rows = [*_from_lake(config.lake.path), *_from_bus(bus)]
    newest: dict[str, int] = {}
    for row in rows:
        newest[row["window_id"]] = max(row["ts"], newest.get(row["window_id"], 0))
    grouped: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["ts"] == newest[row["window_id"]]:
            grouped.setdefault(row["window_id"], []).append(row)
    return sorted((_window(rows) for rows in grouped.values()), key=lambda one: (one.start_us, one.window_id))


def _window(rows: Sequence[dict[str, Any]]) -> Window:
    first = rows[0]
    return Window(
        window_id=first["window_id"],
        action=first["action"],
        start_us=first["start_ts"],
        end_us=first["end_ts"],
        scopes=sorted({Scope(row["scope_kind"], row["scope"]) for row in rows}),
        effects=sorted({row["effect"] for row in rows}),
        reason=first["reason"],
        announced_by=first["announced_by"],
    )


def _from_lake(path: Path) -> list[dict[str, Any]]:
    """Return rows with their times as microseconds; none where there is no lake yet."""
    if not path.is_dir():
        return []
    times = [column.name for column in MAINTENANCE.columns if column.type == TIME_TYPE]
    with connect(path) as lake:
        rows: list[dict[str, Any]] = lake.arrow(
            f"SELECT * REPLACE ({', '.join(f'epoch_us({name}) AS {name}' for name in times)}) FROM maintenance"
        ).to_pylist()
    return rows


def _from_bus(bus: Bus) -> list[dict[str, Any]]:
    """Return what retention left on the bus, the same way."""
    with closing(bus.consumer("maintenance")) as consumer:
        try:
            begin, end = consumer.begin_offsets([_ALL])[_ALL], consumer.end_offsets([_ALL])[_ALL]
        except TransportError as error:
            if error.reason != "no_topic":
                raise
            return []
        consumer.assign([_ALL])
        consumer.seek(_ALL, begin)
        messages: list[Message] = []
        while consumer.positions().get(_ALL, begin) < end:
            polled = consumer.poll(_POLL_SECONDS)
            if not polled:
                raise TransportError("timeout", f"{MAINTENANCE.topic}: nothing came for {_POLL_SECONDS:g} s")
            messages += polled
    table = read_batch(MAINTENANCE, messages, Marks()).table
    for at, column in enumerate(MAINTENANCE.columns):
        if column.type == TIME_TYPE:
            table = table.set_column(at, column.name, table.column(column.name).cast("int64"))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def check_scope(text: str, hall_map: HallMap, sql: MapSql) -> Scope:
    """Turn `rack=a01`, `rail=3` or the name of anything into a scope; raise ConfigError where the map has none."""
    kind, equals, name = text.partition("=")
    if not equals:
        [*found] = sql.rows("SELECT asset, kind FROM place WHERE entity = $e", {"e": text})
        if not found:
            raise ConfigError("unknown_name", f"{text!r} is not on the map ({hall_map.title})")
        asset, its_kind = found[0]["asset"], found[0]["kind"]
        return Scope(its_kind if its_kind in SCOPES and its_kind != "rail" else "asset", asset)
    if kind not in SCOPES:
        raise ConfigError("unknown_name", f"{text!r}: a scope is one of {', '.join(SCOPES)}, or a name alone")
    if kind == "asset":
        return check_scope(name, hall_map, sql)._replace(kind="asset")
    found = sql.rows(
        f'SELECT DISTINCT CAST("{kind}" AS VARCHAR) AS name FROM place WHERE "{kind}" IS NOT NULL'
    )
    known = sorted(row["name"] for row in found)
    if name not in known:
        raise ConfigError(
            "unknown_name", f"there is no {kind} {name!r}; there are {', '.join(known[:10]) or 'none'}"
        )
    return Scope(kind, name)


def current_map(config: Config) -> HallMap:
    """Return the map that scopes are checked with: the lake's, else the file that the configuration names."""
    try:
        with connect(config.lake.path) as lake:
            return map_from_lake(lake)
    except (StoreError, ConfigError) as error:
        if config.hall.inventory is None:
            raise ConfigError(
                "missing",
                "there is no map of the hall to check the scope with: neither in the lake nor a file",
            ) from error
        return map_from_file(config.hall.inventory)
