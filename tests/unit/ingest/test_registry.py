"""Which collectors there are, and their page."""

from pathlib import Path

import pytest

import ingest
from contract.errors import ConfigError
from contract.streams import STREAMS
from ingest.collector import COLLECTORS, HostConfig, Reading, collector
from ingest.gpu.dcgm import DcgmConfig
from ingest.registry import collectors_page, read_table
from ingest.testing import FakeCollector

CHECKOUT = Path(__file__).resolve().parents[3]

THERMOMETER = '''
from ingest.collector import HostConfig, Reading, Rows, collector
from contract.streams.gpu import GPU_SAMPLES

class ThermometerConfig(HostConfig):
    """A thermometer."""

@collector("thermometer", ThermometerConfig, (GPU_SAMPLES,))
class Thermometer:
    """Reads a thermometer."""
    def __init__(self, config, context): self.config = config
    def collect(self, now_us):
        return Reading(rows=[Rows(stream=GPU_SAMPLES, columns={"gpu_uuid": ["t"], "temperature_celsius": [21]})])
    def cursor(self): return b""
    def restore(self, cursor): pass
    def close(self): pass
'''


@pytest.fixture
def added(tmp_path, monkeypatch):
    """Put a folder with one more collector on ingest's path."""
    folder = tmp_path / "weather"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "thermometer.py").write_text(THERMOMETER)
    (folder / "testing.py").write_text("raise AssertionError('test helpers are not collectors')")
    monkeypatch.setattr(ingest, "__path__", [*ingest.__path__, str(tmp_path)])
    yield
    COLLECTORS.remove("thermometer")


def test_the_collectors_are_found_by_their_files():
    files = {"gpu-dcgm", "gpu-kernel-log", "inventory"}
    assert files <= set(COLLECTORS.all())


@pytest.mark.usefixtures("added")
def test_one_file_in_a_subfolder_adds_a_collector():
    assert "thermometer" in COLLECTORS.all()
    registration, config = read_table({"collector": "thermometer", "host": "h1"}, "here")
    assert config.subject == "h1"
    assert "## thermometer\n\nReads a thermometer.\n\nWrites `gpu_samples`." in collectors_page()
    assert registration.streams == (STREAMS["gpu_samples"],)


def test_two_collectors_cannot_share_a_name():
    COLLECTORS.all()
    with pytest.raises(ValueError, match="two plug-ins are named 'gpu-dcgm'"):
        collector("gpu-dcgm", HostConfig, ())(lambda _config, _context: FakeCollector(Reading()))


GOOD = {"collector": "gpu-dcgm", "host": "h1", "url": "http://127.0.0.1:9400/metrics"}


def test_a_table_becomes_a_configuration():
    registration, config = read_table(GOOD | {"timeout_seconds": 2}, "here")
    assert registration.name == "gpu-dcgm"
    assert isinstance(config, DcgmConfig)
    assert (config.interval_seconds, config.timeout_seconds, config.instance) == (1, 2, "main")


@pytest.mark.parametrize(
    ("table", "reason", "words"),
    [
        ({}, "missing", "here: `collector` is missing; it is one of .*gpu-dcgm, gpu-kernel-log, .*inventory"),
        (
            {"collector": "gpu"},
            "unknown_name",
            "here: there is no collector 'gpu'; there are .*gpu-dcgm, gpu-kernel-log, .*inventory",
        ),
        ({"collector": 7}, "unknown_name", "there is no collector 7"),
        (GOOD | {"colour": "red"}, "unknown_key", r"here \(gpu-dcgm\): unknown key 'colour'"),
        ({"collector": "gpu-dcgm", "host": "h1"}, "invalid", r"here \(gpu-dcgm\): url: missing"),
        (
            GOOD | {"url": "ftp://x"},
            "invalid",
            "url: an address like http://10.0.0.7:9400/metrics belongs here",
        ),
        (GOOD | {"url": "http://"}, "invalid", "url: an address like"),
        (GOOD | {"url": "http://h:99999/"}, "invalid", "url: Port out of range"),
        (GOOD | {"url": "http://[::1/"}, "invalid", "url: Invalid IPv6 URL"),
        (GOOD | {"url": "http://h/ä"}, "invalid", "url: .*no letters beyond ASCII"),
        (GOOD | {"url": "http://me:secret@h/"}, "invalid", "url: a user and a password"),
        (GOOD | {"host": "a/b"}, "invalid", "host: "),
        (GOOD | {"host": ""}, "invalid", "host: "),
        (GOOD | {"instance": "a@b"}, "invalid", "instance: "),
        (GOOD | {"interval_seconds": 0}, "invalid", "interval_seconds: "),
    ],
)
def test_a_wrong_table_is_named_with_what_is_wrong(table, reason, words):
    with pytest.raises(ConfigError, match=words) as raised:
        read_table(table, "here")
    assert raised.value.reason == reason


def test_the_page_names_every_collector_key_and_stream():
    page = collectors_page()
    for registration in COLLECTORS.all().values():
        assert f"## {registration.name}\n" in page
        for key, field in registration.config.model_fields.items():
            assert field.description, f"{registration.name}.{key} says nothing of itself"
            assert key == "collector" or f"| `{key}` |" in page
        assert all(f"`{stream.name}`" in page for stream in registration.streams)


def test_the_page_in_the_documentation_is_the_one_of_the_code():
    """If this fails, run `make docs`."""
    assert (CHECKOUT / "docs" / "collectors.md").read_text(encoding="utf-8") == collectors_page()
