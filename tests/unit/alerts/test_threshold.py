"""The threshold kind: sequences of samples against the transitions they must lead to.

x hot, . cool, ~ between the two conditions, ? unknown, a blank is a second without a row.
"""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.evaluator import Evaluator
from alerts.testing import Feed, judge, margins, rule_text, rules_of, verdicts

FIRES, CLEARS = "firing", ("ended", "cleared")


def run(pattern, *, every=1, **rule):
    evaluator = Evaluator(rules_of(rule_text(**rule)), "demo")
    drafts = judge(evaluator, margins(Feed(), pattern, every=every))
    return [(at, what) if what == "firing" else (at, (what, why)) for at, what, _, why in verdicts(drafts)]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("....", []),
        ("..x.", [(2, FIRES), (3, CLEARS)]),
        ("xxxx", [(0, FIRES)]),
        ("x.x.", [(0, FIRES), (1, CLEARS), (2, FIRES), (3, CLEARS)]),
        ("????", []),
        ("x??x", [(0, FIRES)]),
        ("x??.", [(0, FIRES), (3, CLEARS)]),
        ("x     .", [(0, FIRES), (6, CLEARS)]),
    ],
)
def test_without_for_the_first_true_row_fires_and_the_first_false_one_ends(pattern, expected) -> None:
    assert run(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("xxxxx", []),
        ("xxxxxx", [(5, FIRES)]),
        ("xxxx.xxxx.xxxx.", []),
        ("xxxx.xxxxxx", [(10, FIRES)]),
        ("xx??xxxxx", [(7, FIRES)]),
        ("xxx         xxx", []),
        ("xxx         xxxx", [(15, FIRES)]),
        ("xx.         xxxxx", []),
    ],
    ids=[
        "one second short",
        "exactly for",
        "broken again and again",
        "begins anew after a false row",
        "unknown time is not counted",
        "a gap is not counted",
        "time before and after a gap adds up",
        "a false row before a gap breaks",
    ],
)
def test_for_counts_only_time_that_is_known_about(pattern, expected) -> None:
    assert run(pattern, for_="5s") == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("xx.xx.xx.xx.", [(10, FIRES), (11, CLEARS)]),
        ("x.x.x.x.x.x.x.x.", []),
        ("x....xxxxxxxxxxxx", [(10, FIRES)]),
        ("x.....xxxxxxxxxxx", [(16, FIRES)]),
        ("x?x?x?x?x?x?x?x?x?x?x?x?", [(20, FIRES)]),
    ],
    ids=[
        "two of three is above 0.6",
        "half is below 0.6",
        "four false of ten are allowed",
        "five are not, and it begins anew",
        "unknown counts as neither",
    ],
)
def test_min_duty_lets_noise_pass_that_strict_for_would_shatter(pattern, expected) -> None:
    assert run(pattern, for_="10s", min_duty=0.6) == expected


def test_strict_for_shatters_on_the_same_noise() -> None:
    """The reason for min_duty: the same samples under a strict `for`."""
    assert run("xx.xx.xx.xx.", for_="10s") == []


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x~~~x~~.", [(0, FIRES), (7, CLEARS)]),
        ("x~~~~~~~", [(0, FIRES)]),
        (".~~~", []),
    ],
)
def test_between_the_conditions_nothing_changes(pattern, expected) -> None:
    assert run(pattern, clear="temperature_margin_celsius > 3") == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x.....", [(0, FIRES), (5, CLEARS)]),
        ("x...x....", [(0, FIRES)]),
        ("x...~....", [(0, FIRES)]),
        ("x..?...", [(0, FIRES), (6, CLEARS)]),
        ("x..          ..", [(0, FIRES)]),
        ("x..          ....", [(0, FIRES), (16, CLEARS)]),
    ],
    ids=[
        "clear for four seconds",
        "true again begins anew",
        "not clear begins anew",
        "unknown is not counted",
        "frozen while silent",
        "goes on after the silence",
    ],
)
def test_keep_firing_is_frozen_while_the_source_is_silent(pattern, expected) -> None:
    rule = {"clear": "temperature_margin_celsius > 3", "keep_firing": "4s"}
    assert run(pattern, **rule) == expected


def test_silence_never_ends_an_alert() -> None:
    evaluator = Evaluator(rules_of(rule_text()), "demo")
    drafts = judge(evaluator, margins(Feed(), "xx"), until=90_000, every=60)
    assert [what for _, what, _, _ in verdicts(drafts)] == ["firing"]


@pytest.mark.parametrize("every", [1, 2, 10, 15, 30])
def test_an_entity_is_judged_by_its_own_interval(every) -> None:
    """DCGM exporters are read every 1 to 30 s; a gap is three of their intervals, not of the stream's."""
    pattern = "x" * (60 // every + 1)
    assert run(pattern, every=every, for_="45s", min_duty=0.6) == [(-(-45 // every) * every, FIRES)]


def test_an_interval_that_grew_once_is_learned_and_shrinks_at_once() -> None:
    feed = Feed()
    rows = [
        feed.gpu(at, temperature_margin_celsius=-1.0) for at in (0, 1, 2, 3, 53, 54, 55, 56, 57, 107, 108)
    ]
    evaluator = Evaluator(rules_of(rule_text(for_="9s")), "demo")
    # 3 s, a gap, 4 s, a gap, 1 s: eight known seconds in all.
    assert verdicts(judge(evaluator, rows)) == []
    assert verdicts(judge(evaluator, [feed.gpu(109, temperature_margin_celsius=-1.0)])) == [
        (109, "firing", "GPU-1", None)
    ]


def test_rows_that_are_not_newer_than_their_entitys_last_are_skipped_and_counted() -> None:
    feed = Feed()
    evaluator = Evaluator(rules_of(rule_text(for_="3s")), "demo")
    rows = margins(feed, "xxx")
    late = [
        feed.gpu(2.2, ahead=-1.2, temperature_margin_celsius=10.0),
        feed.gpu(2.4, ahead=-0.4, temperature_margin_celsius=10.0),
    ]
    drafts = judge(evaluator, [*rows, *late, feed.gpu(3, temperature_margin_celsius=-1.0)])
    assert verdicts(drafts) == [(3, "firing", "GPU-1", None)]
    assert evaluator.skipped()["gpu_samples"] == 2


def test_a_clock_that_was_ahead_and_is_set_right_loses_nothing() -> None:
    """Without a bound on event time an hour of rows would not be newer than the last."""
    feed = Feed()
    wrong = [feed.gpu(at, ahead=3600, temperature_margin_celsius=10.0) for at in range(5)]
    right = [feed.gpu(at, temperature_margin_celsius=-1.0) for at in range(20, 40)]
    evaluator = Evaluator(rules_of(rule_text(for_="10s")), "demo")
    assert [at for at, *_ in verdicts(judge(evaluator, [*wrong, *right]))] == [30]


def test_entities_do_not_disturb_each_other() -> None:
    feed = Feed()
    rows = margins(feed, "xxxxxxxx", gpu="GPU-1") + margins(feed, "x..xxxxx", gpu="GPU-2")
    evaluator = Evaluator(rules_of(rule_text(for_="4s")), "demo")
    assert verdicts(judge(evaluator, rows)) == [
        (4, "firing", "GPU-1", None),
        (7, "firing", "GPU-2", None),
    ]


def test_an_entity_of_several_columns_is_named_by_all_of_them() -> None:
    feed = Feed()
    rule = rule_text(on="gpu_links", entity=["host", "gpu_uuid", "link"], when="link_state = 'down'")
    rows = [feed.row("gpu_links", at, gpu_uuid="GPU-1", link=at, link_state="down") for at in (3, 4)]
    drafts = judge(Evaluator(rules_of(rule), "demo"), rows)
    assert [entity for _, _, entity, _ in verdicts(drafts)] == ["h1/GPU-1/3", "h1/GPU-1/4"]


def test_a_row_that_names_no_entity_is_ignored() -> None:
    rule = rule_text(entity="hpc_job", when="power_watts > 600")
    feed = Feed()
    rows = [feed.gpu(0, power_watts=700.0), feed.gpu(1, "GPU-2", power_watts=700.0, hpc_job="train")]
    drafts = judge(Evaluator(rules_of(rule), "demo"), rows)
    assert verdicts(drafts) == [(1, "firing", "train", None)]


def test_a_transition_carries_the_row_that_decided_and_when_it_began() -> None:
    drafts = judge(Evaluator(rules_of(rule_text(for_="3s")), "demo"), margins(Feed(), "..xxxxx"))
    (draft,) = drafts
    assert (draft.began_us - draft.ts_us) / 1e6 == -3
    assert '"temperature_margin_celsius":-1.0' in (draft.evidence or "")
    assert '"ts":"2026-06-01T00:00:05.000000Z"' in (draft.evidence or "")
    assert draft.evidence_ts_us == draft.ts_us
    assert (draft.host, draft.entity_kind, draft.summary) == ("h1", "gpu_uuid", "GPU-1 is hot")


def test_a_firing_alert_of_a_retired_asset_is_superseded() -> None:
    feed = Feed()
    rows = [
        feed.asset(0, "h1", "host", None),
        feed.asset(0, "GPU-1", "gpu", "h1"),
        feed.asset(0, "GPU-2", "gpu", "h1"),
        *margins(feed, "xxxxx", gpu="GPU-1"),
        *margins(feed, "xxxxx", gpu="GPU-2"),
        feed.asset(2, "GPU-1", "gpu", "h1", "retired"),
    ]
    evaluator = Evaluator(rules_of(rule_text(for_="1s")), "demo")
    found = verdicts(judge(evaluator, rows))
    assert (2, "ended", "GPU-1", "superseded") in found
    assert [entity for (_, entity), _ in evaluator.open_alerts().items()] == ["GPU-2", "GPU-1"]


def reference(pattern, *, for_s, min_duty, keep_s, clear_is_given):
    """Return the transitions of one entity by a loop that a person can follow; one row per second."""
    found: list[tuple[int, object]] = []
    phase, last = "idle", None
    known = false = 0
    clear_for = None
    for at, sign in enumerate(pattern):
        if sign == " ":
            continue
        step = at - last if last is not None else 0
        last = at
        if phase == "pending" and sign != "?":
            known += step
            false += step if sign != "x" else 0
            broken = false > (1 - min_duty) * for_s or (min_duty == 1.0 and sign != "x")
            phase = "idle" if broken else "pending"
        if phase == "firing":
            clear = sign == "." or (sign == "~" and not clear_is_given)
            if clear:
                clear_for = 0 if clear_for is None else clear_for + step
            elif sign != "?":
                clear_for = None
            if clear and clear_for >= keep_s:
                found.append((at, CLEARS))
                phase = "idle"
        elif sign == "x":
            if phase == "idle":
                phase, known, false = "pending", 0, 0
            if known >= for_s:
                found.append((at, FIRES))
                phase, clear_for = "firing", None
    return found


@settings(max_examples=60, deadline=None)
@given(
    # No gap: a longer one teaches another pace, which the reference does not know.
    st.text("xxx..~? ", min_size=2, max_size=40).map(lambda text: ".." + re.sub(" {3,}", "  ", text)),
    st.integers(0, 6),
    st.sampled_from([1.0, 0.75, 0.5]),
    st.integers(0, 3),
    st.booleans(),
)
def test_all_entities_at_once_are_judged_as_one_would_be_by_hand(
    pattern, for_s, min_duty, keep_s, clear_is_given
) -> None:
    clear = {"clear": "temperature_margin_celsius > 3"} if clear_is_given else {}
    duration = {"for_": f"{for_s}s", "keep_firing": f"{keep_s}s", "min_duty": min_duty}
    expected = reference(
        pattern, for_s=for_s, min_duty=min_duty, keep_s=keep_s, clear_is_given=clear_is_given
    )
    assert run(pattern, **duration, **clear) == expected
