"""The compute network of a large hall: light, bit errors, repeats and delay of every port.

attenuation -> bit errors before correction -> symbol errors -> repeats -> delay of the port's paths -> collectives
"""

from __future__ import annotations

import numpy as np

from twin.site import Site
from twin.workload import Floats

PORT_BYTES_PER_SECOND = 50e9  # 400 Gb/s
BASE_MICROSECONDS = {False: 12.0, True: 22.0}  # there and back on one rail; EFA's SRD is slower
PROBES = 100
# An optic has some 4 dB of margin; a decade of bit errors goes with every half decibel once it is used up.
SPARE_DECIBEL = 4.0
DECADES_PER_DECIBEL = 2.0
CLEAN_ERRORS_PER_SECOND = 1e-4
REPEAT_MICROSECONDS = 0.6  # mean delay added per symbol error a second, until the link is all repeats
MOST_DELAY_MICROSECONDS = 600.0
TRAINING_SECONDS = 4.0  # a link that is plugged in trains this long


class Network:
    """The ports of a hall, host by host; what handles change are its plain arrays."""

    def __init__(self, site: Site, rng: np.random.Generator) -> None:
        count = len(site.ports)
        efa = site.efa[site.host_of_port]
        self._rng = rng
        self._cable_decibel = np.abs(rng.normal(0, 0.3, count))
        self.dirt_decibel = np.zeros(count)
        self.connected = np.ones(count, np.bool_)
        """Whether light arrives at all."""
        self.installed = np.ones(count, np.bool_)
        self.active = np.ones(count, np.bool_)
        self._training = np.zeros(count)
        self.base_us = np.where(efa, BASE_MICROSECONDS[True], BASE_MICROSECONDS[False])
        self.base_us = self.base_us * rng.uniform(0.95, 1.1, count)
        # Counters as days of work leave them.
        self.sent_bytes = rng.integers(10**14, 10**16, count)
        self.received_bytes = rng.integers(10**14, 10**16, count)
        self.symbol_errors = rng.integers(0, 12, count)
        self.receive_errors = np.zeros(count, np.int64)
        self.timeouts = np.zeros(count, np.int64)
        self.repeats = rng.integers(0, 200, count)
        self.link_downs = rng.integers(0, 2, count)
        self.bytes_per_second = np.zeros(count)
        self.errors_per_second = np.zeros(count)
        self.receive_errors_per_second = np.zeros(count)

    @property
    def attenuation_decibel(self) -> Floats:
        """Beyond what the cable was sold with: that of the cable, or of the dirt on it where that is more."""
        return np.maximum(self._cable_decibel, self.dirt_decibel)

    @property
    def delay_us(self) -> Floats:
        """What repeats add to a path over each port."""
        return np.minimum(REPEAT_MICROSECONDS * self.errors_per_second, MOST_DELAY_MICROSECONDS)

    def slowness(self) -> Floats:
        """Return per port the time that its share of a collective takes over that of a good port."""
        lost = np.minimum(self.delay_us / 60.0, 4.0)
        return np.where(self.active, 1.0 + lost, 8.0 / 7.0)  # without a rail the other seven carry its share

    def reset(self, ports: slice) -> None:
        """Set back what the driver of these ports counts since it was loaded."""
        for counter in (self.sent_bytes, self.received_bytes, self.symbol_errors, self.receive_errors):
            counter[ports] = 0
        self.timeouts[ports] = self.repeats[ports] = self.link_downs[ports] = 0

    def advance(self, seconds: float, load: Floats) -> None:
        """Carry `load`, 0 to 1 of each port's speed, for `seconds`."""
        light = self.connected & self.installed
        self._training = np.where(light, np.maximum(self._training - seconds, 0.0), TRAINING_SECONDS)
        was, self.active = self.active, light & (self._training <= 0)
        self.link_downs += was & ~self.active
        over = np.maximum(self.attenuation_decibel - SPARE_DECIBEL, -3.0)
        self.errors_per_second = np.where(
            self.active,
            np.minimum(CLEAN_ERRORS_PER_SECOND * 10 ** (DECADES_PER_DECIBEL * (over + 1)), 1e4),
            0.0,
        )
        errors = self._rng.poisson(self.errors_per_second * seconds)
        bad = self._rng.binomial(errors, 0.05)
        self.symbol_errors += errors
        self.repeats += errors // 2
        self.receive_errors += bad
        self.timeouts += self._rng.binomial(errors, 0.01)
        blend = -np.expm1(-seconds / 60.0)
        self.receive_errors_per_second += (bad / seconds - self.receive_errors_per_second) * blend
        rate = np.where(self.active, load * PORT_BYTES_PER_SECOND / self.slowness(), 0.0)
        self.bytes_per_second += (rate - self.bytes_per_second) * blend
        moved = (rate * seconds).astype(np.int64)
        self.sent_bytes += moved
        self.received_bytes += moved
