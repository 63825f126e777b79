"""What a port was at earlier looks: what changed since, and how much of it within a while.

It outlives restarts of the collector. A counter that fell was set back, and counts from what it shows; that of EFA
outlives a boot of the host, so a boot alone sets nothing of it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from ingest.fabric.port import ACTIVE

MINUTE_US = 60_000_000
SETTLING_US = 10 * MINUTE_US
"""From the boot of a host: its links train, and what they count is no fault."""

WINDOWS_MINUTES = (12, 125)
"""In which symbol errors are gathered (NVIDIA UFM, packet drop rate plugin: 1e-14 over 12, 1e-15 over 125 minutes)."""

MAX_LOSSES_TOLD = 10

_EARLY_US = 500_000  # a look may be so early and still be a minute after another

_RATES = {
    "tx_bytes": "tx_bytes_per_second",
    "rx_bytes": "rx_bytes_per_second",
    "port_rcv_errors": "port_rcv_errors_per_second",
    "port_xmit_discards": "port_xmit_discards_per_second",
    "retrans_timeout_events": "retrans_timeout_events_per_second",
}


@dataclass(slots=True)
class PortHistory:
    """One port. `follow` takes a row, adds what it says together with earlier ones, and tells what happened."""

    seen_us: int = 0
    up: bool | None = None
    was_active: bool = False
    speed_gbps: float | None = None
    width: int | None = None
    interface: str | None = None
    link_downed: int | None = None
    carrier_changes: int | None = None
    symbol_error: int | None = None
    symbol_error_us: int = 0
    """When it was last read."""
    symbols: dict[int, int] = field(default_factory=dict)
    """Symbol errors by the minute of the last look that did not see them."""
    samples: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    """Counters of which rates are made: of a minute, and the last before."""
    missed: int = 0
    """Looks in a row at which it was not there."""
    names: dict[str, Any] = field(default_factory=dict)
    """What it was called when it was last there."""

    def follow(self, row: dict[str, Any], now_us: int, booted_us: int | None) -> list[dict[str, Any]]:
        """Add columns to a row and return the events since the look before.

        A host that booted since then has set counters and links back, and in its first minutes tells nothing.
        """
        if booted_us is not None and self.seen_us < booted_us:
            self.up = self.link_downed = self.carrier_changes = self.symbol_error = None
        settled = booted_us is None or now_us - booted_us >= SETTLING_US
        link_state = row.get("link_state")
        up = None if link_state is None else link_state in ACTIVE
        losses = self._losses(row, up)
        events = [*self._link_events(row, up, losses), *self._rate_events(row)] if settled else []
        self._count_symbols(row, now_us, settled)
        self._add_rates(row, now_us)
        self._remember(row, up, losses)
        row["in_use"] = bool(row.get("in_use")) or self.was_active
        self.seen_us = now_us
        return events

    def _remember(self, row: Mapping[str, Any], up: bool | None, losses: int) -> None:
        interface = row.get("interface")
        if interface is not None and interface != self.interface:
            self.interface, self.carrier_changes = interface, None
        carrier_changes = 2 * losses + (bool(up) - bool(self.up) if up is not None else 0)
        self.link_downed = _known(self.link_downed, row.get("link_downed"), losses)
        self.carrier_changes = _known(self.carrier_changes, row.get("carrier_changes"), carrier_changes)
        self.up = up if up is not None else self.up
        self.was_active = self.was_active or bool(up)
        for name in ("speed_gbps", "width"):
            if up and row.get(name) is not None:
                setattr(self, name, row[name])

    def _losses(self, row: Mapping[str, Any], up: bool | None) -> int:
        """Return how often the link was lost since the look before, by whatever of this one could be read."""
        losses = _rise(self.link_downed, row.get("link_downed"))
        if row.get("link_layer") != "infiniband" and self.interface == row.get("interface"):
            # Every loss changes the carrier, and so does every return.
            changes = _rise(self.carrier_changes, row.get("carrier_changes"))
            losses = max(losses, (changes + 1) // 2 if self.up else changes // 2)
        return max(losses, 1) if self.up and up is False else losses

    def _link_events(self, row: Mapping[str, Any], up: bool | None, losses: int) -> Iterator[dict[str, Any]]:
        """Tell losses of the link, one by one, and that it is back."""
        detail = f"link_downed {self.link_downed} -> {row.get('link_downed')}, now {row.get('link_state')}"
        told = min(losses, MAX_LOSSES_TOLD)
        for number in range(told):
            more = losses - told if number == told - 1 else 0
            yield {"event": "link_down", "occurrences": 1 + more, "detail": detail}
        if up and (losses or self.up is False):
            yield {"event": "link_up", "occurrences": max(losses, 1), "detail": detail}

    def _rate_events(self, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for column, unit in (("speed_gbps", " Gb/s"), ("width", "X")):
            before, now = getattr(self, column), row.get(column)
            if before is None or now is None or before == now:
                continue
            name, way = column.partition("_")[0], "lowered" if now < before else "raised"
            yield {"event": f"{name}_{way}", "detail": f"{before:g}{unit} -> {now:g}{unit}"}

    def _count_symbols(self, row: dict[str, Any], now_us: int, settled: bool) -> None:
        """Add symbol errors of the windows; they are as old as the look before, so that none is thought newer."""
        count = row.get("symbol_error")
        stopped = "symbol_error" in (row.get("saturated") or "").split(",")
        rise = _rise(self.symbol_error, count)
        if rise and settled:
            minute = self.symbol_error_us // MINUTE_US
            self.symbols[minute] = self.symbols.get(minute, 0) + rise
        this = now_us // MINUTE_US
        self.symbols = {at: n for at, n in self.symbols.items() if this - max(WINDOWS_MINUTES) < at <= this}
        if count is not None:
            self.symbol_error, self.symbol_error_us = count, now_us
        if count is None or (stopped and not rise):
            return
        for minutes in WINDOWS_MINUTES:
            errors = sum(n for at, n in self.symbols.items() if at > this - minutes)
            row[f"symbol_errors_{minutes}_minutes"] = errors
            if row.get("speed_gbps") and row.get("link_state") in ACTIVE:
                bits = row["speed_gbps"] * 1e9 * minutes * 60
                row[f"bit_error_ratio_{minutes}_minutes"] = min(errors / bits, 1.0)

    def _add_rates(self, row: dict[str, Any], now_us: int) -> None:
        stopped = (row.get("saturated") or "").split(",")
        values = {name: row[name] for name in _RATES if row.get(name) is not None}
        samples = [sample for sample in self.samples if sample[0] < now_us]
        if samples and any(values[name] < samples[-1][1].get(name, 0) for name in values):
            samples = []
        while len(samples) > 1 and now_us - samples[1][0] >= MINUTE_US - _EARLY_US:
            del samples[0]
        if samples and now_us - samples[0][0] >= MINUTE_US - _EARLY_US:
            then_us, then = samples[0]
            for name in values.keys() & then.keys() - set(stopped):
                row[_RATES[name]] = (values[name] - then[name]) * 1e6 / (now_us - then_us)
        self.samples = [*samples, (now_us, values)]


_HISTORIES = TypeAdapter(dict[str, PortHistory])


def dump_histories(histories: Mapping[str, PortHistory]) -> bytes:
    """Return histories as a cursor; of a minute's samples the last is enough."""
    saved = {name: asdict(history) | {"samples": history.samples[-1:]} for name, history in histories.items()}
    return orjson.dumps(saved, option=orjson.OPT_NON_STR_KEYS)


def load_histories(cursor: bytes) -> dict[str, PortHistory]:
    """Return histories out of a cursor; none where it cannot be read."""
    try:
        return _HISTORIES.validate_json(cursor)
    except ValidationError:
        return {}


def _known(before: int | None, now: int | None, since: int) -> int | None:
    """Return a counter's value: one that cannot be read stands where it last stood, and at what was seen since.

    So what it counted meanwhile is told once it can be read again, and what was told already is not told twice.
    """
    return now if now is not None or before is None else before + since


def _rise(before: int | None, now: int | None) -> int:
    """Return by how much a counter rose; one that fell was set back."""
    return max(now - before, 0) if before is not None and now is not None else 0
