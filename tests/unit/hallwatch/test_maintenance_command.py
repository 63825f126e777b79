"""Announced work: written to the bus at once, checked against the map, ended early or by itself."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from analytics.lake import Lake
from analytics.query import connect
from analytics.sink import Sink
from contract.bus.local import LocalBus
from contract.clock import SYSTEM_CLOCK
from contract.config import LakeSection, load_config
from contract.errors import ConfigError, HallwatchError
from contract.metrics import Metrics
from contract.streams.self import DEAD_LETTERS
from contract.streams.topology import EFFECTS, MAINTENANCE, SCOPES
from hallwatch.commands.maintenance import maintenance

MAP = """\
hall: demo
loops: [{loop: tcs-1, kind: tcs, cdu: cdu-1}]
cdus: [{cdu: cdu-1}]
leaves: [{leaf: leaf-1, rail: 3}]
rows:
- row: a
  racks:
  - {rack: a01, loop: tcs-1, hosts: [{host: h1, nics: [{nic: mlx5_0, leaf: leaf-1, guid: 0x58a2e10300123456}]}]}
  - {rack: a02, loop: tcs-1}
"""

REBOOT = ("--expect", "reboot", "--for", "2h", "--reason", "firmware", "--by", "ann")


class Desk:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "hallwatch.toml"
        self.path.write_text('[hall]\nname = "demo"\ninventory = "hall.yaml"\n')
        (folder / "hall.yaml").write_text(MAP)
        self.config = load_config(self.path, {})

    def ask(self, *arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(maintenance, [*arguments, "--config", str(self.path)])
        if isinstance(done.exception, HallwatchError):
            raise done.exception
        return done.exit_code, done.output

    def windows(self, *arguments: str) -> list[dict[str, object]]:
        _, output = self.ask("list", "--format", "json", *arguments)
        return [json.loads(line) for line in output.splitlines()]

    def sink(self) -> None:
        """Write what is on the bus into the lake, and forget it on the bus' side no sooner."""
        with closing(LocalBus.open(self.config.bus, SYSTEM_CLOCK)) as bus:
            streams = (MAINTENANCE, DEAD_LETTERS)
            bus.ensure_topics(streams)
            sink = Sink(
                LakeSection(path=self.config.lake.path),
                bus,
                Lake(self.config.lake.path),
                synthetic=False,
                clock=SYSTEM_CLOCK,
                metrics=Metrics(),
                streams=streams,
            )
            for _ in range(3):
                sink.step()
                sink.flush()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_work_of_now_is_open_at_once_and_says_what_it_may_do(desk: Desk) -> None:
    code, output = desk.ask(
        "start", "--scope", "rack=a01", "--scope", "h1/mlx5_0", *REBOOT, "--expect", "link_down,latency"
    )
    assert code == 0
    assert "rack=a01, asset=h1/mlx5_0 may reboot, link_down, latency from" in output
    [window] = desk.windows()
    assert window["state"] == "open"
    assert window["scopes"] == ["asset=h1/mlx5_0", "rack=a01"]
    assert window["effects"] == ["latency", "link_down", "reboot"]
    assert (window["reason"], window["announced_by"]) == ("firmware", "ann")


def test_planned_work_waits_for_its_time_and_may_be_called_off(desk: Desk) -> None:
    desk.ask("plan", "--at", "2099-06-01T22:00+02:00", "--scope", "cdu=cdu-1", *REBOOT)
    [window] = desk.windows()
    assert (window["state"], window["start"], window["end"]) == (
        "planned",
        "2099-06-01 20:00:00",
        "2099-06-01 22:00:00",
    )
    assert desk.ask("end", str(window["window_id"])[:6])[1].endswith("ended; it was planned\n")
    assert desk.windows() == []
    [ended] = desk.windows("--all")
    assert ended["state"] == "ended"
    assert str(ended["end"]) < "2099"


def test_a_window_ends_once(desk: Desk) -> None:
    desk.ask("start", "--scope", "a01", *REBOOT)
    [window] = desk.windows()
    desk.ask("end", str(window["window_id"]))
    with pytest.raises(ConfigError, match="is ended already"):
        desk.ask("end", str(window["window_id"]))
    with pytest.raises(ConfigError, match="0 windows begin with 'zz'"):
        desk.ask("end", "zz")


@pytest.mark.parametrize(
    ("given", "scope"),
    [
        ("row=a", "row=a"),
        ("rail=3", "rail=3"),
        ("loop=tcs-1", "loop=tcs-1"),
        ("leaf-1", "leaf=leaf-1"),
        ("h1", "host=h1"),
        ("0x58a2e10300123456/1", "asset=h1/mlx5_0"),
        ("asset=cdu-1", "asset=cdu-1"),
        ("rail-3", "asset=rail-3"),
    ],
)
def test_a_scope_is_a_column_of_place_or_the_name_of_anything(desk: Desk, given: str, scope: str) -> None:
    desk.ask("start", "--scope", given, *REBOOT)
    assert desk.windows()[0]["scopes"] == [scope]
    assert scope.split("=", maxsplit=1)[0] in SCOPES


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("rack=a09", "there is no rack 'a09'; there are a01, a02"),
        ("rack=h1", "there is no rack 'h1'"),
        ("h9", "'h9' is not on the map"),
        ("colour=red", "a scope is one of hall, row, rack"),
    ],
)
def test_a_scope_that_is_not_on_the_map_announces_nothing(desk: Desk, given: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        desk.ask("start", "--scope", given, *REBOOT)
    assert desk.windows("--all") == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--expect", "debug_mode", "--for", "2h", "--reason", "x"),
            "debug_mode: there are reboot, host_down",
        ),
        (("--expect", ",", "--for", "2h", "--reason", "x"), "nothing: there are"),
        (("--expect", "reboot", "--for", "2", "--reason", "x"), "a duration is written like"),
        (("--expect", "reboot", "--for", "0s", "--reason", "x"), "longer than nothing"),
        (("--expect", "reboot", "--for", "400d", "--reason", "x"), "at most 366d"),
        (("--expect", "reboot", "--for", "2h"), "Missing option '--reason'"),
    ],
)
def test_an_announcement_that_is_not_whole_is_refused(
    desk: Desk, options: tuple[str, ...], words: str
) -> None:
    code, output = desk.ask("start", "--scope", "a01", *options)
    assert code == 2
    assert words in output


@pytest.mark.parametrize(("at", "words"), [("2020-01-01", "that has passed"), ("soon", "is no time like")])
def test_a_plan_is_for_a_time_to_come(desk: Desk, at: str, words: str) -> None:
    code, output = desk.ask("plan", "--at", at, "--scope", "a01", *REBOOT)
    assert code == 2
    assert words in output


def test_without_any_map_no_scope_can_be_checked(desk: Desk) -> None:
    desk.path.write_text('[hall]\nname = "demo"\n')
    with pytest.raises(ConfigError, match="no map of the hall to check the scope with"):
        desk.ask("start", "--scope", "a01", *REBOOT)


def test_the_lake_tells_the_same_as_the_bus_each_window_once(desk: Desk) -> None:
    desk.ask("start", "--scope", "a01", *REBOOT)
    desk.ask("plan", "--at", "2099-06-01", "--scope", "a02", *REBOOT, "--expect", "gpu_reset")
    desk.sink()
    desk.ask("end", str(desk.windows()[0]["window_id"]))
    desk.sink()
    with connect(desk.config.lake.path) as lake:
        query = "SELECT window_id, state, scopes, effects FROM maintenance_windows ORDER BY start_ts"
        assert lake.sql("SELECT count(*) FROM dead_letters").fetchall() == [(0,)]
        found = lake.sql(query).fetchall()
    shown = desk.windows("--all")
    assert found == [(w["window_id"], w["state"], w["scopes"], w["effects"]) for w in shown]
    assert [w["state"] for w in shown] == ["ended", "planned"]


def test_what_work_may_do_is_listed_in_words() -> None:
    output = CliRunner().invoke(maintenance, ["effects"]).output
    assert [line.split()[0] for line in output.splitlines()] == list(EFFECTS)
