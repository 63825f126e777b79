"""Waits grow, end growing, and are never the same for two."""

from __future__ import annotations

from random import Random

import pytest

from contract.backoff import backoff_seconds


class Extreme(Random):
    """Draws an end of every range."""

    def __init__(self, *, highest: bool) -> None:
        super().__init__()
        self._highest = highest

    def uniform(self, a: float, b: float) -> float:
        return b if self._highest else a


def waits(random: Random, failures: range) -> list[float]:
    return [backoff_seconds(n, first_seconds=0.5, longest_seconds=30, random=random) for n in failures]


@pytest.mark.parametrize(
    ("highest", "expected"),
    [(True, [0.5, 1, 2, 4, 8, 16, 30, 30]), (False, [0.25, 0.5, 1, 2, 4, 8, 15, 15])],
)
def test_a_wait_doubles_up_to_the_longest_and_chance_takes_at_most_half(
    highest: bool, expected: list[float]
) -> None:
    assert waits(Extreme(highest=highest), range(1, 9)) == expected


def test_failures_without_end_wait_the_longest() -> None:
    assert waits(Extreme(highest=True), range(10**6, 10**6 + 1)) == [30]


def test_two_that_failed_together_come_back_apart() -> None:
    assert waits(Random(1), range(1, 9)) != waits(Random(2), range(1, 9))
