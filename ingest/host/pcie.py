"""PCIe devices: which are there, how wide and fast their links are, and the errors they have seen (AER)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from ingest.host.counts import HOUR_SECONDS, MAX_KEPT, ErrorCount, Window
from ingest.host.figures import read_count, to_count
from ingest.sysfs import KernelTree

DEVICES = "bus/pci/devices"

CLASSES = (
    ("0x0302", "", "gpu"),
    ("0x1200", "", "gpu"),
    ("0x0300", "0x10de", "gpu"),
    ("0x0300", "0x1002", "gpu"),
    ("0x0200", "", "nic"),
    ("0x0207", "", "nic"),
    ("0x010802", "", "nvme"),
    ("0x0680", "0x10de", "nvswitch"),
)
"""How a PCI class begins, the vendor if that matters, and what it makes the device (PCI ID repository, device
classes): 3D controllers and accelerators; display controllers of GPU makers, since a server's own screen is one, too;
Ethernet and InfiniBand; NVM Express; NVSwitches, which are bridges of no common kind."""

SEVERITIES = ("fatal", "nonfatal", "correctable")

WIDTHS = frozenset({1, 2, 4, 8, 12, 16, 32})
"""Lanes a link may have (PCI Express base specification); 0 is no link, 63 the answer of a device that is gone."""

NEVER_SEEN = "#"
"""In the name of a device that is expected by number: `gpu#8`."""

MAX_ERROR_NAMES = 32

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What stays true of a device as long as it is there."""

    device_class: str
    vendor_id: str | None
    device_id: str | None
    numa_node: int | None
    path: tuple[str, ...]
    """The ports above it, from the root port on."""
    max_link_width: int | None
    max_link_speed_gts: float | None

    @property
    def faces_root(self) -> bool:
        """Whether the link it tells of is the one above it: that of a root port or of a switch's lower port is not.

        From the root on, ports that look down and ports that look up take turns.
        """
        return self.device_class != "bridge" or len(self.path) % 2 == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as it is now."""

    address: str
    facts: Facts
    max_link_width: int | None = None
    max_link_speed_gts: float | None = None
    link_width: int | None = None
    link_speed_gts: float | None = None
    totals: Mapping[str, int | None] = field(default_factory=dict)
    """By severity."""
    names: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Counts above 0 by severity and name."""


class PcieBus:
    """Reads the devices that matter; remembers what does not change while a device is there."""

    def __init__(self, sysfs: KernelTree) -> None:
        self._sysfs = sysfs
        self._facts: dict[str, Facts | None] = {}
        self.listed: frozenset[str] = frozenset()
        """Every address on the bus at the last reading."""

    def devices(self) -> dict[str, Device] | None:
        """Return them by address; None where the bus cannot be read, which says nothing about any device."""
        listed = [name for name in self._sysfs.names(DEVICES) or () if _ADDRESS.fullmatch(name)]
        if not listed:
            return None
        self.listed = frozenset(listed)
        self._facts = {address: self._facts[address] for address in listed if address in self._facts}
        for address in self.listed - self._facts.keys():
            self._learn(address)
        found = {address: facts for address, facts in sorted(self._facts.items()) if facts is not None}
        ports = {port for facts in found.values() if facts.device_class != "bridge" for port in facts.path}
        return {
            address: self._read(address, facts, found)
            for address, facts in found.items()
            if facts.device_class != "bridge" or address in ports
        }

    def _learn(self, address: str) -> None:
        """Look at a device that is new; one that cannot be read yet stays new."""
        at = f"{DEVICES}/{address}"
        code, vendor = self._sysfs.text(f"{at}/class"), self._sysfs.text(f"{at}/vendor")
        if code is not None:
            self._facts[address] = self._facts_of(at, _class_of(code, vendor or ""), vendor)

    def _facts_of(self, at: str, device_class: str | None, vendor: str | None) -> Facts | None:
        """Return nothing for a device of no interest; a virtual function is none, it comes and goes."""
        if device_class is None or self._sysfs.link(f"{at}/physfn") is not None:
            return None
        # A volume controller (Intel VMD) has root ports of its own, below a root of their own.
        below_root = (self._sysfs.link(at) or "").rpartition("/pci")[2]
        ports = _ADDRESS.findall(below_root)[:-1]
        return Facts(
            device_class=device_class,
            vendor_id=vendor,
            device_id=self._sysfs.text(f"{at}/device"),
            numa_node=read_count(self._sysfs, f"{at}/numa_node"),
            path=tuple(ports),
            max_link_width=_width(self._sysfs.text(f"{at}/max_link_width")),
            max_link_speed_gts=_speed(self._sysfs.text(f"{at}/max_link_speed")),
        )

    def _read(self, address: str, facts: Facts, others: Mapping[str, Facts]) -> Device:
        at = f"{DEVICES}/{address}"
        counts = {kind: _parse(self._sysfs.text(f"{at}/aer_dev_{kind}")) for kind in SEVERITIES}
        errors: dict[str, Any] = {
            "totals": {kind: total for kind, (total, _) in counts.items()},
            "names": {kind: names for kind, (_, names) in counts.items() if names},
        }
        if not facts.faces_root:
            return Device(address=address, facts=facts, **errors)
        above = others.get(facts.path[-1]) if facts.path else None
        return Device(
            address=address,
            facts=facts,
            max_link_width=_least(facts.max_link_width, above and above.max_link_width),
            max_link_speed_gts=_least(facts.max_link_speed_gts, above and above.max_link_speed_gts),
            link_width=_width(self._sysfs.text(f"{at}/current_link_width")),
            link_speed_gts=_speed(self._sysfs.text(f"{at}/current_link_speed")),
            **errors,
        )


class DeviceHistory:
    """What is remembered of a host's devices: error counts and links."""

    def __init__(self) -> None:
        self._errors: dict[str, dict[str, ErrorCount]] = {}
        self._names: dict[str, Mapping[str, Mapping[str, int]]] = {}
        self._links: dict[str, tuple[int | None, float | None]] = {}

    def see(self, devices: Mapping[str, Device], now_us: int) -> Iterator[dict[str, Any]]:
        """Take a reading; yield the events in it."""
        for address, device in devices.items():
            yield from self._errors_of(device, now_us)
            yield from self._link_of(device)
            self._names[address] = device.names
        if len(self._errors) > MAX_KEPT:
            self._errors = {address: self._errors[address] for address in devices}

    def row(self, device: Device, now_us: int) -> dict[str, Any]:
        """Return the row of a device that was seen."""
        facts, errors = device.facts, self._errors[device.address]["correctable"]
        return {
            "device": device.address,
            "device_class": facts.device_class,
            "presence": "present",
            "vendor_id": facts.vendor_id,
            "device_id": facts.device_id,
            "upstream": facts.path[-1] if facts.path else None,
            "numa_node": facts.numa_node,
            "link_width": device.link_width,
            "max_link_width": device.max_link_width,
            "link_speed_gts": device.link_speed_gts,
            "max_link_speed_gts": device.max_link_speed_gts,
            **{f"{kind}_errors": device.totals.get(kind) for kind in SEVERITIES},
            "correctable_errors_1h": errors.window.total(now_us) if errors.count is not None else None,
            "errors": orjson.dumps(device.names).decode() if device.names else None,
        }

    def restart(self) -> None:
        """Begin anew: the machine was restarted, and what was learned on the old addresses is old."""
        self._links = {}
        self._names = {address: {} for address in self._names}
        for kinds in self._errors.values():
            for errors in kinds.values():
                errors.restart()

    def dump(self) -> dict[str, Any]:
        return {a: {k: e.dump() for k, e in kinds.items()} for a, kinds in self._errors.items()}

    def load(self, saved: Any) -> None:
        """Take a dumped one over; raise ValueError, TypeError, KeyError or AttributeError where it is none."""
        self._errors = {
            str(address): {kind: ErrorCount.load(HOUR_SECONDS, kinds[kind]) for kind in SEVERITIES}
            for address, kinds in saved.items()
        }

    def _errors_of(self, device: Device, now_us: int) -> Iterator[dict[str, Any]]:
        counts = self._errors.setdefault(
            device.address, {kind: ErrorCount(Window(HOUR_SECONDS)) for kind in SEVERITIES}
        )
        for kind in SEVERITIES:
            counts[kind].see(device.totals.get(kind), now_us)
            told = counts[kind].tell(now_us, at_once=kind != "correctable")
            if told:
                severity = "corrected" if kind == "correctable" else kind
                yield _event("pcie_aer", severity, device, self._rises(device, kind), told)

    def _rises(self, device: Device, kind: str) -> str | None:
        """Say which errors of a severity rose since the reading before."""
        known = self._names.get(device.address)
        if known is None:
            return None
        before = known.get(kind, {})
        rises = {name: count - before.get(name, 0) for name, count in device.names.get(kind, {}).items()}
        return ", ".join(f"{name} +{count}" for name, count in rises.items() if count > 0) or None

    def _link_of(self, device: Device) -> Iterator[dict[str, Any]]:
        """Yield a change of the link; not twice for its two ends, and not for a GPU that saves power."""
        kind = device.facts.device_class
        if kind == "bridge":
            return
        link = (device.link_width, None if kind == "gpu" else device.link_speed_gts)
        before = self._links.get(device.address)
        self._links[device.address] = link
        if before is not None and before != link:
            yield _event("pcie_link", "info", device, f"{_link(before)} -> {_link(link)}")


def _event(
    event: str, severity: str, device: Device, detail: str | None, count: int | None = None
) -> dict[str, Any]:
    return {
        "event": event,
        "severity": severity,
        "device": device.address,
        "device_class": device.facts.device_class,
        "occurrences": count,
        "detail": detail,
    }


def kernel_address(text: str) -> str:
    """Return a PCI address as the kernel writes it, `00000000:CA:00.0` as `0000:ca:00.0`; raise ValueError if it is none."""
    address = text.strip().lower()
    if address.count(":") == 1:
        address = f"0000:{address}"
    if len(address) > 12 and address.startswith("0000"):
        address = address[4:]
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"{text!r} is no PCI address like 0000:53:00.0")
    return address


def _class_of(code: str, vendor: str) -> str | None:
    if code.startswith("0x0604"):
        return "bridge"
    for prefix, of_vendor, device_class in CLASSES:
        if code.startswith(prefix) and of_vendor in ("", vendor):
            return device_class
    return None


def _parse(text: str | None) -> tuple[int | None, dict[str, int]]:
    """Return the total that an AER file names and its counts above 0; lines are `name count`, names may have spaces.

    One message may tell of several errors, so the total is no sum (sysfs-bus-pci-devices-aer_stats).
    """
    total: int | None = None
    names: dict[str, int] = {}
    for line in (text or "").splitlines():
        name, _, word = line.rpartition(" ")
        number = to_count(word)
        if number is not None and name.startswith("TOTAL_ERR_"):
            total = number
        elif number and len(names) < MAX_ERROR_NAMES:
            names[name.strip()[:48]] = number
    return total, names


def _width(text: str | None) -> int | None:
    width = to_count(text)
    return width if width in WIDTHS else None


def _speed(text: str | None) -> float | None:
    found = _SPEED.match(text or "")
    return float(found[1]) if found else None


def _least(own: Any, other: Any) -> Any:
    """Return the lesser of two figures; one that nobody told does not count."""
    return min(own, other) if own is not None and other else own


def _link(link: tuple[int | None, float | None]) -> str:
    width, speed = link
    return f"x{width or '?'}" + (f" {speed:g} GT/s" if speed else "")
