"""Files that survive the loss of power: contents by fsync of the file, names by fsync of the folder."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Make the contents of a file, or the names in a folder, survive the loss of power; raise OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, body: bytes, mode: int = 0o644) -> None:
    """Write a file that is whole or absent, whatever happens meanwhile; raise OSError."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync(path.parent)
