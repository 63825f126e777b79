"""Each probe of a path is settled once; a port that loses everything is told from a path that loses something."""

from __future__ import annotations

import random
from collections.abc import Set as AbstractSet
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.histogram import Histogram, merge
from ingest.fabric.mesh_ledger import Delays, PathLedger

LATE, LOST, RECENT = 1.0, 3.0, 60.0
DELAYS = Delays(network=20_000, responder=5_000, prober=9_000)


def ledger() -> PathLedger:
    return PathLedger(timeout_seconds=LATE, give_up_seconds=LOST, recent_seconds=RECENT)


def row_of(path: PathLedger, now: float) -> dict[str, Any]:
    return path.row(path.close_window(now))


def counts(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row[name] for name in ("sent", "answered", "late", "lost", "duplicates"))


def probe(
    path: PathLedger, rounds: int, *, lost_ports: AbstractSet[int] = frozenset(), loss: float = 0.0
) -> dict[str, Any]:
    """Probe so often from 16 ports in turn; return the row after everything is settled."""
    chance, now = random.Random(1), 0.0
    for sequence in range(rounds * 16):
        now = sequence * 0.1
        port = 100 + sequence % 16
        path.sent(sequence, port, now)
        if port not in lost_ports and chance.random() >= loss:
            path.answered(sequence, DELAYS, now + 0.01)
        path.expire(now)
    return row_of(path, now + LOST + 0.001)


def test_an_answer_in_time_is_measured() -> None:
    path = ledger()
    path.sent(0, 100, 0.0)
    assert path.answered(0, DELAYS, 0.5)
    row = row_of(path, 0.6)
    assert counts(row) == (1, 1, 0, 0, 0)
    assert Histogram.from_row(row, "rtt") == Histogram.of([20_000])
    assert row["rtt_p50_us"] == pytest.approx(20, rel=0.011)
    assert (row["responder_delay_us"], row["prober_delay_us"]) == (5, 9)


def test_a_probe_that_is_still_out_is_counted_when_its_fate_is_known() -> None:
    path = ledger()
    path.sent(0, 100, 0.0)
    assert counts(row_of(path, 0.5)) == (0, 0, 0, 0, 0)
    path.answered(0, DELAYS, 0.7)
    assert counts(row_of(path, 1.0)) == (1, 1, 0, 0, 0)


def test_an_answer_after_the_time_out_is_late_and_never_takes_a_loss_back() -> None:
    path = ledger()
    path.sent(0, 100, 0.0)
    path.sent(1, 101, 0.0)
    assert path.answered(0, DELAYS, 2.0)
    assert counts(row_of(path, LOST + 0.1)) == (2, 0, 1, 1, 0)
    assert not path.answered(1, DELAYS, LOST + 0.2)
    row = row_of(path, 5.0)
    assert counts(row) == (0, 0, 0, 0, 0)
    assert row["rtt_count"] == 0


def test_an_answer_that_comes_twice_is_a_duplicate_and_no_second_answer() -> None:
    path = ledger()
    path.sent(0, 100, 0.0)
    assert path.answered(0, DELAYS, 0.1)
    assert path.answered(0, DELAYS, 0.2)
    assert counts(row_of(path, 0.3)) == (1, 1, 0, 0, 1)


def test_an_answer_whose_clocks_cannot_be_right_counts_but_is_not_measured() -> None:
    path = ledger()
    path.sent(0, 100, 0.0)
    path.answered(0, None, 0.1)
    row = row_of(path, 0.2)
    assert counts(row) == (1, 1, 0, 0, 0)
    assert (row["rtt_count"], row["rtt_p50_us"], row["responder_delay_us"]) == (0, None, None)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 10), st.integers(0, 2)), max_size=60))
def test_whatever_comes_in_whatever_order_sent_is_the_sum_of_its_fates(
    events: list[tuple[int, float, int]],
) -> None:
    path, now, next_sequence, totals = ledger(), 0.0, 0, [0] * 5
    for sequence, seconds, what in events:
        now += seconds
        if what == 0:
            path.sent(next_sequence, 100 + next_sequence % 4, now)
            next_sequence += 1
        elif what == 1:
            path.answered(sequence, DELAYS, now)
        else:
            totals = [a + b for a, b in zip(totals, counts(row_of(path, now)), strict=True)]
    totals = [a + b for a, b in zip(totals, counts(row_of(path, now + LOST + 1)), strict=True)]
    sent, answered, late, lost, _ = totals
    assert min(totals) >= 0
    assert sent == answered + late + lost == next_sequence


def test_the_recent_past_is_the_sum_of_its_windows_and_ends() -> None:
    path = ledger()
    for second in range(0, 100, 10):
        path.sent(second, 100, second)
        path.answered(second, DELAYS, second + 0.1)
        row = row_of(path, second + 1)
    assert (row["recent_sent"], row["recent_lost"], row["recent_count"]) == (7, 0, 7)
    assert row["recent_p50_us"] == pytest.approx(20, rel=0.011)


@given(st.lists(st.lists(st.integers(1, 10**9), max_size=5), min_size=1, max_size=30))
def test_the_recent_past_is_what_its_windows_merged_would_be(windows: list[list[int]]) -> None:
    path, sequence, parts = ledger(), 0, []
    for number, latencies in enumerate(windows):
        for network in latencies:
            path.sent(sequence, 100, number * 10)
            path.answered(sequence, Delays(network, 0, 0), number * 10)
            sequence += 1
        parts.append(Histogram.of(latencies))
        row = row_of(path, number * 10)
        expected = merge(parts[-7:])
        assert (row["recent_count"], row["recent_sent"]) == (expected.count, expected.count)
        for name, ratio in (("recent_p50_us", 0.5), ("recent_p99_us", 0.99)):
            value = expected.percentile(ratio)
            assert row[name] == (None if value is None else value / 1000)


def test_a_window_that_is_closed_stays_as_it_was_while_probing_goes_on() -> None:
    path = ledger()
    probe(path, 6, lost_ports={103})
    closed = path.close_window(200.0)
    path.sent(10_000, 103, 200.0)
    path.answered(10_000, DELAYS, 200.1)
    row = path.row(closed)
    assert (row["dead_ports"], row["sent"]) == ("103", 0)
    row = row_of(path, 200.2)
    assert (row["dead_ports"], row["sent"]) == (None, 1)


def test_a_port_on_which_everything_is_lost_is_dead_and_lives_when_it_is_answered() -> None:
    path = ledger()
    row = probe(path, 6, lost_ports={103, 107})
    assert (row["dead_ports"], row["dead_port_count"]) == ("103,107", 2)
    assert row["dead_port_losses"] == 6
    path.sent(10_000, 103, 200.0)
    path.answered(10_000, DELAYS, 200.1)
    assert row_of(path, 200.2)["dead_ports"] == "107"


def test_three_losses_in_a_row_may_be_chance() -> None:
    assert probe(ledger(), 3, lost_ports={103})["dead_port_count"] == 0


@pytest.mark.parametrize("loss", [0.02, 0.1, 0.3, 0.6])
def test_loss_at_random_makes_no_port_dead_however_much(loss: float) -> None:
    assert probe(ledger(), 40, loss=loss)["dead_port_count"] == 0


def test_in_loss_at_random_a_dead_port_is_found_after_more_losses() -> None:
    assert probe(ledger(), 4, lost_ports={103}, loss=0.2)["dead_port_count"] == 0
    assert probe(ledger(), 20, lost_ports={103}, loss=0.2)["dead_ports"] == "103"


def test_where_nothing_comes_through_no_port_is_to_blame() -> None:
    row = probe(ledger(), 10, lost_ports=set(range(100, 116)))
    assert row["lost"] == row["sent"] == 160
    assert row["dead_port_count"] == 0


def test_what_this_host_does_not_let_out_is_no_loss() -> None:
    path = ledger()
    path.unsent()
    row = row_of(path, 10.0)
    assert row["unsent"] == 1
    assert counts(row) == (0, 0, 0, 0, 0)
