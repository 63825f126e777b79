"""A folder of recordings is served as its devices would have served it."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from contract.errors import ConfigError
from contract.testing import FakeClock
from hallwatch.recordings import read_recordings, serve


def test_a_page_alone_is_held_and_pages_in_a_folder_follow_each_other(tmp_path: Path) -> None:
    (tmp_path / "still.prom").write_bytes(b"still 1\n")
    (tmp_path / "moving").mkdir()
    for seconds, page in [("000", b"a 1\n"), ("007.5", b"b 2\n"), ("010s", b"c 3\n")]:
        (tmp_path / "moving" / f"{seconds}.prom").write_bytes(page)
    hall = read_recordings(tmp_path)
    assert hall.seconds == 10.0
    clock = FakeClock()
    seen = []
    with serve(hall.recordings, clock) as urls:
        for _ in range(12):
            seen.append(httpx.get(urls["moving"]).content)
            assert httpx.get(urls["still"]).content == b"still 1\n"
            clock.advance(1)
    assert seen == [b"a 1\n"] * 8 + [b"b 2\n"] * 2 + [b"c 3\n"] * 2


def test_before_its_first_page_a_device_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "5.prom").write_bytes(b"a 1\n")
    clock = FakeClock()
    with serve(read_recordings(tmp_path).recordings, clock) as urls:
        assert httpx.get(urls["late"]).status_code == 503
        clock.advance(5)
        assert httpx.get(urls["late"]).status_code == 200


def test_what_cannot_be_played_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(b"a 1\n")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.prom").touch()
    (tmp_path / "no host.prom").touch()
    (tmp_path / "no@host").mkdir()
    (tmp_path / "no@host" / "0.prom").touch()
    (tmp_path / os.fsdecode(b"no-text-\xff.prom")).touch()
    hall = read_recordings(tmp_path)
    assert [(r.name, r.pages) for r in hall.recordings] == [("a", (b"",))]
    assert hall.not_playable == (
        "a.prom",
        "empty/",
        "no host.prom",
        os.fsdecode(b"no-text-\xff.prom"),
        "no@host/",
        "notes.txt",
    )


def test_the_map_of_a_recorded_hall_says_which_hall_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(b"a 1\n")
    assert (read_recordings(tmp_path).name, read_recordings(tmp_path).synthetic) == ("replay", False)
    (tmp_path / "inventory.yaml").write_text("hall: north\nsynthetic: true\n")
    hall = read_recordings(tmp_path)
    assert (hall.name, hall.synthetic, hall.inventory) == ("north", True, tmp_path / "inventory.yaml")


def test_a_mistake_in_the_map_stops_a_replay_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_bytes(b"a 1\n")
    (tmp_path / "inventory.yaml").write_text("hall: north\nracks: 3\n")
    with pytest.raises(ConfigError, match=r"inventory\.yaml:2: racks: unknown key"):
        read_recordings(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_with_nothing_to_play_is_an_error_that_says_what_is_looked_for(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=name):
        read_recordings(tmp_path / name)
