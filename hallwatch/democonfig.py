"""The configuration of the demo: the one a person would write for a hall of this size."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hallwatch.toml import Table, config_text

MESH_KEY = "mesh.key"

PROBED_RAILS = (0, 4)
"""One on each leaf."""

_PORTS = tuple(f"mlx5_{number}" for number in range(8))
_LOOPBACK_MICROSECONDS = 20_000
"""A good median between the sockets of one busy machine; a fabric's own limits are the collector's defaults."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the devices of a twin are, as its `endpoints.json` says."""

    hosts: list[dict[str, str]]
    units: list[dict[str, str]]


def hall_config(found: Endpoints) -> str:
    """Return the configuration of everything but the probes of the fabric."""
    sections: dict[str, Table] = {
        "hall": {"name": "demo", "synthetic": True, "inventory": "twin/inventory.yaml"},
        "bus": {"path": "bus"},
        "lake": {"path": "lake"},
        "engine": {"path": "engine"},
        "ingest": {"path": "ingest"},
    }
    collectors: list[Table] = [
        *(table for host in found.hosts for table in _host_tables(host)),
        *(_unit_table(unit) for unit in found.units),
        {"collector": "attest-import", "folder": "twin/evidence", "roots": "twin/roots"},
    ]
    return config_text(
        "Written by `hallwatch demo`. A real hall's file looks the same, with synthetic = false.",
        sections,
        collectors,
    )


def probe_config(found: Endpoints) -> str:
    """Return the configuration of the probes: from the first host to all others, on one rail of each leaf.

    The ports of hosts are addresses of the loopback here.
    """
    sections: dict[str, Table] = {
        "hall": {"name": "demo", "synthetic": True},
        "bus": {"path": "bus"},
        "ingest": {"path": "ingest", "metrics_port": 0},
    }
    names = [host["host"] for host in found.hosts]
    nics = {name: [_nic(number, rail) for rail in PROBED_RAILS] for number, name in enumerate(names)}
    prober, *others = names
    collectors: list[Table] = [
        {
            "collector": "fabric-mesh",
            "host": prober,
            "key_file": MESH_KEY,
            "nics": nics[prober],
            "targets": [{"host": name, **nic} for name in others for nic in nics[name]],
            **{
                f"{path}_limit_us": _LOOPBACK_MICROSECONDS
                for path in ("same_leaf", "same_rail", "cross_rail", "other")
            },
        },
        *(
            {"collector": "fabric-responder", "host": name, "key_file": MESH_KEY, "nics": nics[name]}
            for name in others
        ),
    ]
    return config_text(
        "Written by `hallwatch demo`. What probes a fabric has a process of its own.", sections, collectors
    )


def write_key(path: Path) -> None:
    """Write a new key for the probes, readable by this user alone."""
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32) + "\n", encoding="ascii")


def _host_tables(host: Mapping[str, str]) -> Iterable[Table]:
    name = host["host"]
    yield {"collector": "gpu-dcgm", "host": name, "url": host["exporter"]}
    yield {
        "collector": "gpu-kernel-log",
        "host": name,
        "source": "file",
        "path": f"twin/{host['syslog']}",
        "start": "beginning",
    }
    yield {
        "collector": "fabric-ports",
        "host": name,
        "sysfs_root": f"twin/{host['sysfs']}",
        "interval_seconds": 5,
        "expected": [{"devices": list(_PORTS), "speed_gbps": 400, "width": 4}],
    }
    yield {
        "collector": "host",
        "host": name,
        "procfs_root": f"twin/{host['procfs']}",
        "sysfs_root": f"twin/{host['sysfs']}",
        "expected_devices": {"gpu": 8, "nic": 8},
    }


def _unit_table(unit: Mapping[str, str]) -> Table:
    return {
        "collector": "coolant-redfish",
        "equipment": unit["equipment"],
        "url": unit["redfish"],
        "interval_seconds": 5,
        "timeout_seconds": 3,
    }


def _nic(host: int, rail: int) -> Table:
    leaf = f"leaf-{PROBED_RAILS.index(rail) + 1}"
    return {"nic": _PORTS[rail], "address": f"127.0.{host + 1}.{rail + 1}", "rail": rail, "leaf": leaf}
