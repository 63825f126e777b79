"""The twin as a whole: a hall, what is done to it, and its face to the outside."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from contract.clock import Clock
from twin.exporter import Exporter, Naming
from twin.hall import Answer, Hall
from twin.plan import Plan, draw_plan, inventory_yaml
from twin.scenario import Scenario, Script
from twin.sensors import Readings, read
from twin.server import Exporters
from twin.syslog import Syslogs

TICK_SECONDS = 1.0  # DCGM samples each second; a page shows the last sample


class Twin:
    """A hall that moves only when told to. Deterministic for a plan, a scenario and a sequence of steps."""

    def __init__(self, plan: Plan, scenario: Scenario, *, start_us: int, naming: Naming = "4.5") -> None:
        self.plan = plan
        self.hall = Hall(plan)
        self.start_us = start_us
        self.elapsed_seconds = 0.0
        self._script = Script(scenario, plan, start_us)
        self._exporters = [Exporter(host, naming) for host in plan.hosts]
        self._syslogs = Syslogs(plan, start_us)
        self._position = {host.name: number for number, host in enumerate(plan.hosts)}
        # One reference, replaced as a whole: pages are asked for from another thread.
        self._shown = read(self.hall), self.hall.present.tolist()

    @property
    def now_us(self) -> int:
        """The twin's time, microseconds UTC."""
        return self.start_us + round(self.elapsed_seconds * 1_000_000)

    @property
    def answers(self) -> list[Answer]:
        """What the exporter of each host does with a request, in plan order."""
        return list(self.hall.answers)

    @property
    def labels(self) -> list[dict[str, object]]:
        """The truth about every injection so far."""
        return self._script.labels

    @property
    def readings(self) -> Readings:
        """What the sensors read at the last step, in plan order."""
        return self._shown[0]

    def step(self, seconds: float) -> bool:
        """Advance the hall and take a new sample; return whether a label changed."""
        self.elapsed_seconds += seconds
        self._script.apply(self.hall, self.elapsed_seconds)
        self.hall.advance(seconds)
        self._syslogs.step(seconds, self.now_us, self.hall.take_printed())
        readings = read(self.hall)
        self._shown = readings, self.hall.present.tolist()
        return self._script.note(self.hall, readings, self.elapsed_seconds)

    def page(self, host: str | int) -> bytes:
        """Return the exporter page of a host, by name or position, as of the last step."""
        position = self._place(host)
        readings, present = self._shown
        first = position * self.plan.gpus_per_host
        here = present[first : first + self.plan.gpus_per_host]
        return self._exporters[position].page(readings, first, here)

    def take_log(self, host: str | int) -> list[str]:
        """Return the lines that a host has added to its system log since the last call."""
        return self._syslogs.take(self._place(host))

    def _place(self, host: str | int) -> int:
        return host if isinstance(host, int) else self._position[host]


def run_twin(
    folder: Path,
    *,
    hosts: int,
    seed: int,
    scenario: Scenario,
    clock: Clock,
    stop: threading.Event,
    base_port: int = 0,
    naming: Naming = "4.5",
) -> None:
    """Run a hall in real time until `stop` is set.

    `folder` receives `inventory.yaml`, `labels.json`, `syslog/HOST.log` and, once every exporter answers,
    `endpoints.json`.
    The scenario must have been drawn for `draw_plan(hosts=hosts, seed=seed)`.
    """
    twin = Twin(draw_plan(hosts=hosts, seed=seed), scenario, start_us=clock.now_us(), naming=naming)
    _write_whole(folder / "inventory.yaml", inventory_yaml(twin.plan))
    _write_whole(folder / "labels.json", _json(twin.labels))
    names = [host.name for host in twin.plan.hosts]
    logs = [folder / "syslog" / f"{name}.log" for name in names]
    (folder / "syslog").mkdir(exist_ok=True)
    with Exporters(hosts, twin.page, base_port) as exporters:
        _write_logs(twin, logs)
        endpoints = [
            {"host": name, "url": url, "syslog": str(log.relative_to(folder))}
            for name, url, log in zip(names, exporters.urls, logs, strict=True)
        ]
        _write_whole(folder / "endpoints.json", _json(endpoints))
        begin = last = clock.monotonic()
        ticks = 0
        while not clock.wait(stop, begin + (ticks + 1) * TICK_SECONDS - clock.monotonic()):
            now = clock.monotonic()
            changed = twin.step(now - last)
            last = now
            ticks = round((now - begin) / TICK_SECONDS)  # a late tick is not made up for by a hurried one
            exporters.follow(twin.answers)
            _write_logs(twin, logs)
            if changed:
                _write_whole(folder / "labels.json", _json(twin.labels))


def _write_logs(twin: Twin, logs: list[Path]) -> None:
    for host, path in enumerate(logs):
        lines = twin.take_log(host)
        if lines:
            with path.open("a", encoding="utf-8") as log:
                log.write("\n".join(lines) + "\n")


def _write_whole(path: Path, text: str) -> None:
    """Replace a file so that a reader sees the old text or the new one, never a part."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
