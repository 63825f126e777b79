"""The prober: a thread that sends probes at an even pace, takes answers in, and keeps a ledger per path.

Times of one probe, by the wall clocks: T1 the prober turns to it, T2 it is handed to the kernel, T3 the responder's
kernel has it, T4 the responder answers, T5 the prober's kernel has the answer, T6 the prober reads it. The network
takes (T5 - T2) - (T4 - T3), the responder T4 - T3, the prober (T6 - T1) - (T5 - T2): no clock is compared with
another's. As R-Pingmesh divides them (SIGCOMM 2024, section 4).
"""

from __future__ import annotations

import heapq
import random
import secrets
import selectors
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ingest.fabric.mesh_ledger import Delays, PathLedger
from ingest.fabric.mesh_packet import ANSWER, PROBE, End, Keys, Packet, decode, encode, mark_of
from ingest.fabric.mesh_paths import Path
from ingest.fabric.mesh_socket import Arrival, ProbeSocket

_LONGEST_WAIT_SECONDS = 0.05
_BURST = 64
_CLOCK_STEP_NS = 1_000_000
"""Wall and monotonic clock disagree by more over one probe: somebody set the clock, so its times are worth nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """How to probe: see the keys of the same names in the collector's configuration."""

    source_ports: int
    first_source_port: int
    packet_bytes: int
    interval_seconds: float
    late_after_seconds: float
    lost_after_seconds: float
    recent_seconds: float


class Route(NamedTuple):
    """A path and the port at which its target answers."""

    path: Path
    port: int


class _Flight(NamedTuple):
    """A probe that left."""

    route: int
    turned_ns: int  # T1
    sent_ns: int  # T2
    sent_at: float  # the same, monotonic


class Prober:
    """Probes routes until it is closed. `open` binds, `rows` closes a window; one thread calls them."""

    def __init__(
        self,
        routes: Sequence[Route],
        keys: Keys,
        settings: ProbeSettings,
    ) -> None:
        self.routes = tuple(routes)
        self._keys = keys
        self._settings = settings
        self._ledgers = [
            PathLedger(
                timeout_seconds=settings.late_after_seconds,
                give_up_seconds=settings.lost_after_seconds,
                recent_seconds=settings.recent_seconds,
            )
            for _ in routes
        ]
        self._sequences = [0] * len(self.routes)
        # A session of its own for each: the window of a responder is then of one path, however many there are.
        self._sessions = [secrets.token_bytes(8) for _ in routes]
        self._targets = [End(route.path.target.address, route.port) for route in self.routes]
        self._flights: OrderedDict[tuple[bytes, int], _Flight] = OrderedDict()
        """By session and sequence."""
        self._sockets: dict[str, list[ProbeSocket]] = {}
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._rejected: Counter[str] = Counter()
        self.defect: Exception | None = None
        """What ended the thread, if something did: then this prober is of no more use."""
        self._row_at = 0.0

    def open(self) -> None:
        """Bind the source ports and begin; raise OSError where an address is not this host's or a port is taken."""
        try:
            for address in sorted({route.path.source.address for route in self.routes}):
                first, count = self._settings.first_source_port, self._settings.source_ports
                ports = range(first, first + count) if first else [0] * count
                sockets = self._sockets.setdefault(address, [])
                for port in ports:
                    sockets.append(ProbeSocket(address, port, usual_bytes=self._settings.packet_bytes))
                    self._selector.register(sockets[-1], selectors.EVENT_READ, sockets[-1])
        except OSError:
            self._release()
            raise
        self._row_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="prober", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    def rows(self) -> tuple[list[dict[str, Any]], Counter[str]]:
        """Return a row per route, in their order, and what was refused, by reason."""
        with self._lock:  # for as short as can be: while a row is made, probes leave and answers come
            now = time.monotonic()
            window, self._row_at = now - self._row_at, now
            rejected, self._rejected = self._rejected, Counter()
            closed = [ledger.close_window(now) for ledger in self._ledgers]
        rows = [ledger.row(window) for ledger, window in zip(self._ledgers, closed, strict=True)]
        for row, route in zip(rows, self.routes, strict=True):
            row["window_seconds"] = window
            row["source_ports"] = self._ports_of(route.path.source.address)
        return rows, rejected

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2)
        self._release()

    def _release(self) -> None:
        for socket in [socket for sockets in self._sockets.values() for socket in sockets]:
            self._selector.unregister(socket)
            socket.close()
        self._sockets.clear()

    def _ports_of(self, address: str) -> str:
        return ",".join(str(socket.port) for socket in self._sockets.get(address, ()))

    def _run(self) -> None:
        try:
            self._probe()
        except Exception as error:  # noqa: BLE001 - handed to the thread that asks for rows
            self.defect = error

    def _probe(self) -> None:
        start, spread = time.monotonic(), random.Random()
        due = [
            (start + spread.random() * self._settings.interval_seconds, at) for at in range(len(self.routes))
        ]
        heapq.heapify(due)
        while not self._stop.is_set():
            now = time.monotonic()
            while due[0][0] <= now:
                planned, route = due[0]
                self._send(route)
                # A pace that was missed is not made up for: a burst would measure itself.
                heapq.heapreplace(
                    due,
                    (
                        max(planned, now - self._settings.interval_seconds) + self._settings.interval_seconds,
                        route,
                    ),
                )
            wait = min(max(0.0, due[0][0] - time.monotonic()), _LONGEST_WAIT_SECONDS)
            for key, _ in self._selector.select(wait):
                self._receive(key.data)

    def _send(self, at: int) -> None:
        turned_ns = time.time_ns()
        session, sequence = self._sessions[at], self._sequences[at]
        self._sequences[at] += 1
        sockets = self._sockets[self.routes[at].path.source.address]
        socket, target = sockets[sequence % len(sockets)], self._targets[at]
        marks = mark_of(socket.address, socket.port) + target.mark
        packet = Packet(PROBE, session, sequence, turned_ns)
        content = encode(packet, self._keys, marks, self._settings.packet_bytes)
        with self._lock:
            ledger = self._ledgers[at]
            sent_at, sent_ns = time.monotonic(), time.time_ns()
            try:
                socket.send(content, *target)
            except OSError:
                ledger.unsent()
                return
            ledger.sent(sequence, socket.port, sent_at)
            self._flights[session, sequence] = _Flight(at, turned_ns, sent_ns, sent_at)
            ledger.expire(sent_at)
            self._forget(sent_at)

    def _forget(self, now: float) -> None:
        """Drop flights that every ledger has given up long ago."""
        while (
            self._flights
            and next(iter(self._flights.values())).sent_at < now - 2 * self._settings.lost_after_seconds
        ):
            self._flights.popitem(last=False)

    def _receive(self, socket: ProbeSocket) -> None:
        for _ in range(_BURST):
            arrival = socket.receive()
            if arrival is None:
                return
            read_ns, now = time.time_ns(), time.monotonic()
            reason = self._take(socket, arrival, read_ns, now)
            if reason is not None:
                with self._lock:
                    self._rejected[reason] += 1

    def _take(self, socket: ProbeSocket, arrival: Arrival, read_ns: int, now: float) -> str | None:
        """Account for an answer; return why it is none, or why its times are not believed."""
        marks = mark_of(arrival.address, arrival.port) + mark_of(socket.address, socket.port)
        answer = decode(arrival.content, self._keys, marks, ANSWER)
        if isinstance(answer, str):
            return answer
        flight = self._flights.get((answer.session, answer.sequence))
        if flight is None:
            return "unexpected"
        if self._targets[flight.route] != (arrival.address, arrival.port):
            return "spoofed"
        delays = _delays(flight, answer, arrival.received_ns, read_ns, now)
        with self._lock:
            known = self._ledgers[flight.route].answered(answer.sequence, delays, now)
        if not known:
            return "unexpected"
        return None if delays is not None else "clock"


def _delays(flight: _Flight, answer: Packet, arrived_ns: int, read_ns: int, now: float) -> Delays | None:
    """Divide the time of a probe among network and hosts; None where the clocks cannot be right."""
    away_ns, responder_ns = arrived_ns - flight.sent_ns, answer.answered_ns - answer.received_ns
    stepped_ns = (read_ns - flight.sent_ns) - round((now - flight.sent_at) * 1e9)
    prober_ns = (read_ns - flight.turned_ns) - away_ns
    if abs(stepped_ns) > _CLOCK_STEP_NS or not 0 <= responder_ns < away_ns or prober_ns < 0:
        return None
    return Delays(away_ns - responder_ns, responder_ns, prober_ns)
