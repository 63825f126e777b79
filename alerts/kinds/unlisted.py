"""`unlisted`: something reports that the inventory does not list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field
from typing_extensions import override

from alerts.duration import Duration
from alerts.frame import Frame
from alerts.rule import Rule
from alerts.state import Ints
from alerts.watcher import Context, Tick, Watcher, kind


class UnlistedRule(Rule):
    """Fires when an entity still reports `after` it was first found missing in the inventory.

    Judged only when an inventory is known and read to its end. Ends `cleared` when it is listed, `expired` when it
    was not heard of for `expires`.
    """

    words: ClassVar[frozenset[str]] = frozenset({"entity", "host"})

    expect: Literal["gpu", "host", "nic"] = Field(description="Kind of asset it should be listed as.")
    after_us: Duration = Field(alias="after", description="Time for the inventory to follow.")
    expires_us: Duration = Field(alias="expires", description="How long without a row ends the alert.")


@kind("unlisted", UnlistedRule)
class UnlistedWatcher(Watcher[UnlistedRule]):
    """Compares who reports with who is listed."""

    def __init__(self, rule: UnlistedRule, context: Context, order: int) -> None:
        super().__init__(rule, context, order)
        self._entities = context.entities(rule.on, rule.columns)
        self._since_us: dict[str, int] = {}
        self._compared = (-1, -1)
        self._strangers: Ints = np.zeros(0, np.int64)
        self._known = False
        self._hosts: dict[str, str] = {}
        """Where each stranger was last seen."""

    @override
    def on_rows(self, frame: Frame) -> None:
        if not len(self._strangers) or "host" not in frame.stream.by_name:
            return
        numbers = frame.numbers(self._entities)
        rows = np.flatnonzero(np.isin(numbers, self._strangers))
        hosts = frame.table.column("host").take(pa.array(rows)).to_pylist()
        for number, host in zip(numbers[rows].tolist(), hosts, strict=True):
            self._hosts[self._entities.names[number]] = host

    @override
    def on_tick(self, tick: Tick) -> None:
        if not tick.read_to_end("inventory") or not self._compare():
            return
        heard = self._entities.received_us[self._strangers]
        strangers: dict[str, int] = {}
        for number, heard_us in zip(self._strangers.tolist(), heard.tolist(), strict=True):
            name = self._entities.names[number]
            if tick.now_us - heard_us < self.rule.expires_us:
                strangers[name] = heard_us
        for name in sorted(self.open):
            if name not in strangers:
                listed = name in self.context.topology.expected(self.rule.expect)
                self.end(name, "cleared" if listed else "expired", self.at_tick(tick))
        self._since_us = {name: self._since_us.get(name, tick.now_us) for name in strangers}
        self._hosts = {name: host for name, host in self._hosts.items() if name in strangers}
        for name in sorted(strangers.keys() - self.open.keys()):
            self._judge(name, strangers[name], tick)

    def _judge(self, name: str, heard_us: int, tick: Tick) -> None:
        since = self._since_us[name]
        if heard_us - since < self.rule.after_us:
            return
        asset = self.context.topology.assets.get(name)
        evidence = {
            "last_seen": tick.iso(heard_us),
            "listed": "never"
            if asset is None
            else f"as {asset.kind}, {'active' if asset.active else 'retired'}",
        }
        moment, host = self.at_tick(tick, evidence, heard_us), self._hosts.get(name)
        self.fire(
            name,
            kind=self.rule.expect,
            host=host,
            began_us=tick.wall_us(since),
            moment=moment,
            words={"host": host},
        )

    def _compare(self) -> bool:
        """Find who is not listed; return whether there is a list to compare with."""
        state = (self.context.topology.version, len(self._entities.names))
        if state != self._compared:
            self._compared = state
            listed = self.context.topology.expected(self.rule.expect)
            self._known = bool(listed)
            names = self._entities.names if listed else []
            self._strangers = np.array([n for n, name in enumerate(names) if name not in listed], np.int64)
        return self._known

    @override
    def dump(self) -> dict[str, Any]:
        return {"since_us": self._since_us, "hosts": self._hosts, "strangers": self._strangers}

    @override
    def load(self, saved: Mapping[str, Any]) -> None:
        self._since_us, self._hosts = dict(saved["since_us"]), dict(saved["hosts"])
        self._strangers = saved["strangers"].copy()
