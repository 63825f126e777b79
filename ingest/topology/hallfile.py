"""The map of the hall as people write it: one YAML file to assets, or every mistake in it at once."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from contract.config import StrictConfig
from contract.errors import ConfigError
from contract.yamltext import Document, Place, as_text

MAX_FILE_BYTES = 67_108_864

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PCI = re.compile(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{4}):[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_GUID = re.compile(r"0x[0-9a-f]{16}")
_NAME = re.compile(r"[^\s/@]{1,100}")


def _form(pattern: re.Pattern[str], expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text[:80]!r} where {expected} belongs")
        return text

    return AfterValidator(check)


def _full_pci(text: str) -> str:
    """Return a PCI address as DCGM writes it: eight digits of domain, capitals."""
    return text.upper().rjust(len("00000000:00:00.0"), "0")


Name = Annotated[str, _form(_NAME, "a name without spaces, / and @")]
Uuid = Annotated[str, _form(_UUID, "a UUID like GPU-8f3a9c1e-0123-4567-89ab-0123456789ab")]
Pci = Annotated[str, _form(_PCI, "a PCI address like 00000000:53:00.0"), AfterValidator(_full_pci)]
Guid = Annotated[str, _form(_GUID, "a port GUID like 0x58a2e10300123456")]
Model = Annotated[str, Field(min_length=1, max_length=255)]


class GpuEntry(StrictConfig):
    """A GPU of a host."""

    index: int = Field(ge=0, le=1_000)
    uuid: Uuid
    pci_bus_id: Pci | None = None
    model: Model | None = None


class NicEntry(StrictConfig):
    """A network port of a host."""

    nic: Name
    guid: Guid | None = None
    speed_gbps: int | None = Field(default=None, gt=0, le=100_000)


class HostEntry(StrictConfig):
    """A host of a rack."""

    host: Name
    model: Model | None = None
    gpus: tuple[GpuEntry, ...] = ()
    nics: tuple[NicEntry, ...] = ()


class RackEntry(StrictConfig):
    """A rack of a row."""

    rack: Name
    cdu: str | None = None
    hosts: tuple[HostEntry, ...] = ()


class RowEntry(StrictConfig):
    """A row of racks."""

    row: Name
    racks: tuple[RackEntry, ...] = ()


class CduEntry(StrictConfig):
    """A coolant distribution unit."""

    cdu: Name
    model: Model | None = None


class HallEntry(StrictConfig):
    """The whole file."""

    hall: Name
    synthetic: bool = False
    cdus: tuple[CduEntry, ...] = ()
    rows: tuple[RowEntry, ...] = ()


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
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("unreadable", f"{path}: {error.strerror}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError("unreadable", f"{path}: larger than {MAX_FILE_BYTES} bytes")
    return parse_hall_file(content, str(path), hall=hall, synthetic=synthetic)


def parse_hall_file(
    content: bytes, where: str, *, hall: str | None = None, synthetic: bool | None = None
) -> HallFile:
    """Do the same with the bytes of a file; `where` is its name in messages."""
    document = Document(where, as_text)
    values = document.load(content)
    if values is None:
        document.complain((), "empty; it begins with `hall: NAME`")
    document.stop_if_wrong()
    try:
        entry = HallEntry.model_validate(values)
    except ValidationError as error:
        for problem in error.errors():
            document.complain(problem["loc"], _words(problem["type"], problem["msg"]))
        document.stop_if_wrong()
        raise
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
    """Return the assets; complain of names given twice and of racks that name no CDU of the file."""
    assets: dict[str, dict[str, Any]] = {}
    identities = _Seen(document)
    cdus = {cdu.cdu for cdu in entry.cdus}
    for place, asset in _assets(entry):
        identities.add("the name", place, "asset", asset["asset"])
        assets[asset["asset"]] = asset
        cdu = asset.get("cdu")
        if cdu is not None and cdu not in cdus:
            known = ", ".join(sorted(cdus)[:10]) or "none"
            document.complain((*place[:-1], "cdu"), f"there is no CDU {cdu!r} in `cdus` ({known})")
    _check_devices(entry, document)
    return assets


def _check_devices(entry: HallEntry, document: Document) -> None:
    seen = _Seen(document)
    for place, host in _hosts(entry):
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


def _hosts(entry: HallEntry) -> Iterator[tuple[Place, HostEntry]]:
    for r, row in enumerate(entry.rows):
        for k, rack in enumerate(row.racks):
            for h, host in enumerate(rack.hosts):
                yield ("rows", r, "racks", k, "hosts", h), host


def _assets(entry: HallEntry) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every asset with the place of its name, a parent before its children."""
    hall = entry.hall
    yield ("hall",), {"asset": hall, "kind": "hall"}
    for c, cdu in enumerate(entry.cdus):
        yield ("cdus", c, "cdu"), {"asset": cdu.cdu, "kind": "cdu", "parent": hall, "model": cdu.model}
    for r, row in enumerate(entry.rows):
        yield ("rows", r, "row"), {"asset": row.row, "kind": "row", "parent": hall}
        for k, rack in enumerate(row.racks):
            place: Place = ("rows", r, "racks", k)
            yield (*place, "rack"), {"asset": rack.rack, "kind": "rack", "parent": row.row, "cdu": rack.cdu}
            for h, host in enumerate(rack.hosts):
                yield from _host_assets(host, rack.rack, (*place, "hosts", h))


def _host_assets(host: HostEntry, rack: str, place: Place) -> Iterator[tuple[Place, dict[str, Any]]]:
    inside = {"parent": host.host, "host": host.host}
    yield (
        (*place, "host"),
        {"asset": host.host, "kind": "host", "parent": rack, "host": host.host, "model": host.model},
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
        yield (
            (*place, "nics", n, "nic"),
            {
                "asset": f"{host.host}/{nic.nic}",
                "kind": "nic",
                **inside,
                "guid": nic.guid,
                "speed_gbps": nic.speed_gbps,
            },
        )


def _words(type: str, message: str) -> str:
    if type == "extra_forbidden":
        return "unknown key"
    if type == "missing":
        return "missing"
    if type == "model_type":
        return "a mapping belongs here, one `key: value` a line"
    if type == "tuple_type":
        return "a list belongs here, one `- item` a line"
    return message.removeprefix("Value error, ")


def _yes(value: bool) -> str:
    return str(value).lower()
