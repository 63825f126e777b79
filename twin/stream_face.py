"""The event face of a large hall: what its collectors write to the bus at each tick, without the collectors.

Every host is read at its own second of an interval, as collectors that started at their own time do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from contract.bus import Producer, Record
from contract.clock import Clock
from contract.codec import Event, encode_event
from contract.streams import STREAMS
from contract.streams.coolant import POINTS
from twin import collected
from twin.chips import AIR_MODEL, LIQUID_MODEL
from twin.largehall import LargeHall, bus_id
from twin.loops import HOST_LITERS_PER_MINUTE, watts_per_flow_kelvin
from twin.site import GPUS_PER_HOST, NVLINKS_PER_GPU, PORT_GBPS, PORTS_PER_HOST, Ints, Site
from twin.stream_writer import Senders, StreamWriter

_BY_HOST = ("gpu-dcgm", "gpu-kernel-log", "host", "fabric-ports", "fabric-mesh", "attest-import")
_POLLS_SECONDS = 10
_MINUTE_SECONDS = 60

# Who tells of what happened, by stream and event; the kernel's log is read by one collector.
_TELLERS = {"host_events": "host", "coolant_events": "coolant-redfish"}

_READINGS: tuple[tuple[str, str | None, str | None], ...] = (
    ("supply_temperature", "PrimaryCoolantConnectors/1", "TCS"),
    ("return_temperature", "PrimaryCoolantConnectors/1", "TCS"),
    ("flow", "PrimaryCoolantConnectors/1", "TCS"),
    ("delta_pressure", "PrimaryCoolantConnectors/1", "TCS"),
    ("pump_speed", "Pumps/1", "TCS"),
    ("pump_rotation", "Pumps/1", "TCS"),
    ("valve_position", "Valves/1", "FWS"),
    ("reservoir_level", "Reservoirs/1", "TCS"),
    ("air_temperature", None, None),
    ("air_humidity", None, None),
    ("dew_point", None, None),
    ("dew_margin", None, "TCS"),
)
"""Point, part and loop of what a coolant unit reads."""


class StreamFace:
    """Writes the rows of a hall. `tick` is called after each step of a second; the clock gives the time of the rows."""

    def __init__(self, hall: LargeHall, producer: Producer, clock: Clock) -> None:
        site = hall.site
        self.hall = hall
        self._site = site
        self._clock = clock
        self._out = StreamWriter(producer)

        self._ticks = 0
        self._senders = {name: Senders(name, site.hosts, site.seed) for name in _BY_HOST}
        self._senders |= {
            "coolant-redfish": Senders("coolant-redfish", site.cdus, site.seed),
            "power-redfish": Senders("coolant-redfish", site.racks, site.seed),
            **{name: Senders(name, (site.hall,), site.seed) for name in ("inventory", "jobs", "maintenance")},
        }
        self._clones: dict[int, int] = defaultdict(int)
        self._frozen: dict[int, dict[str, float]] = {}
        self._told_jobs: dict[int, tuple[bool, int]] = {}
        self._partners = _partners(site)

    def tick(self) -> None:
        """Write everything that collectors read in this second."""
        now_us = self._clock.now_us()
        if self._ticks == 0:
            self._write_hall("inventory", list(_inventory(self._site)), now_us)
        self._begin_epochs()
        self._hold_or_release()
        self._write_jobs(now_us)
        self._write_windows(now_us)
        self._write_gpus(now_us)
        self._write_hosts(now_us)
        self._write_coolant(now_us)
        self._write_evidence(now_us)
        self._write_happened(now_us)
        self._write_statuses(now_us)
        self._ticks += 1

    # -- who reads now --------------------------------------------------------------------------------

    def _begin_epochs(self) -> None:
        starts = self.hall.telemetry.starts
        for host in np.flatnonzero(starts).tolist():
            for name in _BY_HOST:
                self._senders[name].restart(host, int(starts[host]))

    def _hold_or_release(self) -> None:
        wanted = self.hall.telemetry.held_partition
        held = ("gpu_samples", wanted) if wanted >= 0 else None
        if held != self._out.held:
            self._out.release()
            self._out.held = held

    def _reads(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return hosts whose collectors work."""
        return np.asarray(self.hall.host_up & ~self.hall.telemetry.silent)

    def _due(self, interval: int) -> Ints:
        """Return hosts that are read in this second, of an interval in seconds."""
        hosts = np.arange(len(self._site.hosts))
        return np.flatnonzero((hosts % interval == self._ticks % interval) & self._reads())

    def _stamps(self, hosts: Ints, now_us: int) -> dict[str, Any]:
        offsets = (1e6 * self.hall.telemetry.clock_offset_seconds[hosts]).astype(np.int64)
        names = np.array(self._site.hosts, object)[hosts]
        return {"ts": now_us + offsets, "host": names, "synthetic": True}

    def _write(
        self, stream: str, collector: str, hosts: Ints, columns: Mapping[str, Any], now_us: int
    ) -> None:
        columns = {**columns, **self._stamps(hosts, now_us)}
        senders = self._senders[collector]
        self._out.write(STREAMS[stream], senders, hosts, self._site.hosts, columns)

    # -- streams --------------------------------------------------------------------------------------

    def _write_gpus(self, now_us: int) -> None:
        hall = self.hall
        reads = np.repeat(self._reads() & ~hall.telemetry.misses(), GPUS_PER_HOST) & hall.gpu_up
        rows = np.flatnonzero(reads)
        self._skip()
        self._write(
            "gpu_samples", "gpu-dcgm", rows // GPUS_PER_HOST, collected.gpu_samples(hall, rows), now_us
        )
        self._imitate(rows, now_us)
        hosts = self._due(_MINUTE_SECONDS)
        gpus = np.repeat(hosts * GPUS_PER_HOST, GPUS_PER_HOST) + np.tile(np.arange(GPUS_PER_HOST), len(hosts))
        gpus = gpus[hall.gpu_up[gpus]]
        who = np.repeat(gpus // GPUS_PER_HOST, NVLINKS_PER_GPU)
        self._write("gpu_links", "gpu-dcgm", who, collected.gpu_links(hall, gpus), now_us)

    def _skip(self) -> None:
        """Let numbered events vanish on the way."""
        skips = self.hall.telemetry.skips
        self._senders["gpu-dcgm"].numbers("gpu_samples")[:] += skips
        skips[:] = 0

    def _imitate(self, rows: Ints, now_us: int) -> None:
        """Send the events of doubled hosts again, and those of an impostor beside the cloned ones."""
        telemetry, stream = self.hall.telemetry, STREAMS["gpu_samples"]
        senders = self._senders["gpu-dcgm"]
        for host in np.flatnonzero(telemetry.doubled | telemetry.cloned).tolist():
            of_host = rows[rows // GPUS_PER_HOST == host]
            if not len(of_host):
                continue
            columns = collected.gpu_samples(self.hall, of_host)
            columns |= self._stamps(of_host // GPUS_PER_HOST, now_us)
            table = stream.table({name: _listed(values, len(of_host)) for name, values in columns.items()})
            epoch, sequence = senders.epochs[host], int(senders.numbers("gpu_samples")[host]) - 1
            if telemetry.cloned[host]:
                epoch, sequence = senders.epoch_of(host, "clone"), self._clones[host]
                self._clones[host] += 1
            event = Event(source=senders.sources[host], epoch=epoch, sequence=sequence, table=table)
            record: Record = encode_event(stream, event, self._site.hosts[host])
            self._out.repeat(stream, record)

    def _write_hosts(self, now_us: int) -> None:
        hosts = self._due(_POLLS_SECONDS)
        minutely = self._due(_MINUTE_SECONDS)
        who = np.tile(np.repeat(minutely, GPUS_PER_HOST), 2)
        self._write("host_pcie", "host", who, collected.host_pcie(self.hall, minutely), now_us)
        self._write("host_samples", "host", hosts, collected.host_samples(self.hall, hosts, now_us), now_us)
        ports = np.repeat(hosts * PORTS_PER_HOST, PORTS_PER_HOST) + np.tile(
            np.arange(PORTS_PER_HOST), len(hosts)
        )
        who = ports // PORTS_PER_HOST
        self._write("fabric_ports", "fabric-ports", who, collected.fabric_ports(self.hall, ports), now_us)
        ports = ports[(self._partners[ports] != ports) & self.hall.network.installed[ports]]
        paths = collected.fabric_probes(self.hall, ports, self._partners[ports]) if len(ports) else {}
        self._write("fabric_probes", "fabric-mesh", ports // PORTS_PER_HOST, paths, now_us)

    def _write_coolant(self, now_us: int) -> None:
        watts = collected.rack_watts(self.hall)
        slot = self._ticks % _POLLS_SECONDS
        for cdu in range(slot, len(self._site.cdus), _POLLS_SECONDS):
            self._write_unit(cdu, watts, now_us)
        for rack in range(slot, len(self._site.racks), _POLLS_SECONDS):
            name = self._site.racks[rack]
            noise = 1 + 0.002 * float(self.hall.telemetry.rng.standard_normal())
            row = {
                "power_watts": round(watts[rack] * noise),
                "voltage_volts": 415.0,
                "quality": "good",
                "protocol": "redfish",
            }
            self._write_equipment("power_readings", "power-redfish", rack, name, [row], now_us)

    def _write_unit(self, cdu: int, watts: np.ndarray[Any, np.dtype[np.float64]], now_us: int) -> None:
        hall, name = self.hall, self._site.cdus[cdu]
        state = collected.coolant_state(hall, cdu)
        if hall.telemetry.frozen[cdu]:
            state = self._frozen.setdefault(cdu, state)
        else:
            self._frozen.pop(cdu, None)
        racks = np.flatnonzero(self._site.cdu_of_rack == cdu)
        power = float(watts[racks].sum())
        plates = np.isin(self._site.rack_of_host, racks)
        readings = [*_readings(hall, cdu, state), *self._rack_readings(racks, state)]
        self._write_equipment("coolant_readings", "coolant-redfish", cdu, name, readings, now_us)
        share = float(hall.metered_watts[plates].sum()) / power if power else None
        loop = _loop_row(state, power, share)
        self._write_equipment("coolant_loops", "coolant-redfish", cdu, name, [loop], now_us)

    def _rack_readings(self, racks: Ints, state: Mapping[str, float]) -> Iterator[dict[str, Any]]:
        loops = self.hall.loops
        for rack in racks.tolist():
            base = {"loop": "rack", "role": "measured", "quality": "good", "protocol": "redfish"}
            share = float(loops.rack_flow[rack] / max(loops.cdu_flow[self._site.cdu_of_rack[rack]], 1e-6))
            component = f"Manifolds/{self._site.racks[rack]}"
            yield {
                **base,
                "component": component,
                "point": "flow",
                "unit": "L/min",
                "value": round(state["flow"] * share, 1),
            }
            leak = self.hall.leak_state[rack]
            yield {
                **base,
                "component": f"LeakDetectors/{self._site.racks[rack]}",
                "point": "leak",
                "leak_state": leak,
                "leak_before": leak,
                "health": "critical" if leak == "leak" else "ok",
            }

    def _write_evidence(self, now_us: int) -> None:
        reads = dict(zip(self._site.hosts, self.hall.host_up.tolist(), strict=True))
        places = {name: at for at, name in enumerate(self._site.hosts)}
        for host, row in self.hall.trust.reports(self.hall.elapsed_seconds, 1.0, now_us):
            if reads[host]:
                self._write_host_rows("attestation_results", "attest-import", places[host], [row], now_us)

    def _write_happened(self, now_us: int) -> None:
        hosts = {name: at for at, name in enumerate(self._site.hosts)}
        units = {name: at for at, name in enumerate(self._site.cdus)}
        reads = self._reads()
        for stream, key, row in self.hall.take_happened():
            if stream == "coolant_events":
                self._write_equipment(stream, "coolant-redfish", units[key], key, [row], now_us)
            elif reads[hosts[key]]:
                teller = _TELLERS.get(stream) or (
                    "fabric-ports" if row["evidence"] == "sysfs" else "gpu-kernel-log"
                )
                self._write_host_rows(stream, teller, hosts[key], [row], now_us)

    def _write_jobs(self, now_us: int) -> None:
        tasks, rows = self.hall.tasks, []
        for number, job in enumerate(self._site.jobs):
            now = bool(tasks.running[number]), int(tasks.restarts[number])
            before = self._told_jobs.get(number)
            if now == before:
                continue
            self._told_jobs[number] = now
            ended = not now[0]
            rows += [
                {
                    "job": job.name,
                    "part": 0,
                    "host": self._site.hosts[host],
                    "state": ("failed" if tasks.wanted[number] else "cancelled") if ended else "running",
                    "role": _role(job.role, job.stages, at, len(job.hosts)),
                    "first_rank": at * GPUS_PER_HOST,
                    "last_rank": (at + 1) * GPUS_PER_HOST - 1,
                    "gpus": GPUS_PER_HOST,
                    "gpu_indexes": f"0-{GPUS_PER_HOST - 1}",
                    "start_ts": now_us,
                    "end_ts": now_us if ended else None,
                    "restarts": now[1],
                }
                for at, host in enumerate(job.hosts)
            ]
        self._write_hall("jobs", rows, now_us, key="job")

    def _write_windows(self, now_us: int) -> None:
        windows, self.hall.telemetry.windows = self.hall.telemetry.windows, []
        rows: list[dict[str, Any]] = []
        for window in windows:
            told = {name: value for name, value in window.items() if name != "seconds"}
            end_us = now_us + int(1e6 * float(str(window["seconds"])))
            rows.append({**told, "action": "planned", "start_ts": now_us, "end_ts": end_us})
        self._write_hall("maintenance", rows, now_us, key="window_id")

    def _write_statuses(self, now_us: int) -> None:
        hosts = self._due(_POLLS_SECONDS)
        for name in _BY_HOST[:5]:
            senders = self._senders[name]
            at = hosts.tolist()
            columns = {
                "source": [senders.sources[host] for host in at],
                "collector": name,
                "epoch": [senders.epochs[host] for host in at],
                "state": "working",
                "last_sequences": [orjson.dumps(senders.last_sequences(host)).decode() for host in at],
                "spool_depth": 0,
                "last_success": np.full(len(at), now_us),
                **self._stamps(hosts, now_us),
            }
            self._out.write(STREAMS["collector_status"], senders, hosts, senders.sources, columns)
        for cdu in range(self._ticks % _POLLS_SECONDS, len(self._site.cdus), _POLLS_SECONDS):
            senders = self._senders["coolant-redfish"]
            row = {
                "ts": now_us,
                "synthetic": True,
                "source": senders.sources[cdu],
                "collector": "coolant-redfish",
                "epoch": senders.epochs[cdu],
                "state": "working",
                "last_sequences": orjson.dumps(senders.last_sequences(cdu)).decode(),
                "spool_depth": 0,
                "last_success": now_us,
            }
            self._out.write_rows(STREAMS["collector_status"], senders, cdu, senders.sources[cdu], [row])

    # -- few rows -------------------------------------------------------------------------------------

    def _write_host_rows(
        self, stream: str, collector: str, host: int, rows: list[Mapping[str, Any]], now_us: int
    ) -> None:
        offset = int(1e6 * self.hall.telemetry.clock_offset_seconds[host])
        name = self._site.hosts[host]
        stamp = {"ts": now_us + offset, "host": name, "synthetic": True}
        self._out.write_rows(
            STREAMS[stream], self._senders[collector], host, name, [{**row, **stamp} for row in rows]
        )

    def _write_equipment(
        self, stream: str, collector: str, at: int, name: str, rows: list[Any], now_us: int
    ) -> None:
        stamp = {"ts": now_us, "equipment": name, "synthetic": True}
        self._out.write_rows(
            STREAMS[stream], self._senders[collector], at, name, [{**row, **stamp} for row in rows]
        )

    def _write_hall(
        self, stream: str, rows: list[dict[str, Any]], now_us: int, key: str | None = None
    ) -> None:
        if not rows:
            return
        stamp = {"ts": now_us, "synthetic": True}
        name = rows[0][key] if key else self._site.hall
        stamped = [{**row, **stamp} for row in rows]
        self._out.write_rows(STREAMS[stream], self._senders[stream], 0, name, stamped)


def _listed(values: Any, count: int) -> list[Any]:
    if isinstance(values, (str, bool, int, float)):
        return [values] * count
    listed: list[Any] = values if isinstance(values, list) else values.tolist()
    return listed


def _role(role: str, stages: int, at: int, hosts: int) -> str:
    return f"{role}/stage-{at * stages // hosts}" if stages > 1 else role


def _partners(site: Site) -> Ints:
    """Return for each port the port of its rail that it probes: that of the next host with such cards."""
    partners = np.arange(len(site.ports))
    for kind in (True, False):
        hosts = np.flatnonzero(site.efa == kind)
        ports = hosts[:, None] * PORTS_PER_HOST + np.arange(PORTS_PER_HOST)
        partners[ports] = np.roll(ports, -1, axis=0)
    return partners


def _readings(hall: LargeHall, cdu: int, state: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    for point, component, loop in _READINGS:
        yield {
            "point": point,
            "component": component,
            "loop": loop,
            "role": "measured",
            "value": state[point],
            "unit": POINTS[point].unit,
            "quality": "good",
            "health": "ok",
            "setpoint_value": float(hall.loops.setpoint_celsius[cdu])
            if point == "supply_temperature"
            else None,
            "protocol": "redfish",
        }


def _loop_row(state: Mapping[str, float], power: float, share: float | None) -> dict[str, Any]:
    supply, back, flow = state["supply_temperature"], state["return_temperature"], state["flow"]
    carried = float(watts_per_flow_kelvin(np.array((supply + back) / 2)))
    heat = flow * carried * (back - supply) / 1000
    return {
        "loop": "TCS",
        "supply_celsius": supply,
        "return_celsius": back,
        "flow_liters_per_minute": flow,
        "delta_pressure_kpa": state["delta_pressure"],
        "pump_percent": state["pump_speed"],
        "pump_running_seconds": 86_400.0,
        "dew_point_celsius": state["dew_point"],
        "dew_margin_celsius": state["dew_margin"],
        "coolant": "pg25",
        "heat_removed_kilowatts": heat,
        "power_kilowatts": power / 1000,
        "balance_ratio": heat / (power / 1000 * share) if share else None,
        "protocol": "redfish",
    }


def _inventory(site: Site) -> Iterator[dict[str, Any]]:
    """Yield the map of the hall: every asset and every cable once."""
    for asset in _places(site):
        yield {**asset, "hall": site.hall, "state": "active", "version": f"{site.seed:016x}"}


def _places(site: Site) -> Iterator[dict[str, Any]]:
    yield {"asset": site.hall, "kind": "hall"}
    yield {"asset": "fws", "kind": "loop", "parent": site.hall, "loop_kind": "fws", "coolant": "water"}
    yield from ({"asset": row, "kind": "row", "parent": site.hall} for row in site.rows)
    yield from ({"asset": f"rail-{r}", "kind": "rail", "parent": site.hall, "position": r} for r in range(8))
    yield from ({"asset": spine, "kind": "spine", "parent": site.hall} for spine in site.spines)
    for number, leaf in enumerate(site.leaves):
        rail = number % PORTS_PER_HOST
        yield {"asset": leaf, "kind": "leaf", "parent": site.hall, "rail": rail}
        for spine in site.spines:
            link = {"asset": f"{leaf}--{spine}", "kind": "link", "parent": spine, "child": leaf}
            yield {**link, "leaf": leaf, "rail": rail, "speed_gbps": PORT_GBPS}
    for number, cdu in enumerate(site.cdus):
        racks = int((site.cdu_of_rack == number).sum())
        yield {"asset": cdu, "kind": "cdu", "parent": site.hall, "loop": "fws"}
        yield {
            "asset": f"tcs-{cdu}",
            "kind": "loop",
            "parent": site.hall,
            "cdu": cdu,
            "loop": "fws",
            "loop_kind": "tcs",
            "coolant": "pg25",
            "rated_flow_liters_per_minute": racks * 4 * HOST_LITERS_PER_MINUTE,
        }
    for number, rack in enumerate(site.racks):
        of = int(site.cdu_of_rack[number])
        driver = site.cdus[of] if of >= 0 else None
        row = site.rows[int(site.row_of_rack[number])]
        fed_by = f"tcs-{driver}" if driver else None
        yield {"asset": rack, "kind": "rack", "parent": row, "cdu": driver, "loop": fed_by}
    for host in range(len(site.hosts)):
        yield from _host_assets(site, host)


def _host_assets(site: Site, host: int) -> Iterator[dict[str, Any]]:
    name = site.hosts[host]
    model = LIQUID_MODEL if site.liquid[host] else AIR_MODEL
    yield {
        "asset": name,
        "kind": "host",
        "host": name,
        "parent": site.racks[int(site.rack_of_host[host])],
        "confidential": site.confidential[host],
    }
    for index in range(GPUS_PER_HOST):
        yield {
            "asset": site.gpus[host * GPUS_PER_HOST + index],
            "kind": "gpu",
            "host": name,
            "parent": name,
            "model": model,
            "position": index,
            "pci_bus_id": bus_id(index),
        }
    for rail in range(PORTS_PER_HOST):
        port = host * PORTS_PER_HOST + rail
        leaf = site.leaves[int(site.leaf_of_port[port])]
        nic = f"{name}/{site.nic(port)}"
        shared = {"host": name, "speed_gbps": PORT_GBPS, "width": 4, "rail": rail, "leaf": leaf}
        guid = None if site.efa[host] else site.guids[port]
        yield {"asset": nic, "kind": "nic", "parent": name, "guid": guid, "port": 1, **shared}
        yield {"asset": f"{nic}--{leaf}", "kind": "link", "parent": leaf, "child": nic, **shared}
