"""Guards that can be taken away from a process: a nemesis that does not notice would prove nothing."""

from __future__ import annotations

from collections.abc import Callable

MUTATIONS: dict[str, Callable[[], None]] = {}
"""What removes each guard, by name."""
