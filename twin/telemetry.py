"""The collectors of a large hall: clocks, epochs, missed readings and what breaks them or imitates them."""

from __future__ import annotations

import numpy as np

from twin.site import Site

_MISSED = 0.0005  # of all polls


class Telemetry:
    """Per host, how its collectors behave; what handles change are its plain arrays."""

    def __init__(self, site: Site, rng: np.random.Generator) -> None:
        hosts = len(site.hosts)
        self.rng = rng
        self.clock_offset_seconds = np.clip(rng.normal(0, 0.002, hosts), -0.01, 0.01)
        self.silent = np.zeros(hosts, np.bool_)
        self.cloned = np.zeros(hosts, np.bool_)
        """Somebody else writes as this host, in an epoch of their own."""
        self.doubled = np.zeros(hosts, np.bool_)
        """Every event is sent twice, with one sequence."""
        self.skips = np.zeros(hosts, np.int64)
        """Events that will be numbered and never sent."""
        self.starts = np.zeros(hosts, np.int64)
        """How often the collectors of a host were started again."""
        self.coarse_celsius = np.ones(hosts)
        self.frozen = np.zeros(len(site.cdus), np.bool_)
        """Coolant units that repeat what they last read."""
        self.held_partition = -1
        """A partition of gpu_samples whose events wait; -1: none."""
        self.windows: list[dict[str, object]] = []
        """Announcements of work that nobody has published yet."""

    def misses(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Draw which hosts miss a poll now."""
        return self.rng.random(len(self.silent)) < _MISSED
