"""What the sink promises, shown on a bus in memory."""

import resource
from contextlib import contextmanager

import pytest
from deltalake import DeltaTable

from analytics import intake, lake
from analytics import sink as sink_module
from analytics.sink import _retry_seconds
from analytics.testing import SinkRig
from contract.bus import TopicPartition
from contract.errors import LogReplaced, LogTruncated, TransportError
from contract.streams.gpu import GPU_SAMPLES
from contract.streams.self import DEAD_LETTERS

SAMPLES = {"stream": "gpu_samples"}
PARTITION = GPU_SAMPLES.partition_of("h1")


@pytest.fixture
def rig(tmp_path):
    return SinkRig(tmp_path)


def stored(rig):
    """Rows of gpu_samples by the sequence of their event: 8 each, where nothing is lost or doubled."""
    return dict(rig.rows("SELECT _seq, count(*) FROM gpu_samples GROUP BY 1 ORDER BY 1"))


def letters(rig):
    return rig.rows('SELECT stream, reason, "offset" FROM dead_letters ORDER BY ALL')


@contextmanager
def files_no_larger_than(size):
    """Let every write beyond `size` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_every_event_is_stored_once_with_where_it_came_from(rig):
    for sequence in range(5):
        rig.send(sequence, power_watts=123.456)
    rig.drain(rig.sink())
    found = rig.rows("SELECT _seq, count(*), min(power_watts), max(power_watts) FROM gpu_samples GROUP BY 1")
    assert sorted(found) == [(sequence, 8, 123.456, 123.456) for sequence in range(5)]
    log = rig.bus.describe(GPU_SAMPLES.topic).log
    where = rig.rows("SELECT DISTINCT _log, _partition, _offset - _seq, _source, _epoch FROM gpu_samples")
    assert where == [(log, PARTITION, 0, "test@h1/0", "e1")]


def test_a_restart_goes_on_where_the_table_ends(rig):
    for sequence in range(6):
        rig.send(sequence)
        if sequence % 2:
            rig.drain(rig.sink())
    assert stored(rig) == dict.fromkeys(range(6), 8)


def test_what_was_gathered_and_not_committed_is_read_again(rig):
    rig.send(0)
    rig.sink().step()
    assert stored(rig) == {}
    rig.drain(rig.sink())
    assert stored(rig) == {0: 8}


def test_rows_are_committed_when_their_time_has_come(rig):
    sink = rig.sink()
    rig.send(0)
    sink.step()
    rig.clock.advance(5)
    sink.step()
    assert stored(rig) == {0: 8}


def test_rows_are_committed_when_there_are_enough(rig, monkeypatch):
    monkeypatch.setattr(intake, "DECODE_MESSAGES", 1)
    sink = rig.sink(flush_rows=16)
    rig.send(0)
    sink.step()
    assert stored(rig) == {}
    rig.send(1)
    sink.step()
    assert stored(rig) == {0: 8, 1: 8}


@pytest.mark.parametrize("guarded", [True, False])
def test_a_repeat_is_dropped_also_by_the_next_process(rig, monkeypatch, guarded):
    """Without the marks that a start loads from the table, the audit finds the event twice."""
    rig.send(0)
    rig.send(0)
    rig.drain(rig.sink())
    if not guarded:
        monkeypatch.setattr(intake, "load_marks", lambda *_: {})
    rig.send(0)
    rig.send(1)
    rig.drain(rig.sink())
    assert stored(rig) == {0: 8 if guarded else 16, 1: 8}
    assert rig.metric("sink_repeats_total", SAMPLES) == (1 if guarded else 0)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_stale_writer_commits_nothing(rig, monkeypatch, guarded):
    """Without the comparison of offsets, the audit finds doubles."""
    stale, fresh = rig.sink(), rig.sink()
    rig.send(0)
    stale.step()
    rig.drain(fresh)
    if not guarded:
        monkeypatch.setattr(lake.LakeTable, "_check_starts", lambda *_: None)
    rig.send(1)
    stale.step()
    stale.flush()
    assert stored(rig) == ({0: 8} if guarded else {0: 16, 1: 8})


@pytest.mark.parametrize("guarded", [True, False])
def test_a_writer_that_loses_the_race_within_a_commit_commits_nothing(rig, monkeypatch, guarded):
    """Without the application transactions that make two commits conflict, the audit finds doubles."""
    if not guarded:
        numbers = iter(range(1_000))
        monkeypatch.setattr(lake, "app_id", lambda log, p: f"{log}/{p}/{next(numbers)}")
        monkeypatch.setattr(lake.LakeTable, "_check_starts", lambda *_: None)
        monkeypatch.setattr(intake, "_break", lambda *_: None)
    rival = rig.sink()
    racing = False

    def overtake(step):
        nonlocal racing
        if step == "commit_begins" and not racing:
            racing = True
            rival.flush()

    loser = rig.sink(reached=overtake)
    rig.send(0)
    rival.step()
    loser.step()
    loser.flush()
    assert stored(rig) == {0: 8 if guarded else 16}


def test_a_refused_writer_goes_on_from_what_is_stored(rig):
    stale, fresh = rig.sink(), rig.sink()
    rig.send(0)
    stale.step()
    rig.drain(fresh)
    stale.flush()
    assert rig.metric("sink_commits_refused_total", SAMPLES) == 0  # the newest sink is the fresh one
    rig.send(1)
    rig.drain(stale)
    assert stored(rig) == {0: 8, 1: 8}


def test_a_commit_that_fails_after_it_happened_counts_as_done(rig, monkeypatch):
    sink = rig.sink()
    rig.send(0)
    sink.step()
    commit = DeltaTable.create_write_transaction

    def commit_and_fail(self, *args, **kwargs):
        commit(self, *args, **kwargs)
        raise OSError("the connection broke after the commit")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", commit_and_fail)
        sink.flush()
    assert rig.metric("sink_rows_total", SAMPLES) == 8
    rig.drain(sink)
    assert stored(rig) == {0: 8}


def test_a_commit_that_fails_before_it_happened_is_tried_again(rig, monkeypatch):
    sink = rig.sink()
    rig.send(0)
    sink.step()
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lambda *_, **__: 1 / 0)
        sink.flush()
    assert rig.metric("sink_rows_total", SAMPLES) == 0
    assert list(rig.path.glob("gpu_samples/*/*.parquet")) == []
    rig.drain(sink)
    assert stored(rig) == {0: 8}


def test_a_full_disk_stops_commits_until_there_is_space(rig):
    sink = rig.sink()
    for sequence in range(100):
        rig.send(sequence)
    sink.step()
    with files_no_larger_than(4_000):
        for _ in range(20):
            sink.flush()
            sink.step()
    assert rig.metric("sink_failures_total", SAMPLES | {"reason": "full"}) > 1
    assert stored(rig) == {}
    assert list(rig.path.glob("gpu_samples/*/*.parquet")) == []
    rig.clock.advance(60)
    rig.drain(sink)
    assert stored(rig) == dict.fromkeys(range(100), 8)


def test_a_disk_too_full_for_a_log_entry_stops_commits_until_there_is_space(rig):
    rig.send(0)
    rig.drain(rig.sink())
    sink = rig.sink()
    rig.send(0)
    sink.step()
    with files_no_larger_than(20):
        sink.flush()
    assert rig.metric("sink_failures_total", SAMPLES | {"reason": "full"}) == 1
    rig.clock.advance(60)
    rig.drain(sink)
    assert rig.metric("sink_repeats_total", SAMPLES) == 1
    assert stored(rig) == {0: 8}


def test_a_stream_that_cannot_be_stored_takes_no_more_messages(rig, monkeypatch):
    sink = rig.sink()
    rig.send(0)
    sink.step()
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lambda *_, **__: 1 / 0)
    sink.flush()
    sink.step()
    sink.flush()
    for sequence in range(1, 50):
        rig.send(sequence)
    sink.step()
    assert sink._consumer.positions()[TopicPartition(GPU_SAMPLES.topic, PARTITION)] == 1
    monkeypatch.undo()
    rig.clock.advance(60)
    rig.drain(sink)
    assert stored(rig) == dict.fromkeys(range(50), 8)


def test_a_message_that_cannot_become_rows_becomes_a_dead_letter(rig):
    offset = rig.poison(body=b"\x00poison")
    rig.send(0)
    rig.drain(rig.sink())
    log = rig.bus.describe(GPU_SAMPLES.topic).log
    found = rig.rows('SELECT topic, log, "partition", body, _source, _epoch, _seq FROM dead_letters')
    source = f"sink/{log}/{PARTITION}"
    assert found == [(GPU_SAMPLES.topic, log, PARTITION, b"\x00poison", source, log, offset)]
    assert letters(rig) == [("gpu_samples", "unknown_content_type", offset)]
    assert stored(rig) == {0: 8}


def test_a_dead_letter_is_on_the_bus_before_its_offset_is_stored(rig):
    rig.poison()
    steps: list[str] = []
    rig.drain(rig.sink(reached=steps.append), steps=1)
    assert steps.index("letters_published") < steps.index("commit_begins")


def test_without_its_dead_letter_an_offset_is_not_stored(rig):
    offset = rig.poison()
    sink = rig.sink()
    rig.bus.fail_with = TransportError("full", "no space on the bus")
    rig.drain(sink)
    assert rig.metric("sink_failures_total", SAMPLES | {"reason": "full"}) > 0
    rig.bus.fail_with = None
    rig.clock.advance(60)
    rig.drain(sink, steps=4)
    assert letters(rig) == [("gpu_samples", "unknown_content_type", offset)]


def test_a_dead_letter_that_is_sent_twice_is_stored_once(rig, monkeypatch):
    """The sink dies between the dead letter and the commit, so the next one sends it again."""
    offset = rig.poison()
    sink = rig.sink()
    sink.step()
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lambda *_, **__: 1 / 0)
        sink.flush()
    rig.drain(rig.sink(), steps=4)
    assert len(rig.bus.topic(DEAD_LETTERS.topic).messages[0]) == 2
    assert letters(rig) == [("gpu_samples", "unknown_content_type", offset)]


def test_a_bad_dead_letter_is_only_counted(rig):
    rig.poison(stream=DEAD_LETTERS, key="gpu_samples")
    rig.drain(rig.sink(), steps=4)
    assert letters(rig) == []
    labels = {"stream": "dead_letters", "reason": "unknown_content_type"}
    assert rig.metric("sink_dead_letters_total", labels) == 1
    assert len(rig.bus.topic(DEAD_LETTERS.topic).messages[0]) == 1


def test_a_huge_poison_keeps_its_beginning(rig):
    rig.poison(body=b"x" * 9_000_000)
    rig.drain(rig.sink(), steps=4)
    [(kept, detail)] = rig.rows("SELECT octet_length(body), detail FROM dead_letters")
    assert kept == 4_194_304
    assert "of 9000000 bytes" in detail


def test_rows_of_another_world_are_dead_letters(rig):
    offset = rig.send(0, synthetic=True)
    rig.drain(rig.sink(), steps=4)
    assert letters(rig) == [("gpu_samples", "wrong_world", offset)]
    assert stored(rig) == {}


def test_values_that_cannot_be_true_are_counted_by_reason(rig):
    rig.send(0, power_watts=100.0)
    body = rig.bus.topic(GPU_SAMPLES.topic).messages[PARTITION][0]
    rig.bus.topic(GPU_SAMPLES.topic).messages[PARTITION][0] = body._replace(
        body=body.body.replace(b"100.0", b"1e9")
    )
    rig.drain(rig.sink())
    assert rig.metric("sink_values_rejected_total", {"reason": "out_of_range"}) == 8
    assert rig.rows("SELECT count(*), count(power_watts) FROM gpu_samples") == [(8, 0)]


def test_offsets_move_on_where_every_row_was_dropped(rig):
    rig.send(0)
    rig.drain(rig.sink())
    rig.send(0)
    rig.drain(rig.sink())
    rig.bus.truncate(GPU_SAMPLES.topic, PARTITION, 2)
    rig.drain(rig.sink())
    assert stored(rig) == {0: 8}


def test_another_log_under_the_same_name_stops_the_sink(rig):
    rig.send(0)
    rig.drain(rig.sink())
    rig.bus.recreate(GPU_SAMPLES.topic)
    rig.send(0, epoch="e2")
    with pytest.raises(LogReplaced, match="--accept-new-log"):
        rig.sink().step()
    rig.drain(rig.sink(accept_new_log=True))
    assert rig.rows("SELECT count(*), count(DISTINCT _log) FROM gpu_samples") == [(16, 2)]
    rig.send(1, epoch="e2")
    rig.drain(rig.sink())
    assert stored(rig) == {0: 16, 1: 8}


def test_a_log_that_lost_its_tail_stops_the_sink(rig):
    for sequence in range(3):
        rig.send(sequence)
    rig.drain(rig.sink())
    rig.bus.cut(GPU_SAMPLES.topic, PARTITION, 1)
    with pytest.raises(LogReplaced, match="ends at 1"):
        rig.sink().step()
    rig.send(3)
    rig.drain(rig.sink(accept_new_log=True))
    assert stored(rig) == dict.fromkeys(range(4), 8)


def test_messages_lost_to_retention_stop_the_sink_and_are_noted_when_it_goes_on(rig):
    for sequence in range(5):
        rig.send(sequence)
        if sequence == 1:
            rig.drain(rig.sink())
    rig.bus.truncate(GPU_SAMPLES.topic, PARTITION, 4)
    with pytest.raises(LogTruncated, match="2 messages were lost"):
        rig.sink().step()
    rig.drain(rig.sink(accept_new_log=True), steps=4)
    assert stored(rig) == {0: 8, 1: 8, 4: 8}
    assert letters(rig) == [("gpu_samples", "truncated", 2)]


def test_what_was_read_before_retention_overtook_the_sink_is_kept(rig):
    sink = rig.sink(accept_new_log=True)
    rig.send(0)
    sink.step()
    for sequence in range(1, 4):
        rig.send(sequence)
    rig.bus.truncate(GPU_SAMPLES.topic, PARTITION, 3)
    rig.drain(sink, steps=4)
    assert stored(rig) == {0: 8, 3: 8}
    assert letters(rig) == [("gpu_samples", "truncated", 1)]


def test_a_new_table_begins_where_the_log_begins(rig):
    for sequence in range(3):
        rig.send(sequence)
    rig.bus.truncate(GPU_SAMPLES.topic, PARTITION, 2)
    rig.drain(rig.sink())
    assert stored(rig) == {2: 8}


def test_partitions_that_go_to_another_sink_and_come_back_lose_nothing(rig):
    first, second = rig.sink(), rig.sink()
    for sequence in range(3):
        rig.send(sequence)
        first.step()
    moved = list(first._consumer.positions())
    first._consumer.take_away(moved)
    rig.drain(second)
    for sequence in range(3, 6):
        rig.send(sequence)
    second.step()
    second._consumer.take_away(moved)
    first._consumer.give(moved)
    rig.drain(first)
    assert stored(rig) == dict.fromkeys(range(6), 8)


def test_rows_of_two_days_go_into_two_partitions(rig):
    rig.send(0)
    rig.clock.advance(86_400)
    rig.send(1)
    rig.drain(rig.sink())
    assert rig.rows("SELECT DISTINCT _date = _received::DATE, _seq FROM gpu_samples ORDER BY _seq") == [
        (True, 0),
        (True, 1),
    ]
    assert len(list(rig.path.glob("gpu_samples/_date=*"))) == 2


def test_the_bus_is_told_how_far_the_lake_is(rig):
    rig.send(0)
    rig.drain(rig.sink())
    told = rig.bus.committed("sink")
    assert told
    assert told == rig.bus.consumer("x").end_offsets(told)


def test_a_stream_that_failed_for_a_week_is_still_tried_again():
    assert 15 <= _retry_seconds(10_000) <= 30


def test_rows_are_committed_when_they_take_much_memory(rig, monkeypatch):
    monkeypatch.setattr(intake, "DECODE_MESSAGES", 1)
    monkeypatch.setattr(sink_module, "FLUSH_BYTES", 1)
    sink = rig.sink()
    rig.send(0)
    sink.step()
    assert stored(rig) == {0: 8}


@pytest.mark.parametrize(("messages", "size"), [(3, 10**9), (10**9, 1), (1, 1), (10**9, 10**9)])
def test_messages_are_decoded_in_portions(rig, monkeypatch, messages, size):
    monkeypatch.setattr(intake, "DECODE_MESSAGES", messages)
    monkeypatch.setattr(intake, "DECODE_BYTES", size)
    for sequence in range(10):
        rig.send(sequence)
    rig.drain(rig.sink())
    assert stored(rig) == dict.fromkeys(range(10), 8)
