"""Numbered readings. Each row says whose it is and which, so that whatever is lost, doubled or invented shows.

A collector keeps the number of its next reading in its cursor, which is stored with the rows: the cursor is its
promise. Which GPU is hot at which number follows from the seed alone, so the alerts of a whole run are known.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Any

from contract.streams.gpu import GPU_EVENTS, GPU_SAMPLES
from ingest.collector import HostConfig, Reading, Rows

GPUS = 2
"""Per host."""

_BLOCK = 12
"""In each block of so many readings a GPU is hot for a while, or not at all."""

_XID = 79


def gpu_name(host: str, index: int) -> str:
    return f"GPU-{host}-{index}"


def checksum(seed: int, gpu: str, number: int) -> str:
    """Return what a row carries to prove that it was sent; `audit` says the same in SQL."""
    return hashlib.md5(f"{seed}/{gpu}/{number}".encode(), usedforsecurity=False).hexdigest()


def is_hot(seed: int, gpu: str, number: int) -> bool:
    dice = zlib.crc32(f"{seed}/{gpu}/{number // _BLOCK}".encode())
    begin = (dice >> 8) % 8
    return dice % 2 == 0 and begin <= number % _BLOCK < begin + 4


def has_event(seed: int, gpu: str, number: int) -> bool:
    return zlib.crc32(f"event/{seed}/{gpu}/{number}".encode()) % 20 == 0


def expected_transitions(seed: int, promised: dict[str, int]) -> set[tuple[str, int, str]]:
    """Return (GPU, number of the reading that decides, transition) of everything the rule `hot` must say."""
    found = set()
    for host, count in promised.items():
        for gpu in (gpu_name(host, index) for index in range(GPUS)):
            was = False
            for number in range(count):
                hot = is_hot(seed, gpu, number)
                if hot != was:
                    found.add((gpu, number, "firing" if hot else "ended"))
                was = hot
    return found


class StampCollector:
    """A device that answers with the next number. `reached` is told of every reading."""

    def __init__(self, config: HostConfig, seed: int, reached: Callable[[str], None]) -> None:
        self._host = config.host
        self._seed = seed
        self._reached = reached
        self._next = 0

    def collect(self, now_us: int) -> Reading:
        del now_us
        self._reached("read")
        number, seed = self._next, self._seed
        self._next += 1
        gpus = [gpu_name(self._host, index) for index in range(GPUS)]
        samples: dict[str, list[Any]] = {
            "gpu_uuid": gpus,
            "energy_millijoules": [number] * GPUS,
            "container": [checksum(seed, gpu, number) for gpu in gpus],
            "temperature_margin_celsius": [-5.0 if is_hot(seed, gpu, number) else 20.0 for gpu in gpus],
        }
        failed = [gpu for gpu in gpus if has_event(seed, gpu, number)]
        events: dict[str, list[Any]] = {
            "event": ["xid"] * len(failed),
            "evidence": ["kernel_log"] * len(failed),
            "gpu_uuid": failed,
            "code": [_XID] * len(failed),
            "occurrences": [number + 1] * len(failed),
            "detail": [checksum(seed, gpu, number) for gpu in failed],
        }
        rows = [Rows(stream=GPU_SAMPLES, columns=samples), Rows(stream=GPU_EVENTS, columns=events)]
        return Reading(rows=rows if failed else rows[:1])

    def cursor(self) -> bytes:
        return str(self._next).encode()

    def restore(self, cursor: bytes) -> None:
        self._next = int(cursor)

    def close(self) -> None:
        """Hold nothing."""
