"""`hallwatch rules`: is what a person wrote a rule, and does it do what its tests say."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import click

from contract.log import set_up_logging
from hallwatch.terminal import counted

PATHS = click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))


@click.group()
def rules() -> None:
    """Check rule files and run the tests in them; without PATHS, the shipped rules."""


@rules.command()
@PATHS
def check(paths: tuple[Path, ...]) -> None:
    """Check rule files or folders; every problem is told with file, line and rule."""
    from alerts.ruleset import check_rules

    ruleset = check_rules(paths)
    kinds = Counter(rule.kind for rule in ruleset.rules)
    tests = sum(len(rule.tests) for rule in ruleset.rules)
    command = shlex.join(["hallwatch", "rules", "test", *map(str, paths)])
    click.echo(
        f"good: {counted(len(ruleset.rules), 'rule')} ({', '.join(f'{n} {kind}' for kind, n in kinds.items())}) "
        f"with {counted(tests, 'test')}, which `{command}` runs"
    )


@rules.command()
@PATHS
@click.option("--verbose", "-v", is_flag=True, help="Name the tests that passed, too.")
def test(paths: tuple[Path, ...], verbose: bool) -> None:
    """Run the tests inside rule files: rows in, transitions out, and nothing else. Exit code 1 if one fails."""
    from alerts.ruleset import check_rules
    from alerts.ruletest import run_rule_tests

    set_up_logging()  # a rule that breaks is logged, with why
    results = run_rule_tests(check_rules(paths))
    for result in results:
        if verbose or not result.passed:
            click.echo(f"{'passed' if result.passed else 'FAILED'}  {result.rule}: {result.test}")
        for problem in result.problems:
            click.echo(f"        {problem}")
    failed = sum(not result.passed for result in results)
    click.echo(f"{len(results) - failed} passed, {failed} failed")
    if failed:
        raise click.exceptions.Exit(1)
