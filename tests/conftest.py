"""Settings of every test: the folder of real captures, Hypothesis profiles, runs in which nothing may skip."""

import os
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

CHECKOUT = Path(__file__).resolve().parents[1]
NO_SKIP = os.environ.get("HALLWATCH_NO_SKIP") == "1"

# A deadline measures the machine, not the code. "ci" draws the same examples in every run.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if NO_SKIP else "local")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Return the folder of real captures: HALLWATCH_VECTORS, else ../shared/vectors beside the checkout."""
    folder = Path(os.environ.get("HALLWATCH_VECTORS") or CHECKOUT / "../shared/vectors").resolve()
    if not folder.is_dir():
        pytest.skip("no real captures: HALLWATCH_VECTORS names no folder and ../shared/vectors is absent")
    return folder


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skips where nothing may skip."""
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a file that skips as a whole where nothing may skip."""
    report = yield
    refuse_skip(report)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that keeps its reason; an expected failure is not a skip."""
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}\n(a failure, because HALLWATCH_NO_SKIP=1 lets nothing skip)"
