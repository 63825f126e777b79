"""From the words of the map to the rows of the stream: every asset and cable, with the place where it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from contract.yamltext import Place
from ingest.topology.entries import HallEntry, HostEntry, LeafEntry, NicEntry, RackEntry

Asset = dict[str, Any]
Placed = tuple[Place, Asset]

LONGEST_CHAIN = 16
"""Loops that feed each other; what is longer, or a circle, is complained of."""


def assets_of(entry: HallEntry) -> Iterator[Placed]:
    """Yield every asset and cable once; what names another is taken as written, whether that is there or not."""
    hall = entry.hall
    yield ("hall",), {"asset": hall, "kind": "hall"}
    yield from _trust(entry)
    yield from _coolant(entry)
    for r, row in enumerate(entry.rows):
        yield ("rows", r, "row"), {"asset": row.row, "kind": "row", "parent": hall}
    yield from _network(entry)
    rails = {leaf.leaf: leaf.rail for leaf in entry.leaves}
    drivers = drivers_of(entry)
    for r, row in enumerate(entry.rows):
        for k, rack in enumerate(row.racks):
            place: Place = ("rows", r, "racks", k)
            yield (*place, "rack"), _rack(rack, row.row, drivers)
            for h, host in enumerate(rack.hosts):
                yield from _host(host, rack.rack, (*place, "hosts", h), rails)
    for d, detector in enumerate(entry.detectors):
        yield (
            ("detectors", d, "detector"),
            {"asset": detector.detector, "kind": "detector", "parent": detector.at, "model": detector.model},
        )
    for m, meter in enumerate(entry.meters):
        yield (
            ("meters", m, "meter"),
            {"asset": meter.meter, "kind": "meter", "parent": meter.at, "model": meter.model},
        )


def drivers_of(entry: HallEntry) -> dict[str, str | None]:
    """Return the coolant distribution unit that drives each loop, directly or through the loops that feed it."""
    loops = {loop.loop: loop for loop in entry.loops}
    drivers: dict[str, str | None] = {}
    for name in loops:
        loop = loops.get(name)
        for _ in range(LONGEST_CHAIN):
            if loop is None or loop.cdu is not None:
                break
            loop = loops.get(loop.fed_by or "")
        drivers[name] = loop.cdu if loop is not None else None
    return drivers


def rail_of(nic: NicEntry, rails: Mapping[str, int | None]) -> int | None:
    """Return the rail of a NIC: its own word, else that of its leaf."""
    return nic.rail if nic.rail is not None else rails.get(nic.leaf or "")


def nic_name(host: str, nic: NicEntry) -> str:
    """Return the identity of a NIC: the first port of a device goes by the device's name."""
    return f"{host}/{nic.nic}" if nic.port == 1 else f"{host}/{nic.nic}/{nic.port}"


def _trust(entry: HallEntry) -> Iterator[Placed]:
    for t, root in enumerate(entry.trust_roots):
        yield (
            ("trust_roots", t, "root"),
            {
                "asset": root.root,
                "kind": "trust_root",
                "parent": entry.hall,
                "fingerprint": root.fingerprint,
                "synthetic_only": root.synthetic_only,
            },
        )


def _coolant(entry: HallEntry) -> Iterator[Placed]:
    drivers = drivers_of(entry)
    for n, loop in enumerate(entry.loops):
        yield (
            ("loops", n, "loop"),
            {
                "asset": loop.loop,
                "kind": "loop",
                "parent": entry.hall,
                "cdu": drivers[loop.loop],
                "loop": loop.fed_by,
                "loop_kind": loop.kind,
                "coolant": loop.coolant,
                "rated_flow_liters_per_minute": loop.rated_flow_liters_per_minute,
            },
        )
    for c, cdu in enumerate(entry.cdus):
        yield (
            ("cdus", c, "cdu"),
            {
                "asset": cdu.cdu,
                "kind": "cdu",
                "parent": cdu.at or entry.hall,
                "model": cdu.model,
                "loop": cdu.loop,
            },
        )


def _network(entry: HallEntry) -> Iterator[Placed]:
    yield from _rails(entry)
    for s, spine in enumerate(entry.spines):
        yield (
            ("spines", s, "spine"),
            {
                "asset": spine.spine,
                "kind": "spine",
                "parent": spine.at or entry.hall,
                "model": spine.model,
            },
        )
    for n, leaf in enumerate(entry.leaves):
        yield (
            ("leaves", n, "leaf"),
            {
                "asset": leaf.leaf,
                "kind": "leaf",
                "parent": leaf.at or entry.hall,
                "model": leaf.model,
                "rail": leaf.rail,
            },
        )
        yield from _uplinks(leaf, ("leaves", n))


def _rails(entry: HallEntry) -> Iterator[Placed]:
    """Yield each rail once, where it is first spoken of."""
    found: dict[int, Place] = {}
    for n, leaf in enumerate(entry.leaves):
        if leaf.rail is not None:
            found.setdefault(leaf.rail, ("leaves", n, "rail"))
    for place, host in hosts_of(entry):
        for n, nic in enumerate(host.nics):
            if nic.rail is not None:
                found.setdefault(nic.rail, (*place, "nics", n, "rail"))
    for rail, place in sorted(found.items()):
        yield place, {"asset": f"rail-{rail}", "kind": "rail", "parent": entry.hall, "position": rail}


def hosts_of(entry: HallEntry) -> Iterator[tuple[Place, HostEntry]]:
    """Yield every host with its place in the file."""
    for r, row in enumerate(entry.rows):
        for k, rack in enumerate(row.racks):
            for h, host in enumerate(rack.hosts):
                yield ("rows", r, "racks", k, "hosts", h), host


def _uplinks(leaf: LeafEntry, place: Place) -> Iterator[Placed]:
    for u, uplink in enumerate(leaf.uplinks):
        yield (
            (*place, "uplinks", u, "spine"),
            {
                "asset": _link_name(leaf.leaf, uplink.port, uplink.spine, uplink.spine_port),
                "kind": "link",
                "parent": uplink.spine,
                "parent_port": uplink.spine_port,
                "child": leaf.leaf,
                "child_port": uplink.port,
                "leaf": leaf.leaf,
                "rail": leaf.rail,
                "speed_gbps": uplink.speed_gbps,
                "width": uplink.width,
            },
        )


def _link_name(child: str, child_port: str | None, parent: str, parent_port: str | None) -> str:
    lower = child if child_port is None else f"{child}/{child_port}"
    upper = parent if parent_port is None else f"{parent}/{parent_port}"
    return f"{lower}--{upper}"


def _rack(rack: RackEntry, row: str, drivers: Mapping[str, str | None]) -> Asset:
    driver = drivers.get(rack.loop or "")
    return {
        "asset": rack.rack,
        "kind": "rack",
        "parent": row,
        "cdu": rack.cdu if rack.cdu is not None else driver,
        "loop": rack.loop,
    }


def _host(host: HostEntry, rack: str, place: Place, rails: Mapping[str, int | None]) -> Iterator[Placed]:
    inside = {"parent": host.host, "host": host.host}
    yield (
        (*place, "host"),
        {
            "asset": host.host,
            "kind": "host",
            "parent": rack,
            "host": host.host,
            "model": host.model,
            "confidential": host.confidential,
            "policy": host.policy,
            "trust_roots": " ".join(host.trust_roots) or None,
        },
    )
    for g, gpu in enumerate(host.gpus):
        yield (
            (*place, "gpus", g, "uuid"),
            {
                "asset": gpu.uuid,
                "kind": "gpu",
                **inside,
                "model": gpu.model,
                "position": gpu.index,
                "pci_bus_id": gpu.pci_bus_id,
            },
        )
    for n, nic in enumerate(host.nics):
        yield from _nic(nic, host.host, (*place, "nics", n), rail_of(nic, rails))


def _nic(nic: NicEntry, host: str, place: Place, rail: int | None) -> Iterator[Placed]:
    name = nic_name(host, nic)
    shared = {
        "host": host,
        "speed_gbps": nic.speed_gbps,
        "width": nic.width,
        "rail": rail,
        "leaf": nic.leaf,
    }
    yield (
        (*place, "nic"),
        {
            "asset": name,
            "kind": "nic",
            "parent": host,
            "guid": nic.guid,
            "port": nic.port,
            "address": nic.address,
            **shared,
        },
    )
    if nic.leaf is not None:
        yield (
            (*place, "leaf"),
            {
                "asset": _link_name(name, None, nic.leaf, nic.leaf_port),
                "kind": "link",
                "parent": nic.leaf,
                "parent_port": nic.leaf_port,
                "child": name,
                **shared,
            },
        )
