"""Real captures through the whole path: device, collector, bus, lake, engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hallwatch import connect
from hallwatch.replay import Played, play

GPUS = {
    "a100-mig-parent-and-instance-rows": 1,
    "h100x8-one-gpu-in-pod": 8,
    "h100x8-other-node-one-gpu-in-pod": 8,
    "l4-idle-full-scrape": 1,
    "l40s-vm-driver595": 1,
    "old-style-space-after-comma-and-sentinel": 1,
    "t4-busy-74C-memtemp0": 1,
    "t4-three-gpus-mixed-and-labelless-dummies": 3,
    "vgpu-a100-10c-no-temp-no-power": 1,
}
"""Page -> how many GPUs its README says it shows."""

CHANGES = {
    "gpu-xid-fatal": ("DCGM_FI_DEV_XID_ERRORS", "79"),
    "gpu-row-remap-failed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1"),
    "gpu-thermal-margin": ("DCGM_FI_DEV_GPU_TEMP_LIMIT", "0"),
}
"""Rule -> the one value that is changed to raise it."""


def identity_of(page: str) -> tuple[str, str]:
    """Return the labels of the first whole GPU of a page, and its UUID."""
    for line in page.splitlines():
        labels = re.search(r"\{([^}]*UUID=\"([^\"]+)\"[^}]*)\}", line)
        if labels and not line.startswith("#") and "GPU_I_ID" not in line:
            return labels[1], labels[2]
    raise AssertionError("no GPU on this page")


def change(page: str, family: str, value: str) -> tuple[str, str]:
    """Set one value of one GPU, adding the series where the page lacks it; return the page and the UUID."""
    labels, uuid = identity_of(page)
    series = re.compile(rf"^({family}\{{[^}}]*{uuid}[^}}]*\}}) \S+$", re.MULTILINE)
    for found in series.finditer(page):
        if "GPU_I_ID" not in found[1]:
            return page[: found.start()] + f"{found[1]} {value}" + page[found.end() :], uuid
    return f"{page.rstrip()}\n{family}{{{labels}}} {value}\n", uuid


@pytest.fixture(scope="module")
def unchanged(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(vectors / "gpu" / "dcgm", tmp_path_factory.mktemp("replay") / "out")


def test_real_pages_without_a_fault_raise_nothing(unchanged: Played) -> None:
    assert {recording.name for recording in unchanged.hall.recordings} == set(GPUS)
    assert unchanged.alerts == []


def test_what_no_device_serves_is_named_and_not_played(unchanged: Played) -> None:
    assert set(unchanged.hall.not_playable) == {
        "promapi-h100-2nodes-gpu-temp.json",
        "promapi-h100-exported-pod-labels.json",
        "quirk_lines.tsv",
    }


def test_the_lake_holds_each_gpu_of_each_page_at_every_scrape(unchanged: Played) -> None:
    lake = connect(unchanged.config.lake.path)
    scrapes = int(unchanged.seconds) + 1
    rows = lake.sql(
        "SELECT split_part(split_part(_source, '@', 2), '/', 1) AS page, count(DISTINCT gpu_uuid), count(*) "
        "FROM gpu_samples GROUP BY page ORDER BY page"
    ).fetchall()
    assert rows == [(page, gpus, gpus * scrapes) for page, gpus in GPUS.items()]
    assert lake.sql("SELECT count(*) FROM dead_letters").fetchall() == [(0,)]
    assert lake.sql("SELECT count(*) FROM gpu_events").fetchall() == [(0,)]


def test_the_lake_holds_the_values_that_the_captures_are_known_for(unchanged: Played) -> None:
    lake = connect(unchanged.config.lake.path)

    def values(page: str, columns: str) -> list[tuple[object, ...]]:
        return lake.sql(
            f"SELECT DISTINCT {columns} FROM gpu_samples WHERE _source LIKE '%@{page}/%' ORDER BY ALL"
        ).fetchall()

    assert values("t4-busy-74C-memtemp0", "temperature_celsius, utilization_percent, energy_millijoules") == [
        (74, 91, 15152422938)
    ]
    assert values("l4-idle-full-scrape", "memory_temperature_celsius, last_xid") == [(None, None)]
    assert values("l40s-vm-driver595", "energy_millijoules, driver_version") == [(5551899580, "595.58.03")]
    assert values("vgpu-a100-10c-no-temp-no-power", "temperature_celsius, power_watts") == [(None, None)]
    assert values("a100-mig-parent-and-instance-rows", "temperature_celsius, memory_temperature_celsius") == [
        (61, 69)
    ]
    assert values("old-style-space-after-comma-and-sentinel", "memory_temperature_celsius, sm_clock_mhz") == [
        (None, 139)
    ]
    assert values("h100x8-one-gpu-in-pod", "pod") == [("vllm-agg-0-vllmdecodeworker-s65j5",), (None,)]
    assert lake.sql("SELECT DISTINCT instance, profile FROM gpu_instances").fetchall() == [(13, "1g.5gb")]


@pytest.mark.parametrize("rule", CHANGES)
def test_one_changed_value_raises_exactly_its_alert_on_every_page(
    vectors: Path, tmp_path: Path, rule: str
) -> None:
    family, value = CHANGES[rule]
    folder, expected = tmp_path / "pages", []
    folder.mkdir()
    for path in sorted((vectors / "gpu" / "dcgm").glob("*.prom")):
        page, uuid = change(path.read_text(encoding="utf-8"), family, value)
        (folder / path.name).write_text(page, encoding="utf-8")
        expected.append((rule, uuid))
    played = play(folder, tmp_path / "out")
    assert sorted((alert.rule, alert.entity) for alert in played.alerts) == sorted(expected)
