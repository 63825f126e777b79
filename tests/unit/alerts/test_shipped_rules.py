"""The rules that come with hallwatch: each proves itself by the tests in its own file."""

from pathlib import Path

import pytest

from alerts.ruleset import check_rules
from alerts.ruletest import run_rule_tests

CHECKOUT = Path(__file__).resolve().parents[3]
RULES = check_rules()


@pytest.mark.parametrize("result", run_rule_tests(RULES), ids=lambda result: f"{result.rule}: {result.test}")
def test_every_test_in_a_rule_file_passes(result) -> None:
    assert result.problems == ()


@pytest.mark.parametrize("rule", RULES.rules, ids=lambda rule: rule.rule)
def test_every_rule_has_tests_an_owner_and_a_summary(rule) -> None:
    assert rule.tests
    assert rule.owner
    assert rule.summary
