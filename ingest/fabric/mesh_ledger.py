"""What became of the probes of one path: each is settled once, as answered, late or lost, so nothing is negative.

A probe without an answer at its time-out is overdue; an answer that comes then makes it late, none until it is given
up makes it lost. Only then does it count, so `sent` is always the sum of the three.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from contract.histogram import Histogram, Recorder, merge

KNOWN_ANSWERS = 4_096
"""Settled sequences that are remembered, to know an answer that comes twice."""

BY_CHANCE = 1e-6
"""A port is dead when what was lost on it would be lost by chance less often, at the loss of the path's other ports."""

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


class _Past(NamedTuple):
    """A row's share of the recent past."""

    at: float
    sent: int
    lost: int
    rtt: Histogram


class PathLedger:
    """The probes of one path. Times are monotonic seconds."""

    def __init__(self, *, timeout_seconds: float, give_up_seconds: float, recent_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        self._give_up_seconds = give_up_seconds
        self._recent_seconds = recent_seconds
        self._open: OrderedDict[int, _Sent] = OrderedDict()
        self._settled: OrderedDict[int, None] = OrderedDict()
        self._ports: dict[int, _Port] = {}
        self._window = _Window()
        self._past: deque[_Past] = deque()

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

    def row(self, now: float) -> dict[str, Any]:
        """Return the columns of the window that ends now, and begin the next."""
        self.expire(now)
        window, self._window = self._window, _Window()
        rtt = window.rtt.histogram()
        sent = window.answered + window.late + window.lost
        self._past.append(_Past(now, sent, window.lost, rtt))
        while self._past[0].at < now - self._recent_seconds:
            self._past.popleft()
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
            **self._recent(),
            **self._dead_ports(),
        }

    def _recent(self) -> dict[str, Any]:
        rtt = merge(past.rtt for past in self._past)
        return {
            "recent_sent": sum(past.sent for past in self._past),
            "recent_lost": sum(past.lost for past in self._past),
            "recent_count": rtt.count,
            "recent_p50_us": _us(rtt.percentile(0.5)),
            "recent_p99_us": _us(rtt.percentile(0.99)),
        }

    def _dead_ports(self) -> dict[str, Any]:
        """Find the ports that lose everything while the path carries others: what hashes to one way is gone."""
        dead = {
            number: port.losses for number, port in self._ports.items() if self._is_dead(port, self._ports)
        }
        return {
            "dead_port_count": len(dead),
            "dead_ports": ",".join(str(number) for number in sorted(dead)) or None,
            "dead_port_losses": min(dead.values(), default=None),
        }

    def _is_dead(self, suspect: _Port, ports: Mapping[int, _Port]) -> bool:
        if suspect.losses < 2:
            return False
        others = [port for port in ports.values() if port is not suspect]
        alive = [port for port in others if port.losses == 0 and port.answered_number >= 0]
        if not alive:
            return False  # nothing comes through: that is a dead path, and no port is to blame
        sent = sum(past.sent for past in self._past)
        lost = sum(past.lost for past in self._past)
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
