"""Fakes for the tests of what reads the fabric."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contract.clock import Clock
from contract.config import HallSection
from contract.testing import FakeClock
from ingest.collector import Context
from ingest.fabric.ports import FabricPortsCollector, FabricPortsConfig

PORT = "class/infiniband/mlx5_0/ports/1"

INFINIBAND = {
    "class/infiniband/mlx5_0/node_guid": "58a2:e103:0012:3456",
    f"{PORT}/link_layer": "InfiniBand",
    f"{PORT}/state": "4: ACTIVE",
    f"{PORT}/phys_state": "5: LinkUp",
    f"{PORT}/rate": "400 Gb/sec (4X NDR)",
    f"{PORT}/counters/port_xmit_data": "1000",
    f"{PORT}/counters/symbol_error": "0",
    f"{PORT}/counters/link_downed": "0",
}
"""The files of one healthy port."""


def write_tree(root: Path, files: Mapping[str, str]) -> None:
    """Write files below a folder that stands for `/sys`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def ports_collector(root: Path, *, clock: Clock | None = None, **values: Any) -> FabricPortsCollector:
    """Return the collector of the host `h1` over a tree."""
    config = FabricPortsConfig.model_validate(
        {"collector": "fabric-ports", "host": "h1", "sysfs_root": root} | values
    )
    return FabricPortsCollector(config, Context(hall=HallSection(name="test"), clock=clock or FakeClock()))
