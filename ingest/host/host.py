"""The collector of a host's own state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import Field, field_validator

from contract.errors import CollectError
from contract.streams.host import HOST_DIMMS, HOST_EVENTS, HOST_PCIE, HOST_SAMPLES
from ingest.collector import Context, HostConfig, Reading, Rows, collector
from ingest.due import Due
from ingest.host import memory
from ingest.host.figures import to_count, to_float
from ingest.host.pcie import Device, DeviceHistory, PcieBus, kernel_address
from ingest.host.presence import Expectation
from ingest.host.processors import Processors
from ingest.host.timekeeping import Chrony, ClockState, KernelClock, Timekeeper
from ingest.sysfs import KernelTree

_NOT_A_CHANGE = frozenset(
    {"reset_age_seconds", "corrected_errors_24h", "uncorrected_errors_24h", "correctable_errors_1h"}
)
_POWER_SAVERS = ("gpu", "bridge")
"""Their links slow down and speed up with their work."""


class MachineConfig(HostConfig):
    """A host."""

    procfs_root: Path = Field(
        default=Path("/proc"), description="Its `/proc`; elsewhere in a container that hides it."
    )
    sysfs_root: Path = Field(
        default=Path("/sys"), description="Its `/sys`; elsewhere in a container that hides it."
    )
    expected_devices: dict[Literal["gpu", "nic", "nvme", "nvswitch"], int] | None = Field(
        default=None,
        description="How many devices of a class it has, like `{gpu = 8, nic = 8}`: fewer are missing from the "
        "first reading on. Without it, what was once there is expected.",
    )
    expected_addresses: tuple[str, ...] = Field(
        default=(),
        description="PCI addresses that must be there, like `0000:53:00.0`, of any class.",
    )
    forget_missing_after_days: float = Field(
        default=7,
        gt=0,
        le=3_650,
        description="A device seen before and missing for so long is expected no more.",
    )
    chronyc: Path | None = Field(
        default=None,
        description="The program `chronyc`, asked every minute: under chrony the kernel does not know the offset.",
    )

    @field_validator("expected_addresses")
    @classmethod
    def _is_address(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(kernel_address(address) for address in addresses)

    @field_validator("expected_devices")
    @classmethod
    def _is_count(cls, counts: dict[str, int] | None) -> dict[str, int] | None:
        if any(not 0 <= count <= 1_000 for count in (counts or {}).values()):
            raise ValueError("a number of devices is between 0 and 1,000")
        return counts


@collector("host", MachineConfig, (HOST_SAMPLES, HOST_DIMMS, HOST_PCIE, HOST_EVENTS))
class HostCollector:
    """Reads the state of the machine itself from `/proc` and `/sys`.

    ```toml
    [[ingest.collectors]]
    collector = "host"
    host = "h100-a01-01"
    expected_devices = { gpu = 8, nic = 8 }
    ```

    **Reads** processors (use, load, heat, throttling), memory, the errors that memory controllers count (EDAC, by
    DIMM, or by row and channel on old kernels), PCIe devices (presence, width and speed of the link, AER counts),
    the boot id, and the clock (adjtimex, or chrony). **Privileges:** none; no file is written. A
    container shows the host's own figures unless its runtime masks them; then mount `/proc` and `/sys`. **A poll costs** a host with 16 DIMMs, 8 GPUs, 8
    NICs and 112 cores some 500 small reads ([benchmarks](benchmarks.md) say how long); a link's width is a read of the
    device's PCI configuration space. **When something fails:** a file that cannot be read is a null and counted in
    `collector_status` (`denied`, `gone`, `refused`); the rest of the reading counts. A PCI bus that cannot be listed
    says nothing about any device.

    Counters are set back by a reboot, by a driver that is loaded again, by hand: `…_24h` and `…_1h` count errors
    across that, since the first reading. DIMMs and PCIe devices have rows on change and every 60 s, those that are
    missing or too narrow at every reading. A device that was there and is gone stays, as `missing`, until it is back or
    forgotten; after a reboot addresses may differ, so that then only the number of devices of a kind counts.
    """

    def __init__(
        self, config: MachineConfig, context: Context, *, timekeeper: Timekeeper | None = None
    ) -> None:
        trees = [
            KernelTree(root, context.clock, timeout_seconds=config.timeout_seconds)
            for root in (config.procfs_root, config.sysfs_root)
        ]
        self._procfs, self._sysfs = trees
        self._processors = Processors(self._procfs, self._sysfs)
        self._edac = memory.Edac(self._sysfs)
        self._bus = PcieBus(self._sysfs)
        self._modules = memory.ModuleHistory()
        self._devices = DeviceHistory()
        self._expected = Expectation(
            {str(name): count for name, count in (config.expected_devices or {}).items()},
            config.expected_addresses,
            forget_after_days=config.forget_missing_after_days,
        )
        self._timekeeper = timekeeper or _timekeeper(config)
        self._clock_due = Due(60 if config.chronyc else 0)
        self._clock: ClockState | None = None
        self._synchronised: bool | None = None
        self._boot_id: str | None = None
        self._restarted = False
        """Since devices were last seen."""
        self._dimm_rows, self._pcie_rows = _Changes("dimm"), _Changes("device")

    def collect(self, now_us: int) -> Reading:
        self._procfs.begin()
        self._sysfs.begin()
        sample = self._boot() | self._processors.read() | memory.usage(self._procfs)
        modules, errors, devices = self._edac.modules(), self._edac.totals(), self._bus.devices()
        if not any(value is not None for value in sample.values()) and not modules and devices is None:
            raise CollectError("no_data", "neither /proc nor /sys tells anything")
        if self._clock_due.at(now_us):
            self._clock = self._timekeeper.state()

        # From here on nothing is read: a reading that fails has changed nothing that is remembered.
        events = list(self._reboot(sample))
        events += [*self._modules.see(modules, now_us), *self._clock_change()]
        pcie: list[dict[str, Any]] = []
        if devices is not None:
            events += self._devices.see(devices, now_us)
            told, pcie = self._presence(devices, now_us)
            events += told
            sample |= _totals(pcie)
        sample |= errors | (self._clock.columns() if self._clock is not None else {})
        dimms = [self._modules.row(module, now_us) for module in modules]
        rows = (
            (HOST_SAMPLES, [sample]),
            (HOST_DIMMS, self._dimm_rows.of(dimms, now_us)),
            (HOST_PCIE, self._pcie_rows.of(pcie, now_us)),
            (HOST_EVENTS, [{"ts": now_us, "boot_id": self._boot_id} | event for event in events]),
        )
        return Reading(
            rows=[Rows.gather(stream, found) for stream, found in rows if found],
            rejected=self._procfs.failures + self._sysfs.failures,
        )

    def cursor(self) -> bytes:
        return orjson.dumps(
            {
                "boot_id": self._boot_id,
                "synchronised": self._synchronised,
                "modules": self._modules.dump(),
                "devices": self._devices.dump(),
                "expected": self._expected.dump(),
            }
        )

    def restore(self, cursor: bytes) -> None:
        try:
            saved = orjson.loads(cursor)
            self._modules.load(saved["modules"])
            self._devices.load(saved["devices"])
            self._expected.load(saved["expected"])
            boot_id, synchronised = saved["boot_id"], saved["synchronised"]
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        self._boot_id = boot_id if isinstance(boot_id, str) else None
        self._synchronised = synchronised if isinstance(synchronised, bool) else None

    def close(self) -> None:
        pass

    def _boot(self) -> dict[str, Any]:
        """Return columns of a host's row."""
        uptime = (self._procfs.text("uptime") or "").split()
        booted = [
            line[6:] for line in (self._procfs.text("stat") or "").splitlines() if line.startswith("btime ")
        ]
        seconds = to_count(booted[0]) if booted else None
        return {
            "boot_id": self._procfs.text("sys/kernel/random/boot_id") or None,
            "kernel": self._procfs.text("sys/kernel/osrelease") or None,
            "uptime_seconds": to_float(uptime[0]) if uptime else None,
            "booted_at": seconds * 1_000_000 if seconds is not None and seconds < 2**40 else None,
        }

    def _reboot(self, sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the reboot since the reading before, dated when the kernel started."""
        boot_id, before = sample["boot_id"], self._boot_id
        if boot_id is None:
            return
        self._boot_id = boot_id
        if before is None or before == boot_id:
            return
        self._restarted = True
        self._modules.restart()
        self._devices.restart()
        event = {
            "event": "reboot",
            "severity": "info",
            "previous_boot_id": before,
            "detail": sample["kernel"],
        }
        yield event | ({"ts": sample["booted_at"]} if sample["booted_at"] else {})

    def _clock_change(self) -> Iterator[dict[str, Any]]:
        if self._clock is None:
            return
        before, self._synchronised = self._synchronised, self._clock.synchronised
        if before is not None and before != self._synchronised:
            event = "clock_synchronised" if self._synchronised else "clock_unsynchronised"
            yield {"event": event, "severity": "info", "detail": self._clock.source}

    def _presence(
        self, devices: Mapping[str, Device], now_us: int
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return events of devices that went or came, and the rows of all that are there or should be."""
        events, rows = [], [self._devices.row(device, now_us) for device in devices.values()]
        restarted, self._restarted = self._restarted, False
        for change, name, device_class in self._expected.see(
            devices, self._bus.listed, now_us, restarted=restarted
        ):
            row = {"device": name, "device_class": device_class}
            if change == "withdrawn":
                rows.append(row | {"presence": "withdrawn"})
            else:
                severity = "fatal" if change == "device_missing" else "info"
                events.append(row | {"event": change, "severity": severity})
        rows += [
            {"device": name, "device_class": self._expected.device_class(name), "presence": "missing"}
            for name in self._expected.missing
        ]
        return events, rows


class _Changes:
    """Leaves out rows that say what they said before, but for one in 60 s; what is wrong is told every time."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._due = Due(60)
        self._before: dict[str, dict[str, Any]] = {}

    def of(self, rows: Sequence[dict[str, Any]], now_us: int) -> list[dict[str, Any]]:
        every = self._due.at(now_us)
        before, self._before = self._before, {row[self._key]: _lasting(row) for row in rows}
        return [
            row
            for row in rows
            if every or _is_wrong(row) or before.get(row[self._key]) != self._before[row[self._key]]
        ]


def _is_wrong(row: Mapping[str, Any]) -> bool:
    """Return whether a device is missing or its link too narrow: rules count how long it stays so."""
    width, most = row.get("link_width"), row.get("max_link_width")
    return row.get("presence") == "missing" or (width is not None and most is not None and width < most)


def _lasting(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is a change where it differs: neither time that passes nor a link that saves power."""
    saves = row.get("device_class") in _POWER_SAVERS
    left_out = _NOT_A_CHANGE | ({"link_speed_gts"} if saves else frozenset())
    return {column: value for column, value in row.items() if column not in left_out}


def _totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count devices for the host's row."""
    present = [row["device_class"] for row in rows if row["presence"] == "present"]
    return {
        "gpus": present.count("gpu"),
        "nics": present.count("nic"),
        "nvmes": present.count("nvme"),
        "devices_missing": sum(row["presence"] == "missing" for row in rows),
    }


def _timekeeper(config: MachineConfig) -> Timekeeper:
    if config.chronyc is None:
        return KernelClock()
    return Chrony(config.chronyc, timeout_seconds=config.timeout_seconds / 2)
