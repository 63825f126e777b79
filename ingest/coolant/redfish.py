"""The collector of coolant units and liquid-cooled servers that speak Redfish."""

from __future__ import annotations

from typing import Any

import orjson

from contract.errors import CollectError
from contract.stream import Stream
from contract.streams.coolant import COOLANT_EVENTS, COOLANT_LOOPS, COOLANT_READINGS, POWER_READINGS
from ingest.collector import Context, Reading, Rows, collector
from ingest.coolant.loops import LoopMemory
from ingest.coolant.redfish_changes import Changes
from ingest.coolant.redfish_client import RedfishClient, RedfishConfig, checked_path
from ingest.coolant.redfish_detectors import Detectors
from ingest.coolant.redfish_folder import RedfishFolder
from ingest.coolant.redfish_rows import RowMaker
from ingest.coolant.redfish_walk import Found, Walker

MAX_RECORDED = 20_000
"""A recording costs no device anything."""


@collector(
    "coolant-redfish", RedfishConfig, (COOLANT_READINGS, COOLANT_EVENTS, POWER_READINGS, COOLANT_LOOPS)
)
class RedfishCollector:
    """Reads coolant units (CDUs, RPUs, heat exchangers, immersion units) and the leak detectors of servers by Redfish.

    ```toml
    [[ingest.collectors]]
    collector = "coolant-redfish"
    equipment = "cdu-a1"
    url = "https://10.0.40.11"
    ca_file = "/etc/hallwatch/bmc-ca.pem"
    username = "hallwatch"
    password_file = "/etc/hallwatch/bmc-password"
    ```

    It reads connectors, pumps, filters, reservoirs, cooling loops, leak detectors in both forms of Redfish, the air
    and the power of the unit, the sensors that readings cite, and what parts say of their health. A reading and its
    sensor that disagree are two rows. A detector is `dry` only where it says so itself and is fit to: no data, a
    fault, a word that nobody knows are `sensor_fault` or `suspect`.

    It needs a login that may read (role ReadOnly), or none where the unit asks for none; it writes nothing but its
    session. A unit whose sessions are all taken is given the password with each request instead.

    A reading costs the device some 30 to 60 small requests over one connection, one at a time, and one session,
    closed at the end (or by the next process, after a kill). Leak detectors are read first, then what was read
    longest ago, so a unit slower than its interval still tells of leaks at once and of the rest by and by.

    What the device does not give within the timeout, and links that lead nowhere, are counted and left out; the rest
    is sent. A detector that is listed but not there, or not heard of for 200 s, is a `sensor_fault` that keeps what
    it said last; it never becomes dry by silence. A device that gives nothing at all is a failed reading.
    """

    def __init__(self, config: RedfishConfig, context: Context) -> None:
        self._clock = context.clock
        self._client = RedfishClient(config, context.clock)
        self._walker = Walker(
            self._client, max_documents=config.max_documents, cited_sensors=config.cited_sensors
        )
        self._detectors = Detectors()
        self._changes = Changes()
        self._loops = LoopMemory(config, "redfish")

    def collect(self, now_us: int) -> Reading:
        self._client.start()
        return self.read(self._walker.walk(now_us), now_us)

    def read_folder(self, folder: RedfishFolder, now_us: int) -> Reading:
        """Turn a recorded service into rows; raise CollectError where it holds nothing of coolant."""
        walker = Walker(folder, max_documents=MAX_RECORDED, cited_sensors=True)
        return self.read(walker.walk(now_us), now_us)

    def read(self, found: Found, now_us: int) -> Reading:
        """Turn documents into rows; raise CollectError where there are none."""
        if not found.documents:
            raise found.error or CollectError("no_data", "there is neither a coolant unit nor a detector")
        maker = RowMaker(found)
        readings, power = maker.readings(), list(maker.power())
        leaks, leak_events = self._detectors.look(found, now_us)
        made: tuple[tuple[Stream, list[dict[str, Any]]], ...] = (
            (COOLANT_READINGS, [*leaks, *readings]),
            (COOLANT_EVENTS, [*leak_events, *self._changes.look(found)]),
            (POWER_READINGS, power),
            (COOLANT_LOOPS, self._loops.rows(readings, now_us)),
        )
        rejected = maker.rejected + found.counts()
        rejected["session_refused"] += self._client.refused
        return Reading(
            rows=[Rows.gather(stream, rows) for stream, rows in made if rows],
            rejected={reason: count for reason, count in rejected.items() if count},
            skipped={reason: count for reason, count in maker.skipped.items() if count},
        )

    def cursor(self) -> bytes:
        return orjson.dumps(
            {
                "session": self._client.session or self._client.left_behind,
                "leaks": self._detectors.memory.dump(),
                "changes": self._changes.dump(),
            }
        )

    def restore(self, cursor: bytes) -> None:
        try:
            saved = orjson.loads(cursor)
        except orjson.JSONDecodeError:
            return
        if not isinstance(saved, dict):
            return
        self._client.left_behind = checked_path(saved.get("session"))
        if isinstance(saved.get("leaks"), dict):
            self._detectors.memory.load(saved["leaks"], self._clock.now_us())
        if isinstance(saved.get("changes"), dict):
            self._changes.load(saved["changes"])

    def close(self) -> None:
        self._client.close()
