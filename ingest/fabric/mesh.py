"""The collector that probes the latency of the fabric."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any, Self

from pydantic import Field, model_validator

from contract.config import NAME_PATTERN, StrictConfig
from contract.errors import CollectError, ConfigError
from contract.streams.fabric import FABRIC_PROBES
from ingest.collector import Context, HostConfig, Reading, Rows, collector
from ingest.fabric.mesh_packet import LEAST_BYTES, read_keys
from ingest.fabric.mesh_paths import Endpoint, Path, PathClass, class_of, endpoints_in, lean_list
from ingest.fabric.mesh_prober import Prober, ProbeSettings, Route
from ingest.topology.entries import Address
from ingest.topology.hallfile import read_hall_file

PORT = 7797
"""Where responders listen, unless told otherwise."""

MAX_PATHS = 4_096


class MeshNic(StrictConfig):
    """A network port of this host."""

    nic: str = Field(pattern=NAME_PATTERN, max_length=100, description="Name of the port.")
    address: Address = Field(description="Its IP address.")
    rail: int | None = Field(default=None, ge=0, le=1_000, description="Its rail.")
    leaf: str | None = Field(default=None, max_length=100, description="The leaf it hangs on.")


class MeshTarget(MeshNic):
    """A network port that answers."""

    host: str = Field(pattern=NAME_PATTERN, max_length=100, description="The host it belongs to.")
    port: int | None = Field(default=None, gt=0, le=65_535, description="UDP port of its responder.")


class MeshConfig(HostConfig):
    """A prober."""

    key_file: FilePath = Field(
        description="The hall's key, the same on all its hosts: `openssl rand -hex 32 > FILE`, readable by hallwatch only. "
        "Up to four lines: the first signs, all are accepted, so that keys can be changed."
    )
    nics: tuple[MeshNic, ...] = Field(
        default=(),
        max_length=64,
        description="Network ports of this host; none: those with an address in the map of the hall.",
    )
    targets: tuple[MeshTarget, ...] = Field(
        default=(),
        max_length=MAX_PATHS,
        description="Ports to probe, from every port of this host; none: drawn from the map of the hall.",
    )
    port: int = Field(default=PORT, gt=0, le=65_535, description="UDP port of the responders.")
    source_ports: int = Field(
        default=16, ge=1, le=256, description="Source ports in turn: each may take another of equal paths."
    )
    first_source_port: int = Field(
        default=0, ge=0, le=65_000, description="The first of them; 0: whichever are free."
    )
    packet_bytes: int = Field(
        default=LEAST_BYTES, ge=LEAST_BYTES, le=8_972, description="Payload of a probe and of its answer."
    )
    probe_interval_seconds: float = Field(
        default=0.5, ge=0.001, le=60, description="Time between two probes of a path."
    )
    late_after_seconds: float = Field(
        default=0.5, gt=0, le=60, description="An answer later than this is late."
    )
    lost_after_seconds: float = Field(
        default=3, gt=0, le=120, description="A probe without an answer for so long is lost."
    )
    recent_seconds: float = Field(
        default=600, gt=0, le=86_400, description="What the columns `recent_` tell of."
    )
    same_leaf_limit_us: float = Field(default=100, gt=0, description="Highest good median within a leaf.")
    same_rail_limit_us: float = Field(default=150, gt=0, description="The same, between leaves of a rail.")
    cross_rail_limit_us: float = Field(default=250, gt=0, description="The same, from rail to rail.")
    other_limit_us: float = Field(
        default=500, gt=0, description="The same, of ports whose place is not known."
    )

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.lost_after_seconds <= self.late_after_seconds:
            raise ValueError("lost_after_seconds: what is lost has been late before, so it is the longer")
        return self

    def limit_us(self, path_class: PathClass) -> float:
        """Return what the median of such a path may be."""
        return float(getattr(self, f"{path_class}_limit_us"))


@collector("fabric-mesh", MeshConfig, (FABRIC_PROBES,))
class MeshCollector:
    """Measures latency and loss between hosts: sends small UDP probes to the responders of others.

    ```toml
    [[ingest.collectors]]
    collector = "fabric-mesh"
    host = "h100-a01-01"
    key_file = "/etc/hallwatch/mesh.key"
    nics = [{nic = "mlx5_0", address = "10.0.0.1", rail = 0, leaf = "leaf-0-0"}]
    targets = [{host = "h100-a01-02", nic = "mlx5_0", address = "10.0.0.2", rail = 0, leaf = "leaf-0-0"}]
    ```

    **Reads** no device but the network. Without `nics` and `targets`, the paths come from the map of the hall (NICs with
    `address`, `rail` and `leaf`): eight neighbours on the leaf of each port, two pairs between every two leaves of a
    rail, one pair across rails; each host works out its own share. A probe leaves from the address of its port and from
    source ports in turn. The row of a path tells what was answered, late and lost, apart and each probe once, and the
    latency of the network alone: arrival times are the kernel's, and what the hosts added is in columns of its own.
    A source port on which everything is lost while others get answers is told as dead: one of several equal ways is a
    black hole.

    **Needs** no privilege, the hall's key, and a `fabric-responder` on the hosts it probes.

    **Costs** 64 bytes of payload each way per probe, two probes a second per path by default, and some 0.1 ms of this
    host's CPU for each. The probing is a thread of the process: measure from a process of its own.

    **When the network fails** nothing stops: lost probes are rows. What this host does not let out is counted as
    `unsent`, as of an address that goes, until it is back; an answer that cannot be proven as `spoofed`. An address that
    is not there at the start fails the reading until it is. If the probing itself ends, by a defect, one reading fails
    and the next begins anew.
    """

    def __init__(self, config: MeshConfig, context: Context) -> None:
        self._config = config
        self._clock = context.clock
        self._keys = read_keys(config.key_file)
        self._routes = _routes(config, context)
        self._prober = self._new_prober()

    def collect(self, now_us: int) -> Reading:
        del now_us  # the clock of a window is its own: it may begin in the middle of another's
        if not self._prober.is_open:
            self._open()
        if (defect := self._prober.defect) is not None:
            self._prober.close()
            self._prober = self._new_prober()
            raise CollectError("no_data", f"the probing ended and begins anew: {defect!r}") from defect
        rows, rejected = self._prober.rows()
        columns = [self._row(route, row) for route, row in zip(self._prober.routes, rows, strict=True)]
        return Reading(rows=[Rows.gather(FABRIC_PROBES, columns)], rejected=rejected)

    def cursor(self) -> bytes:
        return b""

    def restore(self, cursor: bytes) -> None:
        """Begin anew: what was in flight when a prober ended is nobody's loss."""

    def close(self) -> None:
        self._prober.close()

    def _new_prober(self) -> Prober:
        config = self._config
        settings = ProbeSettings(
            source_ports=config.source_ports,
            first_source_port=config.first_source_port,
            packet_bytes=config.packet_bytes,
            interval_seconds=config.probe_interval_seconds,
            late_after_seconds=config.late_after_seconds,
            lost_after_seconds=config.lost_after_seconds,
            recent_seconds=config.recent_seconds,
        )
        return Prober(self._routes, self._keys, settings)

    def _open(self) -> None:
        """Begin probing, and give the first window a little time, so that it holds something."""
        try:
            self._prober.open()
        except OSError as error:
            self._prober = self._new_prober()
            raise CollectError("unreachable", f"a port of this host: {error.strerror or error}") from error
        self._clock.wait(
            threading.Event(), min(self._config.interval_seconds, self._config.timeout_seconds) / 2
        )

    def _row(self, route: Route, row: dict[str, Any]) -> dict[str, Any]:
        path, config = route.path, self._config
        return {
            "path": path.name,
            "latency_kind": "rtt",
            "protocol": "udp",
            "path_class": path.path_class,
            "nic": path.source.nic,
            "address": path.source.address,
            "target_host": path.target.host,
            "target_nic": path.target.nic,
            "target_address": path.target.address,
            "packet_bytes": config.packet_bytes,
            "limit_us": config.limit_us(path.path_class),
            **row,
        }


def _routes(config: MeshConfig, context: Context) -> list[Route]:
    """Return what to probe, as configured or as drawn from the map of the hall; raise ConfigError for nothing."""
    known = [] if config.nics and config.targets else read_endpoints(context)
    own = own_endpoints(config.nics, config.host, known)
    if config.targets:
        routes = [_route(source, target, config) for source in own for target in config.targets]
    else:
        others = [endpoint for endpoint in known if endpoint.host != config.host]
        routes = [Route(path, config.port) for path in lean_list([*own, *others], config.host)]
    if not routes:
        raise ConfigError(
            "missing",
            f"fabric-mesh of {config.host}: no path; write nics and targets, or addresses into the map",
        )
    if len(routes) > MAX_PATHS:
        raise ConfigError(
            "invalid", f"fabric-mesh of {config.host}: {len(routes)} paths, at most {MAX_PATHS}"
        )
    return routes


def read_endpoints(context: Context) -> list[Endpoint]:
    """Return the ports of the hall's map that have an address; none where there is no map. Raises ConfigError."""
    if context.hall.inventory is None:
        return []
    hall = read_hall_file(context.hall.inventory, hall=context.hall.name, synthetic=context.hall.synthetic)
    return endpoints_in(hall.assets.values())


def own_endpoints(nics: Sequence[MeshNic], host: str, known: Sequence[Endpoint]) -> list[Endpoint]:
    """Return a host's own ports: as configured, else those that are known of it."""
    return [_endpoint(nic, host) for nic in nics] or [one for one in known if one.host == host]


def _endpoint(nic: MeshNic, host: str) -> Endpoint:
    return Endpoint(host=host, nic=nic.nic, address=nic.address, rail=nic.rail, leaf=nic.leaf)


def _route(source: Endpoint, target: MeshTarget, config: MeshConfig) -> Route:
    there = _endpoint(target, target.host)
    return Route(Path(source, there, class_of(source, there)), target.port or config.port)
