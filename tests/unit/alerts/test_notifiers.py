"""A notifier is one file: nothing else changes when one is added."""

import importlib
import sys

import pytest

import alerts.notify
from alerts.engine import Engine, EngineOptions
from alerts.notifier import NOTIFIERS, build_notifiers
from alerts.testing import rule_text, rules_of
from contract.bus.local import LocalBus
from contract.codec import Event, encode_event
from contract.errors import ConfigError
from contract.streams import STREAMS
from contract.streams.gpu import GPU_SAMPLES
from contract.testing import FakeClock, example_rows

PLUGIN = '''
"""`pager`: writes who is woken to a file."""
from pathlib import Path

from alerts.notifier import NotifierConfig, notifier


class PagerConfig(NotifierConfig):
    """The table of a pager."""

    path: Path


@notifier("pager", PagerConfig)
class Pager:
    """Appends a line per notification."""

    batch_size = 1
    refresh_seconds = None

    def __init__(self, config):
        self._path = config.path

    def notify(self, notifications):
        with self._path.open("a") as file:
            file.writelines(f"{n.row['transition']} {n.row['rule']} {n.row['entity']}\\n" for n in notifications)
        return "written"

    def refresh(self, firing, now_us, *, alive, hall):
        raise AssertionError("asked for no renewal")

    def close(self):
        pass
'''


@pytest.fixture
def pager(tmp_path, monkeypatch):
    """Put a folder with one more notifier on the package's path."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "pager.py").write_text(PLUGIN)
    monkeypatch.setattr(alerts.notify, "__path__", [*alerts.notify.__path__, str(folder)])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("alerts.notify.pager", None)
    NOTIFIERS._found.pop("pager", None)


@pytest.mark.usefixtures("pager")
def test_a_file_on_the_path_is_a_notifier_and_is_told(tmp_path) -> None:
    told = tmp_path / "told.txt"
    notifiers = build_notifiers([{"notifier": "pager", "path": str(told)}])
    bus, clock = LocalBus(tmp_path / "bus", fsync=False), FakeClock()
    bus.ensure_topics(STREAMS.values())
    engine = Engine(
        EngineOptions(folder=tmp_path / "engine", hall="hall"),
        bus,
        rules_of(rule_text()),
        notifiers,
        clock=clock,
    )
    engine.step()
    for sequence in range(3):
        rows = example_rows(
            GPU_SAMPLES, 1, ts=clock.now_us(), gpu_uuid="GPU-1", temperature_margin_celsius=-1.0
        )
        event = Event(source="s", epoch="e", sequence=sequence, table=rows)
        bus.append([(GPU_SAMPLES.topic, 0, encode_event(GPU_SAMPLES, event, "h"))])
        engine.step()
        clock.advance(60)
    engine.close()
    assert told.read_text() == "firing hot GPU-1\n"
    bus.close()


@pytest.mark.usefixtures("pager")
def test_its_own_table_is_checked_like_any_other() -> None:
    with pytest.raises(ConfigError, match="unknown key 'pathh'"):
        build_notifiers([{"notifier": "pager", "pathh": "x"}])
