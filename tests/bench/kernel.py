"""Reading kernel logs: lines per second of CPU time, against a loop that tries every pattern on each line.

The log is mixed: boot messages, disks, USB, containers and the driver's small talk, with one line in a hundred about
a GPU, a switch or a network card. Ours searches chunks for a few words, then reads what is left (prefilter, shapes,
parser). The baseline reads each line's shape and tries each pattern of the tables in turn, as a table-driven reader
without a search would. The second figure is the worst case for ours: one Xid repeated, no line is left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from bench import BenchRow, median_ratio

from ingest.kernel import nic, parser
from ingest.kernel.formats import parse_line
from ingest.kernel.parser import KernelParser
from ingest.kernel.prefilter import relevant_lines
from ingest.kernel.tables import read_table

LINES = 20_000
CHUNK_LINES = 5_000
NOW_US = 1_790_000_000_000_000

_QUIET = (
    "usb 1-{n}: New USB device found, idVendor=174c, idProduct=2074, bcdDevice= 2.00",
    "nvme nvme{n}: {n}/0/0 default/read/poll queues",
    "EXT4-fs (nvme0n1p{n}): mounted filesystem with ordered data mode. Quota mode: none.",
    "audit: type=1400 audit(1556276992.003:{n}): apparmor=STATUS operation=profile_load pid={n} comm=apparmor_parser",
    "IPv6: ADDRCONF(NETDEV_CHANGE): cali{n}: link becomes ready",
    "oom_reaper: reaped process {n} (vector), now anon-rss:0kB, file-rss:0kB, shmem-rss:0",
    "pt_main_thread[{n}]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libnccl.so.2",
    "workqueue: ib_cache_event_task [ib_core] hogged CPU for >10000us {n} times, consider switching to WQ_UNBOUND",
    "pci 0000:{n:02x}:00.0: BAR 0: assigned [mem 0x38{n:04x}00000-0x38{n:04x}fffff 64bit pref]",
)
_TOLD = (
    "NVRM: Xid (PCI:0000:0a:00): 31, pid={n}, name=python3, Ch 00000010, intr 00000000. MMU Fault: ENGINE CE2",
    "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS",
    "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
    "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
    "mlx5_core 0004:01:00.0: mlx5_pcie_event:294:(pid 542): PCIe slot advertised sufficient power (75W).",
)

_KINDS = (
    parser._XID,
    parser._SXID,
    parser._MAP,
    parser._LOST,
    parser._NAMED,
    parser._LOADED,
    parser._FABRIC_MANAGER,
    parser._NEURON,
    parser._AMD,
    nic._CARRIER,
    nic._PORT_LINK,
    nic._INTERFACE_LINK,
)


def measure() -> list[BenchRow]:
    """Return the figures; a mixed log at 100,000 lines a second and five times the baseline, or more."""
    log = _chunks(b"".join(_line(number) for number in range(LINES)))
    ours, theirs, ratio = median_ratio(
        lambda: _lines_per_second(lambda: _read(log)), lambda: _lines_per_second(lambda: _try_all(log))
    )
    repeats = _chunks(b"".join(f"[{n}.5] {_TOLD[0].format(n=1)}\n".encode() for n in range(LINES)))
    worst = _lines_per_second(lambda: _read(repeats))
    return [
        BenchRow(
            name="read a mixed kernel log",
            value=ours,
            unit="lines/s CPU",
            baseline=theirs,
            goal=">= 100,000 and >= 5 x baseline",
            holds=ours >= 100_000 and ratio >= 5,
        ),
        BenchRow(
            name="read one Xid repeated",
            value=worst,
            unit="lines/s CPU",
            baseline=None,
            goal=">= 20,000",
            holds=worst >= 20_000,
        ),
    ]


def _line(number: int) -> bytes:
    shapes = _TOLD if number % 100 == 0 else _QUIET
    return f"[{number // 10:8d}.{number:06d}] {shapes[number // 7 % len(shapes)].format(n=number % 97)}\n".encode()


def _chunks(log: bytes) -> list[bytes]:
    lines = log.splitlines(keepends=True)
    return [b"".join(lines[start : start + CHUNK_LINES]) for start in range(0, len(lines), CHUNK_LINES)]


def _read(chunks: Sequence[bytes]) -> int:
    reader = KernelParser()
    for chunk in chunks:
        raws = relevant_lines(chunk).lines
        lines = [line for raw in raws if (line := parse_line(raw, boot_us=NOW_US)) is not None]
        reader.feed(lines, NOW_US)
        reader.events(NOW_US)
    return sum(chunk.count(b"\n") for chunk in chunks)


def _try_all(chunks: Sequence[bytes]) -> int:
    """Try every pattern that tells a kind of line, wherever it may stand in it."""
    patterns = [*_KINDS]
    patterns += [
        re.compile(
            f"{re.escape(row['driver'])}.*{re.escape(row['contains'])}.*{re.escape(row['also_contains'])}"
        )
        for row in read_table("nic.tsv")
    ]
    count = 0
    for chunk in chunks:
        for raw in chunk.splitlines():
            line = parse_line(raw, boot_us=NOW_US)
            if line is not None:
                count += 1
                for pattern in patterns:
                    pattern.search(line.text)
    return count


def _lines_per_second(work: Callable[[], int]) -> float:
    start = time.thread_time()
    return work() / (time.thread_time() - start)
