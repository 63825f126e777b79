"""Files that evidence is checked with and that did not come inside it: found in a folder, or beside the evidence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from contract.errors import ConfigError
from ingest.attestation.evidence import MAX_ATTACHED

MAX_FILES = 4_096
MAX_FILE_BYTES = 1_048_576

_SUFFIXES = frozenset({".der", ".pem", ".crt", ".cer", ".crl", ".json", ".cose", ".base64", ".b64"})


def read_collateral(folder: Path) -> tuple[bytes, ...]:
    """Return the files of a folder, by name; raise ConfigError(unreadable) where it is none."""
    try:
        paths = [path for path in sorted(folder.iterdir())[:MAX_FILES] if not path.name.startswith(".")]
        return tuple(body for path in paths if (body := _read(path)) is not None)
    except OSError as error:
        raise ConfigError("unreadable", f"{error.filename or folder}: {error.strerror}") from error


def read_attached(paths: list[Path]) -> dict[str, bytes]:
    """Return files and those of folders, by name; raise ConfigError for what cannot be read or is too much."""
    found: dict[str, bytes] = {}
    for path in _expand(paths):
        if len(found) == MAX_ATTACHED:
            raise ConfigError("invalid", f"{path}: more than {MAX_ATTACHED} files; name those that belong")
        try:
            body = _read(path)
        except OSError as error:
            raise ConfigError("unreadable", f"{path}: {error.strerror}") from error
        if body is None:
            raise ConfigError("invalid", f"{path}: no plain file of at most {MAX_FILE_BYTES} bytes")
        found[path.name] = body
    return found


def find_beside(evidence: Path) -> list[Path]:
    """Return what lies beside evidence and by its name may belong to it: certificates, lists, endorsements."""
    try:
        beside = sorted(evidence.parent.iterdir())
    except OSError:
        return []
    fitting = [
        path for path in beside if path.suffix in _SUFFIXES and path.name != evidence.name and _is_small(path)
    ]
    alike = [path for path in fitting if _stem(path) == _stem(evidence)]
    return (alike + [path for path in fitting if path not in alike])[:MAX_ATTACHED]


def _stem(path: Path) -> str:
    """Return what files of one piece of evidence have in common: `a_report.bin` and `a_vcek.der` begin with `a`."""
    return path.name.rpartition("_")[0] or path.stem


def _expand(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise ConfigError("unreadable", f"{path}: there is no such file or folder")
        yield from sorted(path.iterdir()) if path.is_dir() else [path]


def _is_small(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= MAX_FILE_BYTES
    except OSError:
        return False


def _read(path: Path) -> bytes | None:
    """Return a plain file's bytes; None for anything else and for one that is too large."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        body = file.read(MAX_FILE_BYTES + 1)
    return body if len(body) <= MAX_FILE_BYTES else None
