"""The demo: a whole hall on one machine, and what was injected against what was raised.

The twin's devices are scraped and its logs followed as real ones would be; the engine sees nothing but what the
collectors sent.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alerts.journal import Journal
from contract.clock import Clock
from contract.config import Config, load_config
from contract.errors import ConfigError, StoreError
from hallwatch.alertwatch import AlertWatch, Found
from hallwatch.processes import Parts

PARTS = ("sink", "engine", "collect")
"""Readers of the bus before its writers, so that nothing waits."""

LONGEST_START_SECONDS = 60

LEAST_SECONDS, MOST_SECONDS = 60.0, 82.0
"""Every decoy has begun and ended before the least; a fault that was not raised by the most was missed."""

EXPECTED_RULE = {
    "thermal": "gpu-thermal-margin",
    "xid79": "gpu-xid-fatal",
    "silent-host": "host-silent",
    "nvlink": "gpu-xid-fatal",
    "nic": "nic-fatal",
}
"""Which alert a person would want for each fault."""

WHAT = {
    "thermal": "a cold plate loses flow",
    "xid79": "a GPU falls off the bus",
    "silent-host": "an exporter goes silent",
    "nvlink": "an NVLink fails",
    "nic": "a network card stops answering",
    "job-start": "a job starts",
    "exporter-restart": "an exporter restarts",
    "nic-notices": "a cable is put into a network card",
    "forged-xid": "a program writes a fatal Xid into the log",
}


@dataclass(slots=True)
class Verdict:
    """What was injected against what was raised."""

    faults: list[tuple[dict[str, Any], Found | None]] = field(default_factory=list)
    decoys: list[dict[str, Any]] = field(default_factory=list)
    false_alerts: list[Found] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Every fault raised its alert and nothing else was raised."""
        return bool(self.faults) and all(found for _, found in self.faults) and not self.false_alerts


def judge(labels: list[dict[str, Any]], alerts: list[Found]) -> Verdict:
    """Match alerts to faults by rule and entity; an alert that matches none is a false one."""
    verdict = Verdict(decoys=[label for label in labels if label["kind"] == "decoy"])
    unmatched = list(alerts)
    for label in labels:
        if label["kind"] != "fault":
            continue
        wanted = (EXPECTED_RULE[label["name"]], label["entity"])
        found = next((a for a in unmatched if (a.rule, a.entity) == wanted), None)
        if found is not None:
            unmatched.remove(found)
        verdict.faults.append((label, found))
    verdict.false_alerts = unmatched
    return verdict


class DemoHall:
    """A folder with a twin's hall in it, and the processes that watch it."""

    def __init__(self, folder: Path, *, hosts: int, seed: int, quiet: bool, clock: Clock) -> None:
        self.folder = folder
        self.twin_folder = folder / "twin"
        self.config_path = folder / "hallwatch.toml"
        self._hosts, self._seed, self._quiet = hosts, seed, quiet
        self._clock = clock
        self.parts = Parts(folder / "logs", clock)
        self.began = clock.monotonic()
        """When the twin's time began."""

    def start(self) -> Config:
        """Start every part; return the configuration they run with."""
        quiet = ("--quiet",) if self._quiet else ()
        self.parts.start(
            "twin", "twin", "run", "--folder", str(self.twin_folder),
            "--hosts", str(self._hosts), "--seed", str(self._seed), *quiet,
        )  # fmt: skip
        endpoints = self.twin_folder / "endpoints.json"
        self._wait_for(endpoints.exists, f"the twin did not write {endpoints}")
        self.began = self._clock.monotonic()
        self.config_path.write_text(demo_config(json.loads(endpoints.read_text())), encoding="utf-8")
        config = load_config(self.config_path)
        for part in PARTS:
            if part == "collect":  # an engine without a past judges what comes after it has begun
                self._wait_for(lambda: _judges(config), "the engine did not begin to judge")
            self.parts.start(part, part, "--config", str(self.config_path))
        return config

    def stop(self) -> None:
        """End the parts along the data flow, so that what was read is also stored."""
        self.parts.stop("collect", "engine", "sink", "twin")

    def labels(self) -> list[dict[str, Any]]:
        """Return the twin's truth so far."""
        labels: list[dict[str, Any]] = json.loads((self.twin_folder / "labels.json").read_text())
        return labels

    def _wait_for(self, condition: Callable[[], bool], complaint: str) -> None:
        for _ in range(10 * LONGEST_START_SECONDS):
            if condition():
                return
            self.parts.check()
            self._clock.sleep(0.1)
        raise ConfigError(
            "missing", f"{complaint} within {LONGEST_START_SECONDS} s; see {self.folder / 'logs'}"
        )


def _judges(config: Config) -> bool:
    """Tell whether the engine has judged a batch, if only an empty one."""
    try:
        with closing(Journal(config.engine.path, read_only=True)) as journal:
            return journal.last_batch() is not None
    except (StoreError, sqlite3.OperationalError):
        return False  # it is being made


def demo_config(endpoints: list[dict[str, str]]) -> str:
    """Return the configuration of the demo: the one a person would write for a hall of this size."""
    lines = [
        "# Written by `hallwatch demo`. A real hall's file looks the same, with synthetic = false.",
        "[hall]",
        'name = "demo"',
        "synthetic = true",
        'inventory = "twin/inventory.yaml"',
        "",
        "[bus]",
        'path = "bus"',
        "",
        "[lake]",
        'path = "lake"',
        "",
        "[engine]",
        'path = "engine"',
        "",
        "[ingest]",
        'path = "ingest"',
    ]
    for endpoint in endpoints:
        lines += [
            "",
            "[[ingest.collectors]]",
            'collector = "gpu-dcgm"',
            f'host = "{endpoint["host"]}"',
            f'url = "{endpoint["url"]}"',
            "",
            "[[ingest.collectors]]",
            'collector = "gpu-kernel-log"',
            f'host = "{endpoint["host"]}"',
            'source = "file"',
            f'path = "twin/{endpoint["syslog"]}"',
            'start = "beginning"',
        ]
    return "\n".join(lines) + "\n"


def watch(hall: DemoHall, alerts: AlertWatch, clock: Clock, say: Callable[[str], None]) -> list[Found]:
    """Follow a demo until every fault was raised and every decoy is over, or until time is up."""
    began, found, told = hall.began, list[Found](), set[str]()
    while True:
        hall.parts.check()
        passed = clock.monotonic() - began
        labels = hall.labels()
        for label in labels:
            if label["shown_us"] is not None and label["name"] not in told:
                told.add(label["name"])
                say(f"{passed:5.1f} s  injected  {WHAT[label['name']]} ({label['entity']})")
        for alert in alerts.poll():
            found.append(alert)
            say(f"{passed:5.1f} s  ALERT     {alert.severity:8} {alert.summary}")
        verdict = judge(labels, found)
        done = all(f for _, f in verdict.faults) and all(label["shown_us"] is not None for label in labels)
        if passed >= MOST_SECONDS or (done and passed >= LEAST_SECONDS):
            return found
        clock.sleep(0.2)
