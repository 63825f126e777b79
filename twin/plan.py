"""Who is in the hall: places, hosts, GPUs, NICs and the jobs that run on them, all drawn from one seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import yaml

HOSTS_PER_RACK = 4  # 10.2 kW each at most (NVIDIA DGX H100 data sheet): about 41 kW per rack
RACKS_PER_ROW = 8
RACKS_PER_CDU = 1  # an in-rack CDU: one pump loop, four hosts
GPU_MODEL = "NVIDIA H100 80GB HBM3"
HOST_MODEL = "ND-H100-v5"
DRIVER_VERSION = "580.105.08"
NIC_SPEED_GBPS = 400
# Bus numbers of the eight GPUs and therefore their order, as a real eight-way H100 host shows them.
GPU_BUSES = ("53", "64", "75", "86", "97", "A8", "B9", "CA")
LEAVES = ("leaf-1", "leaf-2")  # each with half of the rails
NIC_BUSES = ("52", "63", "74", "85", "96", "a7", "b8", "c9")  # each behind the switch of its GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU and where it sits in its host."""

    index: int
    uuid: str
    pci_bus_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """One port of the compute fabric."""

    name: str
    guid: str
    pci_bus_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One server with its place and its devices."""

    name: str
    row: str
    rack: str
    cdu: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A synchronous training job: iterations of computing and communicating, now and then a checkpoint.

    `hosts` are positions in the plan. A job that is not `running` is what its idle hosts could start.
    """

    hosts: tuple[int, ...]
    running: bool
    iteration_seconds: float
    compute_share: float
    intensity: float
    framebuffer_mib: int
    checkpoint_every_seconds: float
    checkpoint_seconds: float
    first_checkpoint_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about a hall that does not change while it runs."""

    hall: str
    seed: int
    hosts: tuple[Host, ...]
    jobs: tuple[Job, ...]

    @property
    def gpus_per_host(self) -> int:
        return len(self.hosts[0].gpus)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs, host by host: the order of every array of the twin."""
        return tuple(gpu for host in self.hosts for gpu in host.gpus)


class Draw(IntEnum):
    """What is drawn from the seed of a hall, each by a generator of its own: more of one moves no other."""

    IDENTITIES = 0
    JOBS = 1
    SILICON = 2
    NOISE = 3
    SCENARIO = 4
    GUIDS = 5
    SYSLOG = 6

    def generator(self, seed: int) -> np.random.Generator:
        """Return the generator; equal seeds give equal draws."""
        return np.random.default_rng([seed, self])


def draw_plan(*, hosts: int = 8, gpus_per_host: int = 8, seed: int = 0, hall: str = "demo") -> Plan:
    """Draw a hall; the same arguments give the same hall, down to every identity."""
    if hosts < 1 or not 1 <= gpus_per_host <= len(GPU_BUSES):
        raise ValueError(f"a hall has hosts of 1 to {len(GPU_BUSES)} GPUs, not {hosts} of {gpus_per_host}")
    identities = Draw.IDENTITIES.generator(seed)
    guids = _draw_guids(Draw.GUIDS.generator(seed))
    return Plan(
        hall=hall,
        seed=seed,
        hosts=tuple(_draw_host(identities, guids, number, gpus_per_host) for number in range(hosts)),
        jobs=_draw_jobs(Draw.JOBS.generator(seed), hosts),
    )


def inventory_yaml(plan: Plan) -> str:
    """Return the operator's map of the hall as YAML."""
    rows: dict[str, dict[str, list[Host]]] = {}
    for host in plan.hosts:
        rows.setdefault(host.row, {}).setdefault(host.rack, []).append(host)
    document = {
        "hall": plan.hall,
        "synthetic": True,
        "loops": [
            {"loop": _loop(cdu), "kind": "tcs", "cdu": cdu, "coolant": "pg25"}
            for cdu in dict.fromkeys(host.cdu for host in plan.hosts)
        ],
        "cdus": [{"cdu": cdu} for cdu in dict.fromkeys(host.cdu for host in plan.hosts)],
        "leaves": [{"leaf": leaf} for leaf in LEAVES],
        "rows": [
            {
                "row": row,
                "racks": [
                    {
                        "rack": rack,
                        "cdu": hosts[0].cdu,
                        "loop": _loop(hosts[0].cdu),
                        "hosts": [_host_entry(host) for host in hosts],
                    }
                    for rack, hosts in racks.items()
                ],
            }
            for row, racks in rows.items()
        ],
    }
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=200)


def _host_entry(host: Host) -> dict[str, object]:
    return {
        "host": host.name,
        "model": HOST_MODEL,
        "gpus": [
            {"index": gpu.index, "uuid": gpu.uuid, "pci_bus_id": gpu.pci_bus_id, "model": GPU_MODEL}
            for gpu in host.gpus
        ],
        "confidential": "snp",
        "nics": [
            {
                "nic": nic.name,
                "guid": nic.guid,
                "speed_gbps": NIC_SPEED_GBPS,
                "width": 4,
                "rail": rail,
                "leaf": leaf_of(rail),
            }
            for rail, nic in enumerate(host.nics)
        ],
    }


def leaf_of(rail: int) -> str:
    """Return the leaf that the ports of a rail are connected to."""
    return LEAVES[rail * len(LEAVES) // len(NIC_BUSES)]


def _loop(cdu: str) -> str:
    return f"loop-{cdu}"


def _draw_host(rng: np.random.Generator, guids: Iterator[str], number: int, gpus: int) -> Host:
    rack_number, slot = divmod(number, HOSTS_PER_RACK)
    row = _row_name(rack_number // RACKS_PER_ROW)
    rack = f"{row}{rack_number % RACKS_PER_ROW + 1:02d}"
    return Host(
        name=f"h100-{rack}-{slot + 1:02d}",
        row=row,
        rack=rack,
        cdu=f"cdu-{rack_number // RACKS_PER_CDU + 1}",
        gpus=tuple(
            Gpu(index=index, uuid=_draw_uuid(rng), pci_bus_id=f"00000000:{GPU_BUSES[index]}:00.0")
            for index in range(gpus)
        ),
        nics=tuple(
            Nic(name=f"mlx5_{index}", guid=next(guids), pci_bus_id=f"0000:{NIC_BUSES[index]}:00.0")
            for index in range(gpus)
        ),
    )


def _row_name(number: int) -> str:
    """Return a, b, ... z, aa, ab, ...: bijective base 26, so a hall may have any number of rows."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(ord("a") + letter) + name
    return name


def _draw_uuid(rng: np.random.Generator) -> str:
    digits = rng.bytes(16).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _draw_guids(rng: np.random.Generator) -> Iterator[str]:
    """Yield GUIDs that differ, as a maker's serial numbers do: counted up from a drawn one."""
    first = int(rng.integers(2**24))
    for number in range(2**24):
        # 58a2e1 is an OUI of NVIDIA's ConnectX-7 adapters; 0300 is how they widen a MAC address to a GUID.
        yield f"0x58a2e10300{(first + number) % 2**24:06x}"


def _draw_jobs(rng: np.random.Generator, hosts: int) -> tuple[Job, ...]:
    """Cut the hosts into jobs; about one host in eight, and the last one at least, stays idle."""
    idle = 0 if hosts == 1 else max(1, hosts // 8)
    widest = max(1, hosts // 4)  # never one job on everything: a hall has neighbours
    jobs, at = [], 0
    while at < hosts - idle:
        width = min(int(rng.integers(1, widest, endpoint=True)), hosts - idle - at)
        jobs.append(_draw_job(rng, tuple(range(at, at + width)), running=True))
        at += width
    jobs += [_draw_job(rng, (host,), running=False) for host in range(at, hosts)]
    return tuple(jobs)


def _draw_job(rng: np.random.Generator, hosts: tuple[int, ...], *, running: bool) -> Job:
    every = float(rng.uniform(600, 1800))
    return Job(
        hosts=hosts,
        running=running,
        iteration_seconds=float(rng.uniform(1.5, 6.0)),
        compute_share=float(rng.uniform(0.72, 0.92)),
        intensity=float(rng.uniform(0.85, 1.0)),
        framebuffer_mib=int(rng.integers(60_000, 78_000)),
        checkpoint_every_seconds=every,
        checkpoint_seconds=float(rng.uniform(15, 45)),
        # The hall opens early between two checkpoints: none falls into the first five minutes.
        first_checkpoint_seconds=float(rng.uniform(300, every)),
    )
