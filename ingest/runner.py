"""All collectors of one process: built from the configuration, each in a thread of its own, watched and stopped.

A thread per instance keeps a slow device from delaying the others. To read a page of eight GPUs and send its rows
takes ten to twenty milliseconds of one core, so a process is good for about fifty hosts a second; for more, run
several, each with tables of its own.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Sequence

from typing_extensions import override

from contract.clock import SYSTEM_CLOCK, Clock
from contract.config import Config
from contract.errors import ConfigError
from contract.log import Log
from contract.metrics import Metrics
from ingest.collector import Collector, CollectorConfig, Context, Registration
from ingest.registry import read_table
from ingest.source import Source, SourceMetrics, source_name
from ingest.spool import Outlet

_log = Log("ingest")

_WATCH_SECONDS = 1.0
_STOP_SECONDS = 10.0
"""What a source gets beyond its timeout to stop; then it is left behind."""


class Runner:
    """Runs sources. The outlet stays open: whoever opened it closes it."""

    def __init__(
        self,
        sources: Sequence[Source],
        outlet: Outlet,
        *,
        clock: Clock,
        metrics: Metrics,
        metrics_port: int = 0,
    ) -> None:
        self.sources = tuple(sources)
        self.metrics = metrics
        self._outlet = outlet
        self._clock = clock
        self._metrics_port = metrics_port
        self._depth = metrics.gauge("outlet_depth", "Events that are not on the bus yet.")
        self._failing = metrics.gauge("sources_failing", "Sources whose last reading failed.")

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set; then each source sends what waits and a last status.

        Raises whatever ended a source's thread: that is a defect, and no source runs on unseen without its status.
        """
        self.metrics.serve(self._metrics_port)
        threads = [_Thread(source, stop) for source in self.sources]
        for thread in threads:
            thread.start()
        _log.info("sources_started", count=len(threads))
        while not self._clock.wait(stop, _WATCH_SECONDS):
            self._watch()
            if any(thread.defect for thread in threads):
                stop.set()
        self._join(threads)

    def run_once(self) -> bool:
        """Read every source once, all at the same time; return whether all succeeded."""
        threads = [threading.Thread(target=_once, args=(source,), daemon=True) for source in self.sources]
        for thread in threads:
            thread.start()
        for source, thread in zip(self.sources, threads, strict=True):
            thread.join(source.timeout_seconds + _STOP_SECONDS)
            if thread.is_alive():
                _log.error("source_left_behind", source=source.name)
        return not any(thread.is_alive() for thread in threads) and not any(
            source.failing for source in self.sources
        )

    def _watch(self) -> None:
        for source in self.sources:
            source.watch()
        self._depth.set(self._outlet.depth())
        self._failing.set(sum(source.failing for source in self.sources))

    def _join(self, threads: Iterable[_Thread]) -> None:
        for thread in threads:
            thread.join(thread.source.timeout_seconds + _STOP_SECONDS)
            if thread.is_alive():
                _log.error("source_left_behind", source=thread.source.name)
            if thread.defect is not None:
                raise thread.defect


class _Thread(threading.Thread):
    def __init__(self, source: Source, stop: threading.Event) -> None:
        super().__init__(name=source.name, daemon=True)
        self.source = source
        self.defect: BaseException | None = None
        self._stop_event = stop

    @override
    def run(self) -> None:
        try:
            self.source.run(self._stop_event)
        except BaseException as error:  # noqa: BLE001 - handed to the runner's own thread, which raises it
            self.defect = error


def _once(source: Source) -> None:
    source.poll()
    source.finish()


def build_runner(
    config: Config,
    outlet: Outlet,
    *,
    clock: Clock = SYSTEM_CLOCK,
    metrics: Metrics | None = None,
    only_looking: bool = False,
) -> Runner:
    """Build what `[ingest]` describes; the map of the hall is read too, without a table, where `[hall]` names one.

    `only_looking`: nobody keeps what is read, so a collector that takes away what it reads is left out.
    Raises ConfigError for a table that is wrong, TransportError where the outlet cannot give its cursors.
    """
    metrics = metrics or Metrics()
    counters = SourceMetrics(metrics)
    epoch = secrets.token_hex(8)
    context = Context(hall=config.hall, clock=clock)
    sources = []
    for name, (registration, settings) in read_tables(config).items():
        if only_looking and registration.consumes:
            _log.warning(
                "source_left_out", source=name, error="it takes away what it reads: it cannot only look"
            )
            continue
        built = _build(registration, settings, context, name)
        sources.append(Source(settings, built, outlet, config.hall, epoch, clock, counters))
    if not sources:
        raise ConfigError(
            "missing", "there is nothing to collect: write a table [[ingest.collectors]] per device"
        )
    return Runner(sources, outlet, clock=clock, metrics=metrics, metrics_port=config.ingest.metrics_port)


def _build(registration: Registration, settings: CollectorConfig, context: Context, name: str) -> Collector:
    try:
        return registration.build(settings, context)
    except ConfigError as error:
        raise ConfigError(error.reason, f"{name}: {error}") from error


def read_tables(config: Config) -> dict[str, tuple[Registration, CollectorConfig]]:
    """Return the collectors that a configuration describes, by the name of their source; raise ConfigError."""
    found: dict[str, tuple[Registration, CollectorConfig]] = {}
    for where, table in _tables(config):
        registration, settings = read_table(table, where, config.file_folder)
        name = source_name(settings, config.hall)
        if name in found:
            raise ConfigError("invalid", f"{where}: {name} is there already; give it another `instance`")
        found[name] = registration, settings
    return found


def _tables(config: Config) -> Iterable[tuple[str, dict[str, object]]]:
    named = {table.get("collector") for table in config.ingest.collectors}
    if config.hall.inventory is not None and "inventory" not in named:
        yield "[hall] inventory", {"collector": "inventory", "path": config.hall.inventory}
    for number, table in enumerate(config.ingest.collectors, 1):
        yield f"[[ingest.collectors]] number {number}", table
