"""Which paths a host probes: an even, sparse sample of all pairs, worked out by each host alone from the same map.

From each network port to eight others on its leaf; between every two leaves of a rail two pairs of ports; and one
pair across rails for each port. Every draw is by a hash of names, so that hosts agree without talking.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

PathClass = Literal["same_leaf", "same_rail", "cross_rail", "other"]

LEAF_PEERS = 8
PAIRS_PER_LEAF_PAIR = 2
CROSS_RAIL_PEERS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A network port that probes and answers."""

    host: str
    nic: str
    address: str
    rail: int | None = None
    leaf: str | None = None

    @property
    def name(self) -> str:
        return f"{self.host}/{self.nic}"


@dataclass(frozen=True, slots=True)
class Path:
    """From one port to another, and how far that is."""

    source: Endpoint
    target: Endpoint
    path_class: PathClass

    @property
    def name(self) -> str:
        return f"{self.source.name}>{self.target.name}"


def endpoints_in(assets: Iterable[Mapping[str, Any]]) -> list[Endpoint]:
    """Return the network ports of a map of the hall that have an address."""
    return [
        Endpoint(
            host=asset["host"],
            nic=asset["asset"].split("/", 1)[1],
            address=asset["address"],
            rail=asset.get("rail"),
            leaf=asset.get("leaf"),
        )
        for asset in assets
        if asset["kind"] == "nic" and asset.get("address")
    ]


def class_of(source: Endpoint, target: Endpoint) -> PathClass:
    """Return how far two ports are apart, as far as the map says."""
    if source.leaf is not None and source.leaf == target.leaf:
        return "same_leaf"
    if source.rail is None or target.rail is None:
        return "other"
    return "same_rail" if source.rail == target.rail else "cross_rail"


def lean_list(endpoints: Sequence[Endpoint], host: str | None = None) -> list[Path]:
    """Return the paths to probe from a host, or from all; the order of `endpoints` does not matter."""
    leaves: dict[tuple[int | None, str | None], list[Endpoint]] = defaultdict(list)
    for endpoint in sorted(endpoints, key=lambda one: _draw("order", one.name)):
        leaves[endpoint.rail, endpoint.leaf].append(endpoint)
    pairs: dict[tuple[str, str], Path] = {}
    for source, target in (*_in_leaves(leaves), *_between_leaves(leaves), *_across_rails(leaves)):
        if source.host != target.host and host in (None, source.host):
            path = Path(source, target, class_of(source, target))
            pairs.setdefault((source.name, target.name), path)
    return list(pairs.values())


_Leaves = Mapping[tuple[int | None, str | None], Sequence[Endpoint]]
_Pairs = Iterator[tuple[Endpoint, Endpoint]]


def _in_leaves(leaves: _Leaves) -> _Pairs:
    """Yield from each port to the next ones around a ring of drawn order: all probe and are probed alike."""
    for ports in leaves.values():
        for at, source in enumerate(ports):
            for step in range(1, min(LEAF_PEERS, len(ports) - 1) + 1):
                yield source, ports[(at + step) % len(ports)]


def _between_leaves(leaves: _Leaves) -> _Pairs:
    for (rail, leaf), sources in leaves.items():
        for (other_rail, other_leaf), targets in leaves.items():
            if rail is None or rail != other_rail or leaf == other_leaf:
                continue
            for number in range(PAIRS_PER_LEAF_PAIR):
                draw = _draw(f"{rail} {leaf} {other_leaf}", "")
                yield sources[(draw + number) % len(sources)], targets[(draw // 7 + number) % len(targets)]


def _across_rails(leaves: _Leaves) -> _Pairs:
    by_rail: dict[int, list[Endpoint]] = defaultdict(list)
    for (rail, _), ports in leaves.items():
        if rail is not None:
            by_rail[rail] += ports
    rails = sorted(by_rail)
    for at, rail in enumerate(rails):
        for source in by_rail[rail]:
            if len(rails) < 2:
                return
            draw = _draw("across", source.name)
            others = by_rail[rails[(at + 1 + draw % (len(rails) - 1)) % len(rails)]]
            elsewhere = [others[(draw + step) % len(others)] for step in range(min(4, len(others)))]
            far = [one for one in elsewhere if one.host != source.host]
            for target in far[:CROSS_RAIL_PEERS]:
                yield source, target


def _draw(purpose: str, name: str) -> int:
    return int.from_bytes(hashlib.blake2s(f"{purpose} {name}".encode(), digest_size=7).digest(), "big")
