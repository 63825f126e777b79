"""Runbooks: one for whatever can wake somebody, in one shape, with queries that run."""

import re
from pathlib import Path

import pytest

from alerts.quarantine import RULE_FAILING
from alerts.ruleset import check_rules
from analytics.query import connect

CHECKOUT = Path(__file__).resolve().parents[3]
FOLDER = CHECKOUT / "docs/runbooks"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("*.md"))}
RULES = [*check_rules().rules, RULE_FAILING]

SECTIONS = ["Overview", "Symptoms", "Procedure", "Verify"]

QUERIES = [
    pytest.param(query, id=f"{name}: {query.strip()[:60]}")
    for name, text in PAGES.items()
    for query in re.findall(r"^ *```sql\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
]

every_page = pytest.mark.parametrize("name", PAGES)
every_query = pytest.mark.parametrize("query", QUERIES)


@pytest.fixture(scope="module")
def empty_lake(tmp_path_factory):
    with connect(tmp_path_factory.mktemp("lake")) as lake:
        yield lake


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
def test_the_page_that_an_alert_names_is_there(rule):
    assert (CHECKOUT / rule.page).is_file()


def test_no_runbook_is_left_of_a_rule_that_is_gone():
    assert PAGES.keys() - {rule.rule for rule in RULES} == set()


@every_page
def test_a_runbook_bears_its_rules_name_and_has_the_four_sections_in_order(name):
    assert PAGES[name].startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", PAGES[name], re.MULTILINE) == SECTIONS


@every_query
def test_a_query_of_a_runbook_runs_on_a_lake_that_holds_nothing(query, empty_lake):
    empty_lake.arrow(query)


@every_query
def test_a_query_of_a_runbook_pastes_between_double_quotes_of_a_shell(query):
    assert not re.search(r'["`\\!]|\$\w', query)


def test_every_code_block_of_the_runbooks_is_a_query():
    assert sum(text.count("```") for text in PAGES.values()) == 2 * len(QUERIES) > 0


@every_page
def test_every_link_of_a_runbook_leads_to_a_file(name):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[name]):
        assert (FOLDER / target).is_file(), target


@every_page
def test_a_runbook_shows_by_a_query_how_to_see_the_fault_and_how_to_see_that_it_is_over(name):
    sections = dict(part.split("\n", 1) for part in re.split(r"^## ", PAGES[name], flags=re.MULTILINE)[1:])
    assert "```sql\n" in sections["Symptoms"]
    assert "```sql\n" in sections["Verify"]
