"""What the hall is supposed to hold, read from the stream `inventory`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from contract.streams.topology import ASSET_KINDS


@dataclass(frozen=True, slots=True)
class Asset:
    """The newest version of one asset; `since_us` is when the engine's bus got it."""

    kind: str
    parent: str | None
    active: bool
    since_us: int


class Topology:
    """Every asset by its identity; `version` changes whenever anything else does."""

    def __init__(self) -> None:
        self.assets: dict[str, Asset] = {}
        self.version = 0

    def apply(self, table: pa.Table, received_us: Sequence[int]) -> set[str]:
        """Take over versions of assets, the last one winning; return which are no longer expected."""
        retired: set[str] = set()
        names, kinds, parents, states = (
            table.column(name).to_pylist() for name in ("asset", "kind", "parent", "state")
        )
        for name, kind, parent, state, received in zip(
            names, kinds, parents, states, received_us, strict=True
        ):
            old, active = self.assets.get(name), state == "active"
            since = old.since_us if old is not None and old.active and active else received
            self.assets[name] = Asset(kind, parent, active, since)
            if active:
                retired.discard(name)
            elif old is not None and old.active:
                retired.add(name)
        self.version += 1
        return retired

    def expected(self, kind: str) -> dict[str, Asset]:
        """Return the active assets of a kind."""
        return {name: asset for name, asset in self.assets.items() if asset.kind == kind and asset.active}

    def host_of(self, name: str) -> str | None:
        """Return the host that an asset is, or stands in."""
        for _ in ASSET_KINDS:  # no chain of parents is longer than there are kinds
            asset = self.assets.get(name)
            if asset is None or asset.kind == "host":
                return name if asset is not None else None
            name = asset.parent or ""
        return None

    def place_of(self, name: str) -> str | None:
        """Return the path from the hall down to the host, rack or device that an asset stands in, or is."""
        path: list[str] = []
        asset = self.assets.get(name)
        if asset is not None and asset.kind in ("gpu", "nic"):
            name = asset.parent or ""
        for _ in ASSET_KINDS:
            asset = self.assets.get(name)
            if asset is None:
                break
            path.insert(0, name)
            name = asset.parent or ""
        return "/".join(path) or None

    def dump(self) -> dict[str, Any]:
        return {"assets": {n: [a.kind, a.parent, a.active, a.since_us] for n, a in self.assets.items()}}

    def load(self, saved: Mapping[str, Any]) -> None:
        self.assets = {name: Asset(*fields) for name, fields in saved["assets"].items()}
        self.version += 1
