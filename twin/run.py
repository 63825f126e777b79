"""The twin as a whole: a hall, what is done to it, and its face to the outside."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path

from contract.clock import Clock
from twin.devices import Devices
from twin.exporter import Exporter, Naming
from twin.faults import clear
from twin.hall import Answer, Hall
from twin.plan import Plan, inventory_yaml
from twin.redfish import RedfishServers
from twin.scenario import Scenario, Script
from twin.sensors import Readings, read
from twin.server import Exporters
from twin.syslog import Syslogs

BEGIN = "begin"
"""A file of the run folder that somebody writes when all who are to watch do watch."""

TICK_SECONDS = 1.0  # DCGM samples each second; a page shows the last sample


class Twin:
    """A hall that moves only when told to. Deterministic for a plan, a scenario and a sequence of steps."""

    def __init__(
        self,
        plan: Plan,
        scenario: Scenario,
        *,
        start_us: int,
        naming: Naming = "4.5",
        folder: Path | None = None,
        hold: bool = False,
    ) -> None:
        """`folder` is where devices show themselves as files; without one there are GPUs alone.

        With `hold` the time of the scenario stands until `begin` is called.
        """
        self.plan = plan
        self.hall = Hall(plan)
        if folder is not None:
            self.hall.devices = Devices(plan, self.hall, folder, start_us)
        self.start_us = start_us
        self.elapsed_seconds = 0.0
        self._scenario = scenario
        self._script: Script | None = None
        self._begun_seconds = 0.0
        if not hold:
            self.begin()
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
        return self._script.labels if self._script is not None else []

    @property
    def readings(self) -> Readings:
        """What the sensors read at the last step, in plan order."""
        return self._shown[0]

    def begin(self) -> None:
        """Let the time of the scenario begin now."""
        self._script = Script(self._scenario, self.plan, self.now_us)
        self._begun_seconds = self.elapsed_seconds

    def step(self, seconds: float) -> bool:
        """Advance the hall and take a new sample; return whether a label changed."""
        self.elapsed_seconds += seconds
        clear(self.hall)
        if self._script is not None:
            self._script.apply(self.hall, self.elapsed_seconds - self._begun_seconds)
        if self.hall.devices is not None:
            self.hall.devices.step(self.hall, seconds, self.now_us)
        self.hall.advance(seconds)
        self._syslogs.step(seconds, self.now_us, self.hall.take_printed())
        readings = read(self.hall)
        self._shown = readings, self.hall.present.tolist()
        if self._script is None:
            return False
        return self._script.note(self.hall, readings, self.elapsed_seconds - self._begun_seconds)

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
    plan: Plan,
    *,
    scenario: Scenario,
    clock: Clock,
    stop: threading.Event,
    base_port: int = 0,
    naming: Naming = "4.5",
    hold: bool = False,
) -> None:
    """Run a hall in real time until `stop` is set; with `hold` nothing is injected until there is a file `begin`.

    `folder` receives `inventory.yaml`, `labels.json`, `syslog/HOST.log`, `hosts/HOST/` with what its kernel shows,
    `evidence/HOST/`, `roots/` and, once every device answers, `endpoints.json`.
    The scenario must have been drawn for the plan.
    """
    begin, start_us = clock.monotonic(), clock.now_us()
    twin = Twin(plan, scenario, start_us=start_us, naming=naming, folder=folder, hold=hold)
    hosts = len(plan.hosts)
    assert twin.hall.devices is not None  # noqa: S101 - a folder was given
    units = twin.hall.devices.services
    _write_whole(folder / "inventory.yaml", inventory_yaml(plan))
    _write_whole(folder / "labels.json", _json(twin.labels))
    names = [host.name for host in plan.hosts]
    logs = [folder / _log_of(name) for name in names]
    (folder / "syslog").mkdir(exist_ok=True)
    with (
        Exporters(hosts, twin.page, base_port) as exporters,
        RedfishServers(list(units.values()), base_port + hosts if base_port else 0) as redfish,
    ):
        _write_logs(twin, logs)
        endpoints = _endpoints(
            dict(zip(names, exporters.urls, strict=True)), dict(zip(units, redfish.urls, strict=True))
        )
        _write_whole(folder / "endpoints.json", _json(endpoints))
        # What it took to build the hall has passed in it, too: its time is everybody's.
        last, ticks = begin, 0
        while not clock.wait(stop, begin + (ticks + 1) * TICK_SECONDS - clock.monotonic()):
            now = clock.monotonic()
            begins = hold and (folder / BEGIN).exists()
            if begins:
                hold = False
                twin.begin()
            changed = twin.step(now - last) or begins
            last = now
            ticks = round((now - begin) / TICK_SECONDS)  # a late tick is not made up for by a hurried one
            exporters.follow(twin.answers)
            _write_logs(twin, logs)
            if changed:
                _write_whole(folder / "labels.json", _json(twin.labels))


def _endpoints(exporters: Mapping[str, str], services: Mapping[str, str]) -> dict[str, list[dict[str, str]]]:
    """Return where every device answers, from the addresses by host and by unit; files count from the run folder."""
    return {
        "hosts": [
            {
                "host": host,
                "exporter": url,
                "syslog": _log_of(host),
                "procfs": f"hosts/{host}/proc",
                "sysfs": f"hosts/{host}/sys",
            }
            for host, url in exporters.items()
        ],
        "units": [{"equipment": unit, "redfish": url} for unit, url in services.items()],
    }


def _log_of(host: str) -> str:
    return f"syslog/{host}.log"


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
