"""Recorded kernels: `NAME.sysfs/` or `NAME/SECONDS.sysfs/` is what a host showed in `/sys`, files as they were."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from contract.clock import Clock
from hallwatch.recordings.recording import Table, read_timed, shown_at

COLLECTORS = {"fabric-ports": "class/infiniband", "host": "devices/system/cpu"}
"""Which collector reads a tree that has which folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRecording:
    """The trees of one host, by the second from which each is shown."""

    name: str
    seconds: tuple[float, ...]
    trees: tuple[Path, ...]

    noun = "kernel tree"
    polled = True
    notes = ()

    @property
    def last_seconds(self) -> float:
        return self.seconds[-1]

    @contextmanager
    def play(self, folder: Path, clock: Clock, *, mapped: bool) -> Iterator[TreePlayer]:
        del clock, mapped
        yield TreePlayer(self, folder)


def read_trees(entry: Path) -> TreeRecording | None:
    """Read the trees of a host; None for anything else."""
    timed = {at: tree for at, tree in read_timed(entry, ".sysfs").items() if tree.is_dir()}
    if not timed:
        return None
    name = entry.name.removesuffix(".sysfs")
    return TreeRecording(name=name, seconds=tuple(timed), trees=tuple(timed.values()))


class TreePlayer:
    """A link that leads to the tree of now."""

    due_seconds = math.inf

    def __init__(self, recording: TreeRecording, folder: Path) -> None:
        self._recording = recording
        folder.mkdir(parents=True, exist_ok=True)
        self._link = folder / f"{recording.name}.sysfs"
        self._shown: int | None = None
        root = f"{folder.name}/{self._link.name}"
        self.tables: Sequence[Table] = [
            {"collector": collector, "host": recording.name, "sysfs_root": root, "interval_seconds": 1}
            for collector, part in COLLECTORS.items()
            if any((tree / part).exists() for tree in recording.trees)
        ]

    def show(self, elapsed_seconds: float) -> None:
        """Let the link lead to what is shown now."""
        at = shown_at(self._recording.seconds, elapsed_seconds)
        if at is not None and at != self._shown:
            draft = self._link.with_suffix(".new")
            draft.symlink_to(self._recording.trees[at].resolve())
            draft.replace(self._link)
            self._shown = at
