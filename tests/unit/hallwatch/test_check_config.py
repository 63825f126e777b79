"""`hallwatch check-config` teaches the configuration and finds what would stop a part later."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from contract.config import load_config
from hallwatch.cli import main

CONFIG = """\
[hall]
name = "hall-1"

[[ingest.collectors]]
collector = "gpu-dcgm"
host = "h1"
url = "http://127.0.0.1:9400/metrics"

[[engine.notifiers]]
notifier = "alertmanager"
url = "http://127.0.0.1:9093"
bearer_token = "opensesame"
"""


def check(path: Path) -> object:
    with pytest.raises(SystemExit) as caught:
        main(["check-config", "--config", str(path)])
    return caught.value.code


def test_it_prints_a_file_that_means_the_same_with_every_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hallwatch.toml"
    path.write_text(CONFIG)
    assert check(path) == 0
    printed = capsys.readouterr().out
    values = tomllib.loads(printed)
    assert values["lake"] == load_config(path, {}).lake.model_dump(mode="json")
    assert values["ingest"]["collectors"][0]["interval_seconds"] == 1
    assert values["engine"]["notifiers"][0]["timeout_seconds"] == 10
    assert "# Folder of the Delta tables, one per stream." in printed


def test_a_secret_is_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hallwatch.toml"
    path.write_text(CONFIG)
    check(path)
    printed = capsys.readouterr().out
    assert "bearer_token" in printed
    assert "opensesame" not in printed


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('inventory = "map.yaml"\n', "map.yaml:1: hall: 'hall-2', but the configuration says 'hall-1'"),
        ('[engine]\nrules = ["none.yaml"]\n', "none.yaml"),
        ('[[ingest.collectors]]\ncollector = "gpu-dcgn"\n', "number 1: there is no collector 'gpu-dcgn'"),
        (
            2 * '[[ingest.collectors]]\ncollector = "gpu-dcgm"\nhost = "h"\nurl = "http://h/"\n',
            "number 2: gpu-dcgm@h",
        ),
        ('[[engine.notifiers]]\nnotifier = "pigeon"\n', "number 1: notifier 'pigeon'"),
    ],
)
def test_what_it_names_is_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, words: str
) -> None:
    (tmp_path / "map.yaml").write_text("hall: hall-2\n")
    path = tmp_path / "hallwatch.toml"
    path.write_text('[hall]\nname = "hall-1"\n' + lines)
    assert check(path) == 2
    assert words in capsys.readouterr().err
