"""What became of the probes of one path: each is settled once, as answered, late or lost, so nothing is negative.

A probe without an answer at its time-out is overdue; an answer that comes then makes it late, none until it is given
up makes it lost. Only then does it count, so `sent` is always the sum of the three.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from contract.histogram import Histogram, Recorder

KNOWN_ANSWERS = 4_096
"""Settled sequences that are remembered, to know an answer that comes twice."""

BY_CHANCE = 1e-6
"""A port is dead when what was lost on it would be lost by chance less often, at the loss of the path's other ports."""

_LEAST_LOSSES = 2
"""In a row, below which no port is thought dead."""

_LEAST_LOSS = 0.01
"""Loss that the other ports are taken to have at least: few probes cannot show less."""


class Delays(NamedTuple):
    """The latency of one probe in its parts, nanoseconds."""

    network: int
    responder: int
    prober: int


@dataclass(slots=True)
class _Sent:
    """A probe that is not settled."""

    port: int
    due: float  # when it is overdue, monotonic
    given_up: float
    number: int  # its place among the probes of its port


@dataclass(slots=True)
class _Port:
    """A source port: what came back of its last probes."""

    sent: int = 0
    losses: int = 0  # in a row, until now
    answered_number: int = -1


@dataclass(slots=True)
class _Window:
    """What was settled since the last row."""

    answered: int = 0
    late: int = 0
    lost: int = 0
    duplicates: int = 0
    unsent: int = 0
    responder_ns: int = 0
    prober_ns: int = 0
    measured: int = 0
    rtt: Recorder = field(default_factory=Recorder)


class ClosedWindow(NamedTuple):
    """What a row is made of; nobody adds to it any more."""

    at: float
    settled: _Window
    ports: Mapping[int, _Port]
    """All source ports where one may be dead, none otherwise."""


class _Past(NamedTuple):
    """A row's share of the recent past."""

    at: float
    sent: int
    lost: int
    rtt: Histogram


class _Recent:
    """The windows of the recent past together, kept as a sum: to merge them all for each row takes far longer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._past: deque[_Past] = deque()
        self._buckets: Counter[int] = Counter()
        self.sent = self.lost = 0

    def add(self, past: _Past) -> None:
        """Take a window in, and let go of those that are too old."""
        self._past.append(past)
        self._count(past, 1)
        while self._past[0].at < past.at - self._seconds:
            self._count(self._past.popleft(), -1)

    def _count(self, past: _Past, sign: int) -> None:
        self.sent += sign * past.sent
        self.lost += sign * past.lost
        for index, count in past.rtt.buckets():
            self._buckets[index] += sign * count
            if not self._buckets[index]:
                del self._buckets[index]

    def histogram(self) -> Histogram:
        filled = [past.rtt for past in self._past if past.rtt.count]
        return Histogram(
            count=sum(rtt.count for rtt in filled),
            sum=sum(rtt.sum for rtt in filled),
            min=min((rtt.min for rtt in filled if rtt.min is not None), default=None),
            max=max((rtt.max for rtt in filled if rtt.max is not None), default=None),
            idx=tuple(sorted(self._buckets)),
            cnt=tuple(self._buckets[index] for index in sorted(self._buckets)),
        )


class PathLedger:
    """The probes of one path. Times are monotonic seconds.

    `row` does not touch what the other methods do, so that probing may go on while it works.
    """

    def __init__(self, *, timeout_seconds: float, give_up_seconds: float, recent_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._give_up_seconds = give_up_seconds
        self._open: OrderedDict[int, _Sent] = OrderedDict()
        self._settled: OrderedDict[int, None] = OrderedDict()
        self._ports: dict[int, _Port] = {}
        self._window = _Window()
        self._recent = _Recent(recent_seconds)

    def sent(self, sequence: int, port: int, now: float) -> None:
        """Note a probe that left; sequences ascend."""
        known = self._ports.setdefault(port, _Port())
        known.sent += 1
        due = now + self._timeout_seconds
        self._open[sequence] = _Sent(port, due, now + self._give_up_seconds, known.sent)

    def unsent(self) -> None:
        """Note a probe that this host did not let out."""
        self._window.unsent += 1

    def answered(self, sequence: int, delays: Delays | None, now: float) -> bool:
        """Note an answer, without delays where the clocks cannot be believed; return whether the probe is known."""
        probe = self._open.pop(sequence, None)
        if probe is None:
            known = sequence in self._settled
            self._window.duplicates += known
            return known
        self._settle(sequence)
        port, window = self._ports[probe.port], self._window
        if probe.number > port.answered_number:
            port.answered_number, port.losses = probe.number, 0
        if now > probe.due:
            window.late += 1
            return True
        window.answered += 1
        if delays is not None:
            window.rtt.record(delays.network)
            window.responder_ns += delays.responder
            window.prober_ns += delays.prober
            window.measured += 1
        return True

    def expire(self, now: float) -> None:
        """Give up what is out too long."""
        while self._open:
            sequence, probe = next(iter(self._open.items()))
            if now <= probe.given_up:
                return
            del self._open[sequence]
            self._window.lost += 1
            port = self._ports[probe.port]
            if probe.number > port.answered_number:
                port.losses += 1

    def close_window(self, now: float) -> ClosedWindow:
        """End the window and begin the next."""
        self.expire(now)
        window, self._window = self._window, _Window()
        suspicious = any(port.losses >= _LEAST_LOSSES for port in self._ports.values())
        ports = {number: copy(port) for number, port in self._ports.items()} if suspicious else {}
        return ClosedWindow(now, window, ports)

    def row(self, closed: ClosedWindow) -> dict[str, Any]:
        """Return the columns of a window; each is to be told once, in their order."""
        window = closed.settled
        rtt = window.rtt.histogram()
        sent = window.answered + window.late + window.lost
        self._recent.add(_Past(closed.at, sent, window.lost, rtt))
        return {
            "sent": sent,
            "answered": window.answered,
            "late": window.late,
            "lost": window.lost,
            "duplicates": window.duplicates,
            "unsent": window.unsent,
            "responder_delay_us": _mean_us(window.responder_ns, window.measured),
            "prober_delay_us": _mean_us(window.prober_ns, window.measured),
            "rtt_p50_us": _us(rtt.percentile(0.5)),
            "rtt_p99_us": _us(rtt.percentile(0.99)),
            **rtt.columns("rtt"),
            **self._tell_recent(),
            **self._tell_dead_ports(closed.ports),
        }

    def _tell_recent(self) -> dict[str, Any]:
        rtt = self._recent.histogram()
        return {
            "recent_sent": self._recent.sent,
            "recent_lost": self._recent.lost,
            "recent_count": rtt.count,
            "recent_p50_us": _us(rtt.percentile(0.5)),
            "recent_p99_us": _us(rtt.percentile(0.99)),
        }

    def _tell_dead_ports(self, ports: Mapping[int, _Port]) -> dict[str, Any]:
        """Find the ports that lose everything while the path carries others: what hashes to one way is gone."""
        dead = {number: port.losses for number, port in ports.items() if self._is_dead(port, ports)}
        return {
            "dead_port_count": len(dead),
            "dead_ports": ",".join(str(number) for number in sorted(dead)) or None,
            "dead_port_losses": min(dead.values(), default=None),
        }

    def _is_dead(self, suspect: _Port, ports: Mapping[int, _Port]) -> bool:
        if suspect.losses < _LEAST_LOSSES:
            return False
        others = [port for port in ports.values() if port is not suspect]
        alive = [port for port in others if port.losses == 0 and port.answered_number >= 0]
        if not alive:
            return False  # nothing comes through: that is a dead path, and no port is to blame
        sent, lost = self._recent.sent, self._recent.lost
        silent = sum(port.losses for port in ports.values() if port.losses >= suspect.losses)
        loss = max(_LEAST_LOSS, max(0, lost - silent) / max(1, sent - silent))
        return loss < 1 and suspect.losses * math.log(loss) + math.log(len(ports)) < math.log(BY_CHANCE)

    def _settle(self, sequence: int) -> None:
        self._settled[sequence] = None
        if len(self._settled) > KNOWN_ANSWERS:
            self._settled.popitem(last=False)


def _us(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1000


def _mean_us(nanoseconds: int, count: int) -> float | None:
    return nanoseconds / count / 1000 if count else None
