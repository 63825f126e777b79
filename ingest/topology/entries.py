"""The words of the map of the hall: what may stand in the file, and where."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from contract.config import StrictConfig

_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PCI = re.compile(r"([0-9A-Fa-f]{8}|[0-9A-Fa-f]{4}):[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_GUID = re.compile(r"0x[0-9a-f]{16}")
_NAME = re.compile(r"[^\s/@]{1,100}")
_PORT = re.compile(r"[^\s@]{1,64}")
_COOLANT = re.compile(r"water|dielectric|[pe]g[0-9]{2}")
_FINGERPRINT = re.compile(r"(sha256:)?([0-9a-f]{64}|[0-9a-f]{2}(:[0-9a-f]{2}){31})", re.IGNORECASE)


def _form(pattern: re.Pattern[str], expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"{text[:80]!r} where {expected} belongs")
        return text

    return AfterValidator(check)


def _full_pci(text: str) -> str:
    """Return a PCI address as DCGM writes it: eight digits of domain, capitals."""
    return text.upper().rjust(len("00000000:00:00.0"), "0")


def _plain_hex(text: str) -> str:
    return text.lower().removeprefix("sha256:").replace(":", "")


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Name = Annotated[str, _form(_NAME, "a name without spaces, / and @")]
Port = Annotated[str, _form(_PORT, "a port's name, without spaces and @,")]
Uuid = Annotated[str, _form(_UUID, "a UUID like GPU-8f3a9c1e-0123-4567-89ab-0123456789ab")]
Pci = Annotated[str, _form(_PCI, "a PCI address like 00000000:53:00.0"), AfterValidator(_full_pci)]
Guid = Annotated[str, _form(_GUID, "a port GUID like 0x58a2e10300123456")]
Model = Annotated[str, Field(min_length=1, max_length=255)]
Coolant = Annotated[
    str, BeforeValidator(_lower), _form(_COOLANT, "water, dielectric, or glycol and its percentage like pg25")
]
Fingerprint = Annotated[
    str, _form(_FINGERPRINT, "a SHA-256 of 64 hexadecimal digits"), AfterValidator(_plain_hex)
]
LoopKind = Annotated[Literal["fws", "tcs", "rack"], BeforeValidator(_lower)]
Speed = Annotated[int, Field(gt=0, le=100_000)]
Width = Annotated[int, Field(gt=0, le=64)]
Rail = Annotated[int, Field(ge=0, le=1_000)]
Reference = str
"""A name that must stand elsewhere in the file: what it is not says that it is not there."""


def _address(text: str) -> str:
    """Return an IP address as it is written shortest."""
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError(f"{text[:80]!r} where an IP address belongs") from None


Address = Annotated[str, AfterValidator(_address)]


class GpuEntry(StrictConfig):
    """A GPU of a host."""

    index: int = Field(ge=0, le=1_000)
    uuid: Uuid
    pci_bus_id: Pci | None = None
    model: Model | None = None


class NicEntry(StrictConfig):
    """A network port of a host, and the switch port at the other end of its cable."""

    nic: Name
    port: int = Field(default=1, ge=1, le=1_000)
    guid: Guid | None = None
    speed_gbps: Speed | None = None
    width: Width | None = None
    rail: Rail | None = None
    leaf: Reference | None = None
    leaf_port: Port | None = None
    address: Address | None = None


class HostEntry(StrictConfig):
    """A host of a rack."""

    host: Name
    model: Model | None = None
    confidential: Literal["none", "snp", "nitro"] | None = None
    policy: Name | None = None
    trust_roots: tuple[Reference, ...] = Field(default=(), max_length=20)
    gpus: tuple[GpuEntry, ...] = ()
    nics: tuple[NicEntry, ...] = ()


class RackEntry(StrictConfig):
    """A rack of a row."""

    rack: Name
    cdu: Reference | None = None
    loop: Reference | None = None
    hosts: tuple[HostEntry, ...] = ()


class RowEntry(StrictConfig):
    """A row of racks."""

    row: Name
    racks: tuple[RackEntry, ...] = ()


class CduEntry(StrictConfig):
    """A coolant distribution unit."""

    cdu: Name
    model: Model | None = None
    at: Reference | None = None
    loop: Reference | None = None


class LoopEntry(StrictConfig):
    """A circuit of coolant."""

    loop: Name
    kind: LoopKind
    cdu: Reference | None = None
    fed_by: Reference | None = None
    coolant: Coolant | None = None
    rated_flow_liters_per_minute: float | None = Field(default=None, gt=0, le=1_000_000)


class DetectorEntry(StrictConfig):
    """A leak detector."""

    detector: Name
    at: Reference
    model: Model | None = None


class MeterEntry(StrictConfig):
    """A power meter."""

    meter: Name
    at: Reference
    model: Model | None = None


class UplinkEntry(StrictConfig):
    """A cable from a leaf to a spine."""

    spine: Reference
    port: Port | None = None
    spine_port: Port | None = None
    speed_gbps: Speed | None = None
    width: Width | None = None


class LeafEntry(StrictConfig):
    """A switch that NICs are connected to."""

    leaf: Name
    model: Model | None = None
    at: Reference | None = None
    rail: Rail | None = None
    uplinks: tuple[UplinkEntry, ...] = ()


class SpineEntry(StrictConfig):
    """A switch that leaves are connected to."""

    spine: Name
    model: Model | None = None
    at: Reference | None = None


class TrustRootEntry(StrictConfig):
    """A certificate that evidence may lead back to."""

    root: Name
    fingerprint: Fingerprint
    synthetic_only: bool = False


class HallEntry(StrictConfig):
    """The whole file."""

    hall: Name
    synthetic: bool = False
    trust_roots: tuple[TrustRootEntry, ...] = ()
    loops: tuple[LoopEntry, ...] = ()
    cdus: tuple[CduEntry, ...] = ()
    spines: tuple[SpineEntry, ...] = ()
    leaves: tuple[LeafEntry, ...] = ()
    rows: tuple[RowEntry, ...] = ()
    detectors: tuple[DetectorEntry, ...] = ()
    meters: tuple[MeterEntry, ...] = ()
