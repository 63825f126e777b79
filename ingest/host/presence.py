"""Which PCI devices a host should have: those it was seen with, those that are named, so many of a class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ingest.host.pcie import NEVER_SEEN, Device

DAY_US = 86_400_000_000


class Kind(NamedTuple):
    """What makes one device as good as another."""

    device_class: str
    vendor_id: str | None
    device_id: str | None


class Expectation:
    """Remembers the devices of a host, and says which of them are gone.

    Within one boot a device is its address. A restart may give out other addresses, so after it only their number
    counts, kind by kind. Ports of switches are never expected: what hangs below them is.
    """

    def __init__(
        self, counts: Mapping[str, int], addresses: Iterable[str], *, forget_after_days: float
    ) -> None:
        self._counts = counts
        self._addresses = tuple(addresses)
        self._forget_us = round(forget_after_days * DAY_US)
        self._known: dict[str, Kind] = {}
        self._missing: dict[str, int] = {}
        """Since when each is missing."""

    @property
    def missing(self) -> list[str]:
        return sorted(self._missing)

    def device_class(self, name: str) -> str | None:
        """Return what a device is that is not there, if that is known."""
        if NEVER_SEEN in name:
            return name.partition(NEVER_SEEN)[0]
        kind = self._known.get(name)
        return kind.device_class if kind is not None else None

    def see(
        self, devices: Mapping[str, Device], listed: frozenset[str], now_us: int, *, restarted: bool
    ) -> Iterator[tuple[str, str, str | None]]:
        """Take what is there; yield (`device_missing`, `device_back` or `withdrawn`, name, class) for every change.

        `listed` is every address on the bus: a device that is there and cannot be read is not missing.
        """
        present = {a: _kind(d) for a, d in devices.items() if d.facts.device_class != "bridge"}
        if restarted:
            self._renumber(present)
        self._known |= present
        gone = [name for name in self._known if name not in listed and not self._enough(name, present)]
        gone += [name for name in self._addresses if name not in listed and name not in gone]
        for name in [name for name in gone if self._is_old(name, now_us)]:
            gone.remove(name)
        gone += list(self._never_seen(present, gone))
        before, self._missing = self._missing, {n: self._missing.get(n, now_us) for n in gone}
        for name in sorted(before.keys() - self._missing.keys()):
            back = name in listed or self._enough(name, present)
            yield ("device_back" if back else "withdrawn"), name, self.device_class(name)
        for name in sorted(self._missing.keys() - before.keys()):
            yield "device_missing", name, self.device_class(name)
        self._known = {name: kind for name, kind in self._known.items() if name in listed or name in gone}

    def dump(self) -> dict[str, Any]:
        return {"known": {name: list(kind) for name, kind in self._known.items()}, "missing": self._missing}

    def load(self, saved: Any) -> None:
        """Take a dumped one over; raise ValueError, TypeError or KeyError where it is none."""
        known = {str(name): Kind(*kind) for name, kind in saved["known"].items()}
        missing = {str(name): int(us) for name, us in saved["missing"].items()}
        self._known, self._missing = known, missing

    def _renumber(self, present: Mapping[str, Kind]) -> None:
        """Keep of what is not there only as many as there are fewer of its kind; where addresses went to others, by number."""
        before, now = Counter(self._known.values()), Counter(present.values())
        for kind, count in before.items():
            short = count - now[kind]
            free = [name for name, of in self._known.items() if of == kind and name not in present]
            for name in free[max(0, short) :]:
                del self._known[name]
            whole = sum(many for of, many in before.items() if of.device_class == kind.device_class)
            for number in range(short - len(free)):
                self._known[f"{kind.device_class}{NEVER_SEEN}{whole - number}"] = kind

    def _is_old(self, name: str, now_us: int) -> bool:
        since = self._missing.get(name)
        return name not in self._addresses and since is not None and now_us - since > self._forget_us

    def _never_seen(self, present: Mapping[str, Kind], gone: list[str]) -> Iterator[str]:
        for device_class, count in self._counts.items():
            have = sum(kind.device_class == device_class for kind in present.values())
            have += sum(self.device_class(name) == device_class for name in gone)
            yield from (f"{device_class}{NEVER_SEEN}{number}" for number in range(have + 1, count + 1))

    def _enough(self, name: str, present: Mapping[str, Kind]) -> bool:
        """Return whether a device that is expected by number is there."""
        device_class, _, number = name.partition(NEVER_SEEN)
        have = sum(kind.device_class == device_class for kind in present.values())
        return number.isdecimal() and have >= int(number)


def _kind(device: Device) -> Kind:
    return Kind(device.facts.device_class, device.facts.vendor_id, device.facts.device_id)
