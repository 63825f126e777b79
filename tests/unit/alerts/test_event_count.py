"""The event_count kind: how many events of one entity within a window."""

from typing import Any

import pytest

from alerts.evaluator import Evaluator
from alerts.testing import Feed, judge, rule_text, rules_of, verdicts


def rule(**fields):
    base = {
        "rule": "xid",
        "kind": "event_count",
        "on": "gpu_events",
        "when": "event = 'xid' AND code IN (48, 63, 79)",
        "within": "60s",
        "expires": "300s",
    }
    return rules_of(rule_text(**base | fields))


def run(rows, until=0, **fields):
    return verdicts(judge(Evaluator(rule(**fields), "demo"), rows, until=until))


def test_one_event_fires_and_expires_when_no_other_follows() -> None:
    feed = Feed()
    assert run([feed.event(10, 79)], until=400) == [
        (10, "firing", "GPU-1", None),
        (310, "ended", "GPU-1", "expired"),
    ]


def test_each_further_event_puts_the_end_off() -> None:
    feed = Feed()
    rows = [feed.event(at, 79) for at in (10, 200, 400)]
    assert [at for at, *_ in run(rows, until=800)] == [10, 700]


@pytest.mark.parametrize(
    ("times", "fires"),
    [((0, 10, 20), 20), ((0, 30, 61, 91), None), ((0, 30, 60), 60), ((0, 50, 70, 100), 100), ((0, 1), None)],
)
def test_a_count_needs_its_events_within_the_window(times, fires) -> None:
    feed = Feed()
    found = run([feed.event(at, 79) for at in times], count=3)
    assert [at for at, *_ in found] == ([fires] if fires is not None else [])


def test_distinct_counts_different_values_not_events() -> None:
    feed = Feed()
    rows = [feed.event(at, code) for at, code in ((0, 79), (1, 79), (2, 79), (3, 48))]
    assert [at for at, *_ in run(rows, count=2, distinct="code")] == [3]


def test_repeats_of_a_burst_are_one_event() -> None:
    """The kernel repeats a line; the log, a counter and a last code show the same fault."""
    feed = Feed()
    burst = {"count": 2, "burst_by": ["code"], "burst_gap": "20s", "within": "10m"}
    repeats = [feed.event(at, 79) for at in (0, 1, 15, 30)]
    evidence = [feed.event(31, 79, evidence="last_code"), feed.event(32, 79, evidence="window_count")]
    assert run([*repeats, *evidence], **burst) == []
    later = Feed()
    again = [*(later.event(at, 79) for at in (0, 1)), later.event(60, 79)]
    assert [at for at, *_ in run(again, **burst)] == [60]


def test_codes_of_one_moment_are_different_events() -> None:
    """Two Xids of one scrape share their time: neither is skipped as not newer."""
    feed = Feed()
    rows = [feed.event(5, 48), feed.event(5, 63)]
    assert [at for at, *_ in run(rows, count=2, burst_by=["code"], burst_gap="20s")] == [5]


def test_events_that_arrive_in_the_wrong_order_count_in_their_own_time() -> None:
    feed = Feed()
    rows = [feed.event(100, 79), feed.event(102, 79)]
    late = feed.row(
        "gpu_events", 103, ahead=-50, event="xid", evidence="kernel_log", code=79, gpu_uuid="GPU-1"
    )
    assert [at for at, *_ in run([*rows, late], count=3)] == [53]


def test_an_event_without_a_gpu_is_about_its_host() -> None:
    feed = Feed()
    found = run([feed.event(1, 79, None, host="h7")], entity_else="host")
    assert found == [(1, "firing", "h7", None)]
    assert run([Feed().event(1, 79, None, host="h7")]) == []


def test_a_clearing_event_ends_the_alert_at_once() -> None:
    feed = Feed()
    rows = [feed.event(1, 79), feed.event(20, 0, event="reset")]
    assert run(rows, clear="event = 'reset'") == [
        (1, "firing", "GPU-1", None),
        (20, "ended", "GPU-1", "cleared"),
    ]


def test_nothing_expires_while_the_partition_is_behind() -> None:
    """What was not read yet may hold the event that puts the end off."""
    from alerts.watcher import Tick
    from contract.testing import START_US

    feed = Feed()
    evaluator = Evaluator(rule(), "demo")
    judge(evaluator, [feed.event(10, 79)])
    now_us = START_US + 900_000_000
    behind = {("gpu_events", 3): START_US + 20_000_000}
    assert evaluator.apply([], Tick(now_us=now_us, behind=behind)) == []
    assert verdicts(evaluator.apply([], Tick(now_us=now_us, behind={}))) == [
        (900, "ended", "GPU-1", "expired")
    ]


def test_a_clock_that_is_set_back_hides_no_event_and_makes_no_repeat_a_new_one() -> None:
    feed = Feed()
    back: dict[str, Any] = {"ahead": -3 * 3600}
    rows = [
        feed.event(10, 79),
        feed.event(20, 79, **back),
        feed.event(21, 63, **back),
        feed.event(22, 63, **back),
    ]
    fields = {"burst_by": ["code"], "burst_gap": "3m"}
    assert run(rows, count=3, **fields) == []
    assert run([*rows, feed.event(23, 48, **back)], count=3, **fields) == [
        (23 - 3 * 3600, "firing", "GPU-1", None)
    ]


def test_a_count_of_repeats_that_is_told_late_is_no_clock_that_was_set() -> None:
    feed = Feed()
    rows = [feed.event(250, 79), feed.event(260, 63, ahead=-160), feed.event(285, 79)]
    fields = {"burst_by": ["code"], "burst_gap": "3m", "within": "10m"}
    assert run(rows, count=3, **fields) == []
    assert [verdict[0] for verdict in run(rows, count=2, **fields)] == [100]


def test_memory_of_one_entity_is_bounded() -> None:
    from alerts.kinds.event_count import MAX_KEPT

    feed = Feed()
    evaluator = Evaluator(rule(count=MAX_KEPT, within="24h"), "demo")
    judge(evaluator, [feed.event(at / 100, 79) for at in range(3 * MAX_KEPT)])
    (history,) = evaluator.dump()["watchers"]["xid"]["own"]["histories"].values()
    assert len(history["times_us"]) == MAX_KEPT
