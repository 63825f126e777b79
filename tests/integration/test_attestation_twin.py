"""What the twin's agents hand in, taken in by the real collector: each state is told by its rule, and nothing else is."""

import os
from pathlib import Path
from typing import Any

import pytest

from alerts.evaluator import Evaluator
from alerts.ruleset import check_rules
from alerts.testing import Feed, judge
from contract.config import HallSection
from contract.streams.attestation import ATTESTATION_EVIDENCE, ATTESTATION_RESULTS
from contract.testing import START_US, FakeClock
from ingest.attestation.intake import AttestImportCollector, AttestImportConfig
from ingest.collector import Context, Reading
from ingest.testing import rows_of
from twin.agents import Agents
from twin.plan import draw_plan

pytestmark = pytest.mark.integration

RULES = Path(__file__).resolve().parents[2] / "alerts/rules/attestation.yaml"
PLAN = draw_plan(hosts=2)
SICK, *_ = (host.name for host in PLAN.hosts)
EVERY_SECONDS = 60

POLICY = """policy: hall
vmpl: [0]
max_age_seconds: 200
measurements: ["{image}"]
minimum_tcb:
  - {{cpu: 19/00-0F/any, product: Milan, snp: 27, effective_from: 2025-01-01, source: test}}
"""


class Story:
    """Two hosts, their agents, and the collector that takes in what these write."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.agents = Agents(PLAN, START_US, every_seconds=EVERY_SECONDS)
        self.agents.maker.write_root(folder / "roots")
        (folder / "policy.yaml").write_text(POLICY.format(image=self.agents.image.hex()))
        self.folder = folder / "evidence"
        self._config = AttestImportConfig(
            collector="attest-import",
            folder=self.folder,
            policy=folder / "policy.yaml",
            roots=folder / "roots",
            quiet_seconds=0,
        )
        self.folder.mkdir()
        self.collector = self._open()
        self.readings: list[tuple[float, Reading]] = []

    def _open(self) -> AttestImportCollector:
        hall = HallSection(name="test", synthetic=True)
        return AttestImportCollector(self._config, Context(hall=hall, clock=self.clock))

    def restart(self) -> None:
        """Lose everything but the cursor."""
        cursor = self.collector.cursor()
        self.collector = self._open()
        self.collector.restore(cursor)

    def run(self, seconds: int) -> None:
        for _ in range(0, seconds, 30):
            self.clock.advance(30)
            now_us = self.clock.now_us()
            self.agents.write(self.folder, now_us)
            reading = self.collector.collect(now_us)
            self.collector.cursor()
            assert reading.rejected == {}
            self.readings.append(((now_us - START_US) / 1e6, reading))

    def rows(self, stream) -> list[dict[str, Any]]:
        return [row for _, reading in self.readings for row in rows_of(reading, stream)]

    def told(self) -> list[tuple[str, str, str]]:
        """Return what the rules say to the evaluations."""
        feed = Feed()
        messages = [
            feed.row(
                ATTESTATION_RESULTS.name, at, **{name: values[row] for name, values in rows.columns.items()}
            )
            for at, reading in self.readings
            for rows in reading.rows
            if rows.stream is ATTESTATION_RESULTS
            for row in range(len(rows))
        ]
        drafts = judge(Evaluator(check_rules([RULES]), "test"), messages, every=10)
        return [(draft.transition, draft.rule.rule, draft.entity) for draft in drafts]


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path)


def test_sound_hosts_attest_each_minute_and_nothing_is_told(story):
    story.run(180)
    rows = story.rows(ATTESTATION_RESULTS)
    assert {row["host"] for row in rows} == {host.name for host in PLAN.hosts}
    assert len(rows) == 6
    assert {(row["verdict"], row["policy"], row["availability"]) for row in rows} == {
        ("genuine", "met", "checked")
    }
    assert len({row["digest"] for row in rows}) == 6
    assert len(story.rows(ATTESTATION_EVIDENCE)) == 6
    assert story.told() == []


@pytest.mark.parametrize(
    ("state", "rule", "entity"),
    [
        ("debug", "attestation-debug", f"{SICK}/snp"),
        ("altered", "attestation-forged", f"{SICK}/snp"),
        ("other_image", "attestation-not-allowed", f"{SICK}/snp"),
        ("old_firmware", "attestation-tcb-old", f"{SICK}/snp"),
        ("uncertified", "attestation-unchecked", "snp"),
        ("stuck", "attestation-stale", f"{SICK}/snp"),
        ("replayed", "attestation-stale", f"{SICK}/snp"),
    ],
)
def test_each_state_of_a_host_is_told_by_its_rule_alone(story, state, rule, entity):
    story.run(60)
    story.agents.states[0] = state
    story.run(300)
    assert story.told() == [("firing", rule, entity)]


@pytest.mark.parametrize(
    ("state", "rule"),
    [
        ("old_firmware", "attestation-tcb-old"),
        ("stuck", "attestation-stale"),
        ("replayed", "attestation-stale"),
    ],
)
def test_a_host_that_is_sound_again_ends_what_was_told(story, state, rule):
    story.run(60)
    story.agents.states[0] = state
    story.run(300)
    story.agents.states[0] = "sound"
    story.run(120)
    assert story.told() == [("firing", rule, f"{SICK}/snp"), ("ended", rule, f"{SICK}/snp")]


def test_an_agent_that_hands_in_its_last_report_again_shows_by_its_digest(story):
    story.run(60)
    story.agents.states[0] = "stuck"
    story.run(120)
    digests = [row["digest"] for row in story.rows(ATTESTATION_RESULTS) if row["host"] == SICK]
    assert len(digests) == 3
    assert len(set(digests)) == 1


def test_a_replay_is_as_old_as_its_report_whatever_its_wrapping_says(story):
    story.run(60)
    story.agents.states[0] = "replayed"
    story.run(240)
    rows = [row for row in story.rows(ATTESTATION_RESULTS) if row["host"] == SICK]
    assert len({row["evidence_digest"] for row in rows}) == 5
    assert {row["digest"] for row in rows} == {rows[0]["digest"]}
    assert {row["evidence_ts"] for row in rows} == {rows[0]["evidence_ts"]}
    assert [row["policy"] for row in rows] == ["met"] * 4 + ["violated"]


def test_evidence_is_no_younger_than_its_file(story):
    story.run(60)
    body = dict(story.agents.due(story.clock.now_us() + 60_000_000))[SICK]
    path = story.folder / SICK / "lay.evidence"
    path.write_bytes(body)
    old_ns = (story.clock.now_us() - 240_000_000) * 1000
    os.utime(path, ns=(old_ns, old_ns))
    story.run(30)
    row = story.rows(ATTESTATION_RESULTS)[-1]
    assert (row["host"], row["policy"], row["finding_codes"].split()[-1]) == (
        SICK,
        "violated",
        "evidence_stale",
    )


def test_a_replay_is_known_after_a_restart(story):
    story.run(60)
    story.agents.states[0] = "replayed"
    story.run(180)
    story.restart()
    story.run(120)
    assert story.told() == [("firing", "attestation-stale", f"{SICK}/snp")]


def test_the_same_plan_asks_the_same_chips():
    first, again = (Agents(PLAN, START_US) for _ in range(2))
    for one, other in zip(first._processors, again._processors, strict=True):
        assert one.chip_id == other.chip_id
    assert first.maker.chain != again.maker.chain  # its keys are its own, and certify nothing elsewhere
