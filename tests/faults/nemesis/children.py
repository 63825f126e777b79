"""The processes of the system under test: one function per role, and what can be taken away from each.

They are forked from a server that has imported everything, so that a kill costs no seconds of imports. A process is
told what to do through a pipe and ends when the other end is gone.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import alerts.courier
import alerts.engine
import alerts.journal
import analytics.sink
import ingest.source
import ingest.spool
from alerts.engine import Engine, EngineOptions
from alerts.evaluator import streams_of
from alerts.journal import Commit, Journal
from alerts.notifier import build_notifiers
from alerts.testing import rule_text, rules_of
from analytics.lake import Lake
from analytics.sink import Sink
from contract.bus import Bus
from contract.bus.local import LocalBus
from contract.clock import Clock, SystemClock
from contract.config import BusSection, HallSection, LakeSection
from contract.log import set_up_logging
from contract.metrics import Metrics
from contract.streams.alerts import ALERTS, NOTIFICATIONS
from contract.streams.gpu import GPU_EVENTS, GPU_SAMPLES
from contract.streams.self import COLLECTOR_STATUS, DEAD_LETTERS
from ingest.collector import HostConfig
from ingest.runner import Runner
from ingest.source import Source, SourceMetrics, source_name
from ingest.spool import DirectOutlet, Outlet, SpoolOutlet
from tests.faults.nemesis.marks import Complaints, Marks
from tests.faults.nemesis.mutations import MUTATIONS
from tests.faults.nemesis.stamp import StampCollector
from tests.faults.nemesis.steps import SkewedClock, SteppedBus, SteppedOutlet, Steps

HALL = HallSection(name="nemesis")
STREAMS = (GPU_SAMPLES, GPU_EVENTS, COLLECTOR_STATUS, ALERTS, NOTIFICATIONS, DEAD_LETTERS)
RULES = rules_of(
    rule_text(),
    rule_text(rule="xid", kind="event_count", on="gpu_events", when="code = 79", expires="2s"),
)
"""What `hot` says follows from the rows alone; when `xid` expires is for the engine's clock to say."""

JUDGED = streams_of(RULES)
HOSTS = {"direct": ("d0", "d1"), "spool": ("s0", "s1")}
INTERVAL_SECONDS = 0.1
DRAIN_SECONDS = 60.0
LOCK_SECONDS = 2.0
"""How long a writer of the local bus waits for another, where waits are shortened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a system lives, and what all its processes must know."""

    folder: Path
    seed: int
    bus: str
    receiver_url: str
    servers: str
    """Address of the broker; empty on a local bus."""
    quick: bool
    """Waits are shortened, so that outages may be."""
    mutation: str
    """Name of the guard that is taken away."""

    @property
    def marks(self) -> Path:
        """Folder in which processes note what befell them."""
        return self.folder / "marks"


def open_bus(site: Site, clock: Clock, member: str | None = None) -> Bus:
    """Open the bus; `member` is the lasting name of a process in its group: a quick restart moves no partition."""
    if site.bus == "local":
        return open_local_bus(site, clock)
    # Here, because kafka-python is an extra.
    from contract.bus.kafka.bus import KafkaBus

    section = BusSection(kind="kafka", servers=site.servers, group_instance_id=member)
    return KafkaBus(section, clock, ack_timeout_seconds=6.0 if site.quick else 30.0)


def open_local_bus(site: Site, clock: Clock) -> LocalBus:
    return LocalBus(site.folder / "bus", clock=clock, wait_seconds=LOCK_SECONDS if site.quick else 10.0)


def config_of(host: str) -> HostConfig:
    return HostConfig(collector="stamp", host=host, interval_seconds=INTERVAL_SECONDS)


def cursor_name(host: str) -> str:
    return source_name(config_of(host), HALL)


def direct(site: Site, steps: Steps, clock: SkewedClock, stop: threading.Event) -> None:
    """Collect, straight onto the bus of this machine."""
    # The bus stamps rightly: a host's clock is wrong, not that of the machine with the bus.
    with closing(open_local_bus(site, SystemClock())) as bus:
        collect(site, "direct", DirectOutlet(bus), steps, clock, stop)


def spool(site: Site, steps: Steps, clock: SkewedClock, stop: threading.Event) -> None:
    """Collect through a spool; end when it is empty."""
    step_on_trim(steps)
    with closing(open_bus(site, SystemClock())) as bus:
        outlet = SpoolOutlet(
            site.folder / "spool", SteppedBus(bus, steps), clock=clock, ack_timeout_seconds=10
        )
        with closing(outlet):
            collect(site, "spool", outlet, steps, clock, stop)
            give_up = time.monotonic() + DRAIN_SECONDS
            while outlet.depth() and time.monotonic() < give_up:
                time.sleep(0.02)


def collect(site: Site, role: str, outlet: Outlet, steps: Steps, clock: Clock, stop: threading.Event) -> None:
    outlet = SteppedOutlet(outlet, steps)
    metrics, epoch = Metrics(), secrets.token_hex(8)
    counters = SourceMetrics(metrics)
    sources = [
        Source(config, StampCollector(config, site.seed, steps), outlet, HALL, epoch, clock, counters)
        for config in map(config_of, HOSTS[role])
    ]
    Runner(sources, outlet, clock=clock, metrics=metrics).run(stop)


def step_on_trim(steps: Steps) -> None:
    """Add a step between an acknowledgement and its being remembered."""
    trim = ingest.spool._Forwarder._trim

    def stepped(self: ingest.spool._Forwarder) -> None:
        if self.lowest > self._trimmed:
            steps("trimming")
        trim(self)

    ingest.spool._Forwarder._trim = stepped  # type: ignore[method-assign]


def sink(
    site: Site, steps: Steps, clock: SkewedClock, stop: threading.Event, member: str | None = "sink"
) -> None:
    section = LakeSection(path=site.folder / "lake", flush_seconds=0.5, sparse_flush_seconds=1.5)
    lake = Lake(section.path, snapshot_seconds=2.0, reached=steps)
    with closing(open_bus(site, clock, member)) as bus:
        Sink(section, bus, lake, synthetic=False, clock=clock, metrics=Metrics(), streams=STREAMS).run(stop)


def engine(site: Site, steps: Steps, clock: SkewedClock, stop: threading.Event) -> None:
    step_on_expiry(steps)
    notifier = {"notifier": "alertmanager", "url": site.receiver_url, "timeout_seconds": 1}
    options = EngineOptions(
        folder=site.folder / "engine", hall=HALL.name, snapshot_batches=10, checkpoint=steps
    )
    with closing(open_bus(site, clock)) as bus:
        Engine(options, bus, RULES, build_notifiers([notifier]), clock=clock).run(stop)


def step_on_expiry(steps: Steps) -> None:
    """Add a step before a batch is journaled in which the clock decided: judged again, it would say another time."""
    write = Journal.commit

    def stepped(self: Journal, commit: Commit) -> None:
        if any(transition.row().get("end_reason") == "expired" for transition in commit.transitions):
            steps("expiring")
        write(self, commit)

    Journal.commit = stepped  # type: ignore[method-assign]


SHOW_STACKS = signal.SIGUSR1
"""Lets a role write into its log what each of its threads is doing."""

ROLES: dict[str, Callable[[Site, Steps, SkewedClock, threading.Event], None]] = {
    "direct": direct,
    "spool": spool,
    "sink": sink,
    "rival": partial(sink, member=None),
    "engine": engine,
}
"""`rival` is a second sink."""


def shorten_waits(site: Site) -> None:
    """Let nobody wait for as long as a real outage would ask for."""
    if site.bus == "kafka":
        from contract.bus.kafka import consumer

        consumer._GROUP_SETTINGS |= {"session_timeout_ms": 6_000, "heartbeat_interval_ms": 1_000}
    ingest.source.LONGEST_BACK_OFF_SECONDS = 1.0
    ingest.spool._LONGEST_RETRY_SECONDS = 1.0
    analytics.sink.LAST_RETRY_SECONDS = 1.0
    alerts.engine.COMMIT_RETRY_SECONDS = 0.5
    alerts.courier.FIRST_RETRY_SECONDS = 0.2
    alerts.courier.LAST_RETRY_SECONDS = 1.0
    alerts.courier.IDLE_SECONDS = 0.2


def run_role(role: str, site: Site, skew_seconds: float, control: Connection) -> None:
    """Be one process of the system; returns when told to stop."""
    log = os.open(site.folder / f"{role}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(SHOW_STACKS, all_threads=True)
    set_up_logging(level=logging.INFO)
    marks = Marks(site.marks, role)
    logging.getLogger("hallwatch").addHandler(Complaints(marks))
    # A write that went over RLIMIT_FSIZE (setrlimit(2)); the process's own log may be what cannot grow.
    signal.signal(signal.SIGXFSZ, lambda *_: marks("cut_off"))
    if site.quick:
        shorten_waits(site)
    # No batch of the journal may be forgotten: the audit judges them all again.
    alerts.journal.KEEP_SNAPSHOTS = 1_000_000
    if site.mutation:
        MUTATIONS[site.mutation]()
    steps, clock, stop = Steps(marks), SkewedClock(skew_seconds, marks), threading.Event()
    threading.Thread(target=obey, args=(control, steps, clock, stop), daemon=True).start()
    ROLES[role](site, steps, clock, stop)


def obey(control: Connection, steps: Steps, clock: SkewedClock, stop: threading.Event) -> None:
    """Do what the nemesis says; end with it."""
    while True:
        try:
            match control.recv():
                case ("arm", step, count, what, place):
                    steps.arm(step, count, what, place)
                case ("skew", seconds):
                    clock.skew_seconds = seconds
                case ("stop",):
                    stop.set()
        except EOFError:
            os._exit(1)
