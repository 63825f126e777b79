"""The responder: answers probes of this hall's probers, and nobody else."""

from __future__ import annotations

import selectors
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from contract.errors import CollectError, ConfigError
from contract.histogram import Recorder
from contract.streams.fabric import FABRIC_PROBES
from ingest.collector import Context, HostConfig, Reading, Rows, collector
from ingest.fabric.mesh import PORT, MeshNic, own_endpoints, read_endpoints
from ingest.fabric.mesh_packet import (
    ANSWER,
    PROBE,
    End,
    Keys,
    Packet,
    ReplayWindow,
    decode,
    encode,
    read_keys,
)
from ingest.fabric.mesh_paths import Endpoint
from ingest.fabric.mesh_socket import Arrival, ProbeSocket

MAX_SESSIONS = 4_096
"""Probers remembered at once; each start of one is a session."""

_WAIT_SECONDS = 0.2
_BURST = 64


class Responder:
    """Answers on some addresses until it is closed; a probe it cannot prove, or has seen, it drops and counts."""

    def __init__(self, ends: Sequence[End], keys: Keys, *, max_age_seconds: float) -> None:
        self._ends = tuple(ends)
        self._keys = keys
        self._max_age_ns = round(max_age_seconds * 1e9)
        self._sessions: OrderedDict[bytes, ReplayWindow] = OrderedDict()
        self._selector = selectors.DefaultSelector()
        self._sockets: list[ProbeSocket] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._defect: Exception | None = None
        self._fresh()

    def _fresh(self) -> None:
        self._dropped: Counter[str] = Counter()
        self._delays = [Recorder() for _ in self._ends]
        self._unsent = [0] * len(self._ends)

    def open(self) -> None:
        """Bind every address and begin; raise OSError where one is not this host's or is taken."""
        try:
            for at, end in enumerate(self._ends):
                self._sockets.append(ProbeSocket(*end))
                self._selector.register(self._sockets[at], selectors.EVENT_READ, at)
        except OSError:
            self._release()
            raise
        self._thread = threading.Thread(target=self._run, name="responder", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    def counts(self) -> tuple[list[tuple[Recorder, int]], Counter[str]]:
        """Return for each address how long answers took and how many could not be sent, and what was dropped.

        Each is counted since the call before. Raises what ended the thread.
        """
        with self._lock:
            if self._defect is not None:
                raise self._defect
            found = list(zip(self._delays, self._unsent, strict=True)), self._dropped
            self._fresh()
        return found

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2)
        self._release()

    def _release(self) -> None:
        for socket in self._sockets:
            if socket.fileno() in self._selector.get_map():
                self._selector.unregister(socket)
            socket.close()
        self._sockets.clear()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for key, _ in self._selector.select(_WAIT_SECONDS):
                    self._serve(key.data)
        except Exception as error:  # noqa: BLE001 - handed to the thread that asks for counts, which raises it
            self._defect = error

    def _serve(self, at: int) -> None:
        """Answer what waits at one address, so much at once that no other address waits long."""
        socket = self._sockets[at]
        for _ in range(_BURST):
            arrival = socket.receive()
            if arrival is None:
                return
            reason = self._answer(at, socket, arrival)
            if reason is not None:
                with self._lock:
                    self._dropped[reason] += 1

    def _answer(self, at: int, socket: ProbeSocket, arrival: Arrival) -> str | None:
        """Answer one datagram, or return why not."""
        here, there = End(socket.address, socket.port).mark, End(arrival.address, arrival.port).mark
        probe = decode(arrival.content, self._keys, there + here, PROBE)
        if isinstance(probe, str):
            return probe
        if abs(arrival.received_ns - probe.sent_ns) > self._max_age_ns:
            return "stale"
        if not self._window(probe.session).is_new(probe.sequence):
            return "replayed"
        answered_ns = time.time_ns()
        answer = Packet(
            ANSWER, probe.session, probe.sequence, probe.sent_ns, arrival.received_ns, answered_ns
        )
        content = encode(answer, self._keys, here + there, len(arrival.content))
        try:
            socket.send(content, arrival.address, arrival.port)
        except (
            OSError
        ):  # a filter on the way out, no route back: the prober sees a loss, the next probe may fare better
            with self._lock:
                self._unsent[at] += 1
            return None
        with self._lock:
            self._delays[at].record(answered_ns - arrival.received_ns)
        return None

    def _window(self, session: bytes) -> ReplayWindow:
        window = self._sessions.get(session)
        if window is None:
            window = self._sessions[session] = ReplayWindow()
            if len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(session)
        return window


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
    gone fails the reading until it is back.
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
        self._opened_us = 0

    def collect(self, now_us: int) -> Reading:
        if not self._responder.is_open:
            self._open()
        found, dropped = self._responder.counts()
        since_us, self._opened_us = self._opened_us or now_us, now_us
        rows = [
            self._row(nic, recorder, unsent, (now_us - since_us) / 1e6)
            for nic, (recorder, unsent) in zip(self._nics, found, strict=True)
        ]
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

    def _row(self, nic: Endpoint, recorder: Recorder, unsent: int, seconds: float) -> dict[str, Any]:
        delay = recorder.histogram()
        p50, p99 = delay.percentile(0.5), delay.percentile(0.99)
        return {
            "path": f"{self._config.host}/{nic.nic}",
            "latency_kind": "host_delay",
            "protocol": "udp",
            "nic": nic.nic,
            "address": nic.address,
            "window_seconds": seconds,
            "answered": delay.count,
            "unsent": unsent,
            **delay.columns("rtt"),
            "rtt_p50_us": None if p50 is None else p50 / 1000,
            "rtt_p99_us": None if p99 is None else p99 / 1000,
        }
