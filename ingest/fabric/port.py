"""One port of an RDMA device as its files in sysfs show it.

Linux Documentation/ABI/stable/sysfs-class-infiniband and sysfs-class-net; texts: drivers/infiniband/core/sysfs.c.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from contract.streams.fabric import LINK_STATES, OPERSTATES, PHYS_STATES
from ingest.fabric.counters import read_counters
from ingest.sysfs import KernelTree

CLASS = "class/infiniband"
ACTIVE = frozenset({"active", "active_defer"})
"""States in which a link carries data."""

MAX_DEVICES = 256
MAX_PORTS = 64  # of a device: adapters have one or two

_STATE = re.compile(r"([0-9]{1,2})(?::|$)", re.ASCII)
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9])?) Gb/sec \(([0-9]{1,2})X(?: ([A-Z0-9]{1,8}))?\)", re.ASCII)
_GUID = re.compile(r"([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{4}):([0-9a-f]{4})$", re.ASCII)
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_INTERFACE = re.compile(r"[^\s/]{1,15}")
_NO_GUID = "0x" + "0" * 16
_LONGEST_TEXT = 80


def list_devices(tree: KernelTree) -> list[str] | None:
    """Return the RDMA devices of the host; None where there is no such class or it cannot be listed."""
    names = tree.names(CLASS)
    if names is None:
        return None
    return [name for name in names if tree.names(f"{CLASS}/{name}/ports") is not None][:MAX_DEVICES]


def list_ports(tree: KernelTree, device: str) -> list[int]:
    """Return the numbers of the ports of a device."""
    names = tree.names(f"{CLASS}/{device}/ports") or ()
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and len(name) <= 3)[
        :MAX_PORTS
    ]


def read_port(tree: KernelTree, device: str, number: int, interfaces: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns of fabric_ports that one look gives, without identity and whatever needs a look before.

    `interfaces` names those of devices whose driver does not say which they have.
    """
    about, port = f"{CLASS}/{device}", f"{CLASS}/{device}/ports/{number}"
    row: dict[str, Any] = {"device": device, "port": number, "present": True}
    row["node_guid"] = parse_guid(tree.text(f"{about}/node_guid"))
    row["driver"] = tree.target(f"{about}/device/driver") or device.partition("_")[0]
    address = tree.target(f"{about}/device")
    row["pci_bus_id"] = address if address is not None and _PCI.fullmatch(address) else None
    for column, file in (("hca_type", "hca_type"), ("board_id", "board_id"), ("firmware", "fw_ver")):
        row[column] = (tree.text(f"{about}/{file}") or "")[:_LONGEST_TEXT] or None
    row["link_layer"] = _link_layer(tree.text(f"{port}/link_layer"))
    if row["link_layer"] == "infiniband":
        row["port_guid"] = parse_guid(tree.text(f"{port}/gids/0"))
    named = interfaces.get(device)
    row |= _interface(tree, named or _find_interface(tree, about, number, row["link_layer"]))
    row |= _link(tree, port, row)
    counters, saturated = read_counters(tree, about, port)
    row |= counters
    row["saturated"] = ",".join(saturated) or None
    return row


def parse_guid(text: str | None) -> str | None:
    """Return the GUID at the end of `fe80::…` or of itself as the inventory writes it; zero is none."""
    found = _GUID.search(text.lower()) if text else None
    guid = "0x" + "".join(found.groups()) if found is not None else _NO_GUID
    return guid if guid != _NO_GUID else None


def parse_rate(text: str | None) -> dict[str, Any]:
    """Return speed, width and generation of `400 Gb/sec (4X NDR)`; a lane without a name is SDR."""
    found = _RATE.fullmatch(text) if text else None
    if found is None:
        return {}
    return {"speed_gbps": float(found[1]), "width": int(found[2]), "generation": found[3] or "SDR"}


def parse_state(text: str | None, names: tuple[str, ...]) -> str | None:
    """Return the state whose number the text begins with; what it calls it is not always right."""
    found = _STATE.match(text) if text else None
    number = int(found[1]) if found is not None else len(names)
    return names[number] if number < len(names) else None


def _link(tree: KernelTree, port: str, row: Mapping[str, Any]) -> dict[str, Any]:
    if row["driver"] == "efa":
        # Its driver answers 4: ACTIVE and 5: LinkUp whatever happens (Linux infiniband/hw/efa/efa_verbs.c).
        known = {"up": "active", "down": "down", "lowerlayerdown": "down", "notpresent": "down"}
        link: dict[str, Any] = {"link_state": known.get(str(row.get("operstate")))}
    else:
        link = {
            "link_state": parse_state(tree.text(f"{port}/state"), LINK_STATES),
            "phys_state": parse_state(tree.text(f"{port}/phys_state"), PHYS_STATES),
        }
    if link["link_state"] is None or link["link_state"] in ACTIVE:
        link |= parse_rate(tree.text(f"{port}/rate"))
    return link


def _link_layer(text: str | None) -> str | None:
    layer = text.lower() if text else None
    return layer if layer in ("infiniband", "ethernet", "unknown") else None


def _interface(tree: KernelTree, name: str | None) -> dict[str, Any]:
    if not name or not _INTERFACE.fullmatch(name) or name in (".", ".."):
        return {}
    operstate = tree.text(f"class/net/{name}/operstate")
    return {
        "interface": name,
        "operstate": operstate if operstate in OPERSTATES else None,
        "carrier_changes": tree.number(f"class/net/{name}/carrier_changes"),
    }


def _find_interface(tree: KernelTree, about: str, number: int, link_layer: str | None) -> str | None:
    """Return the interface of a port: of RoCE that of its first address, else one of its PCI function."""
    if link_layer == "ethernet":
        found = tree.text(f"{about}/ports/{number}/gid_attrs/ndevs/0")
        if found:
            return found
    folder = f"{about}/device/net"
    names = tree.names(folder) or ()
    if len(names) <= 1:
        return names[0] if names else None
    return next((name for name in names if tree.number(f"{folder}/{name}/dev_port") == number - 1), None)
