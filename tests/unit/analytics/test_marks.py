"""The marks: restored from the newest snapshot and what came after it, or from all rows."""

import shutil

import pytest

from analytics.lake import Lake
from analytics.marks import load_marks, newest_snapshot, write_snapshot
from analytics.testing import SinkRig
from contract.errors import StoreError
from contract.reader import MarkKey
from contract.streams.gpu import GPU_SAMPLES

PARTITION = GPU_SAMPLES.partition_of("h1")
HOUR_US = 3_600_000_000


@pytest.fixture
def rig(tmp_path):
    return SinkRig(tmp_path)


def open_table(rig):
    table = Lake(rig.path).table(GPU_SAMPLES)
    assert table is not None
    return table


def marks_of(rig, partitions=frozenset({PARTITION})):
    log = rig.bus.describe(GPU_SAMPLES.topic).log
    return load_marks(open_table(rig), log, set(partitions))


def feed(rig, *sequences, **values):
    for sequence in sequences:
        rig.send(sequence, **values)
    rig.drain(rig.sink(), steps=1)


def test_marks_are_the_highest_sequence_of_every_source_and_epoch(rig):
    feed(rig, 0, 1)
    feed(rig, 0, epoch="e2")
    feed(rig, 0, 1, 2, source="test@h1/1")
    assert marks_of(rig) == {
        MarkKey(PARTITION, "test@h1/0", "e1"): 1,
        MarkKey(PARTITION, "test@h1/0", "e2"): 0,
        MarkKey(PARTITION, "test@h1/1", "e1"): 2,
    }


def test_only_the_marks_of_the_owned_partitions_are_loaded(rig):
    feed(rig, 0)
    assert marks_of(rig, {PARTITION + 1}) == {}


def test_marks_of_another_log_do_not_count(rig):
    feed(rig, 0)
    assert load_marks(open_table(rig), "another log", {PARTITION}) == {}


def test_a_snapshot_and_the_files_after_it_say_the_same_as_all_files(rig):
    feed(rig, 0, 1)
    write_snapshot(open_table(rig), 0)
    feed(rig, 2)
    feed(rig, 0, epoch="e2")
    found = marks_of(rig)
    shutil.rmtree(rig.path / "gpu_samples" / "_marks")
    assert found == marks_of(rig)
    assert len(found) == 2


def test_files_before_the_snapshot_are_not_needed_again(rig):
    feed(rig, 0, 1)
    write_snapshot(open_table(rig), 0)
    for file in rig.path.glob("gpu_samples/_date=*/*.parquet"):
        file.unlink()
    feed(rig, 2)
    assert marks_of(rig) == {MarkKey(PARTITION, "test@h1/0", "e1"): 2}


def test_where_log_entries_after_the_snapshot_are_gone_all_files_are_read(rig):
    feed(rig, 0)
    write_snapshot(open_table(rig), 0)
    feed(rig, 1)
    table = open_table(rig)
    table._write_checkpoint()
    for entry in (rig.path / "gpu_samples" / "_delta_log").glob("*.json"):
        entry.unlink()
    assert marks_of(rig) == {MarkKey(PARTITION, "test@h1/0", "e1"): 1}


def test_epochs_that_are_idle_for_long_are_forgotten(rig):
    feed(rig, 0)
    rig.clock.advance(48 * 3600)
    feed(rig, 0, epoch="e2")
    write_snapshot(open_table(rig), rig.clock.now_us() - 24 * HOUR_US)
    assert marks_of(rig) == {MarkKey(PARTITION, "test@h1/0", "e2"): 0}


def test_two_snapshots_are_kept(rig):
    for sequence in range(4):
        feed(rig, sequence)
        write_snapshot(open_table(rig), 0)
    folder = rig.path / "gpu_samples" / "_marks"
    assert [int(path.stem) for path in sorted(folder.iterdir())] == [3, 4]
    assert newest_snapshot(rig.path / "gpu_samples") == 4
    assert newest_snapshot(rig.path / "gpu_samples", upto=3) == 3


def test_a_snapshot_that_is_newer_than_the_table_at_hand_is_not_used(rig):
    feed(rig, 0)
    behind = open_table(rig)
    feed(rig, 1)
    write_snapshot(open_table(rig), 0)
    log = rig.bus.describe(GPU_SAMPLES.topic).log
    assert load_marks(behind, log, {PARTITION}) == {MarkKey(PARTITION, "test@h1/0", "e1"): 0}


def test_the_sink_snapshots_every_ten_minutes(rig):
    running = rig.sink()
    for sequence in range(3):
        rig.send(sequence)
        running.step()
        rig.clock.advance(Lake(rig.path).snapshot_seconds / 2 + 1)
        running.step()
    assert newest_snapshot(rig.path / "gpu_samples") == 2


def test_the_sink_forgets_idle_epochs_in_memory_too(rig):
    running = rig.sink()
    rig.send(0)
    rig.drain(running, steps=1)
    rig.clock.advance(Lake(rig.path).marks_kept_hours * 3600 + 1)
    rig.send(0, epoch="e2")
    rig.drain(running, steps=1)
    rig.send(0)
    rig.drain(running, steps=1)
    assert rig.rows("SELECT count(*) FROM gpu_samples WHERE _epoch = 'e1'") == [(16,)]


def test_a_snapshot_that_cannot_be_written_leaves_the_one_before(rig, monkeypatch):
    feed(rig, 0)
    write_snapshot(open_table(rig), 0)

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("analytics.marks.pq.write_table", fail)
    feed(rig, 1)
    with pytest.raises(StoreError, match="No space"):
        write_snapshot(open_table(rig), 0)
    assert newest_snapshot(rig.path / "gpu_samples") == 1
    assert list((rig.path / "gpu_samples" / "_marks").glob("*.half")) == []
    assert marks_of(rig) == {MarkKey(PARTITION, "test@h1/0", "e1"): 1}
