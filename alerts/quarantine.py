"""Rules that fail: kept from their neighbours, and raised as alerts about themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from typing_extensions import override

from alerts.rule import Rule
from alerts.watcher import Context, Open, Tick, Watcher

RECOVERY_US = 600_000_000
"""How long a condition must not throw until it is trusted again."""

RULE_FAILING = Rule(
    rule="rule-failing",
    kind="failing",
    on="",
    entity="rule",
    severity="major",
    owner="hall-operations",
    summary="rule {entity} cannot be judged on every row: {reason}",
)
"""Not in any file: a rule set without it could fail in silence."""


class Quarantine(Watcher[Rule]):
    """Told by the evaluator what failed; judges at ticks."""

    def __init__(self, context: Context, order: int) -> None:
        super().__init__(RULE_FAILING, context, order)
        self.stopped: dict[str, str] = {}
        """Rules whose watcher broke; they rest until the engine starts again."""
        self._noted: dict[str, str] = {}
        self._last_us: dict[str, int] = {}
        self._recovered: list[str] = []

    def note(self, rule: str, reason: str) -> None:
        """Take down that a rule failed on the rows since the last tick."""
        self._noted.setdefault(rule, reason)

    def stop(self, rule: str, reason: str) -> None:
        """Take down that a rule can no longer run at all."""
        self.stopped[rule] = reason

    def recovered(self) -> list[str]:
        """Return the rules that are trusted again since the last call."""
        names, self._recovered = self._recovered, []
        return names

    def keep_only(self, rules: Collection[str], tick: Tick) -> None:
        """End what is open about rules that are no more."""
        for rule in sorted(set(self.open) - set(rules)):
            self.end(rule, "superseded", self.at_tick(tick))

    @override
    def on_tick(self, tick: Tick) -> None:
        failed = self._noted | self.stopped
        self._noted = {}
        for rule in sorted(failed):
            self._last_us[rule] = tick.now_us
            if rule not in self.open:
                moment = self.at_tick(tick, {"reason": failed[rule]})
                words = {"reason": failed[rule]}
                self.fire(
                    rule,
                    kind="rule",
                    host=None,
                    began_us=tick.wall_us(tick.now_us),
                    moment=moment,
                    words=words,
                )
        for rule in sorted(self.open):
            if tick.now_us - self._last_us[rule] >= RECOVERY_US:
                self.end(rule, "cleared", self.at_tick(tick))
                self._recovered.append(rule)

    @override
    def reopen(self, entity: str, alert: Open) -> None:
        self._last_us[entity] = alert.began_us

    @override
    def dump(self) -> dict[str, Any]:
        return {"stopped": self.stopped, "noted": self._noted, "last_us": self._last_us}

    @override
    def load(self, saved: Mapping[str, Any]) -> None:
        self.stopped, self._noted = dict(saved["stopped"]), dict(saved["noted"])
        self._last_us = dict(saved["last_us"])
