"""The map of the hall as a person asks for it: out of a file, or out of the lake as it was at some time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb

from analytics.query import LakeConnection
from analytics.views import sql_views
from contract.errors import ConfigError
from contract.streams.topology import ASSET_KINDS, INVENTORY

_KEPT = [
    column.name
    for column in INVENTORY.columns
    if column.name not in ("ts", "synthetic", "state", "version", "hall")
]
"""What an asset is, beside when and from which file that was said."""

_IMPLIED = {"nic": frozenset({"leaf", "host"}), "link": frozenset({"leaf", "host", "rail"})}
"""Columns that follow from what is told of the cable, or of the switch and the host at its ends."""
_OF_ITS_NIC = frozenset({"speed_gbps", "width"})

_KIND_ORDER = {kind: number for number, kind in enumerate(ASSET_KINDS)}

Asset = Mapping[str, Any]
"""Columns of the stream that are not null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HallMap:
    """What was expected at some time."""

    title: str
    """Where it comes from, in a few words."""
    assets: Mapping[str, Asset]
    """Every active asset and cable by its identity."""


def map_from_file(path: Path) -> HallMap:
    """Read a file; raise ConfigError with every mistake in it."""
    from ingest.topology.hallfile import read_hall_file

    file = read_hall_file(path)
    return HallMap(
        title=str(path), assets={name: _without_nulls(asset) for name, asset in file.assets.items()}
    )


def map_from_lake(lake: LakeConnection, *, at: datetime | None = None, version: str | None = None) -> HallMap:
    """Read the newest map, that of a time (UTC, naive), or that of the file whose digest begins with `version`.

    Raises ConfigError(missing) where the lake holds none.
    """
    if version is not None:
        at = _time_of(lake, version)
    rows = lake.arrow(
        "SELECT * FROM inventory WHERE $at IS NULL OR ts <= $at::TIMESTAMP "
        "QUALIFY row_number() OVER (PARTITION BY asset ORDER BY ts DESC, _received DESC, _offset DESC) = 1",
        {"at": at},
    ).to_pylist()
    if not rows:
        when = "" if at is None else f" at {at}"
        raise ConfigError("missing", f"the lake held no map of the hall{when}: was it collected?")
    newest = max(rows, key=lambda row: row["ts"])
    active = {row["asset"]: _without_nulls(row) for row in rows if row["state"] == "active"}
    return HallMap(
        title=f"version {newest['version'][:12]} of {newest['ts']:%Y-%m-%d %H:%M:%S}", assets=active
    )


def _time_of(lake: LakeConnection, version: str) -> datetime:
    found = lake.sql(
        "SELECT DISTINCT version, max(ts) FROM inventory WHERE starts_with(version, $v) GROUP BY version",
        {"v": version},
    ).fetchall()
    if len(found) != 1:
        many = "no version" if not found else f"{len(found)} versions"
        raise ConfigError(
            "unknown_name", f"{many} of the map begin with {version!r}: see `SELECT DISTINCT version`"
        )
    moment: datetime = found[0][1]
    return moment


def _without_nulls(row: Mapping[str, Any]) -> Asset:
    return {name: row[name] for name in _KEPT if row.get(name) is not None}


class MapSql:
    """The views `place` and `topology` over one map."""

    def __init__(self, hall_map: HallMap) -> None:
        assets = list(hall_map.assets.values())
        columns = {name: [asset.get(name) for asset in assets] for name in _KEPT}
        stamps = {"ts": 0, "synthetic": False, "hall": "", "state": "active", "version": ""}
        table = INVENTORY.table(
            {**columns, **{name: [value] * len(assets) for name, value in stamps.items()}}
        )
        self._connection = duckdb.connect(config={"threads": 2})
        self._connection.register("rows", table)
        self._connection.execute(
            "CREATE TABLE inventory AS SELECT *, ts AS _received, 0::BIGINT AS _offset FROM rows"
        )
        for view in sql_views():
            if view.inputs == ("inventory",):
                self._connection.execute(f"CREATE VIEW {view.name} AS {view.query}")

    def rows(self, query: str, params: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """Ask a question; return its rows."""
        rows: list[dict[str, Any]] = self._connection.sql(query, params=params).to_arrow_table().to_pylist()
        return rows

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One thing that differs between two maps."""

    change: str
    """added, moved, changed or retired."""
    kind: str
    asset: str
    parent: str | None
    before: dict[str, Any] = field(default_factory=dict)
    """Columns that changed, as they were."""
    after: dict[str, Any] = field(default_factory=dict)
    with_it: dict[str, int] = field(default_factory=dict)
    """What came or went in it, by kind: not told one by one."""


def compare(old: HallMap, new: HallMap) -> list[Change]:
    """Return what was added, moved, changed and retired, larger things first.

    What came or went with what it stands in is counted there. A cable whose lower end stayed has moved.
    """
    added, retired = _only_in(new, old), _only_in(old, new)
    changes = [*_moved_cables(old, new, added, retired)]
    changes += _folded("added", new.assets, added)
    changes += _folded("retired", old.assets, retired)
    for name in new.assets.keys() & old.assets.keys():
        changes += _changed(old.assets[name], new.assets[name])
    return sorted(changes, key=lambda one: (_KIND_ORDER[one.kind], one.asset))


def _only_in(one: HallMap, other: HallMap) -> set[str]:
    return set(one.assets.keys() - other.assets.keys())


def _moved_cables(old: HallMap, new: HallMap, added: set[str], retired: set[str]) -> Iterator[Change]:
    """Yield cables that have another upper end, and take them out of what came and went."""
    were, are = _cables(old, retired), _cables(new, added)
    for end in were.keys() & are.keys():
        if len(were[end]) == len(are[end]) == 1:
            [was], [now] = were[end], are[end]
            retired.discard(was["asset"])
            added.discard(now["asset"])
            keys = ("parent", "parent_port")
            yield Change(
                change="moved",
                kind="link",
                asset=now["asset"],
                parent=now["parent"],
                before={key: was.get(key) for key in keys},
                after={key: now.get(key) for key in keys},
            )


def _cables(hall_map: HallMap, names: Iterable[str]) -> dict[tuple[Any, Any], list[Asset]]:
    """Return cables by their lower end."""
    found: dict[tuple[Any, Any], list[Asset]] = {}
    for name in names:
        asset = hall_map.assets[name]
        if asset["kind"] == "link":
            found.setdefault((asset["child"], asset.get("child_port")), []).append(asset)
    return found


def _folded(change: str, assets: Mapping[str, Asset], names: set[str]) -> Iterator[Change]:
    """Yield what came or went, each thing with the count of what stands in it."""
    inside: dict[str, dict[str, int]] = {}
    tops = []
    for name in names:
        top = name
        for _ in ASSET_KINDS:  # no chain of parents is longer than there are kinds
            above = _above(assets[top])
            if above not in names:
                break
            top = above
        if top == name:
            tops.append(name)
        else:
            counts = inside.setdefault(top, {})
            counts[assets[name]["kind"]] = counts.get(assets[name]["kind"], 0) + 1
    for name in tops:
        asset = assets[name]
        yield Change(
            change=change,
            kind=asset["kind"],
            asset=name,
            parent=asset.get("parent"),
            with_it=dict(sorted(inside.get(name, {}).items(), key=lambda item: _KIND_ORDER[item[0]])),
        )


def _above(asset: Asset) -> str:
    return str(asset.get("child" if asset["kind"] == "link" else "parent", ""))


def _changed(old: Asset, new: Asset) -> Iterator[Change]:
    implied = _IMPLIED.get(new["kind"], frozenset({"host"}))
    if new["kind"] == "link" and "host" in new:
        implied |= _OF_ITS_NIC
    names = [name for name in _KEPT if old.get(name) != new.get(name) and name not in implied]
    if names:
        yield Change(
            change="moved" if "parent" in names else "changed",
            kind=new["kind"],
            asset=new["asset"],
            parent=new.get("parent"),
            before={name: old.get(name) for name in names},
            after={name: new.get(name) for name in names},
        )
