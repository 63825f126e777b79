"""Memory: how much is in use, and the errors that its controllers count (EDAC)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ingest.host.counts import DAY_SECONDS, MAX_KEPT, ErrorCount, Window
from ingest.host.figures import read_count, to_count
from ingest.sysfs import KernelTree

CONTROLLERS = "devices/system/edac/mc"

MEMINFO = {
    "MemTotal": "memory_total_bytes",
    "MemAvailable": "memory_available_bytes",
    "MemFree": "memory_free_bytes",
    "Cached": "memory_cached_bytes",
    "SwapTotal": "swap_total_bytes",
    "SwapFree": "swap_free_bytes",
}

MAX_MODULES = 1_024

_CONTROLLER = re.compile(r"^mc\d{1,4}$")
_MODULE = re.compile(r"^(?:dimm|rank)\d{1,4}$")
_ROW = re.compile(r"^csrow\d{1,4}$")
_CHANNEL = re.compile(r"^(ch\d{1,2})_ce_count$")


def usage(procfs: KernelTree) -> dict[str, Any]:
    """Return columns of a host's row."""
    found: dict[str, Any] = {}
    for line in (procfs.text("meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        kibibytes = to_count(words[0]) if len(words) == 2 and words[1] == "kB" else None
        if name in MEMINFO and kibibytes is not None:
            found[MEMINFO[name]] = kibibytes * 1_024
    for line in (procfs.text("vmstat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            found["oom_kills"] = to_count(value)
    return found


@dataclass(slots=True)
class Module:
    """One memory module, or what a controller cannot place, as it is now."""

    name: str
    corrected: int | None = None
    uncorrected: int | None = None
    reset_age_seconds: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Edac:
    """Reads every memory module that a driver of a memory controller shows."""

    def __init__(self, sysfs: KernelTree) -> None:
        self._sysfs = sysfs

    def totals(self) -> dict[str, Any]:
        """Return columns of a host's row; 0 controllers where there is no driver."""
        folders = self._folders()
        counts = {
            column: [
                count for at in folders if (count := read_count(self._sysfs, f"{at}/{file}")) is not None
            ]
            for column, file in (
                ("memory_corrected_errors", "ce_count"),
                ("memory_uncorrected_errors", "ue_count"),
            )
        }
        return {"memory_controllers": len(folders)} | {
            column: sum(found) if found else None for column, found in counts.items()
        }

    def modules(self) -> list[Module]:
        """Return all of them, in the order of their names."""
        found: list[Module] = []
        for folder in self._folders():
            age = read_count(self._sysfs, f"{folder}/seconds_since_reset")
            facts = {"controller": self._sysfs.text(f"{folder}/mc_name") or None}
            for module in self._of_controller(folder):
                module.reset_age_seconds = age
                module.facts |= facts
                found.append(module)
        return found[:MAX_MODULES]

    def _folders(self) -> list[str]:
        return [
            f"{CONTROLLERS}/{name}"
            for name in self._sysfs.names(CONTROLLERS) or ()
            if _CONTROLLER.match(name)
        ]

    def _of_controller(self, folder: str) -> Iterator[Module]:
        controller = folder.rpartition("/")[2]
        names = self._sysfs.names(folder) or ()
        modules = [self._module(folder, name) for name in names if _MODULE.match(name)]
        counted = [
            module for module in modules if module.corrected is not None or module.uncorrected is not None
        ]
        # Before Linux 4.10 modules are listed, but counted by row and channel.
        yield from counted or (each for name in names if _ROW.match(name) for each in self._row(folder, name))
        yield Module(
            name=controller,
            corrected=read_count(self._sysfs, f"{folder}/ce_noinfo_count"),
            uncorrected=read_count(self._sysfs, f"{folder}/ue_noinfo_count"),
            facts={"size_mib": read_count(self._sysfs, f"{folder}/size_mb")},
        )

    def _module(self, folder: str, name: str) -> Module:
        at = f"{folder}/{name}"
        return Module(
            name=f"{folder.rpartition('/')[2]}/{name}",
            corrected=read_count(self._sysfs, f"{at}/dimm_ce_count"),
            uncorrected=read_count(self._sysfs, f"{at}/dimm_ue_count"),
            facts={
                "label": self._sysfs.text(f"{at}/dimm_label") or None,
                "location": self._sysfs.text(f"{at}/dimm_location") or None,
                "memory_type": self._sysfs.text(f"{at}/dimm_mem_type") or None,
                "size_mib": read_count(self._sysfs, f"{at}/size"),
            },
        )

    def _row(self, folder: str, name: str) -> Iterator[Module]:
        """Yield the channels of a row, which count corrected errors, and the row, which counts the others."""
        at, row = f"{folder}/{name}", f"{folder.rpartition('/')[2]}/{name}"
        kind = {"memory_type": self._sysfs.text(f"{at}/mem_type") or None}
        for file in self._sysfs.names(at) or ():
            channel = _CHANNEL.match(file)
            if channel:
                label = self._sysfs.text(f"{at}/{channel[1]}_dimm_label") or None
                yield Module(
                    name=f"{row}/{channel[1]}",
                    corrected=read_count(self._sysfs, f"{at}/{file}"),
                    facts=kind | {"label": label, "location": f"{name[2:]} {channel[1]}"},
                )
        yield Module(
            name=row,
            uncorrected=read_count(self._sysfs, f"{at}/ue_count"),
            facts=kind | {"location": name[2:], "size_mib": read_count(self._sysfs, f"{at}/size_mb")},
        )


class ModuleHistory:
    """What is remembered of a host's memory modules: counts, and the errors of the last day."""

    def __init__(self) -> None:
        self._corrected: dict[str, ErrorCount] = {}
        self._uncorrected: dict[str, ErrorCount] = {}
        self._ages: dict[str, int] = {}
        """Seconds since the reset, by controller, at the reading before."""

    def see(self, modules: list[Module], now_us: int) -> Iterator[dict[str, Any]]:
        """Take a reading; yield the events in it."""
        reset = {
            controller for module in modules if self._was_reset(controller := _controller(module), module)
        }
        yield from ({"event": "edac_reset", "severity": "info", "device": name} for name in sorted(reset))
        for module in modules:
            again = _controller(module) in reset
            for kind, counts, count in (
                ("dimm_ue", self._uncorrected, module.uncorrected),
                ("dimm_ce", self._corrected, module.corrected),
            ):
                errors = counts.setdefault(module.name, ErrorCount(Window(DAY_SECONDS)))
                errors.see(count, now_us, reset=again)
                told = errors.tell(now_us, at_once=kind == "dimm_ue")
                if told:
                    yield _event(kind, module, told)
        self._ages = {_controller(m): m.reset_age_seconds for m in modules if m.reset_age_seconds is not None}
        for counts in (self._corrected, self._uncorrected):
            if len(counts) > MAX_KEPT:
                for name in counts.keys() - {module.name for module in modules}:
                    del counts[name]

    def row(self, module: Module, now_us: int) -> dict[str, Any]:
        """Return the row of a module that was seen."""
        return {
            "dimm": module.name,
            **module.facts,
            "corrected_errors": module.corrected,
            "uncorrected_errors": module.uncorrected,
            "corrected_errors_24h": _recent(self._corrected, module, now_us),
            "uncorrected_errors_24h": _recent(self._uncorrected, module, now_us),
            "reset_age_seconds": module.reset_age_seconds,
        }

    def restart(self) -> None:
        """Begin anew: the machine was restarted."""
        self._ages = {}
        for errors in (*self._corrected.values(), *self._uncorrected.values()):
            errors.restart()

    def dump(self) -> dict[str, Any]:
        return {
            kind: {name: errors.dump() for name, errors in counts.items()}
            for kind, counts in (("corrected", self._corrected), ("uncorrected", self._uncorrected))
        }

    def load(self, saved: Any) -> None:
        """Take a dumped one over; raise ValueError, TypeError or KeyError where it is none."""
        corrected, uncorrected = (
            {str(name): ErrorCount.load(DAY_SECONDS, errors) for name, errors in saved[kind].items()}
            for kind in ("corrected", "uncorrected")
        )
        self._corrected, self._uncorrected = corrected, uncorrected

    def _was_reset(self, controller: str, module: Module) -> bool:
        before, age = self._ages.get(controller), module.reset_age_seconds
        return before is not None and age is not None and age < before


def _controller(module: Module) -> str:
    return module.name.partition("/")[0]


def _recent(counts: dict[str, ErrorCount], module: Module, now_us: int) -> int | None:
    errors = counts.get(module.name)
    return errors.window.total(now_us) if errors is not None and errors.count is not None else None


def _event(kind: str, module: Module, count: int) -> dict[str, Any]:
    return {
        "event": kind,
        "severity": "fatal" if kind == "dimm_ue" else "corrected",
        "device": module.name,
        "label": module.facts.get("label"),
        "occurrences": count,
        "detail": module.facts.get("location"),
    }
