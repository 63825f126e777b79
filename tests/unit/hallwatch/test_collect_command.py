"""`hallwatch collect`, between a device that fails and a cluster that takes its time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from hallwatch.commands import collect as command
from ingest.spool import Outgoing

CONFIG = """\
[hall]
name = "a"
[[ingest.collectors]]
collector = "gpu-dcgm"
host = "h"
url = "http://127.0.0.1:9/"
"""


class SlowOutlet:
    """Forwards one event each time it is asked how many wait."""

    def __init__(self) -> None:
        self.taken = self.waiting = 0

    def put(self, records: Sequence[Outgoing], cursor: tuple[str, bytes] | None = None) -> None:
        del cursor
        self.taken += len(records)
        self.waiting += len(records)

    def cursor(self, name: str) -> bytes | None:
        del name
        return None

    def depth(self) -> int:
        self.waiting = max(0, self.waiting - 1)
        return self.waiting

    def close(self) -> None:
        """Hold nothing."""


def test_what_a_failing_device_leaves_reaches_the_bus_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it fails is an event, too: it must not wait for the next start."""
    outlet = SlowOutlet()
    monkeypatch.setattr(command, "_open_outlet", lambda *_: outlet)
    # Both are for the whole process, and this one has other tests to run.
    monkeypatch.setattr(command, "set_up_logging", lambda: None)
    monkeypatch.setattr(command, "stop_on_signals", threading.Event)
    path = tmp_path / "hallwatch.toml"
    path.write_text(CONFIG)
    done = CliRunner().invoke(command.collect, ["--once", "--config", str(path)], catch_exceptions=False)
    assert done.exit_code == 1
    assert outlet.taken > 1
    assert outlet.waiting == 0
