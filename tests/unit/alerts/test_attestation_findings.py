"""Findings of verifiers and the shipped rules: what decides an outcome is told, by one rule."""

from pathlib import Path

import pytest

from alerts.evaluator import Evaluator
from alerts.ruleset import check_rules
from alerts.testing import Feed, judge
from ingest.attestation.finding import Effect, Findings

RULES = check_rules([Path(__file__).resolve().parents[3] / "alerts/rules/attestation.yaml"])
TABLES = Findings.read("snp.tsv", "aci.tsv"), Findings.read("nitro.tsv")
CODES = {code: effect for table in TABLES for code, (_, effect, _) in table.rows.items()}

OUTCOMES = {
    Effect.FORGED: ("forged", "none", "checked"),
    Effect.UNKNOWN: ("unknown", "none", "checked"),
    Effect.UNCHECKED: ("unknown", "none", "could_not_check"),
    Effect.VIOLATED: ("genuine", "violated", "checked"),
    Effect.NOTE: ("genuine", "met", "checked"),
}


def rules_that_fire(code: str, effect: Effect) -> list[str]:
    verdict, policy, availability = OUTCOMES[effect]
    row = Feed().row(
        "attestation_results",
        10,
        kind="snp",
        digest="0" * 64,
        evaluated_at=0,
        verdict=verdict,
        policy=policy,
        availability=availability,
        debug=code == "debug_allowed",
        finding_codes=f" {code} ",
    )
    return [draft.rule.rule for draft in judge(Evaluator(RULES, "test"), [row])]


@pytest.mark.parametrize("code", [code for code, effect in CODES.items() if effect is not Effect.NOTE])
def test_a_finding_that_decides_is_told_by_one_rule(code):
    assert len(rules_that_fire(code, CODES[code])) == 1


@pytest.mark.parametrize("code", [code for code, effect in CODES.items() if effect is Effect.NOTE])
def test_a_finding_that_is_only_worth_noting_wakes_nobody(code):
    assert rules_that_fire(code, Effect.NOTE) == []
