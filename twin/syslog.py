"""The system log of a host: what its kernel prints and what programs add, in the file that rsyslog writes.

A line is `time host tag: message` with an RFC 3339 time (rsyslog, RSYSLOG_FileFormat); what the kernel printed has
the tag `kernel` and its own uptime in front. Texts of drivers: NVIDIA open-gpu-kernel-modules (NVRM, Xid), Linux
drivers/net/ethernet/mellanox/mlx5/core (health.c, events.c).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from twin.plan import DRIVER_VERSION, Draw, Host, Plan

KERNEL = "kernel"

_NOISE_PER_SECOND = 0.05
_LINE_US = 60  # lines of one moment follow each other
_UPTIME_DAYS = (2.0, 40.0)
_DRIVERS_LOAD_US = 9_000_000  # after the kernel has started


class Message(NamedTuple):
    """One message; of the kernel where no other tag is given."""

    text: str
    tag: str = KERNEL


# What a healthy host says: nothing of it is a fault, much of it looks like one to a search for words.
NOISE = (
    Message("pcieport 0000:51:01.0: PME: Signaling with IRQ 142"),
    Message(
        "workqueue: ib_cache_event_task [ib_core] hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND"
    ),
    Message(
        "perf: interrupt took too long (2517 > 2500), lowering kernel.perf_event_max_sample_rate to 79250"
    ),
    Message("nvidia-uvm: Loaded the UVM driver, major device number 508."),
    Message("sched: RT throttling activated"),
    Message("NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS"),
    Message("Finished Rotate log files.", "systemd[1]"),
    Message("(root) CMD (command -v debian-sa1 > /dev/null && debian-sa1 1 1)", "CRON[48213]"),
    Message("request to query NVSwitch device information failed, trying again", "nv-fabricmanager[4177]"),
)


def pci(bus_id: str) -> str:
    """Write `00000000:53:00.0` as the GPU driver does in an Xid: `0000:53:00`."""
    domain, bus, device = bus_id.lower().split(":")
    return f"{domain[-4:]}:{bus}:{device.partition('.')[0]}"


def xid(bus_id: str, code: int, text: str) -> str:
    """Return the line of an Xid that no process is blamed for."""
    return f"NVRM: Xid (PCI:{pci(bus_id)}): {code}, pid='<unknown>', name=<unknown>, {text}"


def boot_messages(host: Host) -> list[Message]:
    """Return what the drivers print when the host starts."""
    texts = [
        "Linux version 6.8.0-60-generic (buildd@lcy02-amd64-098) (x86_64-linux-gnu-gcc-13)",
        "nvidia: loading out-of-tree module taints kernel.",
        *(
            line
            for nic in host.nics
            for line in (
                f"mlx5_core {nic.pci_bus_id}: PCIe slot advertised sufficient power (75W).",
                f"mlx5_core {nic.pci_bus_id}: Port module event: module 0, Cable plugged",
            )
        ),
        f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER_VERSION}  Release Build",
        *(f"NVRM: GPU at PCI:{pci(gpu.pci_bus_id)}: {gpu.uuid}" for gpu in host.gpus),
    ]
    return [Message(text) for text in texts]


class Syslogs:
    """The log of every host of a plan, in plan order. The same plan and steps write the same lines."""

    def __init__(self, plan: Plan, start_us: int) -> None:
        self._hosts = plan.hosts
        self._rng = Draw.SYSLOG.generator(plan.seed)
        days = self._rng.uniform(*_UPTIME_DAYS, len(plan.hosts))
        self._boot_us = [start_us - round(float(count) * 86_400e6) for count in days]
        self._lines = [
            self._format(number, boot_messages(host), self._boot_us[number] + _DRIVERS_LOAD_US)
            for number, host in enumerate(plan.hosts)
        ]

    def step(self, seconds: float, now_us: int, printed: Sequence[Iterable[Message]]) -> None:
        """Add what each host printed in the step that ends now, and what it says anyway."""
        noisy = self._rng.random(len(self._hosts)) < _NOISE_PER_SECOND * seconds
        chosen = self._rng.integers(len(NOISE), size=len(self._hosts))
        for number, messages in enumerate(printed):
            noise = [NOISE[chosen[number]]] if noisy[number] else []
            self._lines[number] += self._format(number, [*messages, *noise], now_us)

    def take(self, host: int) -> list[str]:
        """Return the lines of a host since the last call, without their ends."""
        lines, self._lines[host] = self._lines[host], []
        return lines

    def _format(self, host: int, messages: Iterable[Message], now_us: int) -> list[str]:
        lines = []
        for number, message in enumerate(messages):
            at_us = now_us + number * _LINE_US
            at = datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="microseconds")
            uptime = f"[{(at_us - self._boot_us[host]) / 1e6:12.6f}] " if message.tag == KERNEL else ""
            lines.append(f"{at} {self._hosts[host].name} {message.tag}: {uptime}{message.text}")
        return lines
