"""The responder: answers probes of this hall's probers, and nobody else."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field
from typing_extensions import override

from contract.errors import CollectError, ConfigError
from contract.histogram import Histogram
from contract.streams.fabric import FABRIC_PROBES
from ingest.collector import Context, HostConfig, Reading, Rows, collector
from ingest.fabric.mesh import PORT, MeshNic, own_endpoints, read_endpoints
from ingest.fabric.mesh_packet import (
    PROBE,
    End,
    Keys,
    Packet,
    ReplayWindow,
    answer,
    decode,
    mark_of,
    read_keys,
)
from ingest.fabric.mesh_paths import Endpoint
from ingest.fabric.mesh_socket import Arrival, ProbeSocket

MAX_SESSIONS = 4_096
"""Paths that an address remembers at once, each anew when its prober starts: as many as a prober has at most, so that
a mesh of all with all fits."""

_WAIT_SECONDS = 0.2


class Responder:
    """Answers on some addresses until it is closed, each in a thread of its own.

    A probe that it cannot prove, or has seen, it drops and counts.
    """

    def __init__(self, ends: Sequence[End], keys: Keys, *, max_age_seconds: float) -> None:
        self._ends = tuple(ends)
        self._keys = keys
        self._max_age_seconds = max_age_seconds
        self._desks: list[_Desk] = []

    def open(self) -> None:
        """Bind every address and begin; raise OSError where one is not this host's or is taken."""
        desks: list[_Desk] = []
        try:
            for end in self._ends:
                socket = ProbeSocket(*end, wait_seconds=_WAIT_SECONDS)
                desks.append(_Desk(socket, self._keys, max_age_seconds=self._max_age_seconds))
        except OSError:
            for desk in desks:
                desk.socket.close()
            raise
        self._desks = desks
        for desk in desks:
            desk.start()

    @property
    def is_open(self) -> bool:
        return bool(self._desks)

    def tallies(self) -> list[Tally]:
        """Return what happened at each address since the call before."""
        return [desk.tally() for desk in self._desks]

    @property
    def defect(self) -> Exception | None:
        """What ended one of the threads, if something did: then this responder is of no more use."""
        return next((desk.defect for desk in self._desks if desk.defect is not None), None)

    def close(self) -> None:
        for desk in self._desks:
            desk.stopping.set()
        for desk in self._desks:
            desk.join(10 * _WAIT_SECONDS)
            desk.socket.close()
        self._desks = []


@dataclass(slots=True)
class Tally:
    """What happened at one address."""

    delays: Histogram = field(default_factory=Histogram)
    """From the arrival of a probe in the kernel to its answer."""
    unsent: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


class _Desk(threading.Thread):
    """One address: its socket, and the sequences that came to it."""

    def __init__(self, socket: ProbeSocket, keys: Keys, *, max_age_seconds: float) -> None:
        super().__init__(name=f"responder {socket.address}", daemon=True)
        self.socket = socket
        self.stopping = threading.Event()
        self._keys = keys
        self._max_age_ns = round(max_age_seconds * 1e9)
        self._here = End(socket.address, socket.port).mark
        self._windows: OrderedDict[bytes, ReplayWindow] = OrderedDict()
        self._lock = threading.Lock()
        self._tally = Tally()
        self._delays_ns: list[int] = []
        self.defect: Exception | None = None

    @override
    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                arrival = self.socket.receive()
                if arrival is not None:
                    self._serve(arrival)
        except Exception as error:  # noqa: BLE001 - handed to the thread that asks for the tally
            self.defect = error

    def tally(self) -> Tally:
        """Return what happened since the call before."""
        with self._lock:
            tally, self._tally = self._tally, Tally()
        # What is added meanwhile stands behind, for the next call: no lock is needed.
        count = len(self._delays_ns)
        tally.delays = Histogram.of(self._delays_ns[:count])
        del self._delays_ns[:count]
        return tally

    def _serve(self, arrival: Arrival) -> None:
        content, address, port, received_ns = arrival
        there = mark_of(address, port)
        probe = decode(content, self._keys, there + self._here, PROBE)
        reason = probe if isinstance(probe, str) else self._refusal(probe, received_ns)
        if reason is not None:
            with self._lock:
                self._tally.dropped[reason] += 1
            return
        answered_ns = time.time_ns()
        reply = answer(content, received_ns, answered_ns, self._keys, self._here + there)
        try:
            self.socket.send(reply, address, port)
        except OSError:
            # A filter on the way out, no route back: the prober sees a loss, and the next one may fare better.
            with self._lock:
                self._tally.unsent += 1
            return
        self._delays_ns.append(answered_ns - received_ns)

    def _refusal(self, probe: Packet, received_ns: int) -> str | None:
        """Return why an authentic probe gets no answer, if so; from now on it has been seen."""
        if abs(received_ns - probe.sent_ns) > self._max_age_ns:
            return "stale"
        window = self._windows.get(probe.session)
        if window is None:
            window = self._windows[probe.session] = ReplayWindow()
            if len(self._windows) > MAX_SESSIONS:
                self._windows.popitem(last=False)
        else:
            self._windows.move_to_end(probe.session)
        return None if window.is_new(probe.sequence) else "replayed"


class ResponderConfig(HostConfig):
    """A responder."""

    key_file: Path = Field(description="The hall's key, as of `fabric-mesh`.")
    nics: tuple[MeshNic, ...] = Field(
        default=(),
        max_length=64,
        description="Network ports to answer at; none: those of this host with an address in the map of the hall.",
    )
    port: int = Field(default=PORT, gt=0, le=65_535, description="UDP port to answer at.")
    max_age_seconds: float = Field(
        default=60,
        gt=0,
        le=3_600,
        description="A probe that says it was sent longer ago, or so far ahead, is dropped: clocks of hosts must agree "
        "by this much.",
    )


@collector("fabric-responder", ResponderConfig, (FABRIC_PROBES,))
class ResponderCollector:
    """Answers the probes of `fabric-mesh`, and tells how long this host takes to do so.

    ```toml
    [[ingest.collectors]]
    collector = "fabric-responder"
    host = "h100-a01-01"
    key_file = "/etc/hallwatch/mesh.key"
    nics = [{nic = "mlx5_0", address = "10.0.0.1"}]
    ```

    **Reads** UDP datagrams at the addresses of `nics`. Only a probe that the hall's key proves, that is meant for this
    address, is no older than `max_age_seconds` and was not seen before gets an answer, of the same size; the rest is
    dropped and counted in `collector_status`: `malformed`, `spoofed`, `stale`, `replayed`. A row per port and window of
    `latency_kind` `host_delay` holds the time from a probe's arrival in the kernel to its answer.

    **Needs** no privilege; the key, and a port that the firewall lets the hall's hosts reach.

    **Costs** some 0.05 ms of CPU per probe. Its thread shares the process with other collectors: run it in a process of
    its own (`hallwatch collect --config responder.toml`), or what they do shows as delay of this host.

    **When sending fails**, by a filter or a lost route, it goes on: the answer is counted as `unsent`. An address that is
    not there at the start fails the reading until it is; at one that goes later nothing arrives until it is back. If the
    answering itself ends, by a defect, one reading fails and the next begins anew.
    """

    def __init__(self, config: ResponderConfig, context: Context) -> None:
        self._config = config
        self._keys = read_keys(config.key_file)
        known = [] if config.nics else read_endpoints(context)
        self._nics = own_endpoints(config.nics, config.host, known)
        if not self._nics:
            raise ConfigError(
                "missing", f"fabric-responder of {config.host}: write nics, or addresses into the map"
            )
        self._responder = self._new_responder()
        self._read_us = 0

    def collect(self, now_us: int) -> Reading:
        if not self._responder.is_open:
            self._open()
        if (defect := self._responder.defect) is not None:
            self._responder.close()
            self._responder = self._new_responder()
            raise CollectError("no_data", f"the answering ended and begins anew: {defect!r}") from defect
        tallies = self._responder.tallies()
        since_us, self._read_us = self._read_us or now_us, now_us
        rows = [
            self._row(nic, tally, (now_us - since_us) / 1e6)
            for nic, tally in zip(self._nics, tallies, strict=True)
        ]
        dropped = sum((tally.dropped for tally in tallies), Counter[str]())
        return Reading(rows=[Rows.gather(FABRIC_PROBES, rows)], rejected=dropped)

    def cursor(self) -> bytes:
        return b""

    def restore(self, cursor: bytes) -> None:
        """Begin anew: which probes were seen is kept in memory; older ones than `max_age_seconds` are refused anyway."""

    def close(self) -> None:
        self._responder.close()

    def _new_responder(self) -> Responder:
        ends = [End(nic.address, self._config.port) for nic in self._nics]
        return Responder(ends, self._keys, max_age_seconds=self._config.max_age_seconds)

    def _open(self) -> None:
        try:
            self._responder.open()
        except OSError as error:
            self._responder = self._new_responder()
            raise CollectError(
                "unreachable", f"an address of this host: {error.strerror or error}"
            ) from error

    def _row(self, nic: Endpoint, tally: Tally, seconds: float) -> dict[str, Any]:
        delay = tally.delays
        p50, p99 = delay.percentile(0.5), delay.percentile(0.99)
        return {
            "path": f"{self._config.host}/{nic.nic}",
            "latency_kind": "host_delay",
            "protocol": "udp",
            "nic": nic.nic,
            "address": nic.address,
            "window_seconds": seconds,
            "answered": delay.count,
            "unsent": tally.unsent,
            **delay.columns("rtt"),
            "rtt_p50_us": None if p50 is None else p50 / 1000,
            "rtt_p99_us": None if p99 is None else p99 / 1000,
        }
