"""Processors: what they do, how often they slowed down from heat, how hot they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ingest.host.figures import read_count, to_count, to_float
from ingest.sysfs import KernelTree

CPUS = "devices/system/cpu"
HWMON = "class/hwmon"

SENSORS = {
    "coretemp": ("Package id",),
    "k10temp": ("Tdie", "Tctl"),
    "zenpower": ("Tdie", "Tctl"),
}
"""Drivers of processor sensors, and how the label of a whole processor begins; the first found counts, since Tctl may
carry an offset (Linux Documentation/hwmon/coretemp, k10temp)."""

MODES = {
    "cpu_user_ratio": ("user", "nice", "-guest", "-guest_nice"),
    "cpu_system_ratio": ("system",),
    "cpu_interrupt_ratio": ("irq", "softirq"),
    "cpu_iowait_ratio": ("iowait",),
    "cpu_steal_ratio": ("steal",),
    "cpu_guest_ratio": ("guest", "guest_nice"),
}
"""Columns as sums of /proc/stat's fields, which count guests among user and nice, too (proc(5))."""

_CPU = re.compile(r"cpu[0-9]{1,5}", re.ASCII)
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest", "guest_nice")
_WHOLE = _FIELDS[:8]


class Processors:
    """Reads them; remembers the times of the reading before, and where the counters and sensors are."""

    def __init__(self, procfs: KernelTree, sysfs: KernelTree) -> None:
        self._procfs = procfs
        self._sysfs = sysfs
        self._times: dict[str, int] | None = None
        self._cpu_names: Sequence[str] = ()
        self._throttles: tuple[Sequence[str], Sequence[str]] = ((), ())
        self._chips: dict[str, list[str]] = {}

    def read(self) -> dict[str, Any]:
        """Return columns of a host's row; null where nothing tells."""
        return {**self._usage(), **self._load(), **self._throttled(), **self._heat()}

    def _usage(self) -> dict[str, Any]:
        lines = (self._procfs.text("stat") or "").splitlines()
        words = lines[0].split() if lines else []
        ticks = [number for word in words[1:11] if (number := to_count(word)) is not None]
        if len(words) < 5 or words[0] != "cpu" or len(ticks) < len(words[1:11]):
            return {}
        cpus = sum(1 for line in lines if line.startswith("cpu") and "0" <= line[3:4] <= "9")
        times = dict.fromkeys(_FIELDS, 0) | dict(zip(_FIELDS, ticks, strict=False))
        before, self._times = self._times, times
        return {"cpus": cpus or None} | (_ratios(before, times) if before is not None else {})

    def _load(self) -> dict[str, Any]:
        words = (self._procfs.text("loadavg") or "").split()
        return dict(zip(("load_1m", "load_5m", "load_15m"), map(to_float, words[:3]), strict=False))

    def _throttled(self) -> dict[str, Any]:
        names = [name for name in self._sysfs.names(CPUS) or () if _CPU.fullmatch(name)]
        if names != self._cpu_names:
            self._cpu_names, self._throttles = names, self._throttle_files(names)
        cores, packages = self._throttles
        return {"core_throttles": self._sum(cores), "package_throttles": self._sum(packages)}

    def _throttle_files(self, names: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return one file per core and one per package: siblings count the same events."""
        cores: dict[tuple[int | None, int | None], str] = {}
        packages: dict[int | None, str] = {}
        for name in sorted(names, key=lambda name: int(name[3:])):
            package = read_count(self._sysfs, f"{CPUS}/{name}/topology/physical_package_id")
            core = read_count(self._sysfs, f"{CPUS}/{name}/topology/core_id")
            cores.setdefault((package, core), f"{CPUS}/{name}/thermal_throttle/core_throttle_count")
            packages.setdefault(package, f"{CPUS}/{name}/thermal_throttle/package_throttle_count")
        return list(cores.values()), list(packages.values())

    def _sum(self, files: Sequence[str]) -> int | None:
        counts = [count for file in files if (count := read_count(self._sysfs, file)) is not None]
        return sum(counts) if counts else None

    def _heat(self) -> dict[str, Any]:
        chips = [
            name
            for name in self._sysfs.names(HWMON) or ()
            if self._sysfs.text(f"{HWMON}/{name}/name") in SENSORS
        ]
        if chips != list(self._chips):
            self._chips = {chip: list(self._inputs(f"{HWMON}/{chip}")) for chip in chips}
        readings = [self._temperature(base) for bases in self._chips.values() for base in bases]
        heats = [heat for heat, _ in readings if heat is not None]
        margins = [limit - heat for heat, limit in readings if heat is not None and limit]
        return {
            "cpu_temperature_celsius": max(heats, default=None),
            "cpu_temperature_margin_celsius": min(margins, default=None),
        }

    def _inputs(self, chip: str) -> Iterator[str]:
        """Yield the sensors of whole processors: `…/temp1`."""
        driver = self._sysfs.text(f"{chip}/name") or ""
        bases = [f"{chip}/{name[:-6]}" for name in self._sysfs.names(chip) or () if _is_label(name)]
        labels = {base: self._sysfs.text(f"{base}_label") or "" for base in bases}
        for prefix in SENSORS.get(driver, ()):
            found = [base for base, label in labels.items() if label.startswith(prefix)]
            if found:
                yield from found
                return

    def _temperature(self, base: str) -> tuple[float | None, float | None]:
        heat, limit = read_count(self._sysfs, f"{base}_input"), read_count(self._sysfs, f"{base}_crit")
        return (None if heat is None else heat / 1_000), (None if limit is None else limit / 1_000)


def _is_label(name: str) -> bool:
    return name.startswith("temp") and name.endswith("_label")


def _ratios(before: dict[str, int], now: dict[str, int]) -> dict[str, Any]:
    # Idle and iowait may fall a little (proc(5)).
    spent = {name: max(0, now[name] - before[name]) for name in _FIELDS}
    whole = sum(spent[name] for name in _WHOLE)
    if not whole:
        return {}
    ratios = {column: _share(spent, names, whole) for column, names in MODES.items()}
    return ratios | {"cpu_busy_ratio": 1 - (spent["idle"] + spent["iowait"]) / whole}


def _share(spent: dict[str, int], names: Sequence[str], whole: int) -> float:
    ticks = sum(-spent[name[1:]] if name[0] == "-" else spent[name] for name in names)
    return min(1.0, max(0.0, ticks / whole))
