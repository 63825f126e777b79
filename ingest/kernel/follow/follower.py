"""What a follower is: it reads one log from where it was left, and never waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from ingest.kernel.line import KernelLine

Cursor: TypeAlias = Mapping[str, Any]
"""A place in a log, of values that JSON can hold."""


class Follower(Protocol):
    """Reads one kernel log. Called from one thread."""

    def read(self, max_lines: int) -> Sequence[KernelLine]:
        """Return the next lines, oldest first and at most `max_lines`.

        None came, and none was left out, where the log has no more at the moment. Raises CollectError where the log
        cannot be read; what was read before is returned first.
        """
        ...

    def left_out(self) -> int:
        """Return how many lines `read` passed over since the last call, because they cannot matter to the parser."""
        ...

    def counts(self) -> Counter[str]:
        """Return what was lost or could not be read since the last call, by reason out of a short list."""
        ...

    def cursor(self) -> Cursor:
        """Return the place behind the last line that `read` returned or left out."""
        ...

    def restore(self, cursor: Cursor) -> None:
        """Go on from a place of an earlier process; call before the first read.

        Raises ValueError, TypeError or KeyError for what no follower of this kind wrote.
        """
        ...

    def close(self) -> None: ...
