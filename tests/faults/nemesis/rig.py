"""A small whole system under test: stamping collectors, a bus, sink and engine as processes, and a receiver.

The rig starts its processes, strikes them and looks at what they leave; it never takes part in their work.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Self

from alerts.journal import FILE as JOURNAL
from alerts.testing import Receiver
from analytics.deltalog import is_made
from analytics.lake import LakeTable
from contract.bus import Bus, Record, TopicPartition
from contract.bus.local import LocalBus
from contract.clock import SystemClock
from contract.errors import TransportError
from contract.streams.gpu import GPU_SAMPLES
from tests.faults.nemesis import disk
from tests.faults.nemesis.children import (
    HOSTS,
    SHOW_STACKS,
    STREAMS,
    Site,
    cursor_name,
    open_bus,
    run_role,
)
from tests.faults.nemesis.marks import Marks, clear_marks
from tests.faults.nemesis.proxy import Mode, Proxy
from tests.suites.broker import Broker

_LOOK_SECONDS = 0.1
_DISKS = ("bus", "spool", "lake", "engine")

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.faults.nemesis.children", "contract.bus.kafka.bus"])


class StuckError(Exception):
    """Something did not happen in time; `kind` is that of the flaw."""

    kind = "stuck"


class NotStruckError(StuckError):
    """A fault was there and nobody felt it, so that what came through it proves nothing."""

    kind = "not_struck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long faults last, and how long the rig waits for what must follow, in seconds."""

    frozen: float
    away: float
    away_long: float
    """Longer than a producer waits for an acknowledgement."""
    locked: float
    """Longer than writers of the local bus wait for each other."""
    slow: float
    patience: float
    """Who has not come back by then is stuck: longer than the longest wait of any part."""


QUICK = Times(frozen=8.0, away=4.0, away_long=14.0, locked=3.5, slow=2.0, patience=60.0)
FULL = Times(frozen=120.0, away=60.0, away_long=150.0, locked=20.0, slow=20.0, patience=240.0)


@dataclass(slots=True)
class Child:
    """One process and how to speak to it."""

    process: BaseProcess
    control: Connection


@dataclass(frozen=True, slots=True)
class Chapter:
    """What was struck, and how far each host had come when it began."""

    name: str
    promised: Mapping[str, int]


class Rig:
    """One system, from its start to its end. `deaths` and `chapters` are for the audit."""

    def __init__(
        self, folder: Path, *, seed: int, bus: str, times: Times = QUICK, mutation: str = ""
    ) -> None:
        self.folder, self.times = folder, times
        self.receiver, self.proxy = Receiver(), Proxy()
        self.broker: Broker | None = None
        self.link = Proxy()
        """Between the broker and all its clients."""
        self.deaths: list[str] = []
        self.chapters: list[Chapter] = []
        self.poisoned: dict[tuple[int, int], str] = {}
        """Why each message that no reader can take must be rejected, by partition and offset."""
        self._seed, self._bus_kind, self._mutation = seed, bus, mutation
        self._children: dict[str, Child] = {}
        self._skews: dict[str, float] = {}
        self._roles = ("engine", "sink", *(HOSTS if bus == "local" else ["spool"]))

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._open(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _open(self, undo: ExitStack) -> None:
        for name in _DISKS:
            disk.make_disk(self.disk(name))
            undo.callback(disk.remove_disk, self.disk(name))
        self._serve(undo)
        self.site = Site(
            folder=self.folder,
            seed=self._seed,
            bus=self._bus_kind,
            receiver_url=f"http://{self.proxy.address}",
            servers=self.link.address if self.broker is not None else "",
            quick=self.times is QUICK,
            mutation=self._mutation,
        )
        self.bus: Bus = undo.enter_context(closing(open_bus(self.site, SystemClock())))
        self.bus.ensure_topics(STREAMS)
        clear_marks(self.site.marks)
        undo.callback(self._kill_all)
        self.start("engine")
        # It reads from the end of what is there when it first starts.
        self.wait("the engine's first batch", lambda: self.batches() > 0)
        self.settle()

    def _serve(self, undo: ExitStack) -> None:
        """Start what the system finds outside itself: the receiver, the broker, and the way to each."""
        undo.enter_context(self.receiver)
        self.proxy.start(int(self.receiver.url.rpartition(":")[2]))
        undo.callback(self.proxy.stop)
        if self._bus_kind == "kafka":
            self.link.start()
            undo.callback(self.link.stop)
            listener = {"advertised.listeners": f"PLAINTEXT://{self.link.address}"}
            self.broker = undo.enter_context(Broker(self.folder / "broker", settings=listener).start())
            self.link.target = int(self.broker.servers.rpartition(":")[2])

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.process.kill()
            child.process.join()
            child.control.close()

    def disk(self, name: str) -> Path:
        """Return the folder of the bus, the spool, the lake or the engine: each is a disk of its own."""
        return self.folder / name

    # Processes.

    def start(self, role: str) -> None:
        """Start a role unless it runs."""
        if role in self._children:
            return
        ours, theirs = _processes.Pipe()
        process = _processes.Process(
            target=run_role, args=(role, self.site, self._skews.get(role, 0.0), theirs), daemon=True
        )
        process.start()
        theirs.close()
        self._children[role] = Child(process, ours)

    def arm(self, role: str, step: str, count: int, fills: str | None = None) -> None:
        """Let a role die, or fill a disk, when it reaches a step for the `count`-th time."""
        what, place = ("die", None) if fills is None else ("fill", str(self.disk(fills)))
        self._children[role].control.send(("arm", step, count, what, place))

    def skew(self, role: str, seconds: float) -> None:
        """Set the clock of a role, and of those that are started after it, wrong."""
        self._skews[role] = seconds
        self._children[role].control.send(("skew", seconds))

    def kill(self, role: str, *, forgive: bool = False) -> None:
        """Kill a role; that it was dead already is noted unless it is forgiven."""
        self._children[role].process.kill()
        code = self._bury(role)
        if code != -signal.SIGKILL and not forgive:
            self.deaths.append(f"{role} ended by itself with {code}")

    def await_death(self, role: str) -> None:
        """Return when a role has killed itself at the step it was armed for; raise NotStruckError."""
        process = self._children[role].process
        process.join(self.times.patience)
        if process.exitcode is None:
            raise NotStruckError(f"{role} did not reach the step at which it was to die")
        if self._bury(role) != -signal.SIGKILL:
            raise NotStruckError(f"{role} ended by itself before the step at which it was to die")

    def stop(self, role: str) -> None:
        """Let a role end in good order; raise StuckError where it does not end."""
        if role in self._children:
            child = self._children[role]
            # One that is dead already has closed its end.
            with suppress(BrokenPipeError):
                child.control.send(("stop",))
            child.process.join(self.times.patience)
            hangs = child.process.exitcode is None
            child.process.kill()
            code = self._bury(role)
            if hangs:
                raise StuckError(f"{role} did not end when it was stopped")
            if code:
                self.deaths.append(f"{role} ended with {code} when it was stopped")

    def _bury(self, role: str) -> int | None:
        """Wait for the end of a role that was killed or ended by itself; return its exit code."""
        child = self._children.pop(role)
        child.process.join()
        child.control.close()
        return child.process.exitcode

    @contextmanager
    def frozen(self, role: str) -> Iterator[None]:
        """Stop a process in its tracks while the block runs."""
        pid = self.pid(role)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
            if not is_stopped(pid):
                raise NotStruckError(f"{role} did not stand still")
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def held(self, role: str, step: str) -> Iterator[None]:
        """Let a process stop when it reaches a step, and stand there while the block runs."""
        self._children[role].control.send(("arm", step, 1, "halt", None))
        pid = self.pid(role)
        self.await_strike(f"{role} comes to {step}", lambda: is_stopped(pid))
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextmanager
    def telling_where_it_is_stuck(self) -> Iterator[None]:
        """Let every role that runs write into its log what it is doing, where something does not happen in the block."""
        try:
            yield
        except StuckError:
            for role in self._children:
                if self.runs(role):
                    os.kill(self.pid(role), SHOW_STACKS)
            raise

    def runs(self, role: str) -> bool:
        return role in self._children and self._children[role].process.exitcode is None

    def pid(self, role: str) -> int:
        pid = self._children[role].process.pid
        assert pid is not None
        return pid

    def revive(self, forgiven: Collection[str] = ()) -> None:
        """Start again whoever is dead; that one died by itself is noted unless it is forgiven."""
        for role in list(self._children):
            if not self.runs(role):
                code = self._bury(role)
                if role not in forgiven:
                    self.deaths.append(f"{role} ended by itself with {code}")
        for role in self._roles:
            self.start(role)

    # What is there now.

    def promised(self) -> dict[str, int]:
        """Return how many readings of each host are promised: the cursors."""
        found: dict[str, int] = {}
        for role in HOSTS:
            if role in self._roles:
                with closing(self._cursors(role)) as log:
                    found |= {host: int(log.cursor(cursor_name(host)) or b"0") for host in HOSTS[role]}
        return found

    def _cursors(self, role: str) -> LocalBus:
        return LocalBus(self.disk("spool" if role == "spool" else "bus"))

    def commits(self) -> int:
        """Return the newest version of the table of samples."""
        log = self.disk("lake") / GPU_SAMPLES.name / "_delta_log"
        return max((int(path.stem) for path in log.glob("*.json")), default=-1)

    def has_stored(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Tell whether the lake holds everything before some ends of the bus."""
        for stream in STREAMS:
            if not is_made(self.disk("lake") / stream.name):
                return False
            table = LakeTable(self.disk("lake") / stream.name, stream)
            log = self.bus.describe(stream.topic).log
            for number in range(stream.partitions):
                if (table.offset(log, number) or 0) < ends[TopicPartition(stream.topic, number)]:
                    return False
        return True

    def batches(self) -> int:
        """Return the number of the engine's last batch."""
        return self._ask_journal("SELECT coalesce(max(number), 0) FROM batches")

    def unsettled(self) -> int:
        """Return how much the engine has still to publish, tell, report or let expire."""
        return self._ask_journal(
            "SELECT (SELECT count(*) FROM transitions WHERE published = 0)"
            " + (SELECT count(*) FROM outbox WHERE outcome IS NULL OR reported = 0)"
            " + (SELECT count(*) FROM firing JOIN transitions USING (chain_index)"
            "    WHERE json_extract(body, '$.rule') = 'xid')"
        )

    def _ask_journal(self, question: str) -> int:
        with suppress(sqlite3.OperationalError):  # it is not there yet
            place = f"{(self.disk('engine') / JOURNAL).as_uri()}?mode=ro"
            with closing(sqlite3.connect(place, uri=True, timeout=30)) as journal:
                return int(journal.execute(question).fetchone()[0])
        return 0

    # Time.

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Return when something holds; raise StuckError. A bus that does not answer now may at the next look."""
        give_up = time.monotonic() + self.times.patience
        answer = ""
        while True:
            try:
                if holds():
                    return
                answer = ""
            except TransportError as error:
                if not error.retryable:
                    raise
                answer = f", the bus says: {error}"
            if time.monotonic() > give_up:
                raise StuckError(f"{what}: not within {self.times.patience:.0f} s{answer}")
            time.sleep(_LOOK_SECONDS)

    def await_strike(self, what: str, holds: Callable[[], bool]) -> None:
        """Return when a fault shows its effect; raise NotStruckError."""
        try:
            self.wait(what, holds)
        except StuckError as error:
            raise NotStruckError(str(error)) from error

    def await_felt(self, role: str, *what: str) -> None:
        """Return when a role has marked one of these since the fault began, or died of it; raise NotStruckError."""
        marks = Marks(self.site.marks, role)
        self.await_strike(
            f"{role} feels {' or '.join(what)}",
            lambda: any(map(marks.has, what)) or not self.runs(role),
        )

    def spoil(self, proxy: Proxy, mode: Mode, between: str, random: Random) -> None:
        """Spoil the connections of a proxy for a while, and until one was; raise NotStruckError."""
        proxy.set(mode)
        try:
            self.go_on(self.times.slow + random.uniform(0.0, 0.5))
            self.await_strike(f"{mode} between {between}", lambda: proxy.spoiled > 0)
        finally:
            proxy.set("pass")

    def go_on(self, seconds: float) -> None:
        """Let the system work, or suffer, for a while."""
        time.sleep(seconds)

    def settle(self, forgiven: Collection[str] = ()) -> None:
        """Start again who is dead, and see that everything moves."""
        self.revive(forgiven)
        promised, commits, batches = self.promised(), self.commits(), self.batches()

        def moves() -> bool:
            self.revive(forgiven)
            now = self.promised()
            return (
                all(now[host] > promised[host] for host in promised)
                and self.commits() > commits
                and self.batches() > batches + 1
            )

        self.wait("everything goes on", moves)

    def chapter(self, name: str) -> None:
        """Note that something new begins, which nobody has felt yet."""
        clear_marks(self.site.marks)
        self.chapters.append(Chapter(name, self.promised()))

    def during(self, host: str, number: int) -> str:
        """Return in words what was being done when a reading was made."""
        names = [chapter.name for chapter in self.chapters if chapter.promised[host] <= number]
        return f" (during {names[-1]})" if names else ""

    # Poison.

    def poison(self, record: Record, key: str, reason: str) -> None:
        """Put a message on the topic of samples that every reader must reject for a reason."""
        found: list[object] = []
        partition = GPU_SAMPLES.partition_of(key)
        with closing(self.bus.producer()) as producer:
            producer.send(GPU_SAMPLES.topic, partition, record, found.append)
            producer.flush()
        [offset] = found
        assert isinstance(offset, int)
        self.poisoned[partition, offset] = reason

    def bus_ends(self) -> dict[TopicPartition, int]:
        """Return where every partition of every topic ends."""
        with closing(self.bus.consumer("audit")) as consumer:
            every = [TopicPartition(s.topic, n) for s in STREAMS for n in range(s.partitions)]
            return consumer.end_offsets(every)


def is_stopped(pid: int) -> bool:
    """Tell whether a process stands still (proc(5), /proc/pid/stat: state T); one that is dead does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
