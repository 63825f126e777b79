"""When signed evidence was first seen, so that a replay in a new wrapping is as old as it is."""

from __future__ import annotations

import base64
import struct

MAX_SEEN = 4_096
"""Digests that are remembered: what was seen longest ago is forgotten first."""

_ENTRY = struct.Struct(">16sq")
"""Half a digest, which no two pieces of evidence share, and microseconds UTC."""


class FirstSeen:
    """The time at which each digest was first seen. It lives in a cursor as text."""

    def __init__(self) -> None:
        self._first_us: dict[bytes, int] = {}

    def note(self, digest: str, at_us: int) -> int:
        """Return when a digest (hexadecimal) was first seen: `at_us`, or earlier."""
        key = bytes.fromhex(digest)[:16]
        first_us = min(at_us, self._first_us.pop(key, at_us))
        self._first_us[key] = first_us
        if len(self._first_us) > MAX_SEEN:
            del self._first_us[next(iter(self._first_us))]
        return first_us

    def dump(self) -> str:
        return base64.b64encode(b"".join(_ENTRY.pack(*entry) for entry in self._first_us.items())).decode()

    def load(self, text: str) -> None:
        """Take up what was dumped; raise ValueError or TypeError where it was not."""
        body = base64.b64decode(text)
        if len(body) % _ENTRY.size:
            raise ValueError("not a whole number of entries")
        self._first_us = dict(_ENTRY.iter_unpack(body))
