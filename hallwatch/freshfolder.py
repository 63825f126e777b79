"""A folder that a demo or a replay may empty, because one of them made it."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.errors import ConfigError

MARKER = ".hallwatch-demo"
"""A folder with this file was made by a demo or a replay, and may be emptied by either."""


@contextmanager
def fresh_folder(folder: Path, option: str = "--folder") -> Iterator[None]:
    """Make the folder, or empty it if an earlier demo or replay made it, and keep it until the block is left.

    Raises ConfigError for one that holds something else, and for one in which another of them runs; `option` is how
    a person names another folder.
    """
    marker = folder / MARKER
    if folder.exists() and any(folder.iterdir()) and not marker.exists():
        raise ConfigError(
            "in_use",
            f"{folder} holds something that neither demo nor replay made; name another with {option}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    with marker.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                "in_use", f"another one runs in {folder}; end it, or name another folder with {option}"
            ) from error
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != marker:
                entry.unlink()
        yield
