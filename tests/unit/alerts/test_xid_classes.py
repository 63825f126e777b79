"""Xid codes: each belongs to one class of rules, and none is overlooked."""

import pytest

from alerts.evaluator import Evaluator
from alerts.ruleset import RuleSet, check_rules
from alerts.testing import Feed, in_order
from ingest.kernel.codes import find_xid

RULES = [rule for rule in check_rules().rules if rule.rule.startswith("gpu-xid-")]
TELLS_WHAT_GOES_ON = {93, 106, 107, 121, 152, 153, 154, 162}
"""Wear limit, test messages, corrected link errors, unused units, recovery action, power smoothing that is back."""


@pytest.fixture(scope="module")
def raised():
    """Return which rules each code raises, read from an exporter that gives only the code."""
    texts = [rule.model_dump(by_alias=True, exclude_none=True, exclude={"tests"}) for rule in RULES]
    evaluator = Evaluator(RuleSet(RULES, texts), "demo")
    feed = Feed()
    rows = [
        feed.event(code, code, f"GPU-{code}", evidence="last_code", **find_xid(code).columns())
        for code in range(251)
    ]
    found: dict[int, list[str]] = {code: [] for code in range(251)}
    for draft in evaluator.apply(in_order(rows), None):
        found[int(draft.entity.removeprefix("GPU-"))].append(draft.rule.rule)
    return found


def test_no_code_belongs_to_two_classes_and_none_to_no_class(raised) -> None:
    assert {code for code, rules in raised.items() if len(rules) > 1} == set()
    assert {code for code, rules in raised.items() if not rules} == {0} | TELLS_WHAT_GOES_ON


@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 69])
def test_what_a_program_causes_tells_nobody(raised, code) -> None:
    (name,) = raised[code]
    (rule,) = [rule for rule in RULES if rule.rule == name]
    assert (rule.severity, rule.notify) == ("info", False)


@pytest.mark.parametrize("code", [48, 64, 74, 79, 95, 109, 119, 120, 140, 158])
def test_what_needs_a_reset_or_a_repair_is_critical(raised, code) -> None:
    assert raised[code] == ["gpu-xid-fatal"]


@pytest.mark.parametrize("code", [110, 151, 166, 168, 169, 170])
def test_what_concerns_security_goes_there(raised, code) -> None:
    assert raised[code] == ["gpu-xid-security"]


@pytest.mark.parametrize("code", [163, 164, 165])
def test_what_heat_and_power_cause_goes_to_the_facility(raised, code) -> None:
    assert raised[code] == ["gpu-xid-facility"]


@pytest.mark.parametrize("code", [171, 172])
def test_the_detail_of_a_double_bit_error_stands_for_it_where_it_hides_it(raised, code) -> None:
    assert raised[code] == ["gpu-xid-fatal"]


@pytest.mark.parametrize("code", [57, 61, 174, 200, 250])
def test_a_code_older_or_newer_than_the_table_is_told(raised, code) -> None:
    assert raised[code] == ["gpu-xid-unknown"]
