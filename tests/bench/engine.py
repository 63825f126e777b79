"""The engine's tick over decoding alone: 20,000 GPUs, 50 conditions, from the bus to journaled transitions.

A tick of the hall is appended to the local bus. The engine polls it, decodes it, judges every condition and syncs
its journal; decoding alone turns the same messages, already in memory, into checked rows. Both in this process, in
turn, by wall time, since a sync is waiting. The first tick, which meets every GPU for the first time, is not counted.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import halldata
from bench import BenchRow

from alerts.engine import Engine, EngineOptions
from alerts.ruleset import check_rules
from contract.bus import Message, Record
from contract.bus.local import LocalBus
from contract.metrics import Metrics
from contract.reader import read_batch
from contract.streams import STREAMS
from contract.streams.gpu import GPU_SAMPLES

HOSTS, TICKS, CONDITIONS = 2_500, 8, 50

_CONDITIONS = (
    "temperature_celsius > {n}",
    "memory_temperature_celsius > 70 + {n} AND utilization_percent > 50",
    "power_watts > 400 + {n}",
    "sm_clock_mhz < 210 + {n} AND power_watts > 100",
    "last_xid IN (48, 79, 95, {n})",
    "pcie_replays > 10 + {n}",
    "framebuffer_used_mib / 81920 > 0.9 + {n} / 1000",
    "(clock_event_reasons & {n}) <> 0 AND tensor_active_ratio > 0.9",
    "abs(nvlink_tx_bytes_per_second - nvlink_rx_bytes_per_second) > {n} * 1e9",
    "dram_active_ratio > 0.5 AND sm_active_ratio < 0.{n}",
)
"""Of the kinds that people write; most hold for few GPUs or none, as in a hall."""

_RULE = """
- rule: bench-{number}
  on: gpu_samples
  entity: gpu_uuid
  when: {condition}
  for: 5s
  severity: minor
  owner: bench
  summary: "{{gpu_uuid}}"
"""


def measure(hosts: int = HOSTS, ticks: int = TICKS) -> list[BenchRow]:
    """Return the engine's tick over decode alone, for JSON bodies and for Arrow bodies."""
    hall = halldata.draw(hosts * halldata.GPUS_PER_HOST, ticks)
    messages = list(halldata.messages(hall))
    by_tick = [messages[at : at + hosts] for at in range(0, len(messages), hosts)]
    return [
        *_rows("JSON", by_tick),
        *_rows("Arrow", [list(halldata.gather(tick)) for tick in by_tick]),
    ]


def _rows(body: str, ticks: Sequence[Sequence[Message]]) -> Iterator[BenchRow]:
    pairs = _measure(ticks)[1:]
    ratio = statistics.median(engine / decode for engine, decode in pairs)
    yield BenchRow(
        name=f"engine, a tick of {body} bodies",
        value=statistics.median(engine for engine, _ in pairs) * 1_000,
        unit="ms",
        baseline=statistics.median(decode for _, decode in pairs) * 1_000,
        goal="<= 2.0 of decode alone",
        holds=ratio <= 2.0,
    )
    yield BenchRow(
        name=f"engine over decode alone, {body} bodies",
        value=ratio,
        unit="ratio",
        baseline=1.0,
        goal="<= 2.0",
        holds=ratio <= 2.0,
    )


def _measure(ticks: Sequence[Sequence[Message]]) -> list[tuple[float, float]]:
    """Return seconds of the engine and of decoding alone, tick by tick."""
    with tempfile.TemporaryDirectory(prefix="hallwatch-bench-") as name:
        folder = Path(name)
        rules = folder / "rules.yaml"
        rules.write_text("".join(_rule(number) for number in range(CONDITIONS)))
        bus = LocalBus(folder / "bus", fsync=True)
        bus.ensure_topics(STREAMS.values())
        options, metrics = EngineOptions(folder=folder / "engine", hall="bench"), Metrics()
        engine = Engine(options, bus, check_rules([rules]), metrics=metrics)
        engine.step()
        pairs, sent = [], 0
        for tick in ticks:
            sent += len(tick)
            bus.append([(m.topic, m.partition, Record(m.key, m.headers, m.body)) for m in tick])
            began = time.perf_counter()
            _catch_up(engine, metrics, sent)
            judged = time.perf_counter()
            batch = read_batch(GPU_SAMPLES, tick, {})
            decoded = time.perf_counter()
            if batch.dead or batch.table.num_rows == 0:
                raise AssertionError("the bench feeds what cannot be read")
            pairs.append((judged - began, decoded - judged))
        engine.close()
        bus.close()
    return pairs


def _catch_up(engine: Engine, metrics: Metrics, messages: int) -> None:
    """Let the engine judge until it has read so many messages since its start."""
    while (metrics.registry.get_sample_value("hallwatch_engine_messages_total") or 0) < messages:
        engine.step()


def _rule(number: int) -> str:
    condition = _CONDITIONS[number % len(_CONDITIONS)].format(n=80 + number // len(_CONDITIONS))
    return _RULE.format(number=number, condition=condition)
