"""The plan of a large hall: who stands where, drawn from one seed.

Positions in its arrays are the only identities that the physics uses, so that nothing can be read off a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.workload import Flags

Ints = NDArray[np.intp]

GPUS_PER_HOST = 8
PORTS_PER_HOST = 8
NVLINKS_PER_GPU = 18
DIMMS_PER_HOST = 16
HOSTS_PER_RACK = 4
RACKS_PER_CDU = 4
RACKS_PER_ROW = 8
HOSTS_PER_POD = 32  # one set of eight rail leaves
SPINES = 4
PORT_GBPS = 400

_LIQUID_SHARE = 0.6
_EFA_SHARE = 0.25
_PLACES, _NAMES, _JOBS = 101, 102, 103  # what is drawn, each by a generator of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteJob:
    """A synchronous job over hosts; `stages` of its hosts work one after the other on the same batch."""

    name: str
    role: str
    hosts: tuple[int, ...]
    stages: int
    iteration_seconds: float
    compute_share: float
    intensity: float
    checkpoint_every_seconds: float
    checkpoint_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """Everything about a large hall that does not change while it runs."""

    hall: str
    seed: int
    hosts: tuple[str, ...]
    gpus: tuple[str, ...]
    racks: tuple[str, ...]
    rows: tuple[str, ...]
    cdus: tuple[str, ...]
    leaves: tuple[str, ...]
    spines: tuple[str, ...]
    ports: tuple[str, ...]
    """As fabric_ports names them, host by host."""
    guids: tuple[str, ...]
    rack_of_host: Ints
    row_of_rack: Ints
    cdu_of_rack: Ints
    """-1: the rack is cooled by air."""
    leaf_of_port: Ints
    efa: Flags
    """Hosts whose network cards are Elastic Fabric Adapters."""
    confidential: tuple[str, ...]
    jobs: tuple[SiteJob, ...]

    @property
    def liquid(self) -> Flags:
        """Hosts with cold plates."""
        return self.cdu_of_rack[self.rack_of_host] >= 0

    @property
    def host_of_gpu(self) -> Ints:
        return np.repeat(np.arange(len(self.hosts)), GPUS_PER_HOST)

    @property
    def host_of_port(self) -> Ints:
        return np.repeat(np.arange(len(self.hosts)), PORTS_PER_HOST)

    def driver(self, port: int) -> str:
        """Return the driver of a port's card."""
        return "efa" if self.efa[port // PORTS_PER_HOST] else "mlx5_core"

    def nic(self, port: int) -> str:
        """Return the RDMA device of a port."""
        host, rail = divmod(port, PORTS_PER_HOST)
        return f"rdmap{rail}" if self.efa[host] else f"mlx5_{rail}"


def draw_site(*, gpus: int = 200, seed: int = 0, hall: str = "twin") -> Site:
    """Draw a hall; the same arguments give the same hall, down to every identity.

    Raises ValueError where `gpus` do not fill hosts of eight.
    """
    if gpus < GPUS_PER_HOST or gpus % GPUS_PER_HOST:
        raise ValueError(f"{gpus} GPUs do not fill hosts of {GPUS_PER_HOST}")
    hosts = gpus // GPUS_PER_HOST
    places = np.random.default_rng([seed, _PLACES])
    names = np.random.default_rng([seed, _NAMES])
    racks = -(-hosts // HOSTS_PER_RACK)
    groups = -(-racks // RACKS_PER_CDU)
    cooled = places.permutation(groups) < max(1, round(_LIQUID_SHARE * groups))
    cdu_of_group = np.where(cooled, np.cumsum(cooled) - 1, -1)
    efa_racks = places.permutation(racks) < round(_EFA_SHARE * racks)
    rack_of_host = np.arange(hosts) // HOSTS_PER_RACK
    efa = efa_racks[rack_of_host]
    host_names = _names(names, "n", hosts)
    guids = _guids(names, hosts * PORTS_PER_HOST)
    pods = -(-hosts // HOSTS_PER_POD)
    host_of_port, rail = np.divmod(np.arange(hosts * PORTS_PER_HOST), PORTS_PER_HOST)
    return Site(
        hall=hall,
        seed=seed,
        hosts=host_names,
        gpus=tuple(_uuids(names, gpus)),
        racks=_names(names, "rack", racks),
        rows=_names(names, "row", -(-racks // RACKS_PER_ROW)),
        cdus=_names(names, "cdu", int(cooled.sum())),
        leaves=_names(names, "leaf", pods * PORTS_PER_HOST),
        spines=_names(names, "spine", SPINES),
        ports=tuple(
            f"{host_names[host]}/rdmap{number % PORTS_PER_HOST}/1" if efa[host] else f"{guids[number]}/1"
            for number, host in enumerate(host_of_port)
        ),
        guids=guids,
        rack_of_host=rack_of_host,
        row_of_rack=np.arange(racks) // RACKS_PER_ROW,
        cdu_of_rack=cdu_of_group[np.arange(racks) // RACKS_PER_CDU],
        leaf_of_port=host_of_port // HOSTS_PER_POD * PORTS_PER_HOST + rail,
        efa=efa,
        confidential=_draw_confidential(places, efa),
        jobs=tuple(_draw_jobs(np.random.default_rng([seed, _JOBS]), hosts)),
    )


def _draw_confidential(rng: np.random.Generator, efa: Flags) -> tuple[str, ...]:
    proves = rng.random(len(efa)) < 0.6
    proves[rng.integers(len(efa))] = True
    return tuple(
        "none" if not proof else "nitro" if elastic else "snp"
        for proof, elastic in zip(proves.tolist(), efa.tolist(), strict=True)
    )


def _names(rng: np.random.Generator, kind: str, count: int) -> tuple[str, ...]:
    """Return names that differ and tell nothing of a place: five drawn hexadecimal digits."""
    return tuple(f"{kind}-{number:05x}" for number in rng.choice(16**5, count, replace=False).tolist())


def _uuids(rng: np.random.Generator, count: int) -> Iterator[str]:
    digits = rng.bytes(16 * count).hex()
    for at in range(0, 32 * count, 32):
        d = digits[at : at + 32]
        yield f"GPU-{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}"


def _guids(rng: np.random.Generator, count: int) -> tuple[str, ...]:
    # 58a2e1 is an OUI of NVIDIA's ConnectX-7 adapters; 0300 is how they widen a MAC address to a GUID.
    return tuple(f"0x58a2e10300{n:06x}" for n in rng.choice(16**6, count, replace=False).tolist())


def _draw_jobs(rng: np.random.Generator, hosts: int) -> Iterator[SiteJob]:
    """Cut the hosts, in a drawn order of racks, into jobs; about one in four is idle, as clusters are."""
    order = rng.permutation(hosts)
    busy = hosts - max(1, hosts // 4)
    widest = max(2, min(64, hosts // 4))
    at = 0
    while at < busy:
        width = min(int(rng.integers(1, widest, endpoint=True)), busy - at)
        train = width > 1 and rng.random() < 0.8
        every = float(rng.uniform(600, 1800))
        yield SiteJob(
            name=str(int(rng.integers(100_000, 999_999)) * 1000 + at % 1000),
            role="train" if train else "inference",
            hosts=tuple(sorted(order[at : at + width].tolist())),
            stages=4 if train and width % 4 == 0 else 2 if train and width % 2 == 0 else 1,
            iteration_seconds=float(rng.uniform(1.5, 6.0)),
            compute_share=float(rng.uniform(0.75, 0.92)),
            intensity=float(rng.uniform(0.85, 1.0) if train else rng.uniform(0.35, 0.7)),
            checkpoint_every_seconds=every,
            checkpoint_seconds=float(rng.uniform(15, 45)) if train else 0.0,
        )
        at += width
