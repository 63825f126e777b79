"""`route`: which notifier is told about which severity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from alerts.stage import Notice


class Route:
    """Addresses notices; what a rule only records goes to nobody."""

    def __init__(self, severities: Mapping[str, Sequence[str]]) -> None:
        """`severities`: what each notifier is told about."""
        self._severities = severities

    def apply(self, notices: Sequence[Notice]) -> list[Notice]:
        return [
            replace(notice, notifier=name)
            for notice in notices
            if notice.draft.rule.notify
            for name, severities in self._severities.items()
            if notice.draft.rule.severity in severities
        ]
