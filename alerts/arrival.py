"""The engine's own time, and when messages arrived by it.

The wall clock may be set back or forward at any moment, and the bus stamps messages with the clock of a machine that
may be another one. So the engine counts time that never jumps: the wall time of its first batch, carried on by the
monotonic clock. What waits, expires or is silent is judged by it; what people and the lake are shown is wall time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alerts.state import Ints
from contract.bus import Message
from contract.clock import Clock
from contract.log import Log
from contract.streams import BY_TOPIC

_STEP_US = 5_000_000
"""A wall clock that gains or loses more than this at once was set; less is drift, and followed."""

_log = Log("engine")


class Timekeeper:
    """Reads both clocks of the machine as wall time and the offset of the engine's time from it."""

    def __init__(self, clock: Clock, now_us: int, offset_us: int) -> None:
        """Go on from the wall time and offset that were journaled last; what passed since then is the wall's word."""
        self._clock = clock
        self._own_us = now_us + offset_us
        self._offset_us = offset_us
        self._read_at: float | None = None
        self.steps = 0
        """How often the wall clock was set."""

    def read(self) -> tuple[int, int]:
        """Return wall time and offset; their sum never falls, and a wall clock that is set moves the offset."""
        now_us, read_at = self._clock.now_us(), self._clock.monotonic()
        passed_us = 0 if self._read_at is None else round((read_at - self._read_at) * 1e6)
        expected_us, found_us = self._own_us + passed_us, now_us + self._offset_us
        back = expected_us - found_us > _STEP_US
        if back or (self._read_at is not None and found_us - expected_us > _STEP_US):
            self._offset_us += expected_us - found_us
            self.steps += 1
            _log.error("clock_was_set", by_seconds=round((found_us - expected_us) / 1e6))
        self._own_us = max(self._own_us, now_us + self._offset_us)
        self._read_at = read_at
        return now_us, self._own_us - now_us


class Arrivals:
    """Puts the bus's stamps between what is certain.

    A message cannot have arrived after the batch that read it, nor before its partition was last seen read to its
    end. Where every clock is right this changes nothing.
    """

    def __init__(self) -> None:
        self._now_us: int | None = None
        self.offset_us = 0
        """How far the engine's time is ahead of the wall clock."""
        self._ended_us = 0
        self._behind_us: dict[tuple[str, int], int] = {}
        """When a partition that is not read to its end last was, by (stream, partition)."""

    def begin(self, now_us: int | None, offset_us: int) -> None:
        """Take the time of a batch; None where nothing is known of it."""
        self._now_us, self.offset_us = now_us, offset_us

    def end(self, now_us: int, behind: Mapping[tuple[str, int], int]) -> None:
        """Take down at a tick which partitions are not read to their end."""
        self._behind_us = {partition: self._floor_us(*partition) for partition in behind}
        self._ended_us = now_us

    def read_until_us(self, behind: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Return up to when partitions are read, by the engine's time, from the stamps of what was read last."""
        now_us = self._ended_us if self._now_us is None else self._now_us
        return {
            partition: min(max(stamp + self.offset_us, self._floor_us(*partition)), now_us)
            for partition, stamp in behind.items()
        }

    def times_us(self, messages: Sequence[Message]) -> Ints:
        """Return when messages arrived, by the engine's time."""
        stamps = np.fromiter((message.received_us for message in messages), np.int64, len(messages))
        if self._now_us is None:
            return stamps
        floors: Ints | int = self._ended_us
        if self._behind_us:
            at = (self._floor_us(BY_TOPIC[m.topic].name, m.partition) for m in messages)
            floors = np.fromiter(at, np.int64, len(messages))
        times: Ints = np.minimum(np.maximum(stamps + self.offset_us, floors), self._now_us)
        return times

    def wall_us(self, own_us: int) -> int:
        """Return a time of the engine as the wall clock has it now."""
        return own_us - self.offset_us

    def _floor_us(self, stream: str, partition: int) -> int:
        return self._behind_us.get((stream, partition), self._ended_us)

    def dump(self) -> dict[str, Any]:
        """Return what must survive a restart, as JSON can hold it."""
        behind = [[*partition, us] for partition, us in self._behind_us.items()]
        return {"ended_us": self._ended_us, "behind": behind}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Take up what was dumped; raise KeyError, TypeError or ValueError where it is something else."""
        self._ended_us = saved["ended_us"]
        self._behind_us = {(stream, partition): us for stream, partition, us in saved["behind"]}
