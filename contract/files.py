"""Files: read no further than a bound; written to survive the loss of power, by fsync of file and folder."""

from __future__ import annotations

import os
from pathlib import Path

from contract.errors import ConfigError


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a file; raise ConfigError(unreadable) where it cannot be read or holds more."""
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise ConfigError("unreadable", f"{path}: {error.strerror}") from error
    if len(content) > most_bytes:
        raise ConfigError("unreadable", f"{path}: larger than {most_bytes} bytes")
    return content


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
