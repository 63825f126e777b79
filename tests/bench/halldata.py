"""A hall of GPUs as numbers: 20 metrics a GPU and second, with a known amount of noise.

Jobs of 8 to 512 GPUs share iterations, checkpoints and restarts; every fifth GPU is idle. Idle and busy levels of
power and temperature follow the percentiles published for the Acme cluster (A100; Hu et al., NSDI 2024). Sizes are
quoted as a ratio to the entropy of the noise drawn here, below which no lossless code can go: bytes per sample
alone would measure this generator. The noise itself is assumed: 1.2 % on power, 0.6 % on ratios, 1 % on NVLink
traffic, 10 % on PCIe traffic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.bus.protocols import Message
from contract.codec import Event, encode_columns, encode_events, headers_of
from contract.reader import read_batch
from contract.streams.gpu import GPU_SAMPLES

GPUS_PER_HOST = 8
START_US = 1_780_272_000_000_000

DECIMALS = {
    "temperature_celsius": 0,
    "memory_temperature_celsius": 0,
    "power_watts": 3,
    "energy_millijoules": 0,
    "sm_clock_mhz": 0,
    "memory_clock_mhz": 0,
    "clock_event_reasons": 0,
    "utilization_percent": 0,
    "memory_copy_utilization_percent": 0,
    "framebuffer_used_mib": 0,
    "sm_active_ratio": 6,
    "tensor_active_ratio": 6,
    "dram_active_ratio": 6,
    "pcie_tx_bytes_per_second": 0,
    "pcie_rx_bytes_per_second": 0,
    "nvlink_tx_bytes_per_second": 0,
    "nvlink_rx_bytes_per_second": 0,
    "pcie_replays": 0,
    "last_xid": 0,
    "ecc_single_bit_volatile": 0,
}
"""The metrics, and how many decimals of each its library reports (profile raw)."""

_XIDS = (13, 31, 43, 63, 79, 94)

Array = Any


@dataclass(frozen=True, slots=True)
class Hall:
    """Metric arrays of shape (gpus, seconds), values times ten to their decimals, hosts in order."""

    metrics: dict[str, Array]
    noise_bits: dict[str, float]
    """Entropy of the noise of one value, by metric."""

    @property
    def gpus(self) -> int:
        return len(self.metrics["power_watts"])

    @property
    def seconds(self) -> int:
        return int(self.metrics["power_watts"].shape[1])

    @property
    def floor_bytes(self) -> float:
        """Bytes of noise in the mean sample."""
        return sum(self.noise_bits.values()) / 8 / len(self.metrics)


def draw(gpus: int, seconds: int, *, seed: int = 1, warm_up: int = 120) -> Hall:
    """Draw a hall that has already run for `warm_up` seconds."""
    rng = np.random.default_rng(seed)
    blocks = [_Block(rng, size, warm_up + seconds, busy) for size, busy in _jobs(rng, gpus)]
    metrics = {name: np.concatenate([b.metrics[name][:, warm_up:] for b in blocks]) for name in DECIMALS}
    bits = {
        name: float(np.concatenate([b.bits[name][:, warm_up:] for b in blocks]).mean())
        for name in blocks[0].bits
    }
    return Hall(metrics, bits)


def messages(hall: Hall, *, seed: int = 1) -> Iterator[Message]:
    """Yield one message per host and second, in the order a bus would have them, offsets by partition.

    Hosts are read at their own moment of each second, 1.5 ms late at most times; the bus appends some 20 ms later.
    """
    rng = np.random.default_rng([seed, 1])
    hosts = [_Host(rng, n) for n in range(hall.gpus // GPUS_PER_HOST)]
    offsets = [0] * GPU_SAMPLES.partitions
    values = {name: _reported(hall.metrics[name], decimals) for name, decimals in DECIMALS.items()}
    for second in range(hall.seconds):
        late = np.abs(rng.normal(0, 1500, len(hosts))).astype(int)
        read_at = [
            START_US + second * 1_000_000 + host.phase_us + int(late[n]) for n, host in enumerate(hosts)
        ]
        for n in np.argsort(read_at):
            host = hosts[n]
            offset, offsets[host.partition] = offsets[host.partition], offsets[host.partition] + 1
            gpus = slice(n * GPUS_PER_HOST, (n + 1) * GPUS_PER_HOST)
            columns = host.identity | {name: array[gpus, second].tolist() for name, array in values.items()}
            columns["ts"] = [read_at[n]] * GPUS_PER_HOST
            yield Message(
                GPU_SAMPLES.topic,
                host.partition,
                offset,
                read_at[n] + 15_000 + int(rng.exponential(5000)),
                host.name,
                headers_of(GPU_SAMPLES, host.source, host.epoch, second),
                encode_columns(GPU_SAMPLES, columns),
            )


def gather(tick: Sequence[Message], events_per_body: int = 32) -> Iterator[Message]:
    """Gather messages as a gateway does: whole events of one partition, 8 rows each, in one Arrow body."""
    batch = read_batch(GPU_SAMPLES, tick, {})
    events: dict[int, list[Event]] = {}
    row = 0
    for origin in batch.events:
        table = batch.table.slice(row, origin.rows)
        row += origin.rows
        event = Event(source=origin.source, epoch=origin.epoch, sequence=origin.sequence, table=table)
        events.setdefault(origin.message.partition, []).append(event)
    for partition, part in sorted(events.items()):
        for at in range(0, len(part), events_per_body):
            record = encode_events(GPU_SAMPLES, part[at : at + events_per_body], part[at].source)
            yield Message(GPU_SAMPLES.topic, partition, 0, 0, record.key, record.headers, record.body)


def _reported(values: Array, decimals: int) -> Array:
    """Return the numbers as a device prints them."""
    return np.round(values / 10**decimals, decimals) if decimals else values.astype(np.int64)


class _Host:
    def __init__(self, rng: np.random.Generator, number: int) -> None:
        self.name = f"r{number // 16:03d}-n{number % 16:02d}"
        self.source = f"gpu-dcgm@{self.name}/0"
        self.epoch = rng.bytes(8).hex()
        self.phase_us = int(rng.integers(0, 1_000_000))
        self.partition = GPU_SAMPLES.partition_of(self.name)
        self.identity: dict[str, list[Any]] = {
            "ts": [],
            "host": [self.name] * GPUS_PER_HOST,
            "synthetic": [False] * GPUS_PER_HOST,
            "gpu_uuid": [f"GPU-{uuid.UUID(bytes=rng.bytes(16))}" for _ in range(GPUS_PER_HOST)],
            "gpu_index": list(range(GPUS_PER_HOST)),
            "pci_bus_id": [f"00000000:{16 + 17 * g:02X}:00.0" for g in range(GPUS_PER_HOST)],
            "model": ["NVIDIA A100-SXM4-80GB"] * GPUS_PER_HOST,
            "driver_version": ["535.161.08"] * GPUS_PER_HOST,
        }


def _jobs(rng: np.random.Generator, gpus: int) -> Iterator[tuple[int, bool]]:
    """Cut the hall into jobs and idle hosts until a fifth of the GPUs is idle."""
    idle = round(gpus / 5 / GPUS_PER_HOST) * GPUS_PER_HOST
    busy = gpus - idle
    while busy or idle:
        if idle and (not busy or rng.random() < 0.3):
            size = min(idle, GPUS_PER_HOST * int(rng.integers(1, 5)))
            idle -= size
            yield size, False
        else:
            sizes = [8, 16, 32, 64, 128, 256, 512]
            size = min(busy, int(rng.choice(sizes, p=[0.4, 0.2, 0.15, 0.1, 0.08, 0.05, 0.02])))
            busy -= size
            yield size, True


class _Block:
    """The GPUs of one job, or some idle ones: their metrics and the entropy of the noise in each value."""

    def __init__(self, rng: np.random.Generator, gpus: int, seconds: int, busy: bool) -> None:
        self._rng = rng
        self._shape = (gpus, seconds)
        self.metrics: dict[str, Array] = {}
        self.bits: dict[str, Array] = {}
        running, saving, run = _phases(rng, seconds, busy)
        self._running, self._saving = running[None, :], saving[None, :]
        self._work = self._running * (1 - self._saving)
        self._run, self._runs = run, int(run.max()) + 1
        period, share = float(rng.lognormal(0.9, 0.8)) + 0.3, float(rng.uniform(0.6, 0.92))
        clock = np.arange(seconds)[None, :] + rng.normal(0, 0.01, (gpus, 1)) + 1
        self._compute = _duty(clock, period, share) * self._work
        self._draw_activity()
        self._draw_power_and_heat()
        self._draw_clocks()
        self._draw_traffic()
        self._draw_counters()

    def _noise(self, deviation: float = 1.0) -> Array:
        return self._rng.normal(0, deviation, self._shape)

    def _level(self, low: float, high: float) -> Array:
        """Draw one level per run of the job."""
        return self._rng.uniform(low, high, self._runs)[self._run][None, :]

    def _keep(self, name: str, values: Array, deviation: Array | None = None) -> None:
        """Keep a metric; `deviation` is that of its noise, in the steps that are reported."""
        scale = 10 ** DECIMALS[name]
        self.metrics[name] = np.broadcast_to(np.round(values * scale), self._shape).astype(np.int64)
        if deviation is not None:
            self.bits[name] = np.broadcast_to(_bits(deviation * scale), self._shape)

    def _draw_activity(self) -> None:
        levels = {"sm": (0.6, 0.95), "tensor": (0.25, 0.6), "dram": (0.2, 0.5)}
        for name, (low, high) in levels.items():
            mean = self._compute * self._level(low, high)
            self._keep(f"{name}_active_ratio", np.clip(mean * (1 + self._noise(0.006)), 0, 1), mean * 0.006)
        busy = 99 + (self._rng.random(self._shape) < 0.9)
        idle = self._running * self._rng.integers(0, 30, self._shape)
        self._keep("utilization_percent", np.where(self._work > 0, busy, idle))
        copying = 110 * self._compute * self._level(0.2, 0.5) + self._noise(0.7) * self._work
        self._keep("memory_copy_utilization_percent", np.clip(copying, 0, 100))

    def _draw_power_and_heat(self) -> None:
        rng, gpus = self._rng, self._shape[0]
        base, top = rng.normal(63.5, 2.5, (gpus, 1)), rng.normal(440, 12, (gpus, 1))
        mean = base + (top - base) * self._level(0.75, 1.0) * (0.35 * self._running + 0.65 * self._compute)
        rough = np.where(self._running > 0, 0.012 * mean, 0.15)
        fine = np.where(self._running > 0, 0.004 * mean, 0.05)
        self._keep("power_watts", np.maximum(20, mean + self._noise() * rough), rough)
        millijoules = np.round((mean + self._noise() * fine) * 1000)
        start = rng.integers(10**11, 10**13, (gpus, 1))
        self._keep("energy_millijoules", start + np.cumsum(millijoules, axis=1), 1000 * fine)
        cool, kelvin_per_watt = rng.normal(23, 2, (gpus, 1)), np.abs(rng.normal(0.085, 0.012, (gpus, 1)))
        heat = kelvin_per_watt * mean
        self._keep("temperature_celsius", _low_pass(cool + heat, 12.0, self._noise(0.08)))
        self._keep("memory_temperature_celsius", _low_pass(cool + 15 + 0.75 * heat, 40.0, self._noise(0.05)))

    def _draw_clocks(self) -> None:
        rng, gpus = self._rng, self._shape[0]
        capped = (rng.random((gpus, 1)) < 0.06) & (rng.random(self._shape) < 0.3) & (self._work > 0)
        slower = capped * 15 * rng.integers(1, 12, self._shape)
        self._keep("sm_clock_mhz", np.where(self._running > 0, 1410 - slower, 210))
        self._keep("memory_clock_mhz", np.full((1, 1), 1593))
        self._keep("clock_event_reasons", np.where(self._running > 0, np.where(capped, 4, 0), 1))
        used = self._rng.integers(25_000, 39_900, self._runs)[self._run][None, :] * 2
        used = used + rng.integers(-40, 40, (gpus, 1)) * 2
        self._keep("framebuffer_used_mib", np.where(self._running > 0, used, 4))

    def _draw_traffic(self) -> None:
        load = self._rng.uniform(20e9, 150e9) * np.clip(self._work - 0.8 * self._compute, 0, 1)
        sent = load * (1 + self._noise(0.01))
        self._keep("nvlink_tx_bytes_per_second", np.maximum(0, sent), load * 0.01)
        received = sent * (1 + self._noise(0.003))
        self._keep("nvlink_rx_bytes_per_second", np.maximum(0, received), load * 0.003)
        quiet = self._rng.uniform(2e5, 4e5, (self._shape[0], 1))
        host = self._rng.lognormal(18.5, 1.0) * self._work + 8e9 * self._saving + quiet
        for name, mean in (("tx", host), ("rx", 0.6 * host)):
            values = np.maximum(0, mean * (1 + self._noise(0.1)))
            self._keep(f"pcie_{name}_bytes_per_second", values, 0.1 * mean)

    def _draw_counters(self) -> None:
        self._keep("pcie_replays", self._counter(0.03, 4.0))
        self._keep("ecc_single_bit_volatile", self._counter(0.02, 1.0))
        codes = self._rng.choice(_XIDS, (self._shape[0], 1))
        self._keep("last_xid", np.where(self._counter(0.01, 0.5) > 0, codes, 0))

    def _counter(self, share: float, per_hour: float) -> Array:
        """Draw a counter that stays 0 on most GPUs and rises now and then on a few."""
        rate = np.where(self._rng.random((self._shape[0], 1)) < share, per_hour / 3600, 0.0)
        return np.cumsum(self._rng.random(self._shape) < rate, axis=1)


def _phases(rng: np.random.Generator, seconds: int, busy: bool) -> tuple[Array, Array, Array]:
    """Per second: is a job running, is it writing a checkpoint, and which run it is."""
    running, saving, run = np.zeros((3, seconds), np.int64)
    at, number = (-int(rng.integers(0, 3600)), 0) if busy else (seconds, 0)
    while at < seconds:
        end = at + int(rng.exponential(7200)) + 300
        running[max(at, 0) : max(end, 0)] = 1
        run[max(at, 0) :] = number
        every, lasts = int(rng.integers(600, 1800)), int(rng.integers(15, 60))
        for save in range(at + every, min(end, seconds), every):
            saving[max(save, 0) : max(save + lasts, 0)] = 1
        at, number = end + int(rng.integers(30, 300)), number + 1
    return running, saving * running, run


def _duty(t: Array, period: float, share: float) -> Array:
    """Return the mean over the last second of a square wave that is on for `share` of each `period`."""

    def area(x: Array) -> Array:
        whole = np.floor(x / period)
        return whole * period * share + np.minimum(x - whole * period, period * share)

    return area(t + 1.0) - area(t)


def _low_pass(target: Array, tau_seconds: float, noise: Array) -> Array:
    """Return the first-order answer to `target`, plus noise that wanders."""
    out, state, wander = np.empty_like(target), target[:, 0].copy(), np.zeros(len(target))
    for second in range(target.shape[1]):
        state += (target[:, second] - state) / tau_seconds
        wander = 0.98 * wander + noise[:, second]
        out[:, second] = state + wander
    return out


def _bits(deviation: Array) -> Array:
    """Return the entropy in bits of Gaussian noise rounded to whole steps."""
    return np.maximum(0, np.log2(np.sqrt(2 * np.pi * np.e) * np.maximum(deviation, 1e-9)))
