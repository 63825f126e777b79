"""What a stage is: a step from transitions to notifications, in a list that reads in the order it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from alerts.chain import Transition
from alerts.watcher import Draft


@dataclass(frozen=True, slots=True)
class Notice:
    """A transition on its way to a notifier; the last stage says which."""

    transition: Transition
    draft: Draft
    notifier: str | None = None


class Stage(Protocol):
    """Drops, changes or multiplies notices; whatever it drops is still in the history."""

    def apply(self, notices: Sequence[Notice]) -> list[Notice]: ...
