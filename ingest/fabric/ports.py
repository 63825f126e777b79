"""The collector of RDMA ports: InfiniBand, RoCE and EFA, from what Linux shows in sysfs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from contract.config import StrictConfig
from contract.errors import CollectError
from contract.streams.fabric import FABRIC_EVENTS, FABRIC_PORTS
from ingest.collector import Context, HostConfig, Reading, Rows, collector
from ingest.fabric.counters import read_lifespan_us
from ingest.fabric.history import PortHistory, dump_histories, load_histories
from ingest.fabric.port import CLASS, list_devices, list_ports, parse_guid, read_port
from ingest.sysfs import KernelTree

MAX_REMEMBERED = 1_024
FORGET_US = 7 * 86_400_000_000
"""A port that is not listed and was not there for so long is forgotten."""

_SYS, _PROC = Path("/sys"), Path("/proc")
_LOOKS_TO_BE_GONE = 2  # one look without a device may be a bad look
_UPTIME = re.compile(r"([0-9]{1,10})\.[0-9]+ ", re.ASCII)
_NAMES = ("device", "port", "node_guid", "port_guid", "pci_bus_id", "driver", "interface")


class ExpectedPorts(StrictConfig):
    """Ports that a host should have, and what their links should be."""

    devices: tuple[str, ...] = Field(
        min_length=1,
        max_length=256,
        description="RDMA devices, each by its name, its PCI address or its GUID; a missing one is told.",
    )
    port: int = Field(default=1, ge=1, le=64, description="Number of the port on each of them.")
    speed_gbps: float | None = Field(default=None, gt=0, le=100_000, description="Speed of the link.")
    width: int | None = Field(default=None, ge=1, le=12, description="Lanes of the link.")

    @field_validator("devices")
    @classmethod
    def _in_one_form(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        if any(not re.fullmatch(r"[\w.:-]{1,64}", name, re.ASCII) for name in devices):
            raise ValueError("a device is a name, a PCI address or a GUID, without spaces and /")
        return tuple(parse_guid(name) or name for name in devices)


class FabricPortsConfig(HostConfig):
    """RDMA ports of a host."""

    sysfs_root: Path = Field(default=_SYS, description="Where sysfs is mounted: in a container, the host's.")
    proc_root: Path | None = Field(
        default=None,
        description="Where `uptime` is; of this machine where `sysfs_root` is its own, nowhere otherwise.",
    )
    expected: tuple[ExpectedPorts, ...] = Field(
        default=(), max_length=64, description="Ports the host should have: a list of tables, see above."
    )
    interfaces: dict[str, str] = Field(
        default={},
        description="Network interface by RDMA device, where its driver names none: whose carrier is an EFA's link.",
    )


@collector("fabric-ports", FabricPortsConfig, (FABRIC_PORTS, FABRIC_EVENTS))
class FabricPortsCollector:
    """Reads the ports of RDMA devices, InfiniBand, RoCE and EFA: state, speed, counters, from sysfs.

    ```toml
    [[ingest.collectors]]
    collector = "fabric-ports"
    host = "h100-a01-01"
    expected = [{devices = ["mlx5_0", "0000:63:00.0", "0x58a2e10300123456"], speed_gbps = 400, width = 4}]
    ```

    **Reads** `class/infiniband` and, of the interfaces that belong to it, `class/net`. Data is bytes here, four to the
    word that InfiniBand counts; `port_xmit_wait_ticks` stays in ticks, which differ by device. A counter that stands
    at the most its width holds is in `saturated`. Every change of a link is a row of `fabric_events`, with the
    evidence `sysfs`. Symbol errors are gathered over 12 and 125 minutes and set against the live speed.

    `expected` says what a link should be: `devices`, each by name, PCI address or GUID, and of their port (`port`, 1
    unless given) `speed_gbps` and `width`. It stands on the host that has them, a list that is the same on all hosts
    of a kind, so that a row says itself what is wrong with it. Names change; a PCI address or a GUID stays. EFA's
    driver always says that its link is active, at a speed that is not the live one: list its devices so that one that
    goes is missed, and name an interface that shares its card in `interfaces`.

    **Needs** no privilege: the files are readable by everybody. In a container, mount the host's `/sys` read-only and
    share its network namespace, or interfaces are not seen.

    **Costs** the device one command for each file of `counters` and for its state and speed (about 25 of a port), and
    one for all of `hw_counters`, whose driver repeats the values it read last for as long as its `lifespan` says; a port is never
    read sooner than that. Us, about 10 ms of CPU time for eight ports.

    **When the device fails**, a file that cannot be read (`N/A (no PMA)`, a refusal, no permission) costs its own value
    and is counted in `unreadable_files`; a device that vanishes midway costs its own row. A listed port that is not
    there has a row with `present` false, any other that went is an event. A counter that fell was set back and counts
    from there. When a reading takes too long, the ports read so far are sent. In the first ten minutes after a boot no
    changes of links are told: they train.
    """

    def __init__(self, config: FabricPortsConfig, context: Context) -> None:
        self._config = config
        self._tree = KernelTree(config.sysfs_root, context.clock, timeout_seconds=config.timeout_seconds)
        proc = config.proc_root or (_PROC if config.sysfs_root == _SYS else None)
        self._proc = KernelTree(proc, context.clock, timeout_seconds=config.timeout_seconds) if proc else None
        self._histories: dict[str, PortHistory] = {}
        self._read_us: dict[tuple[str, int], tuple[int, int]] = {}
        """By device and port: when it was read, and how long its values last."""

    def collect(self, now_us: int) -> Reading:
        self._tree.begin()
        uptime = self._uptime_seconds()
        booted_us = now_us - uptime * 1_000_000 if uptime is not None else None
        look = _Look(self._config, now_us)
        devices = self._devices()
        self._read(devices, look)
        look.settle_identities()
        events = [event for row in look.rows for event in self._follow(row, now_us, booted_us)]
        if look.whole:
            events += self._miss(look)
        self._forget(now_us)
        rows = [row | {"uptime_seconds": uptime} for row in (*look.rows, *self._missing(look))]
        if not rows and not events and not look.skipped:
            raise CollectError("no_data", f"no RDMA port below {self._config.sysfs_root / CLASS}")
        host = {"host": self._config.host}
        gathered = [(FABRIC_PORTS, rows), (FABRIC_EVENTS, events)]
        return Reading(
            rows=[Rows.gather(stream, [host | row for row in part]) for stream, part in gathered if part],
            rejected=self._tree.failures + look.rejected,
            skipped=look.skipped,
        )

    def cursor(self) -> bytes:
        return dump_histories(self._histories)

    def restore(self, cursor: bytes) -> None:
        self._histories = load_histories(cursor)

    def close(self) -> None:
        pass

    def _uptime_seconds(self) -> int | None:
        if self._proc is None:
            return None
        self._proc.begin()
        found = _UPTIME.match(self._proc.text("uptime") or "")
        return int(found[1]) if found is not None else None

    def _devices(self) -> list[str]:
        """Return the devices; raise CollectError where sysfs does not say which there are."""
        devices = list_devices(self._tree)
        if devices is not None:
            return devices
        if self._tree.failures:
            raise CollectError("unreadable", f"{self._config.sysfs_root / CLASS} cannot be listed")
        if self._tree.names("class") is None:
            raise CollectError("unreachable", f"{self._config.sysfs_root} is no sysfs")
        return []

    def _read(self, devices: list[str], look: _Look) -> None:
        """Read the ports of the devices while there is time, none before its values are new."""
        look.whole = not self._tree.failures
        ports: list[tuple[str, int]] = []
        try:
            ports = [(device, port) for device in devices for port in list_ports(self._tree, device)]
            for device, port in ports:
                read_us, lifespan_us = self._read_us.get((device, port), (0, 0))
                if 0 <= look.now_us - read_us < lifespan_us:
                    look.skipped["within_lifespan"] += 1
                    look.kept.add((device, port))
                    continue
                look.add(self._read_port(device, port, look.now_us))
        except CollectError:
            look.whole = False
            look.rejected["timeout"] += max(len(ports) - len(look.rows) - look.skipped.total(), 1)
            if not look.rows:
                raise
        self._read_us = {key: self._read_us[key] for key in ports if key in self._read_us}

    def _read_port(self, device: str, port: int, now_us: int) -> dict[str, Any]:
        failed = self._tree.failures.total()
        row = read_port(self._tree, device, port, self._config.interfaces)
        lifespan_us = read_lifespan_us(self._tree, f"{CLASS}/{device}/ports/{port}")
        self._read_us[device, port] = (now_us, lifespan_us)
        row["unreadable_files"] = self._tree.failures.total() - failed
        return row

    def _follow(self, row: dict[str, Any], now_us: int, booted_us: int | None) -> Iterator[dict[str, Any]]:
        history = self._histories.setdefault(row["port_id"], PortHistory())
        was_gone = history.missed >= _LOOKS_TO_BE_GONE
        history.missed = 0
        history.names = {name: row.get(name) for name in _NAMES}
        if was_gone:
            yield _event(row, {"event": "device_back"})
        for event in history.follow(row, now_us, booted_us):
            yield _event(row, event)

    def _miss(self, look: _Look) -> Iterator[dict[str, Any]]:
        """Count the looks without each port that was there; tell once that it is gone."""
        ids = look.ids
        for port_id, history in self._histories.items():
            key = (history.names.get("device"), history.names.get("port"))
            if port_id in ids or key in look.kept:
                continue
            history.missed += 1
            if history.missed == _LOOKS_TO_BE_GONE:
                yield _event(history.names | {"port_id": port_id}, {"event": "device_gone"})

    def _missing(self, look: _Look) -> Iterator[dict[str, Any]]:
        """Yield a row for each listed port that is not there, under the identity it last had."""
        if not look.whole:
            return
        ids = look.ids
        for (name, port), expectation in look.expected.items():
            if (name, port) in look.listed:
                continue
            port_id, names = self._known(name, port)
            if (names.get("device"), port) not in look.kept and port_id not in ids:
                yield {**names, "port_id": port_id, "present": False, **expectation}

    def _known(self, name: str, port: int) -> tuple[str, dict[str, Any]]:
        for port_id, history in self._histories.items():
            if name in _aliases(history.names) and history.names.get("port") == port:
                return port_id, history.names
        return f"{self._config.host}/{name}/{port}", {"device": name, "port": port}

    def _forget(self, now_us: int) -> None:
        histories = self._histories
        self._histories = {
            port_id: history for port_id, history in histories.items() if now_us - history.seen_us < FORGET_US
        }
        while len(self._histories) > MAX_REMEMBERED:
            del self._histories[min(self._histories, key=lambda port_id: self._histories[port_id].seen_us)]


class _Look:
    """One look at the ports of a host."""

    def __init__(self, config: FabricPortsConfig, now_us: int) -> None:
        self.now_us = now_us
        self.rows: list[dict[str, Any]] = []
        self.whole = True
        """Whether all ports that are there were seen: only then is another one missing."""
        self.rejected: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.kept: set[tuple[str, int]] = set()
        """Ports that are there and were not read, by device and number."""
        self.listed: set[tuple[str, int]] = set()
        """Ports that are there and listed, by the name they are listed under."""
        self.expected = {
            (name, expected.port): {
                "listing": f"{config.host}/{name}/{expected.port}",
                "in_use": True,
                "expected_speed_gbps": expected.speed_gbps,
                "expected_width": expected.width,
            }
            for expected in config.expected
            for name in expected.devices
        }
        """What is said of a port that is listed, by the name it is listed under and its number."""
        self._host = config.host

    @property
    def ids(self) -> set[str]:
        """Return the identities of the ports that were read."""
        return {row["port_id"] for row in self.rows}

    def add(self, row: dict[str, Any]) -> None:
        """Take a port up, with what is expected of it."""
        for name in sorted(_aliases(row)):
            if (name, row["port"]) in self.expected:
                self.listed.add((name, row["port"]))
                row |= self.expected[name, row["port"]]
        guid = row["node_guid"] or row.get("port_guid")
        row["port_id"] = f"{guid}/{row['port']}" if guid else self._place(row)
        self.rows.append(row)

    def settle_identities(self) -> None:
        """Call ports by their place where two devices of the host have one GUID: nobody knows whose it is."""
        counts = Counter(row["port_id"] for row in self.rows)
        for row in self.rows:
            if counts[row["port_id"]] > 1:
                self.rejected["repeated_guid"] += 1
                row["port_id"] = self._place(row)

    def _place(self, row: dict[str, Any]) -> str:
        return f"{self._host}/{row['pci_bus_id'] or row['device']}/{row['port']}"


def _aliases(names: dict[str, Any]) -> set[str]:
    """Return everything a device may be listed as."""
    return {names[key] for key in ("device", "pci_bus_id", "node_guid", "port_guid") if names.get(key)}


def _event(row: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    about = {name: row.get(name) for name in ("port_id", "port", "pci_bus_id", "interface", "driver")}
    kind = "hardware" if str(event["event"]).startswith("device") else "link"
    return {
        **about,
        "nic": row.get("pci_bus_id") or row.get("device"),
        "evidence": "sysfs",
        "severity": "info",
        "class": kind,
        "occurrences": 1,
        **event,
    }
