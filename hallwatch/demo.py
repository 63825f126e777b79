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
from contract.bus import TopicPartition, open_bus
from contract.clock import Clock
from contract.config import Config, load_config
from contract.errors import ConfigError, StoreError
from contract.streams.attestation import ATTESTATION_RESULTS
from contract.streams.coolant import COOLANT_READINGS
from contract.streams.fabric import FABRIC_PORTS
from contract.streams.gpu import GPU_SAMPLES
from contract.streams.host import HOST_SAMPLES
from hallwatch.alertwatch import AlertWatch, Found
from hallwatch.democonfig import MESH_KEY, Endpoints, hall_config, probe_config, write_key
from hallwatch.processes import Parts

PARTS = ("sink", "engine", "collect")
"""Readers of the bus before its writers, so that nothing waits."""

FIRST_READINGS = (GPU_SAMPLES, HOST_SAMPLES, FABRIC_PORTS, COOLANT_READINGS, ATTESTATION_RESULTS)
"""When there are some of each, injections begin."""

PROBE = "probe"
"""A second process of collectors: what measures microseconds shares its own with nobody."""

LONGEST_START_SECONDS = 60

LEAST_SECONDS, MOST_SECONDS = 60.0, 82.0
"""Every decoy has begun and ended before the least; a fault that was not raised by the most was missed."""

EXPECTED_RULE = {
    "thermal": "gpu-thermal-margin",
    "xid79": "gpu-xid-fatal",
    "silent-host": "host-silent",
    "nvlink": "gpu-xid-fatal",
    "nic": "nic-fatal",
    "link-down": "port-link-down",
    "memory-lost": "dimm-uncorrectable",
    "leak": "coolant-leak",
    "debug-guest": "attestation-debug",
}
"""Which alert a person would want for each fault."""

WHAT = {
    "thermal": "a cold plate loses flow",
    "xid79": "a GPU falls off the bus",
    "silent-host": "an exporter goes silent",
    "nvlink": "an NVLink fails",
    "nic": "a network card stops answering",
    "link-down": "a cable of the fabric is cut",
    "memory-lost": "a memory module loses data",
    "leak": "coolant leaks under a CDU",
    "debug-guest": "a confidential VM starts debuggable",
    "link-blip": "a link trains again",
    "memory-mended": "a memory error is corrected",
    "unit-hangs": "a CDU's controller hangs for seconds",
    "firmware-update": "a secure processor gets new firmware",
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
        self._probe_path = folder / "probe.toml"
        self._hosts, self._seed, self._quiet = hosts, seed, quiet
        self._clock = clock
        self.parts = Parts(folder / "logs", clock)
        self.began = clock.monotonic()
        """When injections began: only when everything watches."""

    def start(self) -> Config:
        """Start every part; return the configuration they run with."""
        quiet = ("--quiet",) if self._quiet else ()
        self.parts.start(
            "twin", "twin", "run", "--folder", str(self.twin_folder),
            "--hosts", str(self._hosts), "--seed", str(self._seed), "--hold", *quiet,
        )  # fmt: skip
        endpoints = self.twin_folder / "endpoints.json"
        self._wait_for(endpoints.exists, f"the twin did not write {endpoints}")
        found = Endpoints(**json.loads(endpoints.read_text()))
        self.config_path.write_text(hall_config(found), encoding="utf-8")
        self._probe_path.write_text(probe_config(found), encoding="utf-8")
        write_key(self.folder / MESH_KEY)
        config = load_config(self.config_path)
        for part in PARTS:
            if part == "collect":  # an engine without a past judges what comes after it has begun
                self._wait_for(lambda: _judges(config), "the engine did not begin to judge")
            self.parts.start(part, part, "--config", str(self.config_path))
        self.parts.start(PROBE, "collect", "--config", str(self._probe_path))
        self._wait_for(lambda: _collects(config, self._clock), "nothing was collected")
        (self.twin_folder / "begin").touch()
        self.began = self._clock.monotonic()
        return config

    def stop(self) -> None:
        """End the parts along the data flow, so that what was read is also stored."""
        self.parts.stop(PROBE, "collect", "engine", "sink", "twin")

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


def _collects(config: Config, clock: Clock) -> bool:
    """Tell whether something of every family has been read."""
    with closing(open_bus(config.bus, clock)) as bus:
        bus.ensure_topics(FIRST_READINGS)
        with closing(bus.consumer("demo")) as consumer:
            return all(
                any(consumer.end_offsets(TopicPartition(s.topic, n) for n in range(s.partitions)).values())
                for s in FIRST_READINGS
            )


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
