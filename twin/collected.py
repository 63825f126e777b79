"""What the collectors of a large hall read at a tick, as columns: the true state with noise, in the steps of sensors."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from contract.histogram import SCHEMA
from twin import physics
from twin.chips import AIR_MODEL, LIQUID_MODEL
from twin.largehall import LargeHall, bus_id
from twin.loops import RATED_PUMP_RPM, RESERVOIR_LITERS
from twin.network import PROBES
from twin.plan import DRIVER_VERSION, NIC_BUSES
from twin.site import DIMMS_PER_HOST, GPUS_PER_HOST, NVLINKS_PER_GPU, PORT_GBPS, PORTS_PER_HOST, Ints
from twin.workload import Flags, Floats

Columns: TypeAlias = dict[str, Any]
"""Column -> one value per row: an array, a list, or one value for all of them."""

HOST_WATTS = 1_000.0  # processors, memory, fans of a host
_TEMPERATURE_NOISE, _POWER_NOISE = 0.25, 0.004
_NVLINK_MB_PER_SECOND = 900_000
_FRAMEBUFFER_MIB = {False: 81_080, True: 275_040}


def gpu_samples(hall: LargeHall, rows: Ints) -> Columns:
    """Return one row for each of these GPUs."""
    chips, tasks, rng = hall.chips, hall.tasks, hall.telemetry.rng
    noise = rng.standard_normal((4, len(rows)))
    coarse = hall.telemetry.coarse_celsius[rows // GPUS_PER_HOST]
    computing, talking, saving = tasks.computing[rows], tasks.communicating[rows], tasks.saving[rows]
    busy = computing + talking
    liquid = hall.site.liquid[rows // GPUS_PER_HOST]
    used = np.where(tasks.busy[rows], 0.9 * tasks.intensity[rows], 0.01)
    memory = np.where(liquid, _FRAMEBUFFER_MIB[True], _FRAMEBUFFER_MIB[False])
    used_mib = (memory * np.clip(used, 0, 0.97)).astype(np.int64)
    clock = np.where(tasks.busy[rows], physics.SM_CLOCK_MHZ * chips.speed[rows], physics.SM_IDLE_CLOCK_MHZ)
    nvlink = _NVLINK_MB_PER_SECOND * (0.55 * talking + 0.08 * computing) * (1 + 0.02 * noise[3])
    return {
        "gpu_uuid": pa.array(hall.site.gpus).take(pa.array(rows)),
        "gpu_index": rows % GPUS_PER_HOST,
        "pci_bus_id": _BUS_IDS.take(pa.array(rows % GPUS_PER_HOST)),
        "model": _MODELS.take(pa.array(liquid.astype(np.int8))),
        "driver_version": DRIVER_VERSION,
        "temperature_celsius": _steps(chips.die_celsius[rows] + _TEMPERATURE_NOISE * noise[0], coarse),
        "memory_temperature_celsius": _steps(
            chips.memory_celsius[rows] + _TEMPERATURE_NOISE * noise[1], coarse
        ),
        "temperature_margin_celsius": _steps(
            chips.margin_kelvin[rows] - _TEMPERATURE_NOISE * noise[0], coarse
        ),
        "power_watts": np.round(chips.power_watts[rows] * (1 + _POWER_NOISE * noise[2]), 3),
        "energy_millijoules": (chips.energy_joules[rows] * 1000).astype(np.int64),
        "sm_clock_mhz": (clock // physics.SM_CLOCK_STEP_MHZ * physics.SM_CLOCK_STEP_MHZ).astype(np.int64),
        "memory_clock_mhz": physics.MEMORY_CLOCK_MHZ,
        "clock_event_reasons": _clock_reasons(hall, rows),
        "utilization_percent": np.rint(100 * busy + 20 * saving).astype(np.int64),
        "framebuffer_used_mib": used_mib,
        "framebuffer_free_mib": memory - used_mib,
        "graphics_engine_active_ratio": np.round(np.clip(0.995 * busy + 0.15 * saving, 0, 1), 6),
        "tensor_active_ratio": np.round(np.clip(0.6 * computing * (1 + 0.006 * noise[3]), 0, 1), 6),
        "dram_active_ratio": np.round(np.clip(0.45 * computing + 0.15 * talking, 0, 1), 6),
        "nvlink_megabytes_per_second": np.maximum(nvlink, 0).astype(np.int64),
        "pcie_replays": hall.pcie_replays[rows],
        "last_xid": hall.last_xid[rows],
        "ecc_single_bit_volatile": hall.corrected_errors[rows],
        "ecc_double_bit_volatile": hall.uncorrected_errors[rows],
        "row_remap_failed": hall.remap_failed[rows].astype(np.int64),
        "row_remap_pending": hall.remap_pending[rows].astype(np.int64),
    }


_BUS_IDS = pa.array([bus_id(index) for index in range(GPUS_PER_HOST)])
_MODELS = pa.array([AIR_MODEL, LIQUID_MODEL])


def _clock_reasons(hall: LargeHall, rows: Ints) -> NDArray[np.int64]:
    """Return NVML's clock event reasons; a brake and a hardware slowdown each set two bits."""
    chips = hall.chips
    busy = hall.tasks.busy[rows]
    reasons = np.where(busy, 0x4 * chips.capped[rows], 0x1)
    reasons |= 0x20 * (busy & chips.software_thermal[rows])
    reasons |= 0x48 * chips.hardware_thermal[rows]
    return np.asarray(reasons | 0x88 * (busy & chips.braked[rows]))


def _steps(values: Floats, step: Floats) -> Floats:
    return np.asarray(np.rint(values / step) * step)


def gpu_links(hall: LargeHall, gpus: Ints) -> Columns:
    """Return one row for each NVLink of these GPUs."""
    rows = np.repeat(gpus, NVLINKS_PER_GPU)
    link = np.tile(np.arange(NVLINKS_PER_GPU), len(gpus))
    up = hall.nvlink_up[rows] | (link != 0)
    rate = (
        _NVLINK_MB_PER_SECOND
        / NVLINKS_PER_GPU
        * (0.55 * hall.tasks.communicating[rows] + 0.08 * hall.tasks.computing[rows])
    )
    errors = np.where(link == 0, hall.nvlink_errors[rows], 0)
    return {
        "gpu_uuid": pa.array(hall.site.gpus).take(pa.array(rows)),
        "gpu_index": rows % GPUS_PER_HOST,
        "link": link,
        "link_state": pa.array(["down", "up"]).take(pa.array(up.astype(np.int8))),
        "crc_flit_errors": errors,
        "replays": errors,
        "recoveries": 0,
        "recoveries_failed": errors,
        "megabytes_per_second": np.where(up, rate, 0).astype(np.int64),
    }


def host_samples(hall: LargeHall, hosts: Ints, now_us: int) -> Columns:
    """Return one row for each of these hosts."""
    rng = hall.telemetry.rng
    noise = rng.standard_normal((2, len(hosts)))
    busy = hall.tasks.busy.reshape(-1, GPUS_PER_HOST).mean(axis=1)[hosts]
    uptime = np.round(hall.uptime_seconds[hosts], 2)
    present = hall.chips.present.reshape(-1, GPUS_PER_HOST).sum(axis=1)[hosts]
    nics = hall.network.installed.reshape(-1, PORTS_PER_HOST).sum(axis=1)[hosts]
    total = DIMMS_PER_HOST * 128 * 2**30
    return {
        "boot_id": [hall.trust.boot_ids[host] for host in hosts.tolist()],
        "booted_at": now_us - (1e6 * uptime).astype(np.int64),
        "uptime_seconds": uptime,
        "kernel": "6.8.0-1027-generic",
        "cpus": 192,
        "cpu_busy_ratio": np.round(np.clip(0.04 + 0.2 * busy + 0.01 * noise[0], 0, 1), 6),
        "cpu_temperature_celsius": np.rint(2 * (hall.loops.air_celsius + 18 + 15 * busy + noise[1])) / 2,
        "memory_total_bytes": total,
        "memory_available_bytes": (total * (0.9 - 0.4 * busy)).astype(np.int64),
        "oom_kills": 0,
        "memory_controllers": 16,
        "memory_corrected_errors": 0,
        "memory_uncorrected_errors": 0,
        "gpus": present,
        "nics": nics,
        "nvmes": 8,
        "devices_missing": 2 * GPUS_PER_HOST - present - nics,
        "clock_source": "chrony",
        "clock_synchronised": True,
        "clock_offset_seconds": hall.telemetry.clock_offset_seconds[hosts],
        "clock_estimated_error_seconds": 0.0005,
    }


def host_pcie(hall: LargeHall, hosts: Ints) -> Columns:
    """Return one row for each GPU and network card of these hosts; of one that is gone only its place."""
    gpus = np.repeat(hosts * GPUS_PER_HOST, GPUS_PER_HOST) + np.tile(np.arange(GPUS_PER_HOST), len(hosts))
    present = np.concatenate([hall.chips.present[gpus], hall.network.installed[gpus]])
    errors = np.concatenate([hall.pcie_errors[gpus], np.zeros(len(gpus), np.int64)])
    places = [bus_id(gpu).lower()[4:] for gpu in gpus.tolist()]
    cards = [f"0000:{bus}:00.0" for bus in NIC_BUSES]
    full = np.full(len(present), 16)
    return {
        "device": places + [cards[port % PORTS_PER_HOST] for port in gpus.tolist()],
        "device_class": ["gpu"] * len(gpus) + ["nic"] * len(gpus),
        "presence": np.where(present, "present", "missing").tolist(),
        "link_width": pa.array(full, mask=~present),
        "max_link_width": pa.array(full, mask=~present),
        "link_speed_gts": pa.array(2.0 * full, mask=~present),
        "max_link_speed_gts": pa.array(2.0 * full, mask=~present),
        "correctable_errors": pa.array(errors, mask=~present),
        "nonfatal_errors": pa.array(0 * errors, mask=~present),
        "fatal_errors": pa.array(0 * errors, mask=~present),
        "correctable_errors_1h": pa.array(errors, mask=~present),
    }


def fabric_ports(hall: LargeHall, ports: Ints) -> Columns:
    """Return one row for each of these ports; of one that is gone only its names."""
    site, network = hall.site, hall.network
    present, active = network.installed[ports], network.active[ports]
    efa = site.efa[ports // PORTS_PER_HOST]
    gone = ~present

    def if_present(values: Any, beside: Flags | None = None) -> pa.Array:
        return pa.array(values, mask=gone if beside is None else gone | beside)

    words = [site.nic(port) for port in ports.tolist()]
    return {
        "port_id": [site.ports[port] for port in ports.tolist()],
        "device": words,
        "port": 1,
        "node_guid": pa.array([site.guids[port] for port in ports.tolist()], mask=efa),
        "driver": pa.array(np.where(efa, "efa", "mlx5_core").tolist()),
        "link_layer": pa.array(np.where(efa, "unknown", "infiniband").tolist()),
        "present": present,
        "in_use": True,
        "link_state": if_present(np.where(active, "active", "down").tolist()),
        "phys_state": if_present(np.where(active, "link_up", "polling").tolist(), efa),
        "speed_gbps": if_present(np.full(len(ports), float(PORT_GBPS)), ~active),
        "width": if_present(np.full(len(ports), 4), ~active),
        "expected_speed_gbps": float(PORT_GBPS),
        "expected_width": 4,
        "tx_bytes": if_present(network.sent_bytes[ports]),
        "rx_bytes": if_present(network.received_bytes[ports]),
        "tx_bytes_per_second": if_present(network.bytes_per_second[ports]),
        "rx_bytes_per_second": if_present(network.bytes_per_second[ports]),
        "symbol_error": if_present(np.minimum(network.symbol_errors[ports], 65_535), efa),
        "link_downed": if_present(np.minimum(network.link_downs[ports], 255), efa),
        "port_rcv_errors": if_present(np.minimum(network.receive_errors[ports], 65_535), efa),
        "port_rcv_errors_per_second": if_present(network.receive_errors_per_second[ports], efa),
        "symbol_errors_12_minutes": if_present(
            (720 * network.errors_per_second[ports]).astype(np.int64), efa
        ),
        "packet_seq_err": if_present(network.repeats[ports], efa),
        "local_ack_timeout_err": if_present(network.timeouts[ports], efa),
        "retrans_packets": if_present(network.repeats[ports], ~efa),
        "retrans_timeout_events": if_present(network.timeouts[ports], ~efa),
        "retrans_timeout_events_per_second": if_present(0.01 * network.errors_per_second[ports], ~efa),
    }


def fabric_probes(hall: LargeHall, ports: Ints, partners: Ints) -> Columns:
    """Return one row for the path from each of these ports to its partner on the same rail."""
    site, network = hall.site, hall.network
    names = [
        (site.hosts[at // PORTS_PER_HOST], site.nic(at), site.hosts[to // PORTS_PER_HOST], site.nic(to))
        for at, to in zip(ports.tolist(), partners.tolist(), strict=True)
    ]
    answers = network.active[ports] & network.active[partners] & hall.host_up[partners // PORTS_PER_HOST]
    answered = np.where(answers, PROBES, 0)
    delay = network.base_us[ports] + network.delay_us[ports] + network.delay_us[partners]
    spread = hall.telemetry.rng.lognormal(0.0, 0.08, (len(ports), PROBES))
    nanoseconds = np.sort((1000 * delay[:, None] * spread).astype(np.int64), axis=1)
    micros = np.round(nanoseconds / 1000, 1)
    silent = ~answers
    p50 = pa.array(micros[:, PROBES // 2], mask=silent)
    p99 = pa.array(micros[:, -2], mask=silent)
    efa = site.efa[ports // PORTS_PER_HOST]
    return {
        "path": [f"{host}/{nic}>{target}/{to}" for host, nic, target, to in names],
        "latency_kind": "rtt",
        "protocol": pa.array(np.where(efa, "srd", "ud").tolist()),
        "path_class": "same_rail",
        "nic": [nic for _, nic, _, _ in names],
        "target_host": [target for _, _, target, _ in names],
        "target_nic": [to for _, _, _, to in names],
        "packet_bytes": 64,
        "window_seconds": 10.0,
        "sent": PROBES,
        "answered": answered,
        "late": 0,
        "lost": PROBES - answered,
        "duplicates": 0,
        "unsent": 0,
        **_histograms(nanoseconds, answers),
        "rtt_p50_us": p50,
        "rtt_p99_us": p99,
        "limit_us": np.where(efa, 60.0, 40.0),
        "recent_sent": 6 * PROBES,
        "recent_lost": 6 * (PROBES - answered),
        "recent_count": 6 * answered,
        "recent_p50_us": p50,
        "recent_p99_us": p99,
        "dead_port_count": 0,
    }


def _histograms(nanoseconds: NDArray[np.int64], answers: Flags) -> Columns:
    """Count each row of sorted latencies into its own histogram; rows without answers are empty ones."""
    values = nanoseconds[answers]
    bucket = np.ceil(np.log2(values) * 2**SCHEMA).astype(np.int64)
    first = np.ones(bucket.shape, np.bool_)
    first[:, 1:] = bucket[:, 1:] != bucket[:, :-1]
    starts = np.flatnonzero(first)
    counts = np.diff(np.append(starts, bucket.size))
    lengths = np.zeros(len(answers), np.int32)
    lengths[answers] = first.sum(axis=1)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    whole = np.where(answers, nanoseconds.shape[1], 0)
    return {
        "rtt_count": whole,
        "rtt_sum": np.where(answers, nanoseconds.sum(axis=1), 0),
        "rtt_min": pa.array(nanoseconds[:, 0], mask=~answers),
        "rtt_max": pa.array(nanoseconds[:, -1], mask=~answers),
        "rtt_schema": SCHEMA,
        "rtt_idx": pa.ListArray.from_arrays(offsets, pa.array(bucket.ravel()[starts])),
        "rtt_cnt": pa.ListArray.from_arrays(offsets, pa.array(counts)),
    }


def rack_watts(hall: LargeHall) -> Floats:
    """Return what each rack draws."""
    hosts = hall.metered_watts + np.where(hall.powered, HOST_WATTS, 0.0)
    return np.asarray(np.bincount(hall.site.rack_of_host, hosts, len(hall.site.racks)))


def coolant_state(hall: LargeHall, cdu: int) -> dict[str, float]:
    """Return what the sensors of a coolant unit read, by their point, in its unit."""
    loops, rng = hall.loops, hall.telemetry.rng
    noise = rng.standard_normal(4).tolist()
    supply = round(float(loops.supply_celsius[cdu]) + 0.03 * noise[0], 2)
    return {
        "supply_temperature": supply,
        "return_temperature": round(float(loops.return_celsius[cdu]) + 0.03 * noise[1], 2),
        "flow": round(float(loops.cdu_flow[cdu]) * (1 + 0.002 * noise[2]), 1),
        "delta_pressure": round(float(loops.delta_kilopascals[cdu]) * (1 + 0.003 * noise[3]), 1),
        "pump_speed": round(100 * float(loops.pump_speed[cdu]), 1),
        "pump_rotation": round(RATED_PUMP_RPM * float(loops.pump_speed[cdu] * loops.pump_efficiency[cdu])),
        "valve_position": round(float(loops.valve_percent[cdu]), 1),
        "reservoir_level": round(100 * float(loops.reservoir_liters[cdu]) / RESERVOIR_LITERS, 1),
        "air_temperature": round(loops.air_celsius, 1),
        "air_humidity": round(100 * loops.room_humidity, 1),
        "dew_point": round(loops.dew_point_celsius, 1),
        "dew_margin": round(supply - loops.dew_point_celsius, 1),
    }
