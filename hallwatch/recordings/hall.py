"""A folder of recordings: which devices it holds, and the map of their hall.

NAME becomes the host or the equipment. `FOLDER/inventory.yaml`, where there is one, is the map of that hall. What no
kind of recording knows is named as not playable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contract.config import NAME_PATTERN
from contract.errors import ConfigError
from hallwatch.recordings.logs import read_log
from hallwatch.recordings.messages import read_messages
from hallwatch.recordings.pages import read_pages
from hallwatch.recordings.proofs import ROOTS, read_proofs
from hallwatch.recordings.recording import Recording
from hallwatch.recordings.services import read_services
from hallwatch.recordings.trees import read_trees
from ingest.topology.hallfile import read_hall_file

INVENTORY = "inventory.yaml"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of recording."""

    form: str
    """How it is named in the folder."""
    meaning: str
    read: Callable[[Path], Recording | None]
    """Gives None for an entry of the folder that is none of its own."""


KINDS = (
    Kind(
        "NAME.prom, NAME/SECONDS.prom",
        "pages of a dcgm-exporter",
        read_pages,
    ),
    Kind(
        "NAME.log",
        "a kernel log: dmesg, syslog, journal JSON or /dev/kmsg; also .syslog .dmesg .kmsg .json .jsonl .txt; its "
        "lines come as far apart as their times are",
        read_log,
    ),
    Kind(
        "NAME.sysfs/, NAME/SECONDS.sysfs/",
        "what a host's kernel shows in /sys: ports of the fabric, memory, PCIe",
        read_trees,
    ),
    Kind(
        "NAME.redfish/, NAME/SECONDS.redfish/",
        "the documents of a coolant unit or server, as Redfish mockups hold them",
        read_services,
    ),
    Kind(
        "NAME.csv, NAME.jsonl",
        "MQTT messages of a building: offset,topic,payload or JSON objects with topic and payload",
        read_messages,
    ),
    Kind(
        "NAME.evidence/, NAME/SECONDS.evidence/",
        "attestation evidence and the certificates it is checked with, judged at its own time; of a twin, with its roots/",
        read_proofs,
    ),
)

_NAME = re.compile(NAME_PATTERN)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedHall:
    """All recordings of a folder."""

    recordings: tuple[Recording, ...]
    inventory: Path | None
    not_playable: tuple[str, ...]
    name: str = "replay"
    synthetic: bool = False
    """What the map says of the hall, where there is one."""

    @property
    def seconds(self) -> float:
        """When the last of any recording is shown for the first time."""
        return max(recording.last_seconds for recording in self.recordings)

    @property
    def polled(self) -> bool:
        """Some device is to be read every second."""
        return any(recording.polled for recording in self.recordings)


def read_recordings(folder: Path) -> RecordedHall:
    """Look through a folder; raise ConfigError where nothing in it can be played or its map has a mistake."""
    found: dict[tuple[type, str, str], Recording] = {}
    other = []
    for entry in _entries(folder):
        recordings = [recording for kind in KINDS if (recording := kind.read(entry)) is not None]
        playable = {_key(r): r for r in recordings if _is_name(r.name) and _key(r) not in found}
        found |= playable
        if not playable and entry.name not in (INVENTORY, ROOTS):
            other.append(entry.name + "/" * entry.is_dir())
    if not found:
        raise ConfigError(
            "missing",
            f"{folder} holds nothing to play: no {', '.join(kind.form for kind in KINDS)}"
            + (f"; there is {', '.join(other)}" if other else ""),
        )
    inventory = folder / INVENTORY
    hall = read_hall_file(inventory) if inventory.exists() else None
    return RecordedHall(
        recordings=tuple(found.values()),
        inventory=inventory if hall is not None else None,
        not_playable=tuple(other),
        name=hall.hall if hall is not None else "replay",
        synthetic=hall.synthetic if hall is not None else False,
    )


def _key(recording: Recording) -> tuple[type, str, str]:
    return type(recording), recording.name, getattr(recording, "instance", "")


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError("unreadable", f"{folder}: {error.strerror}") from error


def _is_name(name: str) -> bool:
    """Tell whether a recording's name can be a host's: a file from elsewhere may have any."""
    return bool(_NAME.match(name)) and name.isprintable()
