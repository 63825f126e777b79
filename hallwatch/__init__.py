"""What a person runs and imports: the command line, the demo and the connection to the lake.
Imports every package and introduces them to each other; none imports it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analytics.query import LakeConnection

__version__ = "0.1.0"
__all__ = ["__version__", "connect"]


def connect(lake: str | Path = "lake") -> LakeConnection:
    """Open a lake for questions in SQL; a running system is not disturbed.

    `connect("lake").sql("SELECT * FROM fleet_now")`: a view per stream, and those for people, always of one
    version of each table and at most 2 s old. Nothing can be written through it.
    """
    from analytics.query import connect as open_lake

    return open_lake(Path(lake))
