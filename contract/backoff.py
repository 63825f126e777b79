"""How long to wait before what failed is tried again."""

from __future__ import annotations

from random import Random

_MOST_DOUBLINGS = 64
"""Far beyond any longest wait; a float has no room for thousands."""

_RANDOM = Random()


def backoff_seconds(
    failures: int, *, first_seconds: float, longest_seconds: float, random: Random = _RANDOM
) -> float:
    """Return the wait after 1 or more failures in a row: the first, doubled each time up to the longest.

    Up to half of it is taken away by chance, so that those who failed together do not come back together.
    """
    doublings = min(failures - 1, _MOST_DOUBLINGS)
    return min(longest_seconds, first_seconds * 2.0**doublings) * random.uniform(0.5, 1.0)
