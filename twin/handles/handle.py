"""What a handle is, and the ways in which most of them move one value of an array and put it back."""

# ruff: noqa: ARG001 - every act is given what any of them needs
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from twin.largehall import LargeHall, Target

Magnitude: TypeAlias = float
"""How strong, in the unit of its handle."""

Act: TypeAlias = Callable[[LargeHall, int, float, float], None]
"""Change a hall at an index: magnitude, and seconds since it began."""

Quantity: TypeAlias = Callable[[LargeHall], Any]
"""Find an array of a hall."""


def nothing(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
    """Change nothing."""


def anywhere(hall: LargeHall, at: int) -> bool:
    """Say that every entity of a kind has what a handle moves."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How a handle acts: once, once a step, and when it lets go."""

    begin: Act = nothing
    hold: Act = nothing
    end: Act = nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """One quantity of the physics that can be moved, and within which range of magnitudes.

    It moves what it struck and puts that back; it may be held for any time.
    """

    name: str
    entity_kind: str
    what: str
    move: Move
    low: float = 1.0
    high: float = 1.0
    unit: str = ""
    strikes: Callable[[LargeHall, int], bool] = anywhere
    """Whether the entity at an index of its kind has what this handle moves."""

    def draw(self, rng: np.random.Generator) -> Magnitude:
        """Draw a magnitude of its range."""
        return float(rng.uniform(self.low, self.high))

    def begin(self, hall: LargeHall, target: Target, magnitude: Magnitude) -> None:
        """Start to act."""
        self.move.begin(hall, target.index, magnitude, 0.0)

    def hold(self, hall: LargeHall, target: Target, magnitude: Magnitude, age_seconds: float) -> None:
        """Go on acting; for what grows, flaps or comes in waves. Called once a step."""
        self.move.hold(hall, target.index, magnitude, age_seconds)

    def end(self, hall: LargeHall, target: Target, magnitude: Magnitude, age_seconds: float = 0.0) -> None:
        """Put back what was moved; what broke for good is replaced."""
        self.move.end(hall, target.index, magnitude, age_seconds)


def grown(magnitude: float, age: float, over_seconds: float) -> float:
    """Return how far something that grows evenly to its magnitude has come."""
    return magnitude * min(1.0, age / over_seconds)


def switched(quantity: Quantity, value: object, back: object) -> Move:
    """Set a value, and at the end what it was in a sound hall."""

    def put(value: object) -> Act:
        def act(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
            quantity(hall)[at] = value

        return act

    return Move(begin=put(value), end=put(back))


def set_by(quantity: Quantity, value: Callable[[LargeHall, float], object], back: object) -> Move:
    """Set a value that follows from the hall and the magnitude, and at the end what it was in a sound hall."""

    def begin(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
        quantity(hall)[at] = value(hall, magnitude)

    return Move(begin=begin, end=switched(quantity, back, back).end)


def raised(quantity: Quantity, *, over_seconds: float) -> Move:
    """Raise a value from 0 to the magnitude."""

    def hold(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
        quantity(hall)[at] = grown(magnitude, age, over_seconds)

    return Move(hold=hold, end=switched(quantity, 0.0, 0.0).end)


def lowered(quantity: Quantity, *, over_seconds: float) -> Move:
    """Lower a value from 1 by the magnitude."""

    def hold(hall: LargeHall, at: int, magnitude: float, age: float) -> None:
        quantity(hall)[at] = 1.0 - grown(magnitude, age, over_seconds)

    return Move(hold=hold, end=switched(quantity, 1.0, 1.0).end)


def turn_of(count: int, age: float, every_seconds: float) -> int | None:
    """Return which of so many has its turn in this second, where one is worked on after the other."""
    turn = int(age // every_seconds)
    return turn if age >= 0 and age % every_seconds < 1.0 and turn < count else None
