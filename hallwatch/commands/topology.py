"""`hallwatch topology`: what the map of the hall says, and how two of them differ."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from contract.config import load_config
from contract.errors import ConfigError
from contract.streams.topology import ASSET_KINDS
from hallwatch.commands.options import CONFIG, format_option
from hallwatch.kinds import counted_kind
from hallwatch.terminal import open_console, say

if TYPE_CHECKING:
    from hallwatch.topology import Asset, Change, HallMap, MapSql

_VERSION = re.compile(r"[0-9a-f]{6,64}")
_MOST_LINES = 40
_COLOURS = {"added": "green", "moved": "cyan", "changed": "yellow", "retired": "red"}
_SIGNS = {"added": "+", "moved": ">", "changed": "~", "retired": "-"}
_COUNTED = ("gpu", "nic", "link")
"""Told by their number where they stand."""

LAKE = click.option(
    "--lake",
    "lake_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the lake, instead of a configuration.",
)


@click.group()
def topology() -> None:
    """Show the map of the hall, and how two versions of it differ."""


@topology.command()
@click.argument("entity", required=False)
@click.option("--at", "at", help="The map of that time, like 2026-06-01 or 2026-06-01T12:30 (UTC).")
@click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The map of a file, whether it was published or not.",
)
@CONFIG
@LAKE
@format_option(("tree", "json"), "json: rows of the view `place`, one object per line.")
def show(
    entity: str | None,
    at: str | None,
    file: Path | None,
    config_path: Path,
    lake_path: Path | None,
    output_format: str,
) -> None:
    """Show what stands where; with ENTITY, the place of one thing and all that it is joined to.

    ENTITY is any name: a host, a GPU's UUID, host/nic, a port GUID, leaf/port, a detector, a loop.
    """
    from hallwatch.topology import MapSql, map_from_file

    if file is not None and at is not None:
        raise click.UsageError("--at is for the lake; a file has one time")
    hall_map = (
        map_from_file(file)
        if file is not None
        else _from_lake(config_path, lake_path, at=None if at is None else _moment(at))
    )
    with closing(MapSql(hall_map)) as sql:
        places = sql.rows("FROM place WHERE $e IS NULL OR entity = $e ORDER BY entity", {"e": entity})
        if entity is not None and not places:
            raise ConfigError("unknown_name", f"{entity!r} is not on the map{_close(entity, sql)}")
        if output_format == "json":
            _print_json(places)
        elif entity is None:
            _print_tree(hall_map)
        else:
            _print_entity(places[0], hall_map, sql)


@topology.command()
@click.argument("old", required=False)
@click.argument("new", required=False)
@CONFIG
@LAKE
@format_option(("text", "json"), "json: one object per change and line.")
def diff(
    old: str | None, new: str | None, config_path: Path, lake_path: Path | None, output_format: str
) -> None:
    """Tell what was added, moved, changed and retired from OLD to NEW.

    \b
    hallwatch topology diff                        from the lake to the file of [hall] inventory
    hallwatch topology diff new.yaml               from the lake to another file: what it would change
    hallwatch topology diff old.yaml new.yaml      two files
    hallwatch topology diff 2026-06-01 now         two times, by the lake
    hallwatch topology diff 3f2a9c now             a version, by the first digits of its digest

    Exit code 0: no difference; 1: there are some; 2: trouble.
    """  # noqa: D301 - the command line library wants the character itself
    from hallwatch.topology import compare

    if new is None:
        old, new = "now", old or _file_of(config_path)
    maps = [_read_side(side, config_path, lake_path) for side in (old or "now", new)]
    changes = compare(*maps)
    if output_format == "json":
        _print_json([asdict(change) for change in changes])
    else:
        _print_changes(changes, *maps)
    if changes:
        raise click.exceptions.Exit(1)


def _from_lake(config_path: Path, lake_path: Path | None, **which: Any) -> HallMap:
    from analytics.query import connect
    from hallwatch.topology import map_from_lake

    path = lake_path if lake_path is not None else load_config(config_path).lake.path
    with connect(path) as lake:
        return map_from_lake(lake, **which)


def _file_of(config_path: Path) -> str:
    path = load_config(config_path).hall.inventory
    if path is None:
        raise click.UsageError("name two maps, or the file of one in `[hall] inventory`")
    return str(path)


def _read_side(side: str, config_path: Path, lake_path: Path | None) -> HallMap:
    from hallwatch.topology import map_from_file

    if side == "now":
        return _from_lake(config_path, lake_path)
    if Path(side).suffix in (".yaml", ".yml") or Path(side).is_file():
        return map_from_file(Path(side))
    if _VERSION.fullmatch(side) and not side.isdigit():
        return _from_lake(config_path, lake_path, version=side)
    return _from_lake(config_path, lake_path, at=_moment(side))


def _moment(text: str) -> datetime:
    """Return a time as the lake has it: UTC, without a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(
            f"{text!r} is no file, no version and no time like 2026-06-01T12:30"
        ) from error
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _print_json(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        sys.stdout.buffer.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _close(entity: str, sql: MapSql) -> str:
    near = get_close_matches(entity, [row["entity"] for row in sql.rows("SELECT entity FROM place")], 3)
    return f"; close to it: {', '.join(near)}" if near else ""


def _print_tree(hall_map: HallMap) -> None:
    console = open_console()
    children: dict[str | None, list[Asset]] = {}
    for asset in hall_map.assets.values():
        children.setdefault(_above(asset), []).append(asset)
    lines = list(_tree(children, None, 0))
    width = max(len(name) for name, _ in lines)
    for name, facts in lines:
        say(console, f"{name:<{width}}  {facts}".rstrip())
    kinds = Counter(asset["kind"] for asset in hall_map.assets.values())
    say(
        console,
        f"\n{hall_map.title}: {', '.join(counted_kind(kinds[k], k) for k in ASSET_KINDS if kinds[k])}",
    )


def _above(asset: Asset) -> str | None:
    return asset.get("child" if asset["kind"] == "link" else "parent")


def _tree(
    children: Mapping[str | None, list[Asset]], above: str | None, depth: int
) -> Iterator[tuple[str, str]]:
    """Yield a line per thing, indented under what it stands in; what is many is only counted there."""
    order = {kind: number for number, kind in enumerate(ASSET_KINDS)}
    for asset in sorted(children.get(above, []), key=lambda one: order[one["kind"]]):
        if asset["kind"] in _COUNTED or depth > len(ASSET_KINDS):
            continue
        inside = Counter(child["kind"] for child in children.get(asset["asset"], []))
        counts = [counted_kind(inside[kind], kind) for kind in _COUNTED if inside[kind]]
        yield (
            "  " * depth + asset["asset"],
            ", ".join([asset["kind"].replace("_", " "), *_facts(asset), *counts]),
        )
        yield from _tree(children, asset["asset"], depth + 1)


def _facts(asset: Asset) -> Iterator[str]:
    if "model" in asset:
        yield asset["model"]
    kind = asset["kind"]
    if kind == "loop":
        yield asset["loop_kind"]
    if kind in ("rack", "cdu", "loop"):
        verb = ("fed by" if "loop" in asset else "driven by") if kind == "loop" else "cooled by"
        means = [asset[name] for name in ("loop", "cdu") if name in asset]
        if means:
            yield f"{verb} {' of '.join(means)}"
    if "coolant" in asset:
        yield asset["coolant"]
    if "rated_flow_liters_per_minute" in asset:
        yield f"{asset['rated_flow_liters_per_minute']:g} l/min"
    if "rail" in asset:
        yield f"rail {asset['rail']}"
    if asset.get("confidential", "none") != "none":
        yield f"confidential by {asset['confidential']}"
    if asset.get("synthetic_only"):
        yield "synthetic only"


def _print_entity(place: Mapping[str, Any], hall_map: HallMap, sql: MapSql) -> None:
    console = open_console()
    asset = hall_map.assets[place["asset"]]
    say(console, ", ".join([place["asset"], asset["kind"].replace("_", " "), *_facts(asset)]), "bold")
    for name in ("hall", "row", "rack", "host", "cdu", "loop", "leaf", "rail"):
        if place[name] is not None and place[name] != place["asset"]:
            say(console, f"  {name:<12}{place[name]}")
    for name in (
        "guid",
        "pci_bus_id",
        "position",
        "speed_gbps",
        "width",
        "policy",
        "trust_roots",
        "fingerprint",
    ):
        if name in asset:
            say(console, f"  {name:<12}{asset[name]}")
    edges = sql.rows(
        "FROM topology WHERE child = $a OR parent = $a OR link = $a ORDER BY child <> $a, relation, parent, child",
        {"a": place["asset"]},
    )
    for edge in edges[:_MOST_LINES]:
        say(console, f"  {_edge(edge)}")
    if len(edges) > _MOST_LINES:
        say(console, f"  and {len(edges) - _MOST_LINES} more in the view `topology`")


def _edge(edge: Mapping[str, Any]) -> str:
    ends = [
        f"{edge[end]}/{edge[f'{end}_port']}" if edge[f"{end}_port"] is not None else edge[end]
        for end in ("child", "parent")
    ]
    speed = "" if edge["speed_gbps"] is None else f" at {edge['speed_gbps']} Gb/s"
    lanes = "" if edge["width"] is None else f" x{edge['width']}"
    return f"{ends[0]} {edge['relation'].replace('_', ' ')} {ends[1]}{speed}{lanes}"


def _print_changes(changes: Sequence[Change], old: HallMap, new: HallMap) -> None:
    console = open_console()
    for change in changes:
        say(console, _words(change), _COLOURS[change.change])
    numbers = Counter(change.change for change in changes)
    told = ", ".join(f"{numbers[change]} {change}" for change in _SIGNS if numbers[change]) or "no difference"
    say(console, f"from {old.title} to {new.title}: {told}")


def _words(change: Change) -> str:
    name = change.asset
    if change.kind == "link" and change.change == "moved":
        name = f"of {name.partition('--')[0]}"
    line = f"{_SIGNS[change.change]} {change.kind.replace('_', ' ')} {name}"
    inside = (
        f" with {', '.join(counted_kind(n, kind) for kind, n in change.with_it.items())}"
        if change.with_it
        else ""
    )
    where = f" in {change.parent}" if change.parent and change.kind != "link" else ""
    if change.change == "added":
        return f"{line} added{where}{inside}"
    if change.change == "retired":
        return f"{line} retired{where.replace(' in ', ' from ')}{inside}"
    facts = []
    before, after = dict(change.before), dict(change.after)
    if change.change == "moved":
        ends = [_end(side) for side in (before, after)]
        facts.append(f"moved from {ends[0]} to {ends[1]}")
    facts += [
        f"{name} {_value(before[name])} -> {_value(after[name])}"
        for name in before
        if change.change == "changed" or name not in ("parent", "parent_port")
    ]
    return f"{line} {'; '.join(facts)}" if change.change == "moved" else f"{line}: {'; '.join(facts)}"


def _end(side: Mapping[str, Any]) -> str:
    return f"{side['parent']}/{side['parent_port']}" if side.get("parent_port") else str(side["parent"])


def _value(value: Any) -> str:
    return "none" if value is None else str(value)
