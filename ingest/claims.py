"""Which process sends as which source. Two that send as one would double every row of its device."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.errors import ConfigError


@contextmanager
def claim_sources(folder: Path, names: Iterable[str]) -> Iterator[None]:
    """Keep sources for this process, until the block is left or the process ends in any other way.

    `folder` is one that everybody shares who writes the same bus. Raises ConfigError(in_use) where a living
    process has one of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = set(names)
    mine = folder / f"{os.getpid()}-{secrets.token_hex(4)}.claim"
    with (folder / "lock").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        for path in sorted(folder.glob("*.claim")):
            for name in sorted(wanted & _claimed(path)):
                raise ConfigError(
                    "in_use",
                    f"process {path.name.partition('-')[0]} collects {name} already: end it, or take what both "
                    "collect out of one of the configurations; only to look, say --to stdout",
                )
        with mine.open("w", encoding="utf-8") as claim:
            fcntl.flock(claim, fcntl.LOCK_EX)
            claim.write("\n".join(wanted))
            claim.flush()
            fcntl.flock(turn, fcntl.LOCK_UN)
            try:
                yield
            finally:
                mine.unlink(missing_ok=True)


def _claimed(path: Path) -> set[str]:
    """Return what a living process claims; clean up after one that is gone."""
    with path.open(encoding="utf-8") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return set(claim.read().split("\n"))
        path.unlink()
        return set()
