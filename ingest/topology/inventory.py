"""The collector of the hall's own map."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field

from contract.errors import CollectError, ConfigError
from contract.streams.topology import INVENTORY
from ingest.collector import CollectorConfig, Context, Reading, Rows, collector
from ingest.topology.hallfile import HallFile, read_hall_file

_MOST_ROWS = 20_000
"""In one event: about 5 MB, where a message may hold 16 MiB."""


class InventoryConfig(CollectorConfig):
    """A map of the hall."""

    path: Path = Field(description="The YAML file. `[hall] inventory` makes this collector without a table.")
    timeout_seconds: float = Field(
        default=60, gt=0, le=600, description="A reading that takes longer has failed."
    )


@collector("inventory", InventoryConfig, (INVENTORY,))
class InventoryCollector:
    """Publishes the map of the hall out of one YAML file: what is expected, where it stands, how it is joined.

    ```yaml
    hall: demo
    synthetic: false
    loops:
      - {loop: tcs-1, kind: tcs, cdu: cdu-1, coolant: pg25}
    cdus:
      - {cdu: cdu-1}
    leaves:
      - {leaf: leaf-r0-1, rail: 0}
    rows:
      - row: a
        racks:
          - rack: a01
            loop: tcs-1
            hosts:
              - host: h100-a01-01
                model: ND-H100-v5
                gpus:
                  - {index: 0, uuid: GPU-8f3a9c1e-0123-4567-89ab-0123456789ab, pci_bus_id: "00000000:53:00.0"}
                nics:
                  - {nic: mlx5_0, guid: "0x58a2e10300123456", speed_gbps: 400, leaf: leaf-r0-1, leaf_port: "1"}
    ```

    Everything that may stand in it is in [the map of the hall](inventory.md). Needs the right to read the file. It is
    read when it changes; otherwise a poll is a look at its time.

    Each version of the file is one event with the rows that changed since the version before (a large one is some);
    an asset that is no longer in it becomes `retired`. A file with a mistake is not published: the old version stays,
    and the status of this source names each mistake with its line. Replace the file by renaming, so that no half of
    it is read.
    """

    def __init__(self, config: InventoryConfig, context: Context) -> None:
        self._path = config.path
        self._hall = context.hall
        self._published: dict[str, dict[str, Any]] = {}
        self._version: str | None = None
        self._cursor = b""
        self._next: tuple[dict[str, dict[str, Any]], str, bytes] | None = None
        """The three after the reading that is made; until its rows are queued it may have to be made again."""
        self._read: tuple[int, ...] | None = None
        """What the file looked like when it was last read."""
        self._mistake: str | None = None

    def collect(self, now_us: int) -> Reading:  # noqa: ARG002 - the runner stamps the rows
        looks = self._look()
        if self._next is not None:
            self._next = self._read = None
        if looks != self._read:
            file = self._load(looks)
            if file is not None and file.digest != self._version:
                return self._publish(file)
        if self._mistake is not None:
            raise CollectError("unreadable", self._mistake)
        return Reading()

    def cursor(self) -> bytes:
        if self._next is not None:  # it is asked for when all rows of the reading are queued with it
            (self._published, self._version, self._cursor), self._next = self._next, None
        return self._cursor

    def restore(self, cursor: bytes) -> None:
        try:
            kept = orjson.loads(zlib.decompress(cursor))
            self._published, self._version = dict(kept["assets"]), str(kept["version"])
        except (zlib.error, ValueError, TypeError, KeyError):
            return
        self._cursor = cursor

    def close(self) -> None:
        pass

    def _look(self) -> tuple[int, ...]:
        try:
            stat = os.stat(self._path)  # noqa: PTH116 - one call, all fields
        except OSError as error:
            raise CollectError("unreachable", f"{self._path}: {error.strerror}") from error
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _load(self, looks: tuple[int, ...]) -> HallFile | None:
        """Read the file; None where it is wrong, or where it changes under the reading."""
        self._mistake = None
        try:
            file = read_hall_file(self._path, hall=self._hall.name, synthetic=self._hall.synthetic)
        except ConfigError as error:
            self._mistake = str(error)
            file = None
        if self._look() != looks:
            return None
        self._read = looks
        return file

    def _publish(self, file: HallFile) -> Reading:
        changed = [
            {**asset, "state": "active"}
            for name, asset in file.assets.items()
            if asset != self._published.get(name)
        ]
        retired = [
            {**asset, "state": "retired"}
            for name, asset in self._published.items()
            if name not in file.assets
        ]
        cursor = zlib.compress(orjson.dumps({"version": file.digest, "assets": file.assets}))
        self._next = file.assets, file.digest, cursor
        rows = [{**row, "hall": file.hall, "version": file.digest} for row in (*changed, *retired)]
        parts = [rows[at : at + _MOST_ROWS] for at in range(0, len(rows), _MOST_ROWS)]
        return Reading(rows=[Rows.gather(INVENTORY, part) for part in parts])
