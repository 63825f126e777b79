"""Counters that are set back, windows that pass, storms that are told in parts."""

from hypothesis import given
from hypothesis import strategies as st

from ingest.host.counts import DAY_SECONDS, TELL_AGAIN_US, ErrorCount, Window, rise

NOW = 1_780_272_000_000_000
SECOND = 1_000_000


def test_a_counter_rises_by_what_it_grew_and_by_all_of_it_after_a_reset():
    assert rise(None, 7) == 0
    assert rise(7, None) == 0
    assert rise(7, 9) == 2
    assert rise(7, 3) == 3
    assert rise(7, 9, reset=True) == 9


@given(st.lists(st.tuples(st.integers(0, 7_200), st.integers(0, 9)), max_size=40))
def test_a_window_holds_what_is_younger_than_its_span_but_for_one_bucket(steps):
    window, at, added = Window(DAY_SECONDS), NOW, []
    for seconds, count in steps:
        at += seconds * SECOND
        window.add(count, at)
        added.append((at, count))
    bucket = DAY_SECONDS * SECOND // 144
    within = sum(count for when, count in added if at - when <= DAY_SECONDS * SECOND - bucket)
    at_most = sum(count for when, count in added if at - when <= DAY_SECONDS * SECOND + bucket)
    assert within <= window.total(at) <= at_most
    assert len(window.buckets) <= 145


def test_errors_of_a_clock_that_was_ahead_are_not_kept_for_ever():
    window = Window(DAY_SECONDS)
    window.add(5, NOW + 400 * DAY_SECONDS * SECOND)
    assert window.total(NOW) == 5
    assert window.total(NOW + (DAY_SECONDS + 601) * SECOND) == 0


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 5)), max_size=60))
def test_whatever_the_times_every_error_is_told_once(steps):
    errors, at, count, told = ErrorCount(Window(DAY_SECONDS)), NOW, 0, 0
    errors.see(0, at)
    for seconds, more in steps:
        at += seconds * SECOND
        count += more
        errors.see(count, at)
        told += errors.tell(at)
    assert told + errors.tell(at + TELL_AGAIN_US) == count


def test_a_count_is_the_same_after_it_was_stored():
    errors = ErrorCount(Window(DAY_SECONDS))
    errors.see(1, NOW)
    errors.see(4, NOW)
    assert ErrorCount.load(DAY_SECONDS, errors.dump()) == errors
