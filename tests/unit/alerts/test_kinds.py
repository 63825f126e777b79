"""A rule kind is one file: nothing else changes when one is added."""

import importlib
import sys

import pytest

import alerts.kinds
from alerts.evaluator import Evaluator
from alerts.ruleset import check_rules
from alerts.testing import Feed, in_order, judge, rule_text, rules_of, verdicts
from alerts.watcher import KINDS, Tick
from contract.testing import START_US

PLUGIN = '''
"""`every`: fires for each entity seen."""
from alerts.rule import Rule
from alerts.watcher import Watcher, kind


class EveryRule(Rule):
    """Fires once per entity."""


@kind("every", EveryRule)
class EveryWatcher(Watcher[EveryRule]):
    """Fires on sight; breaks on an entity named `bad`."""

    def on_rows(self, frame):
        for row, values in enumerate(frame.values(range(frame.table.num_rows))):
            name = values["gpu_uuid"]
            if name == "bad":
                raise RuntimeError("cannot stand it")
            if name not in self.open:
                moment = self.at_row(frame, row, values)
                self.fire(name, kind="gpu_uuid", host=None, began_us=0, moment=moment, words=values)
'''


@pytest.fixture
def every_kind(tmp_path, monkeypatch):
    """Put a folder with one more kind on the package's path."""
    (tmp_path / "every.py").write_text(PLUGIN)
    monkeypatch.setattr(alerts.kinds, "__path__", [*alerts.kinds.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("alerts.kinds.every", None)
    KINDS._found.pop("every", None)


def text(**fields):
    values = rule_text(rule="every", kind="every", **fields)
    del values["when"]
    return values


@pytest.mark.usefixtures("every_kind")
def test_a_file_on_the_path_is_a_kind() -> None:
    feed = Feed()
    found = judge(Evaluator(rules_of(text()), "demo"), [feed.gpu(1, "a"), feed.gpu(2, "b"), feed.gpu(3, "a")])
    assert verdicts(found) == [(1, "firing", "a", None), (2, "firing", "b", None)]


@pytest.mark.usefixtures("every_kind")
def test_a_kind_that_breaks_stops_its_rule_is_raised_and_leaves_the_others_alone() -> None:
    feed = Feed()
    rows = [
        feed.gpu(1, "a"),
        feed.gpu(2, "bad"),
        feed.gpu(3, "b"),
        feed.gpu(4, "c", temperature_margin_celsius=-1.0),
    ]
    evaluator = Evaluator(rules_of(text(), rule_text()), "demo")
    found = [(d.rule.rule, d.entity) for d in judge(evaluator, rows, ticks=True)]
    assert found == [("every", "a"), ("rule-failing", "every"), ("hot", "c")]
    restarted = evaluator.apply(in_order([feed.gpu(9, "d")]), None, start=True)
    assert [(d.rule.rule, d.entity) for d in restarted] == [("every", "d")]


def test_the_shipped_kinds_are_found() -> None:
    assert {"threshold", "event_count", "absence", "unlisted"} <= set(KINDS.all())
    assert {rule.kind for rule in check_rules().rules} <= set(KINDS.all())


def test_a_throwing_condition_is_quarantined_raised_and_trusted_again_later() -> None:
    feed = Feed()
    bad = rule_text(rule="bad", when="CAST(model AS INTEGER) > 3")
    evaluator = Evaluator(rules_of(bad, rule_text()), "demo")
    rows = [
        feed.gpu(0, "a", model="5"),
        feed.gpu(1, "b", model="H100", temperature_margin_celsius=-1.0),
        feed.gpu(2, "c", model="6"),
    ]
    drafts = judge(evaluator, rows, until=700, ticks=True)
    assert [(d.rule.rule, *verdict) for d, verdict in zip(drafts, verdicts(drafts), strict=True)] == [
        ("bad", 0, "firing", "a", None),
        ("hot", 1, "firing", "b", None),
        ("rule-failing", 1, "firing", "bad", None),
        ("bad", 2, "firing", "c", None),
        ("rule-failing", 601, "ended", "bad", "cleared"),
    ]
    assert "Could not convert string 'H100'" in drafts[2].summary


def test_an_alert_about_a_rule_that_is_no_more_ends_with_it() -> None:
    feed = Feed()
    evaluator = Evaluator(
        rules_of(rule_text(rule="bad", when="CAST(model AS INTEGER) > 3"), rule_text()), "demo"
    )
    judge(evaluator, [feed.gpu(1, "a", model="H100")], ticks=True)
    heir, drafts = evaluator.adopt(rules_of(rule_text()), Tick(now_us=START_US, behind={}))
    assert [(d.rule.rule, d.entity, d.end_reason) for d in drafts] == [("rule-failing", "bad", "superseded")]
    assert heir.open_alerts() == {}
