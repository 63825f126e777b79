"""Recordings through the whole system: the real collectors, bus, lake and engine, by a clock of the replay's own.

The replay has its own bus and lake, so that nothing recorded mixes with a running hall. Every second of its clock
the devices are scraped and the logs followed, the engine takes its step, and the sink takes its own when it is due:
an hour plays as fast as the machine can, or at any pace.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from alerts.engine import Engine
from analytics.lake import Lake
from analytics.sink import Sink
from contract.bus.local import LocalBus
from contract.config import Config, load_config
from contract.streams import STREAMS
from hallwatch.alertwatch import AlertWatch, Found
from hallwatch.freshfolder import fresh_folder
from hallwatch.recordings.hall import RecordedHall, read_recordings
from hallwatch.recordings.recording import Player
from hallwatch.toml import config_text
from ingest.runner import Runner, build_runner
from ingest.source import STATUS_SECONDS
from ingest.spool import DirectOutlet

HOLD_SECONDS = 90.0
"""The last page stays this long, or the log quiet: what a rule must see to decide, with room."""

_TICK_SECONDS = 1.0


class ReplayClock:
    """Time that the replay moves on; nobody else can make it pass."""

    def __init__(self, start_us: int) -> None:
        self._start_us = start_us
        self._elapsed_us = 0

    def now_us(self) -> int:
        return self._start_us + self._elapsed_us

    def monotonic(self) -> float:
        return self._elapsed_us / 1e6

    def advance(self, seconds: float) -> None:
        self._elapsed_us += round(seconds * 1e6)

    def sleep(self, seconds: float) -> None:
        """Return at once: whoever waits in a replay waits for its next tick."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        del seconds
        return event.is_set()


class _WaitedClock:
    """The replay's time for a bus: who waits for a message has waited at once, for none comes before the next tick."""

    def __init__(self, clock: ReplayClock) -> None:
        self._clock = clock
        self._waited_seconds = 0.0

    def now_us(self) -> int:
        return self._clock.now_us()

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._waited_seconds

    def sleep(self, seconds: float) -> None:
        self._waited_seconds += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.sleep(seconds)
        return event.is_set()


@dataclass(slots=True)
class Played:
    """What a replay found."""

    hall: RecordedHall
    config: Config
    config_path: Path
    start_us: int
    seconds: float
    alerts: list[Found] = field(default_factory=list)


def play(
    folder: Path,
    output: Path,
    *,
    hold_seconds: float = HOLD_SECONDS,
    speed: float | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Played:
    """Play a folder to its end; with `speed` at that many times the recorded pace, else as fast as possible."""
    hall = read_recordings(folder)
    clock = ReplayClock(time.time_ns() // 1000)
    with fresh_folder(output, "--output"), ExitStack() as playing:
        mapped = hall.inventory is not None
        players = [
            playing.enter_context(recording.play(output / "recorded", clock, mapped=mapped))
            for recording in hall.recordings
        ]
        config_path = output / "hallwatch.toml"
        config_path.write_text(_config_text(hall, players), encoding="utf-8")
        config = load_config(config_path)
        played = Played(hall, config, config_path, clock.now_us(), hall.seconds + hold_seconds)
        with _System(config, clock) as system:
            pace = _Pace(speed)
            while clock.monotonic() <= played.seconds or _due(players) < math.inf:
                for player in players:
                    player.show(clock.monotonic())
                system.tick()
                played.alerts += system.alerts.poll()
                if progress is not None:
                    progress(clock.monotonic(), played.seconds)
                clock.advance(_next_tick(clock.monotonic(), _due(players), hall) - clock.monotonic())
                pace.wait(clock.monotonic())
            system.finish()
            played.alerts += system.alerts.poll()
    return played


def _due(players: Sequence[Player]) -> float:
    """Return when something comes next that a collector should read at once; infinite where nothing does."""
    return min(player.due_seconds for player in players)


def _next_tick(elapsed: float, due: float, hall: RecordedHall) -> float:
    """Return when there is something to do: in a second, or with the next status of the collectors.

    That is where nothing is played that is polled, and no line of a log comes before it.
    """
    status = (elapsed // STATUS_SECONDS + 1) * STATUS_SECONDS
    return elapsed + _TICK_SECONDS if hall.polled or due < status else status


class _Pace:
    """Holds a replay back to its speed."""

    def __init__(self, speed: float | None) -> None:
        self._speed = speed
        self._began = time.monotonic()

    def wait(self, elapsed_seconds: float) -> None:
        if self._speed is not None:
            time.sleep(max(0.0, self._began + elapsed_seconds / self._speed - time.monotonic()))


class _System:
    """The parts of hallwatch in this process, moved tick by tick."""

    def __init__(self, config: Config, clock: ReplayClock) -> None:
        self._bus = LocalBus(config.bus.path, fsync=False, clock=_WaitedClock(clock))
        self._bus.ensure_topics(STREAMS.values())
        self._runner: Runner = build_runner(config, DirectOutlet(self._bus), clock=clock)
        self._sink = Sink(
            config.lake, self._bus, Lake(config.lake.path), synthetic=config.hall.synthetic, clock=clock
        )
        self._engine = Engine.open(config, self._bus, clock=clock)
        self.alerts = AlertWatch(self._bus.consumer("replay"))
        self._clock = clock

    def tick(self) -> None:
        if self._clock.monotonic() % STATUS_SECONDS < _TICK_SECONDS:
            for source in self._runner.sources:
                source.publish_status()
        for source in self._runner.sources:
            source.poll()
        self._engine.step()
        self._sink.step()

    def finish(self) -> None:
        for source in self._runner.sources:
            source.finish()
        self._engine.step()
        self._engine.close()
        self._sink.step()
        self._sink.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.close()
        self._bus.close()


def _config_text(hall: RecordedHall, players: Sequence[Player]) -> str:
    section = {"name": hall.name, "synthetic": hall.synthetic}
    if hall.inventory is not None:
        section["inventory"] = str(hall.inventory.resolve())
    return config_text(
        "Written by `hallwatch replay`. Nobody is told: the report lists the alerts.",
        {"hall": section, "engine": {"notifiers": []}},
        [table for player in players for table in player.tables],
    )
