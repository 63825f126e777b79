"""Who should be talking and who is: the life of the bus and of every source.

Silence is measured against the next thing above that still talks, never against the wall clock: a GPU against its
host, a host against its collector, a collector against the bus. So when the bus stops, nothing below it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from contract.streams import STREAMS

_FED = frozenset(STREAMS) - {"collector_status"}

BUS_PAUSE_US = 15_000_000
"""After a silence of the whole bus longer than this, everyone is given time to be heard again.

Every source sends its status each 10 s, so a living hall is never silent for longer.
"""


@dataclass(slots=True)
class Source:
    """One collector's source as its newest status shows it."""

    host: str | None
    collector: str
    heard_us: int
    resumed_us: int
    """When it was first heard after its last silence."""
    state: str
    last_error_reason: str | None = None
    last_error: str | None = None
    streams: list[str] = field(default_factory=list)
    """Streams it was ever seen to send, but its status."""

    def feeds(self, stream: str) -> bool:
        """Tell whether rows of the stream may come from it; one that never sent any may send all."""
        return not self.streams or stream in self.streams


class Life:
    """When the bus and its sources were last heard of; all by the clock of the bus."""

    def __init__(self) -> None:
        self.began_us = 0
        """When this engine first read anything of this hall."""
        self.heard_us = 0
        self.resumed_us = 0
        self.error: str | None = None
        """Why the bus could not be read at the last try."""
        self.sources: dict[str, Source] = {}
        self.by_host: dict[str, list[str]] = {}
        self._ticked_us = 0

    def hear(self, received_us: int) -> None:
        self.heard_us = max(self.heard_us, received_us)

    def tick(self, now_us: int, error: str | None) -> None:
        """Notice whether the bus came back since the tick before."""
        self.error = error
        self.began_us = self.began_us or now_us
        if self.heard_us - self._ticked_us > BUS_PAUSE_US:
            self.resumed_us = self.heard_us
        self._ticked_us = self.heard_us

    def note_status(self, table: pa.Table, received_us: list[int], pause_us: int) -> None:
        """Take over rows of `collector_status`; silence longer than `pause_us` is one to come back from."""
        for row, received in zip(table.to_pylist(), received_us, strict=True):
            source = self.sources.get(row["source"])
            if source is None:
                source = Source(row["host"], row["collector"], received, received, row["state"])
                self.sources[row["source"]] = source
                if row["host"] is not None:
                    self.by_host.setdefault(row["host"], []).append(row["source"])
            if received - source.heard_us > pause_us:
                source.resumed_us = received
            source.heard_us = max(source.heard_us, received)
            source.state = row["state"]
            source.last_error_reason, source.last_error = row["last_error_reason"], row["last_error"]
            for stream in _streams_in(row["last_sequences"]):
                if stream not in source.streams:
                    source.streams.append(stream)

    def forget(self, source: str) -> None:
        """Drop a source that is no longer expected."""
        host = self.sources.pop(source).host
        if host is not None:
            self.by_host[host].remove(source)

    def feeders(self, host: str, stream: str) -> list[str]:
        """Return the sources of a host that rows of a stream may come from."""
        return [name for name in self.by_host.get(host, []) if self.sources[name].feeds(stream)]

    def dump(self) -> dict[str, Any]:
        return {
            "began_us": self.began_us,
            "heard_us": self.heard_us,
            "resumed_us": self.resumed_us,
            "ticked_us": self._ticked_us,
            "error": self.error,
            "sources": {name: asdict(source) for name, source in self.sources.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        self.began_us, self.heard_us, self.resumed_us = (
            saved["began_us"],
            saved["heard_us"],
            saved["resumed_us"],
        )
        self._ticked_us, self.error = saved["ticked_us"], saved["error"]
        self.sources = {name: Source(**fields) for name, fields in saved["sources"].items()}
        self.by_host = {}
        for name, source in self.sources.items():
            if source.host is not None:
                self.by_host.setdefault(source.host, []).append(name)


def _streams_in(text: str | None) -> list[str]:
    try:
        document = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        return []
    return [name for name in document if name in _FED] if isinstance(document, dict) else []
