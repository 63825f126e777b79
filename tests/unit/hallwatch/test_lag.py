"""How far the readers are: the same on every bus."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from contract.bus import TopicPartition
from contract.bus.local import LocalBus
from contract.streams.gpu import GPU_SAMPLES
from hallwatch.commands.lag import lag
from tests.suites.bus_suite import record, send_all

CONFIG = '[hall]\nname = "a"\n'


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "hallwatch.toml"
    path.write_text(CONFIG)
    return path


def ask(config: Path, *arguments: str) -> str:
    done = CliRunner().invoke(lag, ["--config", str(config), *arguments], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def fill(config: Path) -> None:
    """Three messages, two of them dealt with, and one in another partition of which nobody has said anything."""
    with closing(LocalBus(config.parent / "bus", fsync=False)) as bus:
        bus.ensure_topics([GPU_SAMPLES])
        send_all(bus, GPU_SAMPLES.topic, 3, ["a", "b", "c"])
        bus.append([(GPU_SAMPLES.topic, 5, record("d"))])
        bus.commit("sink", {TopicPartition(GPU_SAMPLES.topic, 3): 2})


def test_each_partition_says_where_it_ends_and_what_waits(config: Path) -> None:
    fill(config)
    places = [json.loads(line) for line in ask(config, "--format", "json").splitlines()]
    assert len(places) == GPU_SAMPLES.partitions
    topic = GPU_SAMPLES.topic
    assert [place for place in places if place["end"]] == [
        {"topic": topic, "partition": 3, "end": 3, "committed": 2, "lag": 1},
        {"topic": topic, "partition": 5, "end": 1, "committed": None, "lag": 1},
    ]


def test_the_table_ends_with_the_total(config: Path) -> None:
    fill(config)
    answer = ask(config)
    assert answer.splitlines()[-1] == f"2 messages waiting in 1 topic on {config.parent / 'bus'}"
    assert [line.split() for line in answer.splitlines() if "gpu_samples" in line] == [
        [GPU_SAMPLES.topic, "3", "3", "2", "1"],
        [GPU_SAMPLES.topic, "5", "1", "-", "1"],
    ]


def test_a_group_is_not_shown_further_than_it_is_while_a_hall_writes(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(config)
    look = LocalBus.committed

    def look_and_go_on(bus: LocalBus, group: str) -> dict[TopicPartition, int]:
        found = look(bus, group)
        bus.append([(GPU_SAMPLES.topic, 3, record("late"))])
        return found

    monkeypatch.setattr(LocalBus, "committed", look_and_go_on)
    places = [json.loads(line) for line in ask(config, "--format", "json").splitlines()]
    assert [(at["end"], at["committed"], at["lag"]) for at in places if at["partition"] == 3] == [(4, 2, 2)]


def test_another_group_is_further_or_not(config: Path) -> None:
    fill(config)
    assert ask(config, "--group", "other").splitlines()[-1].startswith("4 messages waiting")


def test_a_bus_without_topics_has_nothing_waiting(config: Path) -> None:
    assert ask(config) == f"0 messages waiting in 0 topics on {config.parent / 'bus'}\n"
