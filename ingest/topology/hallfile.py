"""The map of the hall as people write it: one YAML file to assets, or every mistake in it at once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.files import read_bounded
from contract.yamltext import Document, Place
from ingest.topology.assets import assets_of, hosts_of
from ingest.topology.entries import HallEntry
from ingest.topology.handwritten import read_entry
from ingest.topology.references import check_references

MAX_FILE_BYTES = 67_108_864


@dataclass(frozen=True, slots=True, kw_only=True)
class HallFile:
    """A file without mistakes."""

    hall: str
    synthetic: bool
    digest: str
    """SHA-256 of its bytes, hexadecimal."""
    assets: dict[str, dict[str, Any]]
    """Values of the stream's columns by identity, in the order of the file."""


def read_hall_file(path: Path, *, hall: str | None = None, synthetic: bool | None = None) -> HallFile:
    """Read a map of the hall and, where given, check that it is of this hall and this kind.

    Raises ConfigError (unreadable, invalid) that names every mistake as `file:line`.
    """
    content = read_bounded(path, MAX_FILE_BYTES)
    return parse_hall_file(content, str(path), hall=hall, synthetic=synthetic)


def parse_hall_file(
    content: bytes, where: str, *, hall: str | None = None, synthetic: bool | None = None
) -> HallFile:
    """Do the same with the bytes of a file; `where` is its name in messages."""
    entry, document = read_entry(HallEntry, content, where, "it begins with `hall: NAME`")
    if hall is not None and entry.hall != hall:
        document.complain(("hall",), f"{entry.hall!r}, but the configuration says {hall!r}")
    if synthetic is not None and entry.synthetic != synthetic:
        document.complain(
            ("synthetic",), f"{_yes(entry.synthetic)}, but the configuration says {_yes(synthetic)}"
        )
    assets = _check(entry, document)
    document.stop_if_wrong()
    return HallFile(
        hall=entry.hall, synthetic=entry.synthetic, digest=hashlib.sha256(content).hexdigest(), assets=assets
    )


class _Seen:
    """Names that may be given once, and where each was."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._lines: dict[tuple[str, ...], int] = {}

    def add(self, what: str, place: Place, *name: str) -> None:
        line = self._lines.get(name)
        if line is None:
            self._lines[name] = self._document.line(place)
        else:
            self._document.complain(place, f"{what} {name[-1]!r} is on line {line} already")


def _check(entry: HallEntry, document: Document) -> dict[str, dict[str, Any]]:
    """Return the assets; complain of names given twice and of what names nothing in the file."""
    assets: dict[str, dict[str, Any]] = {}
    identities = _Seen(document)
    for place, asset in assets_of(entry):
        identities.add("the name", place, "asset", asset["asset"])
        assets[asset["asset"]] = asset
    check_references(entry, document, {name: asset["kind"] for name, asset in assets.items()})
    _check_devices(entry, document)
    return assets


def _check_devices(entry: HallEntry, document: Document) -> None:
    """Complain of what two devices cannot share."""
    seen = _Seen(document)
    for place, host in hosts_of(entry):
        for at, gpu in enumerate(host.gpus):
            seen.add(
                "a GPU of this host with index", (*place, "gpus", at, "index"), host.host, "i", str(gpu.index)
            )
            if gpu.pci_bus_id is not None:
                where = (*place, "gpus", at, "pci_bus_id")
                seen.add("a GPU of this host with PCI address", where, host.host, gpu.pci_bus_id)
        for at, nic in enumerate(host.nics):
            if nic.guid is not None:
                seen.add("the GUID", (*place, "nics", at, "guid"), nic.guid)
            if nic.leaf is not None and nic.leaf_port is not None:
                where = (*place, "nics", at, "leaf_port")
                seen.add(f"a cable in {nic.leaf} at port", where, "port", nic.leaf, nic.leaf_port)
    for n, leaf in enumerate(entry.leaves):
        for u, uplink in enumerate(leaf.uplinks):
            for key, switch, port in (
                ("port", leaf.leaf, uplink.port),
                ("spine_port", uplink.spine, uplink.spine_port),
            ):
                if port is not None:
                    where = ("leaves", n, "uplinks", u, key)
                    seen.add(f"a cable in {switch} at port", where, "port", switch, port)


def _yes(value: bool) -> str:
    return str(value).lower()
