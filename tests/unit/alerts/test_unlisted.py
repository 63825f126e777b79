"""The unlisted kind: who reports without being known."""

from alerts.evaluator import Evaluator
from alerts.testing import Feed, judge, rule_text, rules_of, verdicts


def rules():
    text = rule_text(rule="unknown", kind="unlisted", expect="gpu", after="60s", expires="1h")
    del text["when"]
    return rules_of(text)


def listed(feed, *gpus):
    return [feed.asset(0, "h1", "host", None), *(feed.asset(0, gpu, "gpu", "h1") for gpu in gpus)]


def test_a_stranger_is_told_after_the_inventory_had_time_to_follow() -> None:
    feed = Feed()
    rows = listed(feed, "GPU-1") + [feed.gpu(at, gpu) for at in range(100) for gpu in ("GPU-1", "GPU-2")]
    (draft,) = judge(Evaluator(rules(), "demo"), rows)
    assert verdicts([draft]) == [(60, "firing", "GPU-2", None)]
    assert draft.host == "h1"


def test_a_stranger_that_left_is_not_told_and_one_that_was_told_expires() -> None:
    feed = Feed()
    rows = listed(feed, "GPU-1") + [feed.gpu(at, "GPU-2") for at in range(30)]
    rows += [feed.gpu(at, "GPU-3") for at in range(100)]
    found = verdicts(judge(Evaluator(rules(), "demo"), rows, until=3_800, every=10))
    assert found == [(60, "firing", "GPU-3", None), (3_700, "ended", "GPU-3", "expired")]


def test_a_retired_asset_that_still_reports_is_a_stranger() -> None:
    feed = Feed()
    rows = listed(feed, "GPU-1", "GPU-2") + [feed.gpu(at, "GPU-2") for at in range(200)]
    rows.append(feed.asset(100, "GPU-2", "gpu", "h1", "retired"))
    drafts = judge(Evaluator(rules(), "demo"), rows)
    assert verdicts(drafts) == [(160, "firing", "GPU-2", None)]
    assert '"listed":"as gpu, retired"' in (drafts[0].evidence or "")


def test_without_any_inventory_nobody_is_a_stranger() -> None:
    feed = Feed()
    assert judge(Evaluator(rules(), "demo"), [feed.gpu(at) for at in range(100)]) == []
