"""The RDMA devices of one host as files: what Linux shows of them below `/sys`.

Files and texts: Linux Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c; counters of
EFA: drivers/infiniband/hw/efa/efa_verbs.c. A counter of a port stops at the most its width holds, as the adapters'
own do, and a link that is down counts nothing.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from twin.plan import NIC_SPEED_GBPS, Host, Nic

Style: TypeAlias = Literal["infiniband", "efa"]

LANES = 4
_GENERATIONS = {200: "XDR", 100: "NDR", 50: "HDR", 25: "EDR", 10: "QDR"}  # by Gb/s of a lane
_DOWN_RATE = "10 Gb/sec (4X SDR)"  # what mlx5 answers for a link that is down

_WIDTHS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_rcv_constraint_errors": 8,
    "port_xmit_constraint_errors": 8,
    "port_xmit_discards": 16,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
    "port_xmit_data": 64,
    "port_rcv_data": 64,
    "port_xmit_packets": 64,
    "port_rcv_packets": 64,
    "unicast_xmit_packets": 64,
    "unicast_rcv_packets": 64,
    "multicast_xmit_packets": 64,
    "multicast_rcv_packets": 64,
}
_HARDWARE = (
    "out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err",
    "out_of_buffer", "duplicate_request", "np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled",
    "rp_cnp_ignored", "rx_read_requests", "rx_write_requests", "rx_atomic_requests", "roce_adp_retrans",
    "roce_slow_restart", "req_cqe_error", "req_cqe_flush_error", "resp_cqe_error", "resp_cqe_flush_error",
)  # fmt: skip
_EFA_PORT = (
    "tx_bytes", "tx_pkts", "rx_bytes", "rx_pkts", "rx_drops", "send_bytes", "send_wrs", "recv_bytes", "recv_wrs",
    "rdma_read_wrs", "rdma_read_bytes", "rdma_read_wr_err", "rdma_read_resp_bytes", "rdma_write_wrs",
    "rdma_write_bytes", "rdma_write_wr_err", "rdma_write_recv_bytes", "retrans_bytes", "retrans_pkts",
    "retrans_timeout_events", "impaired_remote_conn_events", "unresponsive_remote_events",
)  # fmt: skip
_EFA_DEVICE = (
    "submitted_cmds", "completed_cmds", "cmds_err", "no_completion_cmds", "keep_alive_rcvd", "alloc_pd_err",
    "create_qp_err", "create_cq_err", "reg_mr_err", "alloc_ucontext_err", "create_ah_err", "mmap_err",
)  # fmt: skip

_PACKET_BYTES = {"infiniband": 4_096, "efa": 8_192}
_WORD_BYTES = 4
_REQUEST_BYTES = 1_048_576
_WAIT_TICKS_PER_SECOND = 40_000.0  # of a port that sends all the time
_PACKETS_PER_TIMEOUT = 14  # sent again for each (an EFA under a bulk write)
_KEEP_ALIVE_SECONDS = 1.0


@dataclass(slots=True)
class _Port:
    """One device with its port: what it is set to, and what it has counted."""

    nic: Nic
    up: bool = True
    plugged: bool = True
    lanes: int = LANES
    lane_gbps: float = NIC_SPEED_GBPS / LANES
    carrier_changes: int = 1
    timeouts_per_second: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    rest: dict[str, float] = field(default_factory=dict)
    """Parts of a count that are not whole yet."""

    @property
    def bytes_per_second(self) -> float:
        return self.lanes * self.lane_gbps * 1e9 / 8 if self.up else 0.0

    def add(self, name: str, amount: float) -> None:
        amount += self.rest.get(name, 0.0)
        whole = int(amount)
        self.rest[name] = amount - whole
        self.counts[name] = min(self.counts[name] + whole, 2 ** _WIDTHS.get(name, 64) - 1)


class FabricTree:
    """Keeps the files of a host's RDMA devices in `folder`, which stands for its `/sys`.

    Devices are told apart by their position in `host.nics`. Every call shows its effect at once; each file is whole
    at any moment.
    """

    def __init__(
        self, folder: Path, host: Host, *, style: Style = "infiniband", speed_gbps: float = NIC_SPEED_GBPS
    ) -> None:
        self._folder = folder
        self._style = style
        self._shown: dict[Path, str] = {}
        self._ports = [_Port(nic, lane_gbps=speed_gbps / LANES) for nic in host.nics]
        (folder / "class" / "infiniband").mkdir(parents=True, exist_ok=True)
        for port in self._ports:
            self._plug(port)

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the RDMA devices, in the order of the host's network cards."""
        return tuple(self._name(port) for port in self._ports)

    def step(self, seconds: float, loads: float | Sequence[float]) -> None:
        """Let time pass while each device sends and receives at a share of its speed, 0 to 1."""
        each = [loads] * len(self._ports) if isinstance(loads, int | float) else loads
        for port, load in zip(self._ports, each, strict=True):
            if self._style == "efa":
                _count_efa(port, seconds, load)
            else:
                _count_infiniband(port, seconds, load)
            self._show(port)

    def set_link(self, device: int, *, up: bool) -> None:
        """Take a link down or bring it back; an EFA shows neither."""
        port = self._ports[device]
        if port.up and not up:
            port.add("link_downed", 1)
        port.carrier_changes += port.up != up
        port.up = up
        self._show(port)

    def flap(self, device: int, times: int = 1) -> None:
        """Let a link go down and come back so fast that only its counters show it."""
        port = self._ports[device]
        if port.up:
            port.add("link_downed", times)
            port.carrier_changes += 2 * times
        self._show(port)

    def set_lanes(self, device: int, lanes: int) -> None:
        """Let a link come up again on so many lanes."""
        self._ports[device].lanes = lanes
        self.flap(device)

    def set_speed(self, device: int, gbps: float) -> None:
        """Let a link come up again at another speed of all four lanes."""
        self._ports[device].lane_gbps = gbps / LANES
        self.flap(device)

    def add_errors(self, device: int, count: int, counter: str = "symbol_error") -> None:
        """Add to one counter of errors."""
        self._ports[device].add(counter, count)
        self._show(self._ports[device])

    def set_timeouts(self, device: int, per_second: float) -> None:
        """Let answers to an EFA that sends stay away so many times a second."""
        self._ports[device].timeouts_per_second = per_second

    def unplug(self, device: int) -> None:
        """Take a device off the host: its files vanish."""
        port = self._ports[device]
        port.plugged = False
        (self._folder / "class" / "infiniband" / self._name(port)).unlink(missing_ok=True)
        (self._folder / "class" / "net" / _interface(device)).unlink(missing_ok=True)
        shutil.rmtree(self._home(port), ignore_errors=True)
        self._shown = {
            path: text for path, text in self._shown.items() if self._home(port) not in path.parents
        }

    def plug(self, device: int) -> None:
        """Bring a device back; it counts from zero."""
        port = self._ports[device]
        port.counts.clear()
        port.plugged = port.up = True
        self._plug(port)

    def _name(self, port: _Port) -> str:
        return port.nic.name if self._style == "infiniband" else f"efa_{self._ports.index(port)}"

    def _home(self, port: _Port) -> Path:
        return self._folder / "devices" / "pci0000:00" / port.nic.pci_bus_id / "infiniband" / self._name(port)

    def _plug(self, port: _Port) -> None:
        """Lay out what never changes: the driver's folders, the device's names and links."""
        home, name = self._home(port), self._name(port)
        infiniband = self._style == "infiniband"
        (home / "ports" / "1").mkdir(parents=True, exist_ok=True)
        driver = "mlx5_core" if infiniband else "efa"
        _link(home / "device", f"../../../{port.nic.pci_bus_id}")
        _link(home.parent.parent / "driver", f"../../../bus/pci/drivers/{driver}")
        digits = port.nic.guid.removeprefix("0x")
        guid = ":".join(digits[at : at + 4] for at in range(0, 16, 4))
        self._write(home / "node_guid", guid)
        self._write(home / "node_type", "1: CA" if infiniband else "4: usNIC UDP")
        self._write(home / "ports" / "1" / "link_layer", "InfiniBand" if infiniband else "Unknown")
        self._write(home / "ports" / "1" / "hw_counters" / "lifespan", "10" if infiniband else "12")
        if infiniband:
            self._write(home / "hca_type", "MT4129")
            self._write(home / "board_id", "MT_0000000838")
            self._write(home / "fw_ver", "28.43.2566")
            self._write(home / "ports" / "1" / "gids" / "0", f"fe80:0000:0000:0000:{guid}")
            self._lay_interface(port)
        self._show(port)
        _link(
            self._folder / "class" / "infiniband" / name,
            os.path.relpath(home, self._folder / "class" / "infiniband"),
        )

    def _lay_interface(self, port: _Port) -> None:
        name = _interface(self._ports.index(port))
        home = self._home(port).parent.parent / "net" / name
        self._write(home / "dev_port", "0")
        classes = self._folder / "class" / "net"
        classes.mkdir(parents=True, exist_ok=True)
        _link(classes / name, os.path.relpath(home, classes))

    def _show(self, port: _Port) -> None:
        """Write what may have changed."""
        if not port.plugged:
            return
        folder = self._home(port) / "ports" / "1"
        if self._style == "efa":
            state, phys, rate = "4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)"
            counters = {f"hw_counters/{name}": port.counts[name] for name in _EFA_PORT}
            for name in _EFA_DEVICE:
                self._write(self._home(port) / "hw_counters" / name, str(port.counts[name]))
        else:
            state, phys = ("4: ACTIVE", "5: LinkUp") if port.up else ("1: DOWN", "2: Polling")
            rate = _rate(port) if port.up else _DOWN_RATE
            counters = {f"counters/{name}": port.counts[name] for name in _WIDTHS}
            counters |= {f"hw_counters/{name}": port.counts[name] for name in _HARDWARE}
            net = self._home(port).parent.parent / "net" / _interface(self._ports.index(port))
            self._write(net / "operstate", "up" if port.up else "down")
            self._write(net / "carrier_changes", str(port.carrier_changes))
        for name, text in (("state", state), ("phys_state", phys), ("rate", rate)):
            self._write(folder / name, text)
        for name, count in counters.items():
            self._write(folder / name, str(count))

    def _write(self, path: Path, text: str) -> None:
        before = self._shown.get(path)
        if before == text:
            return
        self._shown[path] = text
        if before is not None and len(before) <= len(text):
            handle = os.open(path, os.O_WRONLY)
            try:
                os.pwrite(handle, f"{text}\n".encode(), 0)  # one page at once: no reader sees a part of it
            finally:
                os.close(handle)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(text + "\n")
        part.replace(path)


def _count_infiniband(port: _Port, seconds: float, load: float) -> None:
    sent = load * port.bytes_per_second * seconds
    packets = sent / _PACKET_BYTES["infiniband"]
    for way in ("xmit", "rcv"):
        port.add(f"port_{way}_data", sent / _WORD_BYTES)
        port.add(f"port_{way}_packets", packets)
        port.add(f"unicast_{way}_packets", packets)
    port.add("port_xmit_wait", load**4 * _WAIT_TICKS_PER_SECOND * seconds if port.up else 0)
    port.add("rx_write_requests", sent / _REQUEST_BYTES)


def _count_efa(port: _Port, seconds: float, load: float) -> None:
    sent = load * port.bytes_per_second * seconds
    packets = sent / _PACKET_BYTES["efa"]
    for way in ("tx", "rx"):
        port.add(f"{way}_bytes", sent)
        port.add(f"{way}_pkts", packets)
    port.add("rdma_write_bytes", sent)
    port.add("rdma_write_recv_bytes", sent)
    port.add("rdma_write_wrs", sent / _REQUEST_BYTES)
    if sent:
        lost = port.timeouts_per_second * seconds
        port.add("retrans_timeout_events", lost)
        port.add("retrans_pkts", lost * _PACKETS_PER_TIMEOUT)
        port.add("retrans_bytes", lost * _PACKETS_PER_TIMEOUT * _PACKET_BYTES["efa"])
    port.add("keep_alive_rcvd", seconds / _KEEP_ALIVE_SECONDS)


def _rate(port: _Port) -> str:
    gbps = port.lanes * port.lane_gbps
    return f"{gbps:g} Gb/sec ({port.lanes}X {_GENERATIONS.get(round(port.lane_gbps), 'SDR')})"


def _interface(device: int) -> str:
    return f"ib{device}"


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
