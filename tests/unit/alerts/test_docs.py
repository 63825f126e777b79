"""The page of rules, beside what it is made from."""

from alerts.docs import EXAMPLE, rules_page
from alerts.ruleset import check_rules
from alerts.ruletest import run_rule_tests
from alerts.watcher import KINDS

PAGE = rules_page()


def test_the_example_is_a_rule_and_does_what_its_tests_say(tmp_path):
    file = tmp_path / "example.yaml"
    file.write_text(EXAMPLE, encoding="utf-8")
    results = run_rule_tests(check_rules([file]))
    assert len(results) == 2
    assert [problem for result in results for problem in result.problems] == []


def test_the_table_has_one_row_of_equal_width_for_every_shipped_rule():
    head = PAGE.index("| rule | kind |")
    rows = PAGE[head : PAGE.index("\n\n", head)].splitlines()
    cells = [row.replace(r"\|", "").count("|") for row in rows]
    assert cells == [cells[0]] * len(rows)
    assert [row.split("]")[0].removeprefix("| [") for row in rows[2:]] == [
        rule.rule for rule in check_rules().rules
    ]


def test_every_field_of_every_kind_is_named_as_a_rule_file_writes_it():
    for name, kind in KINDS.all().items():
        section = PAGE.split(f"### kind: {name}\n")[1].split("\n### ")[0]
        for field in kind.model.__annotations__.keys() & kind.model.model_fields.keys():
            assert f"| `{kind.model.model_fields[field].alias or field}` |" in section
