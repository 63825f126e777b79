"""The chain of alerts: what continues the stored head is stored, a resend is dropped, a fork is a dead letter."""

import pytest

from analytics.chain import Chain, Link
from analytics.testing import SinkRig
from contract.errors import ContractError
from contract.streams.alerts import ALERTS
from contract.streams.self import DEAD_LETTERS

BEGIN = "0" * 64


@pytest.fixture
def rig(tmp_path):
    return SinkRig(tmp_path, streams=(ALERTS, DEAD_LETTERS))


def send(rig, number, previous, own, epoch="chain-1", source="engine/hall"):
    return rig.send(
        number,
        stream=ALERTS,
        source=source,
        epoch=epoch,
        rows=1,
        key="rule-0",
        chain_index=number,
        previous_hash=previous,
        hash=own,
    )


def stored(rig):
    return rig.rows("SELECT chain_index, hash FROM alerts ORDER BY _offset")


def forks(rig):
    return rig.rows("SELECT \"offset\" FROM dead_letters WHERE reason = 'fork' ORDER BY 1")


def test_a_chain_is_stored_in_order(rig):
    send(rig, 0, BEGIN, "a")
    send(rig, 1, "a", "b")
    rig.drain(rig.sink())
    send(rig, 2, "b", "c")
    rig.drain(rig.sink())
    assert stored(rig) == [(0, "a"), (1, "b"), (2, "c")]


def test_a_resend_is_a_repeat(rig):
    send(rig, 0, BEGIN, "a")
    send(rig, 1, "a", "b")
    rig.drain(rig.sink())
    send(rig, 0, BEGIN, "a")
    send(rig, 1, "a", "b")
    send(rig, 2, "b", "c")
    rig.drain(rig.sink())
    assert stored(rig) == [(0, "a"), (1, "b"), (2, "c")]
    assert forks(rig) == []
    assert rig.metric("sink_repeats_total", {"stream": "alerts"}) == 2


def test_what_continues_another_head_is_a_fork_and_costs_the_chain_nothing(rig):
    send(rig, 0, BEGIN, "a")
    rig.drain(rig.sink())
    offset = send(rig, 1, "x", "y")
    send(rig, 1, "a", "b")
    rig.drain(rig.sink(), steps=4)
    assert stored(rig) == [(0, "a"), (1, "b")]
    assert forks(rig) == [(offset,)]


def test_another_transition_under_a_stored_number_is_a_fork(rig):
    send(rig, 0, BEGIN, "a")
    send(rig, 1, "a", "b")
    offset = send(rig, 1, "a", "other")
    rig.drain(rig.sink(), steps=4)
    assert stored(rig) == [(0, "a"), (1, "b")]
    assert forks(rig) == [(offset,)]


def test_a_fork_is_found_by_the_next_process_too(rig):
    send(rig, 0, BEGIN, "a")
    send(rig, 1, "a", "b")
    rig.drain(rig.sink())
    offsets = [send(rig, 1, "a", "other"), send(rig, 2, "other", "more")]
    rig.drain(rig.sink(), steps=4)
    assert forks(rig) == [(offset,) for offset in offsets]


def test_a_new_chain_that_names_the_stored_head_goes_on(rig):
    send(rig, 0, BEGIN, "a")
    rig.drain(rig.sink())
    send(rig, 0, "a", "b", epoch="chain-2")
    rig.drain(rig.sink())
    assert stored(rig) == [(0, "a"), (0, "b")]


def test_a_new_chain_that_names_no_head_is_a_fork(rig):
    send(rig, 0, BEGIN, "a")
    rig.drain(rig.sink())
    offset = send(rig, 0, BEGIN, "b", epoch="chain-2")
    rig.drain(rig.sink(), steps=4)
    assert forks(rig) == [(offset,)]


def test_a_number_that_is_not_the_sequence_is_no_transition(rig):
    rig.send(5, stream=ALERTS, rows=1, key="rule-0", chain_index=4, previous_hash=BEGIN, hash="a")
    rig.drain(rig.sink(), steps=4)
    assert stored(rig) == []
    assert rig.rows("SELECT reason FROM dead_letters") == [("bad_value",)]


def test_a_message_whose_later_link_forks_is_rejected_whole():
    chain = Chain([Link("e", 0, BEGIN, "a")])
    with pytest.raises(ContractError, match="continues x, not b"):
        chain.extend([Link("e", 1, "a", "b"), Link("e", 2, "x", "c")], lambda _: False)
    assert chain.extend([Link("e", 1, "a", "b")], lambda _: False) == [0]
