"""The machine of a host as its kernel shows it: a `/proc` and a `/sys` in a folder, and an answer of chrony.

Two processors, sixteen memory modules, GPUs and NICs in pairs behind PCIe switches, two disks. Forms and names:
Linux Documentation/ABI/testing/sysfs-devices-edac, sysfs-bus-pci and sysfs-bus-pci-devices-aer_stats, drivers/edac
(i10nm_base.c), drivers/pci/pcie/aer.c, Documentation/hwmon/coretemp, proc(5), chronyc(1).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from twin.plan import GPU_BUSES, NIC_BUSES

Severity: TypeAlias = Literal["correctable", "nonfatal", "fatal"]

SOCKETS = 2
CONTROLLERS_PER_SOCKET = 4
MODULES_PER_CONTROLLER = 2
MODULE_MIB = 65_536
MEMORY_BYTES = SOCKETS * CONTROLLERS_PER_SOCKET * MODULES_PER_CONTROLLER * MODULE_MIB * 1_048_576
TICKS_PER_SECOND = 100

CORRECTABLE = (
    "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF",
)  # fmt: skip
UNCORRECTABLE = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC",
    "UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked",
)  # fmt: skip
_TOTALS = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}

_PORT, _SWITCH = ("0x060400", "0x8086", "0x352a"), ("0x060400", "0x1000", "0xc030")
_GPU, _NIC = ("0x030200", "0x10de", "0x2330"), ("0x020700", "0x15b3", "0x1021")
_DISK = ("0x010802", "0x144d", "0xa80a")

_GPUS = tuple(f"0000:{bus.lower()}:00.0" for bus in GPU_BUSES)
_NICS = tuple(f"0000:{bus}:00.0" for bus in NIC_BUSES)


@dataclass(slots=True)
class _Device:
    """A PCI device: its place under the root complex, what it is, its link and its errors."""

    path: str
    codes: tuple[str, str, str]
    max_width: int
    width: int
    numa_node: int
    speed: str = "32.0 GT/s PCIe"
    errors: dict[tuple[Severity, str], int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return self.path.rpartition("/")[2]


class HostTree:
    """Writes the files of one machine and keeps them up to date; for one thread.

    `procfs`, `sysfs` and `chronyc` are what a reader is given. Time passes by `advance`; a fault shows at once.
    """

    def __init__(
        self,
        folder: Path,
        now_us: int,
        *,
        gpus: Sequence[str] = _GPUS,
        nics: Sequence[str] = _NICS,
        cores_per_socket: int = 16,
        uptime_seconds: float = 864_000.0,
    ) -> None:
        self.procfs, self.sysfs, self.chronyc = folder / "proc", folder / "sys", folder / "chronyc"
        self._proc, self._sys = self.procfs, self.sysfs
        self._now_us = now_us
        self._cpus = SOCKETS * cores_per_socket * 2
        self._cores_per_socket = cores_per_socket
        self._boots = 0
        self._folder = folder
        self._devices = {device.address: device for device in _devices(gpus, nics)}
        self._gone: set[str] = set()
        self._offset_seconds = 0.000_002
        self._synchronised = True
        self.busy_ratio = 0.1
        self.temperature_celsius = 45.0
        self._begin(uptime_seconds)
        self._write_machine()
        for device in self._devices.values():
            self._write_device(device)
        self._write_clock()
        self.chronyc.write_text('#!/bin/sh\ncat "${0%/*}/tracking"\n', encoding="ascii")
        self.chronyc.chmod(0o755)

    @property
    def dimms(self) -> list[str]:
        """Names of the memory modules, as the folders of their controllers have them."""
        return list(self._modules)

    def advance(self, seconds: float) -> None:
        """Let time pass: processors work `busy_ratio` of it at `temperature_celsius`."""
        self._now_us += round(seconds * 1_000_000)
        self._uptime_seconds += seconds
        ticks = round(seconds * TICKS_PER_SECOND * self._cpus)
        busy = round(ticks * self.busy_ratio)
        self._user_ticks += busy * 4 // 5
        self._system_ticks += busy - busy * 4 // 5
        self._idle_ticks += ticks - busy
        self._write_time()

    def corrected_errors(self, dimm: str, count: int = 1) -> None:
        """Let a memory module have errors that are corrected."""
        self._modules[dimm][0] += count
        self._write_module(dimm)

    def uncorrected_errors(self, dimm: str, count: int = 1) -> None:
        """Let a memory module lose data, in a page that the kernel could do without."""
        self._modules[dimm][1] += count
        self._write_module(dimm)

    def reload_edac(self) -> None:
        """Load the driver of the memory controllers anew: its counters begin at 0."""
        self._edac_seconds = self._uptime_seconds
        for dimm in self._modules:
            self._modules[dimm] = [0, 0]
            self._write_module(dimm)
        self._write_time()

    def pcie_errors(self, address: str, severity: Severity, name: str, count: int = 1) -> None:
        """Let a device see errors of a name that the AER driver prints."""
        if name not in (CORRECTABLE if severity == "correctable" else UNCORRECTABLE):
            raise ValueError(f"no {severity} error is called {name!r}")
        device = self._devices[address]
        device.errors[severity, name] = device.errors.get((severity, name), 0) + count
        self._write_device(device)

    def narrow(self, address: str, width: int) -> None:
        """Train a device's link with fewer lanes."""
        self._devices[address].width = width
        self._write_device(self._devices[address])

    def lose(self, address: str) -> None:
        """Take a device off the bus."""
        self._gone.add(address)
        (self._sys / "bus/pci/devices" / address).unlink(missing_ok=True)

    def restore(self, address: str) -> None:
        """Put it back, with its counters at 0."""
        self._gone.discard(address)
        device = self._devices[address]
        device.errors, device.width = {}, device.max_width
        self._write_device(device)

    def throttle(self, times: int = 1) -> None:
        """Slow a processor down from heat."""
        self._throttles += times
        self._write_throttles()

    def set_clock(self, *, offset_seconds: float, synchronised: bool = True) -> None:
        """Say how far the clock is ahead, and whether a time source is heard."""
        self._offset_seconds, self._synchronised = offset_seconds, synchronised
        self._write_clock()

    def reboot(self, seconds: float = 240.0) -> None:
        """Start the machine anew: every counter at 0, what was lost still lost. Meanwhile nothing of it answers."""
        self._proc, self._sys = self._folder / "off-proc", self._folder / "off-sys"
        self.procfs.rename(self._proc)
        self.sysfs.rename(self._sys)
        self._now_us += round(seconds * 1_000_000)
        self._begin(uptime_seconds=60.0)
        self._write_machine()
        for address in self._devices.keys() - self._gone:
            self._devices[address].errors = {}
            self._write_device(self._devices[address])
        self._proc = self._proc.rename(self.procfs)
        self._sys = self._sys.rename(self.sysfs)

    def _begin(self, uptime_seconds: float) -> None:
        """Set what the kernel counts from its start."""
        self._boots += 1
        self._uptime_seconds = uptime_seconds
        self._booted_us = self._now_us - round(uptime_seconds * 1_000_000)
        self._edac_seconds = 20.0  # after the start the driver is loaded
        ticks = round(uptime_seconds * TICKS_PER_SECOND * self._cpus)
        self._user_ticks, self._system_ticks, self._idle_ticks = ticks // 12, ticks // 50, ticks * 8 // 9
        self._throttles = 0
        self._modules = {f"{controller}/{module}": [0, 0] for controller, module in _slots()}

    def _write_machine(self) -> None:
        name = f"{self._folder.resolve()}/{self._booted_us}/{self._boots}"
        boot_id = uuid.uuid5(uuid.NAMESPACE_URL, name)
        self._write(self._proc / "sys/kernel/random/boot_id", f"{boot_id}\n")
        self._write(self._proc / "sys/kernel/osrelease", "6.8.0-1027-generic\n")
        for number in range(self._cpus):
            core = number % (SOCKETS * self._cores_per_socket)
            at = self._sys / f"devices/system/cpu/cpu{number}/topology"
            self._write(at / "physical_package_id", f"{core // self._cores_per_socket}\n")
            self._write(at / "core_id", f"{core % self._cores_per_socket}\n")
        for socket in range(SOCKETS):
            chip = self._sys / f"class/hwmon/hwmon{socket}"
            self._write(chip / "name", "coretemp\n")
            self._write(chip / "temp1_label", f"Package id {socket}\n")
            self._write(chip / "temp1_crit", "100000\n")
        self._write_throttles()
        self._write_controllers()
        self._write_time()

    def _write_throttles(self) -> None:
        for number in range(self._cpus):
            at = self._sys / f"devices/system/cpu/cpu{number}/thermal_throttle"
            of_first = self._throttles if number % (SOCKETS * self._cores_per_socket) == 0 else 0
            self._write(at / "core_throttle_count", f"{of_first}\n")
            in_first = self._throttles if number // self._cores_per_socket % SOCKETS == 0 else 0
            self._write(at / "package_throttle_count", f"{in_first}\n")

    def _write_controllers(self) -> None:
        for dimm in self._modules:
            controller, _, module = dimm.partition("/")
            socket, part = divmod(int(controller[2:]), CONTROLLERS_PER_SOCKET)
            at = self._sys / "devices/system/edac/mc" / controller
            self._write(at / "mc_name", f"Intel_10nm Socket#{socket} IMC#{part}\n")
            self._write(at / "size_mb", f"{MODULES_PER_CONTROLLER * MODULE_MIB}\n")
            self._write(at / "ce_noinfo_count", "0\n")
            self._write(at / "ue_noinfo_count", "0\n")
            label = f"CPU_SrcID#{socket}_MC#{part}_Chan#{module[4:]}_DIMM#0"
            self._write(at / module / "dimm_label", f"{label}\n")
            self._write(at / module / "dimm_location", f"channel {module[4:]} slot 0 \n")
            self._write(at / module / "dimm_mem_type", "Registered-DDR5\n")
            self._write(at / module / "size", f"{MODULE_MIB}\n")
            self._write_module(dimm)

    def _write_module(self, dimm: str) -> None:
        at = self._sys / "devices/system/edac/mc"
        controller = dimm.partition("/")[0]
        for place, file in enumerate(("ce_count", "ue_count")):
            self._write(at / dimm / f"dimm_{file}", f"{self._modules[dimm][place]}\n")
            whole = sum(
                counts[place] for name, counts in self._modules.items() if name.startswith(f"{controller}/")
            )
            self._write(at / controller / file, f"{whole}\n")

    def _write_time(self) -> None:
        self._write(
            self._proc / "uptime", f"{self._uptime_seconds:.2f} {self._idle_ticks / TICKS_PER_SECOND:.2f}\n"
        )
        load = self.busy_ratio * self._cpus
        self._write(
            self._proc / "loadavg",
            f"{load:.2f} {load:.2f} {load:.2f} {round(load)}/4821 {self._boots}4711\n",
        )
        self._write(self._proc / "stat", "".join(self._stat()))
        self._write(self._proc / "meminfo", _meminfo())
        self._write(self._proc / "vmstat", "nr_free_pages 402653184\noom_kill 0\n")
        for controller in dict.fromkeys(controller for controller, _ in _slots()):
            since = self._uptime_seconds - self._edac_seconds
            self._write(
                self._sys / f"devices/system/edac/mc/{controller}/seconds_since_reset", f"{since:.0f}\n"
            )
        for socket in range(SOCKETS):
            heat = round(self.temperature_celsius) * 1_000
            self._write(self._sys / f"class/hwmon/hwmon{socket}/temp1_input", f"{heat}\n")

    def _stat(self) -> Iterator[str]:
        times = (self._user_ticks, 0, self._system_ticks, self._idle_ticks, 0, 0, 0, 0, 0, 0)
        yield f"cpu  {' '.join(map(str, times))}\n"
        for number in range(self._cpus):
            yield f"cpu{number} {' '.join(str(ticks // self._cpus) for ticks in times)}\n"
        yield f"ctxt {self._user_ticks * 3}\nbtime {self._booted_us // 1_000_000}\nprocs_running 9\n"

    def _write_device(self, device: _Device) -> None:
        if device.address in self._gone:
            return
        at = self._sys / "devices" / device.path
        files = dict(zip(("class", "vendor", "device"), device.codes, strict=True)) | {
            "numa_node": str(device.numa_node),
            "max_link_width": str(device.max_width),
            "current_link_width": str(device.width),
            "max_link_speed": device.speed,
            "current_link_speed": device.speed,
        }
        for severity, total in _TOTALS.items():
            names = CORRECTABLE if severity == "correctable" else UNCORRECTABLE
            counts = {name: count for (kind, name), count in device.errors.items() if kind == severity}
            lines = [f"{name} {counts.get(name, 0)}" for name in names]
            files[f"aer_dev_{severity}"] = "\n".join([*lines, f"{total} {sum(counts.values())}"])
        for name, text in files.items():
            self._write(at / name, f"{text}\n")
        link = self._sys / "bus/pci/devices" / device.address
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(f"../../../devices/{device.path}")

    def _write_clock(self) -> None:
        leap = "Normal" if self._synchronised else "Not synchronised"
        reference = "0A000001,10.0.0.1,3" if self._synchronised else "00000000,,0"
        figures = f"{self._now_us / 1e6:.6f},{-self._offset_seconds:.9f},0.000001,0.000003,-1.2,0.001,0.02,0.0004,0.0002,64.2"
        self._write(self._folder / "tracking", f"{reference},{figures},{leap}\n")

    def _write(self, path: Path, text: str) -> None:
        """Give a file its contents at once: a reader of the kernel never sees half of them."""
        part = path.with_name(path.name + ".part")
        try:
            part.write_text(text, encoding="utf-8")
        except FileNotFoundError:
            path.parent.mkdir(parents=True)
            part.write_text(text, encoding="utf-8")
        part.replace(path)


def _slots() -> Iterator[tuple[str, str]]:
    for controller in range(SOCKETS * CONTROLLERS_PER_SOCKET):
        yield from ((f"mc{controller}", f"dimm{module}") for module in range(MODULES_PER_CONTROLLER))


DIMMS = tuple(f"{controller}/{module}" for controller, module in _slots())
"""Every memory module, by the folder of its controller and its own."""


def _devices(gpus: Sequence[str], nics: Sequence[str]) -> Iterator[_Device]:
    """Yield root ports, switches and what hangs below: a GPU and a NIC share a switch, disks have their own ports."""
    for number in range(max(len(gpus), len(nics))):
        pair = [(a, codes) for a, codes in (*_nth(nics, number, _NIC), *_nth(gpus, number, _GPU))]
        bus = int(pair[-1][0].split(":")[1], 16)
        node = number * SOCKETS // max(len(gpus), len(nics))
        root = f"pci0000:{bus - 6:02x}/0000:{bus - 6:02x}:01.0"
        switch = f"{root}/0000:{bus - 5:02x}:00.0"
        yield _Device(root, _PORT, 16, 16, node)
        yield _Device(switch, _SWITCH, 16, 16, node)
        for place, (address, codes) in enumerate(pair):
            lower = f"{switch}/0000:{bus - 4:02x}:{place:02x}.0"
            yield _Device(lower, _SWITCH, 16, 16, node)
            yield _Device(f"{lower}/{address}", codes, 16, 16, node)
    for number in range(2):
        root = f"pci0000:00/0000:00:1c.{number}"
        yield _Device(root, _PORT, 8, 4, 0)
        yield _Device(f"{root}/0000:{number + 1:02x}:00.0", _DISK, 4, 4, 0, speed="16.0 GT/s PCIe")


def _nth(
    addresses: Sequence[str], number: int, codes: tuple[str, str, str]
) -> list[tuple[str, tuple[str, str, str]]]:
    """Return an address as the kernel writes it, `00000000:53:00.0` too."""
    if number >= len(addresses):
        return []
    domain, rest = addresses[number].lower().split(":", 1)
    return [(f"{domain[-4:]}:{rest}", codes)]


def _meminfo() -> str:
    total = MEMORY_BYTES // 1_024
    figures = {"MemTotal": total, "MemFree": total // 2, "MemAvailable": total * 3 // 4, "Cached": total // 4}
    return "".join(
        f"{name}:{value:>14} kB\n" for name, value in (figures | {"SwapTotal": 0, "SwapFree": 0}).items()
    )
