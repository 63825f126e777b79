"""What a leak detector says, and what it said before: no data is never dry, and a leak ends by its own detector alone.

States: DMTF Redfish LeakDetector 1.6 (DetectorState) and Resource 1.2 (Status.State, Status.Health).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

LeakState = Literal["leak", "suspect", "sensor_fault", "dry", "absent"]

BELIEVED = frozenset({"leak", "suspect", "dry"})
"""States that tell of water; the others tell of the detector."""

LOST_AFTER_US = 200_000_000
"""A detector that nobody could ask for so long is lost: twice the 100 s within which NVIDIA DSX Exchange has every
point of a building told again."""

MAX_DETECTORS = 4_096

_ALARMS = ("Warning", "Critical")
_WORST_FIRST: tuple[LeakState, ...] = ("leak", "suspect", "sensor_fault", "dry", "absent")


def judge(detector_state: object, status_state: object = None, health: object = None) -> LeakState:
    """Return what a Redfish detector says, from DetectorState, Status.State and Status.Health.

    Where an answer leaves out the status, as an excerpt does, nothing speaks against the detector.
    """
    fit = status_state in (None, "Enabled")
    if "Absent" in (detector_state, status_state):
        return "absent"
    if detector_state in _ALARMS:
        return "leak" if fit else "suspect"
    if detector_state in (None, "Unavailable"):
        return "sensor_fault"
    if health not in (None, "OK"):
        return "suspect"  # it says OK or a word of its maker's, and that it is not well
    return "dry" if detector_state == "OK" and fit else "sensor_fault"


def worst(one: LeakState, other: LeakState) -> LeakState:
    """Return which of two words about one detector counts."""
    return min(one, other, key=_WORST_FIRST.index)


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of a detector after it was heard."""

    state: LeakState
    news_after: str | None
    """The state before, `new` at the first look; None: the state is no news."""
    before: str | None
    """What it said last while it could be believed."""
    label: str | None


@dataclass(slots=True)
class _Known:
    state: str
    before: str | None
    heard_us: int
    label: str | None = None


class LeakMemory:
    """What every detector of a unit said last, so that none is forgotten when it falls silent."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def note(self, name: str, state: LeakState, now_us: int, label: str | None = None) -> Heard:
        """Take what a detector says, or `sensor_fault` where it is lost; `hear` says that it is not.

        At the first look only what is not dry is news.
        """
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= MAX_DETECTORS:
                return Heard(state, None, state if state in BELIEVED else None, label)
            known = self._known[name] = _Known("", None, now_us)
        was, known.state = known.state, state
        known.label = label or known.label
        if state in BELIEVED:
            known.before = state
        news = state != (was or "dry")
        return Heard(state, (was or "new") if news else None, known.before, known.label)

    def hear(self, name: str, now_us: int) -> None:
        """Note that a detector was asked and answered."""
        if name in self._known:
            self._known[name].heard_us = now_us

    def silent(self, now_us: int) -> list[str]:
        """Return detectors that were not heard of for longer than `LOST_AFTER_US`, and are not retired."""
        for known in self._known.values():
            known.heard_us = min(known.heard_us, now_us)  # the clock may have been set back
        return [
            name
            for name, known in self._known.items()
            if known.state != "absent" and now_us - known.heard_us > LOST_AFTER_US
        ]

    def copy(self) -> LeakMemory:
        """Return another that knows the same."""
        other = LeakMemory()
        other._known = {name: replace(known) for name, known in self._known.items()}
        return other

    def dump(self) -> dict[str, list[str | None]]:
        """Return what must outlive the process, in a form that changes only when a state does."""
        return {name: [known.state, known.before, known.label] for name, known in self._known.items()}

    def load(self, saved: Mapping[str, Any], now_us: int) -> None:
        """Take up what `dump` gave; what is not of that form is left out."""
        for name, value in list(saved.items())[:MAX_DETECTORS]:
            if isinstance(value, list) and len(value) == 3 and value[0] in _WORST_FIRST:
                before = value[1] if value[1] in BELIEVED else None
                label = value[2] if isinstance(value[2], str) else None
                self._known[str(name)] = _Known(value[0], before, now_us, label)
