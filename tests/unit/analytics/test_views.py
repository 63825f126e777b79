"""The shipped views: where things stand, the fleet now, and what did not come."""

import pytest

from analytics.query import connect
from analytics.testing import SinkRig
from analytics.views import sql_views
from contract.streams import STREAMS
from contract.streams.alerts import ALERTS
from contract.streams.gpu import GPU_SAMPLES
from contract.streams.self import DEAD_LETTERS
from contract.streams.topology import INVENTORY

ASSETS = {
    # asset: kind, parent, cdu
    "hall-1": ("hall", None, None),
    "cdu-1": ("cdu", "hall-1", None),
    "row-a": ("row", "hall-1", None),
    "a01": ("rack", "row-a", "cdu-1"),
    "h1": ("host", "a01", None),
    "gpu-0": ("gpu", "h1", None),
    "gpu-1": ("gpu", "h1", None),
    "h1/nic0": ("nic", "h1", None),
}


class Hall(SinkRig):
    """A rig whose streams are those of the views."""

    def __init__(self, folder):
        super().__init__(folder, streams=(GPU_SAMPLES, INVENTORY, ALERTS, DEAD_LETTERS))
        self.versions = 0
        self.transitions = 0

    def list_assets(self, assets=None, **values):
        """Send one version of the inventory."""
        for_all = ASSETS if assets is None else assets
        kinds, parents, cdus = zip(*for_all.values(), strict=True)
        self.send(
            self.versions,
            stream=INVENTORY,
            source="inventory@hall-1/0",
            key="hall-1",
            rows=len(for_all),
            ts=[self.clock.now_us()] * len(for_all),
            asset=list(for_all),
            kind=list(kinds),
            parent=list(parents),
            cdu=list(cdus),
            **{"state": "active", **values},
        )
        self.versions += 1

    def sample(self, sequence, gpus=("gpu-0",), **values):
        """Send one event of some GPUs, now."""
        now = [self.clock.now_us()] * len(gpus)
        self.send(sequence, rows=len(gpus), ts=now, gpu_uuid=list(gpus), **values)

    def alert(self, transition, entity, fingerprint="f1", epoch="c1"):
        """Send one transition."""
        number = self.transitions
        self.transitions += 1
        self.send(
            number,
            stream=ALERTS,
            source="engine/hall-1",
            epoch=epoch,
            key="rule-0",
            rows=1,
            chain_index=number,
            previous_hash=f"hash-{number - 1}",
            hash=f"hash-{number}",
            transition=transition,
            entity=entity,
            fingerprint=fingerprint,
        )

    def settle(self):
        self.drain(self.sink())


@pytest.fixture
def hall(tmp_path):
    return Hall(tmp_path)


def test_every_view_says_its_grain_its_units_and_what_it_reads():
    known = {*STREAMS, *(f"recent.{name}" for name in STREAMS), "recent.origins", "lake_tables"}
    seen = set[str]()
    for view in sql_views():
        for field in ("grain", "units", "inputs"):
            assert f"\n-- {field}: " in view.query, f"{view.name} has no {field}"
        assert set(view.inputs) <= known | seen, f"{view.name} reads what is not there before it"
        seen.add(view.name)
    assert {"place", "fleet_now", "completeness"} <= seen


def test_views_answer_before_there_is_anything(tmp_path):
    (tmp_path / "lake").mkdir()
    with connect(tmp_path / "lake") as lake:
        for view in sql_views():
            assert lake.sql(f"FROM {view.name}").fetchall() == []


def test_the_tables_behind_the_views_are_listed(hall):
    hall.sample(0)
    hall.settle()
    found = hall.rows(
        "SELECT stream, interval_seconds, version, files, rows, bytes > 0, newest_received FROM lake_tables "
        "WHERE stream IN ('gpu_samples', 'alerts') ORDER BY ALL"
    )
    [(alerts), (samples)] = found
    assert alerts == ("alerts", None, 0, 0, 0, False, None)
    assert samples[:-1] == ("gpu_samples", 1.0, 1, 1, 1, True)
    assert samples[-1].isoformat() == "2026-06-01T00:00:00"


def test_recent_views_leave_out_files_older_than_the_newest_hour(hall):
    hall.sample(0)
    hall.settle()
    hall.clock.advance(3599)
    hall.sample(1)
    hall.settle()
    assert hall.rows("SELECT count(*) FROM recent.gpu_samples") == [(2,)]
    hall.clock.advance(10)
    hall.sample(2)
    hall.settle()
    assert hall.rows("SELECT _seq FROM recent.gpu_samples ORDER BY 1") == [(1,), (2,)]


def test_every_asset_is_placed_by_its_parents(hall):
    hall.list_assets()
    hall.settle()
    found = hall.rows(
        'SELECT asset, kind, hall, "row", rack, cdu, host FROM place WHERE entity = asset ORDER BY asset'
    )
    assert found == [
        ("a01", "rack", "hall-1", "row-a", "a01", "cdu-1", None),
        ("cdu-1", "cdu", "hall-1", None, None, "cdu-1", None),
        ("gpu-0", "gpu", "hall-1", "row-a", "a01", "cdu-1", "h1"),
        ("gpu-1", "gpu", "hall-1", "row-a", "a01", "cdu-1", "h1"),
        ("h1", "host", "hall-1", "row-a", "a01", "cdu-1", "h1"),
        ("h1/nic0", "nic", "hall-1", "row-a", "a01", "cdu-1", "h1"),
        ("hall-1", "hall", "hall-1", None, None, None, None),
        ("row-a", "row", "hall-1", "row-a", None, None, None),
    ]


def test_a_later_version_moves_an_asset_and_a_retired_one_is_gone(hall):
    hall.list_assets()
    hall.clock.advance(60)
    hall.list_assets({"a02": ("rack", "row-a", "cdu-2"), "h1": ("host", "a02", None)})
    hall.clock.advance(60)
    hall.list_assets({"gpu-1": ASSETS["gpu-1"]}, state="retired")
    hall.settle()
    found = hall.rows("SELECT asset, rack, cdu FROM place WHERE kind = 'gpu'")
    assert found == [("gpu-0", "a02", "cdu-2")]


def test_a_circle_of_parents_ends(hall):
    hall.list_assets({"a": ("rack", "b", None), "b": ("row", "a", None)})
    hall.settle()
    assert sorted(hall.rows('SELECT asset, rack, "row" FROM place')) == [("a", "a", "b"), ("b", "a", "b")]


def test_the_fleet_has_one_row_per_gpu_with_its_newest_sample(hall):
    hall.list_assets()
    hall.sample(0, power_watts=100.0)
    hall.clock.advance(30)
    hall.sample(1, power_watts=200.0)
    hall.settle()
    found = hall.rows("SELECT gpu_uuid, host, rack, power_watts, in_inventory FROM fleet_now ORDER BY 1")
    assert found == [("gpu-0", "h1", "a01", 200.0, True), ("gpu-1", "h1", "a01", None, True)]


def test_a_sample_of_long_ago_is_no_sample_of_now(hall):
    hall.sample(0, gpus=("gpu-0", "gpu-1"))
    hall.clock.advance(601)
    hall.sample(1, gpus=("gpu-1",))
    hall.settle()
    assert hall.rows("SELECT gpu_uuid, in_inventory FROM fleet_now") == [("gpu-1", False)]


def test_a_wrong_clock_of_one_gpu_hides_no_other(hall):
    hall.sample(0, gpus=("gpu-0", "gpu-1"))
    hall.send(1, rows=1, gpu_uuid=["gpu-1"], ts=[2**60])
    hall.settle()
    assert hall.rows("SELECT gpu_uuid FROM fleet_now ORDER BY 1") == [("gpu-0",), ("gpu-1",)]


def test_the_fleet_counts_what_is_firing_on_a_gpu_and_on_its_host(hall):
    hall.list_assets()
    hall.sample(0)
    hall.alert("firing", "gpu-0", "f1")
    hall.alert("firing", "h1", "f2")
    hall.alert("firing", "gpu-1", "f3")
    hall.alert("ended", "gpu-1", "f3")
    hall.settle()
    assert hall.rows("SELECT gpu_uuid, alerts_firing FROM fleet_now ORDER BY 1") == [
        ("gpu-0", 2),
        ("gpu-1", 1),
    ]


def complete(hall):
    return hall.rows(
        "SELECT epoch, minute_of, received, missing, expected FROM ("
        "  SELECT *, date_diff('minute', min(minute) OVER (), minute) AS minute_of FROM completeness"
        ") ORDER BY ALL"
    )


def test_received_and_missing_events_are_counted_by_minute(hall):
    for sequence in (0, 1, 2, 5):
        hall.sample(sequence)
    hall.clock.advance(60)
    hall.sample(8)
    hall.settle()
    assert complete(hall) == [("e1", 0, 4, 2, 60.0), ("e1", 1, 1, 2, 60.0)]


def test_a_minute_without_events_is_there(hall):
    hall.sample(0)
    hall.clock.advance(180)
    hall.send(0, source="other@h1/0", epoch="other")
    hall.settle()
    assert complete(hall) == [
        ("e1", 0, 1, 0, 60.0),
        ("e1", 1, 0, 0, 60.0),
        ("e1", 2, 0, 0, 60.0),
        ("e1", 3, 0, 0, 60.0),
        ("other", 3, 1, 0, 60.0),
    ]


def test_a_new_epoch_begins_its_own_count(hall):
    hall.sample(7)
    hall.clock.advance(60)
    hall.sample(0, epoch="e2")
    hall.settle()
    assert complete(hall) == [("e1", 0, 1, 0, 60.0), ("e2", 1, 1, 0, 60.0)]


def test_completeness_reads_every_stream_that_is_sent_at_an_interval(tmp_path):
    regular = [stream for stream in STREAMS.values() if stream.interval is not None]
    assert len(regular) > 3
    rig = SinkRig(tmp_path, streams=(*regular, INVENTORY, DEAD_LETTERS))
    for stream in (*regular, INVENTORY):
        rig.send(0, stream=stream, source="a@h1/0", key="key-0", rows=1)
    rig.drain(rig.sink())
    assert rig.rows("SELECT DISTINCT stream FROM completeness ORDER BY 1") == sorted(
        (stream.name,) for stream in regular
    )
