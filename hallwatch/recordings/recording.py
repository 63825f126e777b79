"""What a recording is: something in a folder that plays as one device would.

A kind of recording is one file beside this one; `hall.KINDS` lists them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, TypeAlias

from contract.clock import Clock

Table: TypeAlias = Mapping[str, Any]
"""A collector's table of the configuration."""

_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


class Player(Protocol):
    """A recording while it plays."""

    @property
    def tables(self) -> Sequence[Table]:
        """The collectors that read it."""
        ...

    @property
    def due_seconds(self) -> float:
        """When something comes that a collector should read at once; infinite where nothing more does."""
        ...

    def show(self, elapsed_seconds: float) -> None:
        """Be as the device was so long after the start; time never goes back."""
        ...


class Recording(Protocol):
    """What was recorded of one device."""

    @property
    def name(self) -> str:
        """The host or the equipment."""
        ...

    @property
    def noun(self) -> str:
        """What a person calls such a thing: a device, a log."""
        ...

    @property
    def polled(self) -> bool:
        """It is to be read every second, whether something comes or not."""
        ...

    @property
    def last_seconds(self) -> float:
        """When the last of it is shown for the first time."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What a person must know who reads the report."""
        ...

    def play(self, folder: Path, clock: Clock, *, mapped: bool) -> AbstractContextManager[Player]:
        """Begin to play by the clock's elapsed time; `mapped`: there is a map of the hall.

        The folder is its own to write in.
        """
        ...


def shown_at(seconds: Sequence[float], elapsed_seconds: float) -> int | None:
    """Return which of several is shown now, each from its second on; None before the first."""
    at = bisect_right(seconds, elapsed_seconds)
    return at - 1 if at else None


def read_timed(entry: Path, suffix: str) -> dict[float, Path]:
    """Return what is shown from which second: `NAME.suffix` from the start, `NAME/SECONDS.suffix` from then on.

    Empty where the entry is neither.
    """
    if entry.name.endswith(suffix):
        return {0.0: entry}
    if not entry.is_dir():
        return {}
    timed = {}
    for path in entry.iterdir():
        seconds = path.name.removesuffix(suffix).removesuffix("s")
        if path.name.endswith(suffix) and _SECONDS.fullmatch(seconds):
            timed[float(seconds)] = path
    return dict(sorted(timed.items()))


@contextmanager
def on_loopback(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests on a loopback port until the block is left; yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
