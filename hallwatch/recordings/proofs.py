"""Recorded attestation evidence: `NAME.evidence/` or `NAME/SECONDS.evidence/` holds it, with what it is checked with.

Whatever in the folder is evidence of a known kind is handed in at its second; the rest is collateral. Certificates are
judged at the evidence's own time. `roots/` beside it holds the roots of a twin, whose hall the map calls synthetic.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from contract.clock import Clock
from contract.errors import HallwatchError
from hallwatch.recordings.recording import Table, read_timed
from ingest.attestation.collateral import find_beside, read_attached
from ingest.attestation.drop import WHOLE_SUFFIX
from ingest.attestation.evidence import MAX_EVIDENCE_BYTES, read_evidence
from ingest.attestation.steps import detect

ROOTS = "roots"
"""A folder beside the recordings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRecording:
    """Evidence of one host, by the second at which it is handed in."""

    name: str
    proofs: tuple[tuple[float, Path], ...]
    roots: Path | None = None

    noun = "evidence folder"
    polled = False
    notes = ()

    @property
    def last_seconds(self) -> float:
        return self.proofs[-1][0]

    @contextmanager
    def play(self, folder: Path, clock: Clock, *, mapped: bool) -> Iterator[ProofPlayer]:
        del clock, mapped
        yield ProofPlayer(self, folder)


def read_proofs(entry: Path) -> ProofRecording | None:
    """Read the evidence of a host; None where there is none."""
    timed = [
        (at, path) for at, folder in read_timed(entry, ".evidence").items() for path in _evidence(folder)
    ]
    if not timed:
        return None
    roots = entry.parent / ROOTS
    return ProofRecording(
        name=entry.name.removesuffix(".evidence"),
        proofs=tuple(timed),
        roots=roots.resolve() if roots.is_dir() else None,
    )


def _evidence(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and path.stat().st_size <= MAX_EVIDENCE_BYTES:
            try:
                kind = detect(read_evidence(path.read_bytes(), path.name))
            except HallwatchError:
                continue
            if kind is not None:
                yield path


class ProofPlayer:
    """Hands evidence in, each in a parcel with what lies beside it."""

    def __init__(self, recording: ProofRecording, folder: Path) -> None:
        self._recording = recording
        self._given = 0
        self._folder = folder / f"{recording.name}.evidence"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.tables: Sequence[Table] = (
            {
                "collector": "attest-import",
                "instance": recording.name,
                "host": recording.name,
                "folder": f"{folder.name}/{self._folder.name}",
                "at": "evidence",
                **({"roots": str(recording.roots)} if recording.roots else {}),
            },
        )

    @property
    def due_seconds(self) -> float:
        proofs = self._recording.proofs
        return proofs[self._given][0] if self._given < len(proofs) else math.inf

    def show(self, elapsed_seconds: float) -> None:
        """Hand in what was handed in until now."""
        while self.due_seconds <= elapsed_seconds:
            path = self._recording.proofs[self._given][1]
            draft = self._folder / f"{self._given}.part"
            draft.write_bytes(_parcel(self._recording.name, path))
            draft.replace(self._folder / f"{self._given:04}-{path.name}{WHOLE_SUFFIX}")
            self._given += 1


def _parcel(host: str, path: Path) -> bytes:
    """Return evidence with what lies beside it and may belong to it."""
    evidence = read_evidence(path.read_bytes(), path.name, read_attached(find_beside(path)))
    values = {
        "host": host,
        "evidence": base64.b64encode(evidence.body).decode(),
        "attached": {name: base64.b64encode(body).decode() for name, body in evidence.attached.items()},
    }
    return orjson.dumps(values)
