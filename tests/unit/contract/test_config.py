"""Configuration is strict, and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.config import StrictConfig, load_config
from contract.errors import ConfigError

GOOD = '[hall]\nname = "a"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "hallwatch.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_hall_needs_only_a_name_and_paths_count_from_the_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD + 'inventory = "map.yaml"\n[lake]\npath = "/data/lake"\n'), {})
    assert config.hall.inventory == tmp_path / "map.yaml"
    assert config.bus.path == tmp_path / "bus"
    assert config.lake.path == Path("/data/lake")
    assert config.hall.synthetic is False


def test_a_path_within_a_list_counts_from_the_file_too(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD + '[engine]\nrules = ["own", "/etc/rules"]\n'), {})
    assert config.engine.rules == (tmp_path / "own", Path("/etc/rules"))
    assert config.engine.path == tmp_path / "engine"


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "[lake]\nflush_seconds = 9\n")
    config = load_config(
        path, {"HALLWATCH_LAKE__FLUSH_SECONDS": "2.5", "HALLWATCH_VECTORS": "x", "HOME": "y"}
    )
    assert config.lake.flush_seconds == 2.5


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("[hall]\nname = ", "invalid", "not TOML"),
        ("[bus]\n", "invalid", "hall: missing"),
        ('hall = "a"\n', "invalid", "hall: a table belongs here"),
        ('[hall]\nname = "a b"\n', "invalid", "hall.name: 'a b' does not match"),
        (
            GOOD + '[ingest]\ncollectors = ["gpu-dcgm"]\n',
            "invalid",
            "ingest.collectors.0: a table belongs here",
        ),
        (
            GOOD + "[lake]\nflush_seconds = inf\n",
            "invalid",
            "lake.flush_seconds: Input should be a finite number",
        ),
        (GOOD + "colour = 1\n", "unknown_key", "unknown key 'hall.colour'"),
        (GOOD + "[lakes]\n", "unknown_key", "unknown key 'lakes'"),
        (
            GOOD + "[lake]\nflush_seconds = 0\n",
            "invalid",
            "lake.flush_seconds: Input should be greater than 0",
        ),
        (GOOD + '[bus]\nkind = "carrier pigeon"\n', "invalid", "bus.kind: Input should be 'local'"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_file_and_key(
    tmp_path: Path, text: str, reason: str, words: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    assert caught.value.reason == reason
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('kind = "kafka"', "bus: servers: missing"),
        ('kind = "kafka"\nservers = "a"', "bus.servers: 'a' does not match"),
        ('kind = "kafka"\nservers = "a:1"\nfsync = true\npath = "x"', "fsync, path: not for kind = 'kafka'"),
        ('servers = "a:1"', "servers: not for kind = 'local'"),
        ('kind = "kafka"\nservers = "a:1"\nusername = "u"', "username and password_file belong together"),
        (
            'kind = "kafka"\nservers = "a:1"\ncertificate_file = "c"\nkey_file = "k"',
            "ca_file: missing; without TLS nobody may log in",
        ),
    ],
)
def test_a_bus_refuses_keys_of_the_other_kind_and_halves_of_a_login(
    tmp_path: Path, keys: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, f"{GOOD}[bus]\n{keys}\n"), {})
    assert words in str(caught.value)


def test_the_files_of_a_cluster_count_from_the_file_too(tmp_path: Path) -> None:
    text = GOOD + '[bus]\nkind = "kafka"\nservers = "a:1,b:2"\nca_file = "ca.pem"\n'
    bus = load_config(write(tmp_path, text), {}).bus
    assert (bus.ca_file, bus.place) == (tmp_path / "ca.pem", "a:1,b:2")


def test_an_unknown_key_in_the_environment_is_an_error_that_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"HALLWATCH_LAKE__FLUSH_SECOND: unknown key 'lake\.flush_second'"):
        load_config(write(tmp_path, GOOD), {"HALLWATCH_LAKE__FLUSH_SECOND": "2"})


def test_the_path_of_a_plug_in_counts_from_the_file_too(tmp_path: Path) -> None:
    class Plugin(StrictConfig):
        key_file: Path
        folders: tuple[Path, ...] = ()

    config = load_config(write(tmp_path, GOOD), {})
    assert config.file_folder == config.ingest.file_folder == tmp_path
    plugin = Plugin(key_file=Path("mesh.key"), folders=(Path("a"), Path("/b"))).anchored(config.file_folder)
    assert (plugin.key_file, plugin.folders) == (tmp_path / "mesh.key", (tmp_path / "a", Path("/b")))


def test_a_file_that_is_no_text_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "hallwatch.toml").write_bytes(b'[hall]\nname = "\xff"\n')
    with pytest.raises(ConfigError, match=r"hallwatch\.toml: not TOML"):
        load_config(tmp_path / "hallwatch.toml", {})
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path, {})


def test_a_file_that_is_not_there_says_how_to_name_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config"):
        load_config(tmp_path / "none.toml", {})


def test_a_loaded_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD), {})
    with pytest.raises(ValueError, match="frozen"):
        config.hall.name = "b"
