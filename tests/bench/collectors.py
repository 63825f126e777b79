"""Collectors: CPU time of one poll of one host, or of one unit of the building.

Each is measured over the files or answers of a healthy device of full size, its second and later polls. The baseline
reads the same files, or the same bytes, and turns every number in them into an int, as a loop without judgement would.
"""

from __future__ import annotations

import http.client
import socket
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import orjson
from bench import BenchRow, median_ratio

from contract.clock import SYSTEM_CLOCK
from contract.config import HallSection
from contract.testing import START_US
from ingest.collector import Context
from ingest.coolant.modbus import ModbusCollector, ModbusConfig
from ingest.coolant.testing import fake_redfish
from ingest.fabric.testing import ports_collector
from ingest.host.testing import host_collector
from ingest.sysfs import KernelTree
from twin.cdu import Cdu, serve_cdu
from twin.fabric_tree import FabricTree
from twin.host_tree import HostTree
from twin.modbus_unit import FloatUnit
from twin.plan import draw_plan
from twin.redfish import RedfishServers

POLLS = 30


def measure() -> list[BenchRow]:
    """Return the figures of all collectors."""
    return [fabric_ports(), host(), coolant_redfish(), coolant_modbus()]


def fabric_ports() -> BenchRow:
    """Poll eight InfiniBand ports of a host that works: 20 ms every 10 s is a five-hundredth of a core."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tree = FabricTree(root, draw_plan(hosts=1).hosts[0])
        tree.step(10, 0.7)
        collector = ports_collector(
            root, expected=[{"devices": list(tree.devices), "speed_gbps": 400, "width": 4}]
        )
        files = [path for path in (root / "devices").rglob("*") if path.is_file()]
        at = iter(range(START_US, 2**62, 10_000_000))

        def poll() -> None:
            collector.collect(next(at))
            collector.cursor()

        def read() -> None:
            for path in files:
                text = path.read_text().strip()
                _ = int(text) if text.isdecimal() else 0

        ours, theirs, _ratio = median_ratio(lambda: _milliseconds(poll), lambda: _milliseconds(read))
    return BenchRow(
        name="poll eight ports of a host (fabric-ports)",
        value=ours,
        unit="ms CPU",
        baseline=theirs,
        goal="<= 20",
        holds=ours <= 20,
    )


def host() -> BenchRow:
    """Poll a host of 112 cores, 16 memory modules and 18 PCIe devices: 50 ms every 10 s is a two-hundredth of a core."""
    with tempfile.TemporaryDirectory() as folder:
        tree = HostTree(Path(folder), START_US, cores_per_socket=56)
        collector = host_collector(tree.procfs, tree.sysfs)
        at = iter(range(START_US, 2**62, 10_000_000))

        def poll() -> None:
            collector.collect(next(at))
            collector.cursor()

        poll()
        files = _files_of(poll)

        def read() -> None:
            for path in files:
                for word in path.read_text().split():
                    _ = int(word) if word.isdecimal() else 0

        ours, theirs, _ratio = median_ratio(lambda: _milliseconds(poll), lambda: _milliseconds(read))
    return BenchRow(
        name=f"poll a host: {len(files)} files (host)",
        value=ours,
        unit="ms CPU",
        baseline=theirs,
        goal="<= 50",
        holds=ours <= 50,
    )


def coolant_redfish() -> BenchRow:
    """Poll a coolant unit over HTTP on the loopback: 50 ms every 10 s is a two-hundredth of a core."""
    unit = Cdu("cdu-1", rated_kilowatts=100, heat_kilowatts=80)
    service = serve_cdu(unit)
    with RedfishServers([service]) as servers:
        collector = fake_redfish(servers.urls[0], clock=SYSTEM_CLOCK, timeout_seconds=60)
        at = iter(range(START_US, 2**62, 10_000_000))

        def poll() -> None:
            collector.collect(next(at))
            collector.cursor()

        poll()
        service.asked.clear()
        poll()
        paths = [line.removeprefix("GET ") for line in service.asked]
        bare = http.client.HTTPConnection(servers.urls[0].removeprefix("http://"))

        def read() -> None:
            for path in paths:
                bare.request("GET", path)
                orjson.loads(bare.getresponse().read())

        ours, theirs, _ratio = median_ratio(lambda: _milliseconds(poll), lambda: _milliseconds(read))
        bare.close()
        collector.close()
    return BenchRow(
        name=f"poll a coolant unit: {len(paths)} documents (coolant-redfish)",
        value=ours,
        unit="ms CPU",
        baseline=theirs,
        goal="<= 50",
        holds=ours <= 50,
    )


def coolant_modbus() -> BenchRow:
    """Poll a coolant unit of 35 points over TCP on the loopback: 20 ms every 10 s is a five-hundredth of a core."""
    with FloatUnit() as unit:
        config = ModbusConfig(
            collector="coolant-modbus",
            equipment="cdu-1",
            address="127.0.0.1",
            port=unit.port,
            map="supermicro-cdu-200kw",
            timeout_seconds=60,
        )
        collector = ModbusCollector(config, Context(hall=HallSection(name="bench"), clock=SYSTEM_CLOCK))
        at = iter(range(START_US, 2**62, 10_000_000))
        requests = [
            struct.pack(">HHHBBHH", 1, 0, 6, 1, function, address, count)
            for function, address, count in ((2, 0, 4), (3, 5000, 64))
        ]
        bare = socket.create_connection(("127.0.0.1", unit.port))

        def poll() -> None:
            collector.collect(next(at))
            collector.cursor()

        def read() -> None:
            for request in requests:
                bare.sendall(request)
                answer = bare.recv(1_024)
                _ = [int(number) for number in answer]

        ours, theirs, _ratio = median_ratio(lambda: _milliseconds(poll), lambda: _milliseconds(read))
        bare.close()
        collector.close()
    return BenchRow(
        name="poll a coolant unit: two blocks, 35 points (coolant-modbus)",
        value=ours,
        unit="ms CPU",
        baseline=theirs,
        goal="<= 20",
        holds=ours <= 20,
    )


def _files_of(poll: Callable[[], None]) -> list[Path]:
    """Return the files that are there of those that a poll reads."""
    asked: list[str] = []
    text = KernelTree.text

    def noted(self: KernelTree, path: str) -> str | None:
        asked.append(self._at(path))
        return text(self, path)

    with mock.patch.object(KernelTree, "text", noted):
        poll()
    return [path for path in map(Path, asked) if path.is_file()]


def _milliseconds(work: Callable[[], None]) -> float:
    work()
    start = time.thread_time()
    for _ in range(POLLS):
        work()
    return (time.thread_time() - start) / POLLS * 1e3
