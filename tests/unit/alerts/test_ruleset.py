"""Rule files: what is wrong is told with its file, its line and its rule, all of it at once."""

from pathlib import Path

import pytest

from alerts.kinds.threshold import ThresholdRule
from alerts.ruleset import RuleSet, check_rules
from alerts.ruletest import run_rule_tests
from contract.errors import ConfigError

GOOD = """\
- rule: hot
  on: gpu_samples
  entity: gpu_uuid
  when: temperature_margin_celsius <= 0
  for: 45s
  severity: major
  owner: hall-operations
  summary: "{gpu_uuid} on {host} is hot"
"""


def problems(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        check_rules([tmp_path / "a.yaml"])
    return [line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines()]


def test_a_good_file_is_a_rule_set(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (rule,) = check_rules([tmp_path]).rules
    assert isinstance(rule, ThresholdRule)
    assert (rule.rule, rule.kind, rule.for_us, rule.page) == (
        "hot",
        "threshold",
        45_000_000,
        "docs/runbooks/hot.md",
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("on: gpu_samples", "on: gpu_sample"), "a.yaml:2: rule hot: on: there is no stream 'gpu_sample'"),
        (("on: gpu_samples", "on: alerts"), "a.yaml:2: rule hot: on: alerts is written from alerts"),
        (("on: gpu_samples", "on: notifications"), "a.yaml:2: rule hot: on: notifications is written from"),
        (("entity: gpu_uuid", "entity: gpu"), "a.yaml:3: rule hot: entity: gpu_samples has no column 'gpu'"),
        (("entity: gpu_uuid", "entity: ts"), "a.yaml:3: rule hot: entity: ts is a time"),
        (("margin_celsius <= 0", "margin <= 0"), "a.yaml:4: rule hot: when: gpu_samples has no column"),
        (("margin_celsius <= 0", "margin_celsius"), "a.yaml:4: rule hot: when: gives FLOAT"),
        (("for: 45s", "for: 45"), "a.yaml:5: rule hot: for: a duration is written like 45s"),
        (("for: 45s", "for: 45 parsecs"), "a.yaml:5: rule hot: for: a duration is written like 45s"),
        (("for: 45s", "for: 45s\n  min_duty: 1.5"), "a.yaml:6: rule hot: min_duty: Input should be less"),
        (("for: 45s", "fro: 45s"), "a.yaml:5: rule hot: fro: this field is not known"),
        (("severity: major", "severity: bad"), "a.yaml:6: rule hot: severity: Input should be 'info'"),
        (("  owner: hall-operations\n", ""), "a.yaml:1: rule hot: owner: this field is missing"),
        (("{gpu_uuid}", "{gpu}"), "a.yaml:8: rule hot: summary: {gpu} is neither a column"),
        (("{gpu_uuid}", "{gpu_uuid:>3}"), "a.yaml:8: rule hot: summary: write {column} and nothing else"),
        (("{gpu_uuid}", "{"), "a.yaml:8: rule hot: summary: "),
        (("rule: hot", "rule: Hot!"), "a.yaml:1: rule Hot!: rule: String should match"),
        (("on: gpu_samples", "on: gpu_samples\n  kind: magic"), "a.yaml:3: rule hot: kind: one of absence, "),
        (("on: gpu_samples", "on: gpu_samples\n  on: gpu_samples"), "a.yaml:3: 0.on: again, first on line 2"),
        (("on: gpu_samples", "on: gpu_events"), "a.yaml:5: rule hot: for: gpu_events holds events"),
        (("- rule: hot", "rule: hot"), "a.yaml:2: not YAML"),
        (("- rule: hot\n", "- hot\n- rule: hot\n"), "a.yaml:1: 0: a rule is a mapping"),
        (("for: 45s", "for: [45s"), "a.yaml:6: not YAML"),
    ],
)
def test_each_mistake_is_told_with_its_place(tmp_path, change, expected) -> None:
    found = problems(tmp_path, GOOD.replace(*change))
    assert any(line.startswith(expected) for line in found), found


def test_all_mistakes_of_all_files_are_told_at_once(tmp_path) -> None:
    (tmp_path / "b.yaml").write_text(GOOD.replace("severity: major", "severity: bad"))
    (tmp_path / "c.yaml").write_text(GOOD.replace("gpu_samples", "nothing").replace("for: 45s", "for: 4"))
    with pytest.raises(ConfigError) as caught:
        check_rules([tmp_path, tmp_path / "missing.yaml"])
    text = str(caught.value)
    for part in ("b.yaml:6", "c.yaml:5", "missing.yaml: there is no such", "a name is used once"):
        assert part in text


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ("kind: absence\n  expect: gpu\n  after: 60s", "on"),
        ("kind: absence\n  expect: bus\n  after: 60s\n  on: gpu_samples", "on"),
        ("kind: absence\n  expect: host\n  after: 60s\n  on: collector_status", "on"),
        ("kind: absence\n  expect: bus\n  after: 60s\n  expires: 1d", "expires"),
        (
            "kind: event_count\n  on: gpu_events\n  entity: gpu_uuid\n  when: 'true'\n  expires: 1h\n  burst_by: [code]",
            "burst_by",
        ),
        (
            "kind: event_count\n  on: gpu_events\n  entity: gpu_uuid\n  when: 'true'\n  expires: 1h\n  distinct: nothing",
            "burst_by",
        ),
        (
            "kind: event_count\n  on: gpu_events\n  entity: gpu_uuid\n  when: 'true'\n  expires: 1h\n  entity_else: ts",
            "entity_else",
        ),
    ],
)
def test_kinds_have_checks_of_their_own(tmp_path, extra, field) -> None:
    text = f"- rule: one\n  {extra}\n  severity: minor\n  owner: x\n  summary: s\n"
    assert any(f"rule one: {field}: " in line for line in problems(tmp_path, text))


def test_yaml_that_grows_without_bound_is_refused(tmp_path) -> None:
    bomb = "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10) if n else 'x, x'}]\n" for n in range(9))
    assert "an alias" in "\n".join(problems(tmp_path, f"- rule: hot\n  on:\n{bomb.replace('- &', '  - &')}"))


def test_a_rule_set_comes_back_from_the_texts_that_the_journal_keeps() -> None:
    shipped = check_rules()
    again = RuleSet.from_texts(shipped.texts)
    assert again.digest == shipped.digest
    assert [r.model_copy(update={"tests": ()}) for r in shipped.rules] == list(again.rules)


def test_a_digest_changes_with_the_rules_and_not_with_their_tests(tmp_path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(GOOD)
    first = check_rules([file]).digest
    file.write_text(GOOD + "  tests:\n    - {test: t, rows: [], expect: []}\n")
    assert check_rules([file]).digest == first
    file.write_text(GOOD.replace("45s", "46s"))
    assert check_rules([file]).digest != first


TESTED = (
    GOOD
    + """\
  tests:
    - test: fires
      rows:
        - {from: 0s, to: 50s, every: 1s, gpu_uuid: GPU-1, temperature_margin_celsius: 0}
      expect:
        - {at: 45s, firing: GPU-1}
    - test: says what is missing and what was too much
      rows:
        - {from: 0s, to: 50s, every: 1s, gpu_uuid: GPU-1, temperature_margin_celsius: 0}
      expect:
        - {at: 44s, firing: GPU-1}
    - test: nothing else may happen
      rows:
        - {from: 0s, to: 50s, every: 1s, gpu_uuid: GPU-1, temperature_margin_celsius: 0}
      expect: []
    - test: a row must fit its stream
      rows:
        - {at: 0s, gpu: GPU-1}
      expect: []
"""
)


def test_tests_in_a_rule_file_compare_every_transition(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text(TESTED)
    good, moved, more, bad = run_rule_tests(check_rules([tmp_path / "a.yaml"]))
    assert good.passed
    assert moved.problems == (
        "expected, not seen: at 44s firing GPU-1",
        "seen, not expected: at 45s firing GPU-1",
    )
    assert more.problems == ("seen, not expected: at 45s firing GPU-1",)
    assert "no column 'gpu'" in bad.problems[0]


def test_an_expectation_of_a_test_is_checked_too(tmp_path) -> None:
    text = TESTED.replace("{at: 45s, firing: GPU-1}", "{at: 45s, ended: GPU-1}")
    assert any("an end has a `reason`" in line for line in problems(tmp_path, text))
