"""What the management library reads from the GPUs: the true state with noise, in the steps of each sensor."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twin import physics
from twin.hall import Hall
from twin.workload import Floats

Readings: TypeAlias = dict[str, NDArray[Any]]
"""Quantity -> one value per GPU in plan order: whole numbers, or floats with at most six decimals."""

FRAMEBUFFER_MIB = 81_559  # nvidia-smi -q of an H100 80GB: total, and what the driver reserves
FRAMEBUFFER_RESERVED_MIB = 479

_TEMPERATURE_NOISE_KELVIN = 0.25  # so that a value between two degrees flickers between both
_POWER_NOISE = 0.004  # of the reading: the board's shunts, after the driver's averaging over a second
_RATIO_NOISE = 0.006

# Clock event reasons (NVML): a hardware thermal slowdown sets both of its bits.
_IDLE, _POWER_CAP, _HARDWARE, _SOFTWARE_THERMAL, _HARDWARE_THERMAL = 0x1, 0x4, 0x8, 0x20, 0x40

# Rates at full work, from data sheets and link speeds.
_NVLINK_MB_PER_SECOND = 900_000  # NVLink 4, 18 links, both directions
_NVLINK_SHARE_COMMUNICATING = 0.55  # collectives reach a little over half of it
_NVLINK_SHARE_COMPUTING = 0.08  # tensor parallelism overlapped with computing
_NIC_BYTES_PER_SECOND = 50e9  # one 400 Gb/s port per GPU, reached over PCIe
_PCIE_IDLE_TX, _PCIE_IDLE_RX = 112_000, 17_500  # an idle GPU as captured: polling, nothing else
_HOST_BYTES_PER_SECOND = 0.3e9  # input batches
_CHECKPOINT_BYTES_PER_SECOND = 6e9


def read(hall: Hall) -> Readings:
    """Read every GPU once; the noise drawn does not depend on what happens in the hall."""
    noise = hall.rng.standard_normal((9, len(hall.present)))
    return {
        **_read_thermal(hall, noise[0:3]),
        **_read_clocks(hall),
        **_read_activity(hall, noise[3:7]),
        **_read_traffic(hall, noise[7:9]),
        **_read_memory(hall),
        "energy_millijoules": np.floor(hall.energy_joules * 1000).astype(np.int64),
        "pcie_replays": hall.pcie_replays,
        "last_xid": hall.last_xid,
        "zero": np.zeros(len(hall.present), np.int64),
    }


def _read_thermal(hall: Hall, noise: Floats) -> Readings:
    return {
        "temperature_celsius": _whole(hall.die_celsius + _TEMPERATURE_NOISE_KELVIN * noise[0]),
        "memory_temperature_celsius": _whole(hall.hbm_celsius + _TEMPERATURE_NOISE_KELVIN * noise[1]),
        "margin_celsius": _whole(hall.margin - _TEMPERATURE_NOISE_KELVIN * noise[0]),
        "power_watts": np.round(hall.power_watts * (1 + _POWER_NOISE * noise[2]), 3),
    }


def _read_clocks(hall: Hall) -> Readings:
    running = hall.activity.running
    steps = np.floor(physics.SM_CLOCK_MHZ * hall.speed / physics.SM_CLOCK_STEP_MHZ)
    reasons = np.select([running], [_POWER_CAP * hall.power_capped], _IDLE)
    reasons |= _SOFTWARE_THERMAL * hall.software_slowdown
    reasons |= (_HARDWARE | _HARDWARE_THERMAL) * hall.hardware_slowdown
    return {
        "sm_clock_mhz": _whole(
            np.where(running, physics.SM_CLOCK_STEP_MHZ * steps, physics.SM_IDLE_CLOCK_MHZ)
        ),
        "memory_clock_mhz": np.full(len(running), physics.MEMORY_CLOCK_MHZ),
        "clock_reasons": reasons,
    }


def _read_activity(hall: Hall, noise: Floats) -> Readings:
    work = hall.activity
    busy = work.computing + work.communicating  # a kernel that spins on the network counts as busy
    engine = _ratio(0.995 * busy + 0.15 * work.saving, noise[0])
    dram = _ratio(0.45 * work.computing + 0.15 * work.communicating + 0.1 * work.saving, noise[1])
    tensor = _ratio(0.6 * hall.workload.intensity * work.computing, noise[2])
    return {
        "utilization_percent": _whole(np.clip(100 * busy + 20 * work.saving + 0.4 * noise[3] * busy, 0, 100)),
        "memory_copy_utilization_percent": _whole(100 * dram),
        "graphics_engine_ratio": engine,
        "tensor_ratio": tensor,
        "dram_ratio": dram,
    }


def _read_traffic(hall: Hall, noise: Floats) -> Readings:
    work = hall.activity
    nvlink = _NVLINK_SHARE_COMMUNICATING * work.communicating + _NVLINK_SHARE_COMPUTING * work.computing
    network = 0.7 * _NIC_BYTES_PER_SECOND * work.communicating * hall.workload.multi_host
    vary = 1 + 0.02 * noise
    sent = _PCIE_IDLE_TX + network + _CHECKPOINT_BYTES_PER_SECOND * work.saving
    received = _PCIE_IDLE_RX + network + _HOST_BYTES_PER_SECOND * work.computing
    return {
        "nvlink_mb_per_second": _whole(_NVLINK_MB_PER_SECOND * nvlink * vary[0]),
        "pcie_tx_bytes_per_second": _whole(sent * vary[0]),
        "pcie_rx_bytes_per_second": _whole(received * vary[1]),
    }


def _read_memory(hall: Hall) -> Readings:
    used = np.where(hall.activity.running, hall.workload.framebuffer_mib, 0)
    return {
        "framebuffer_used_mib": used,
        "framebuffer_free_mib": FRAMEBUFFER_MIB - FRAMEBUFFER_RESERVED_MIB - used,
        "framebuffer_reserved_mib": np.full(len(used), FRAMEBUFFER_RESERVED_MIB),
        "ecc_corrected": hall.corrected_errors,
        "correctable_remapped_rows": hall.remapped_rows,
    }


def _whole(values: Floats) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)


def _ratio(values: Floats, noise: Floats) -> Floats:
    noisy: Floats = np.clip(values * (1 + _RATIO_NOISE * noise), 0.0, 1.0)
    return noisy.round(6)
