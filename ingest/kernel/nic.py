"""Lines of network cards: which are a fault, of which card. Patterns: the table `nic.tsv`, with their sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from ingest.kernel.tables import read_table

_DEVICE = re.compile(
    r"([a-z][a-z0-9_-]{1,31})[: ] {0,2}(?:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])[: ] {0,2})?"
    r"(?:([a-zA-Z][\w.-]{0,31}): )?"
)
_RDMA_DEVICE = re.compile(r"(?:mlx\d|rdmap|efa|bnxt_re|irdma|hfi\d|ib[a-z]+)_?\w{0,24}$")
_WATCHDOG = re.compile(r"(?:([\w.-]{1,32}): )?NETDEV WATCHDOG: (?:([\w.-]{1,32}) \(([\w-]{1,32})\))?")
_MODULE = re.compile(r"module (\d{1,3})")
_WATTS = re.compile(r"\((\d{1,3})W\)")
_PORT_LINK = re.compile(r"Port: (\d{1,3}) Link (DOWN|ACTIVE)\b")
_LINK = re.compile(r"(?:NIC )?Link (?:is )?(down|up)\b", re.IGNORECASE)
_INTERFACE_LINK = re.compile(r"([a-zA-Z][\w.-]{0,31}): (?:NIC )?Link (?:is )?(down|up)\b", re.IGNORECASE)
_CARRIER = re.compile(
    r"systemd-networkd\[\d{1,10}\]: ([a-zA-Z][\w.@-]{0,31}): (lost|gained) carrier", re.IGNORECASE
)

_VIRTUAL = (
    "veth", "cali", "docker", "br-", "virbr", "tap", "tun", "lxc", "cni", "cilium", "flannel", "vxlan", "dummy",
    "kube", "nodelocaldns", "wg", "gre", "geneve", "genev_", "ovs", "vnet", "macvlan", "ipvlan", "lo",
)  # fmt: skip
"""Interfaces without a card: they come and go with containers."""

PREFIXES = ("mlx5_", "efa ", "efa:", "infiniband ", "nvidia-peermem")
WORDS = ("ink ", "arrier", "NETDEV WATCHDOG")
"""A line of a card begins with one of the prefixes or holds one of the words."""


def read_nic(text: str) -> dict[str, Any] | None:
    """Return the columns of fabric_events that a kernel's line tells, or None where it is no fault and no link."""
    driver, pci, name, rest = _device(text)
    for row in _patterns():
        if row["driver"] in ("", driver) and row["contains"] in rest and row["also_contains"] in rest:
            return _fault(row, driver, pci, name, rest)
    event = _link_event(name, rest)
    if event is None:
        return None
    return _card(driver, pci, event.pop("name")) | event | {"class": "link", "severity": "info"}


def read_carrier(text: str) -> dict[str, Any] | None:
    """Return the columns that a line of systemd-networkd tells of a card's carrier."""
    found = _CARRIER.match(text)
    if found is None or found[1].startswith(_VIRTUAL):
        return None
    event = "link_down" if found[2].lower() == "lost" else "link_up"
    return _card(None, None, found[1]) | {"event": event, "class": "link", "severity": "info"}


def _device(text: str) -> tuple[str | None, str | None, str | None, str]:
    """Split off `driver pci name:`; of a line that does not begin so, all is the rest."""
    found = _DEVICE.match(text) if text.startswith(PREFIXES) or ":" in text[:80] else None
    if found is None or not (found[2] or text.startswith(PREFIXES)):
        return None, None, None, text
    driver = found[1]
    name = found[3] if found[2] or driver == "infiniband" else None
    if driver == "infiniband":
        driver = "efa" if (name or "").startswith(("rdmap", "efa")) else "mlx5_core"
    return driver, found[2], name, text[found.end() :] if name else text[found.end(2) if found[2] else 0 :]


@cache
def _patterns() -> list[dict[str, str]]:
    return read_table("nic.tsv")


def _fault(
    row: Mapping[str, str], driver: str | None, pci: str | None, name: str | None, rest: str
) -> dict[str, Any]:
    columns: dict[str, Any] = {"event": row["event"], "severity": row["severity"], "class": row["class"]}
    watchdog = _WATCHDOG.search(rest) if row["event"] == "netdev_watchdog" else None
    if watchdog is not None:
        name = watchdog[2] or watchdog[1] or name
        driver = watchdog[3] or driver
    module, watts = _MODULE.search(rest), _WATTS.search(rest)
    if module is not None and row["event"].startswith(("module", "port_module")):
        columns["port"] = int(module[1])
    if watts is not None and row["event"] == "pci_power_insufficient":
        columns["available_watts"] = float(watts[1])
    return _card(driver, pci, name) | columns


def _link_event(name: str | None, rest: str) -> dict[str, Any] | None:
    port = _PORT_LINK.match(rest)
    if port is not None:
        return {"event": "link_down" if port[2] == "DOWN" else "link_up", "port": int(port[1]), "name": name}
    link = _LINK.match(rest) if name is not None else None
    if link is None:
        found = _INTERFACE_LINK.match(rest)
        if found is None:
            return None
        name, state = found[1], found[2]
    else:
        state = link[1]
    if (name or "").startswith(_VIRTUAL):
        return None
    return {"event": f"link_{state.lower()}", "name": name}


def _card(driver: str | None, pci: str | None, name: str | None) -> dict[str, Any]:
    rdma = name is not None and _RDMA_DEVICE.match(name) is not None and not re.match(r"ib\d", name)
    return {
        "nic": pci.lower() if pci else name,
        "pci_bus_id": pci.lower() if pci else None,
        "interface": None if rdma else name,
        "driver": driver,
    }
