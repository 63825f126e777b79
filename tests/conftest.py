"""Settings of every test: real captures, a real broker, Hypothesis profiles, runs in which nothing may skip."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.suites.broker import Broker

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


@pytest.fixture(scope="session")
def start_broker() -> Callable[..., Broker]:
    """Return what starts a Kafka broker, or skips with the reason where this machine cannot."""
    from tests.suites.broker import Broker, BrokerMissingError

    def start(folder: Path, **options: Any) -> Broker:
        try:
            return Broker(folder, **options).start()
        except BrokerMissingError as error:
            pytest.skip(str(error))

    return start


@pytest.fixture(scope="session")
def kafka_broker(
    tmp_path_factory: pytest.TempPathFactory, start_broker: Callable[..., Broker]
) -> Iterator[Broker]:
    """Return a running Kafka broker that all tests share: name topics uniquely, and leave it running."""
    with start_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="module")
def file_broker(
    tmp_path_factory: pytest.TempPathFactory, start_broker: Callable[..., Broker]
) -> Iterator[Broker]:
    """Return a broker that the tests of one file share: they may stop it, and leave it running."""
    with start_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def own_broker(tmp_path: Path, start_broker: Callable[..., Broker]) -> Iterator[Callable[..., Broker]]:
    """Return what starts a broker of the test's own, to be killed, frozen or set up differently."""
    with ExitStack() as running:
        yield lambda name="kafka", **options: running.enter_context(start_broker(tmp_path / name, **options))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that skips where nothing may skip; show the broker's log where one fails."""
    report = yield
    refuse_skip(report)
    if report.failed:
        for name in ("kafka_broker", "file_broker"):
            if broker := getattr(item, "funcargs", {}).get(name):
                report.sections.append((f"log of {name}", broker.log_tail()))
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
