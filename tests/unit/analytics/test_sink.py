"""What the sink promises, shown on a bus in memory."""

import pytest

from analytics.testing import SinkRig


@pytest.fixture
def rig(tmp_path):
    return SinkRig(tmp_path)


def test_every_event_is_stored_once_with_where_it_came_from(rig):
    for sequence in range(5):
        rig.send(sequence, power_watts=123.456)
    rig.drain(rig.sink())
    found = rig.rows(
        "SELECT _seq, count(*), min(power_watts), max(power_watts) FROM gpu_samples GROUP BY 1 ORDER BY 1"
    )
    assert found == [(sequence, 8, 123.456, 123.456) for sequence in range(5)]


def test_a_repeat_is_dropped_also_by_the_next_process(rig):
    rig.send(0)
    rig.send(0)
    rig.drain(rig.sink())
    rig.send(0)
    rig.send(1)
    rig.drain(rig.sink())
    assert rig.rows("SELECT _seq, count(*) FROM gpu_samples GROUP BY 1 ORDER BY 1") == [(0, 8), (1, 8)]
    assert rig.metric("sink_repeats_total", {"stream": "gpu_samples"}) == 1


def test_a_message_that_cannot_become_rows_becomes_a_dead_letter(rig):
    offset = rig.poison(body=b"\x00poison")
    rig.send(0)
    rig.drain(rig.sink())
    log = rig.bus.describe(rig.streams[0].topic).log
    partition = rig.streams[0].partition_of("h1")
    found = rig.rows(
        'SELECT stream, log, "partition", "offset", reason, body, _source, _epoch, _seq FROM dead_letters'
    )
    source = f"sink/{log}/{partition}"
    assert found == [
        ("gpu_samples", log, partition, offset, "unknown_content_type", b"\x00poison", source, log, offset)
    ]
    assert rig.rows("SELECT count(*) FROM gpu_samples") == [(8,)]
