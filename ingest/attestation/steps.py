"""Verification as a list of named steps, and the registry of verifiers.

A verifier is one file: a table of findings, a case that holds what the steps learn, and the steps. Time, roots, policy and
collateral are given to it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import orjson

from contract.registry import Registry
from contract.streams.attestation import ATTESTATION_RESULTS
from ingest.attestation.evidence import Evidence
from ingest.attestation.finding import Effect, Finding, Findings, NotApplicable, Refused, worst
from ingest.attestation.policy import Policy
from ingest.attestation.roots import Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a verification is given beside the evidence."""

    at_us: int
    """The time at which certificates must be valid, microseconds UTC."""
    roots: Roots
    policy: Policy | None = None
    kept: tuple[bytes, ...] = ()
    """Collateral from a cache: certificates and revocation lists that did not come with the evidence."""


class Case:
    """One verification under way: what the steps have learnt. Kinds add their own."""

    findings: Findings

    def __init__(self, evidence: Evidence, setting: Setting) -> None:
        self.evidence = evidence
        self.setting = setting
        self.digest = evidence.digest
        """Of the signed part, once a step knows it; until then of everything."""
        self.device_id: str | None = None
        self.facts: dict[str, Any] = {}
        """By column of `attestation_results`; what has no column there becomes `claims`."""
        self.evidence_us: int | None = evidence.taken_us
        self.signer_not_after_us: int | None = None

    @property
    def policy(self) -> Policy:
        """The policy; a step that judges it runs only where there is one."""
        if self.setting.policy is None:
            raise NotApplicable("no policy was given")
        return self.setting.policy

    def found(self, code: str, *, expected: object = "", got: object = "") -> Finding:
        """Make a finding, to be yielded by a step."""
        return self.findings.make(code, expected=expected, got=got)

    def refuse(self, code: str, *, expected: object = "", got: object = "") -> Refused:
        """Make what a step raises to end with this finding."""
        return Refused(self.found(code, expected=expected, got=got))


class Outcome(enum.StrEnum):
    """What became of a step."""

    HELD = "held"
    FAILED = "failed"
    COULD_NOT_CHECK = "could_not_check"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A step that was taken, or was not and why."""

    name: str
    words: str
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    why: str = ""


_Case = TypeVar("_Case", bound=Case)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[_Case]):
    """One check."""

    name: str
    words: str
    """What is checked, as a sentence for people."""
    check: Callable[[_Case], Iterable[Finding]]
    needs: tuple[str, ...] = ()
    """Steps that must have gone well before this one makes sense."""
    judges_policy: bool = False
    held: Done = field(init=False, repr=False)
    """What it leaves behind where nothing was found."""

    def __post_init__(self) -> None:
        done = Done(name=self.name, words=self.words, outcome=Outcome.HELD)
        object.__setattr__(self, "held", done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What an evaluation found."""

    kind: str
    verdict: str
    policy: str
    availability: str
    findings: tuple[Finding, ...]
    steps: tuple[Done, ...]
    device_id: str | None
    digest: str
    """SHA-256 of the signed part, hexadecimal."""
    evidence_digest: str
    facts: Mapping[str, Any]
    evaluated_us: int
    evidence_us: int | None = None
    signer_not_after_us: int | None = None
    judged_by: Policy | None = field(default=None, repr=False)

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the findings, sorted, each once."""
        return tuple(sorted({one.code for one in self.findings}))

    def row(self) -> dict[str, Any]:
        """Return the row of `attestation_results`, without its envelope."""
        columns = ATTESTATION_RESULTS.by_name
        claims = {name: value for name, value in self.facts.items() if name not in columns}
        shown = [
            {"code": one.code, "severity": one.severity, "expected": one.expected, "got": one.got}
            for one in self.findings
        ]
        steps = [{"step": one.name, "outcome": one.outcome} for one in self.steps]
        return {
            **{name: value for name, value in self.facts.items() if name in columns},
            "kind": self.kind,
            "device_id": self.device_id,
            "digest": self.digest,
            "evidence_digest": self.evidence_digest,
            "verdict": self.verdict,
            "policy": self.policy,
            "availability": self.availability,
            "severity": worst(self.findings),
            "finding_codes": f" {' '.join(self.codes)} ",
            "findings": orjson.dumps(shown).decode(),
            "steps": orjson.dumps(steps).decode(),
            "claims": orjson.dumps(claims).decode(),
            "evidence_ts": self.evidence_us,
            "evaluated_at": self.evaluated_us,
            "signer_not_after": self.signer_not_after_us,
            "policy_name": self.judged_by.name if self.judged_by else None,
            "policy_digest": self.judged_by.digest if self.judged_by else None,
        }


_SKEW_US = 300_000_000
"""A clock this far ahead is no future."""


def age_findings(case: Case) -> Iterator[Finding]:
    """Judge the age of evidence whose time is known: `evidence_stale`, `evidence_from_the_future`."""
    if case.evidence_us is None:
        return
    age_us, limit = case.setting.at_us - case.evidence_us, case.policy.rules.max_age_seconds
    if age_us < -_SKEW_US:
        yield case.found("evidence_from_the_future", got=f"{-age_us // 1_000_000} s ahead")
    elif limit is not None and age_us > limit * 1_000_000:
        yield case.found("evidence_stale", expected=f"at most {limit} s", got=f"{age_us // 1_000_000} s")


def take(kind: str, case: _Case, steps: Sequence[Step[_Case]]) -> Verification:
    """Take the steps in order and sum up. Policy is judged only on what is not forged."""
    done: list[Done] = []
    well: set[str] = set()
    forged = False
    for step in steps:
        result = _why_not(step, case, well, forged=forged) or _take(step, case)
        done.append(result)
        if result.outcome is Outcome.HELD:
            well.add(step.name)
        if result.findings:
            forged = forged or any(one.effect is Effect.FORGED for one in result.findings)
    return _sum_up(kind, case, done)


def _why_not(step: Step[Any], case: Case, well: set[str], *, forged: bool) -> Done | None:
    """Return a step that is skipped, or None where it is to be taken."""
    if not well.issuperset(step.needs):
        return _skipped(step, f"it needs: {', '.join(name for name in step.needs if name not in well)}")
    if step.judges_policy and forged:
        return _skipped(step, "the evidence is forged")
    if step.judges_policy and case.setting.policy is None:
        return _skipped(step, "no policy was given")
    return None


def _take(step: Step[_Case], case: _Case) -> Done:
    found: list[Finding] = []
    try:
        for finding in step.check(case):
            found.append(finding)  # noqa: PERF402 - what came before a refusal counts
    except Refused as refused:
        found.append(refused.finding)
    except NotApplicable as reason:
        return _skipped(step, str(reason), found)
    if not found:
        return step.held
    effects = {one.effect for one in found}
    outcome = Outcome.HELD
    if effects & {Effect.FORGED, Effect.UNKNOWN, Effect.VIOLATED}:
        outcome = Outcome.FAILED
    elif Effect.UNCHECKED in effects:
        outcome = Outcome.COULD_NOT_CHECK
    return Done(name=step.name, words=step.words, outcome=outcome, findings=tuple(found))


def _skipped(step: Step[Any], why: str, found: Sequence[Finding] = ()) -> Done:
    return Done(name=step.name, words=step.words, outcome=Outcome.SKIPPED, findings=tuple(found), why=why)


def _sum_up(kind: str, case: Case, done: Sequence[Done]) -> Verification:
    findings = tuple(one for step in done for one in step.findings)
    effects = {one.effect for one in findings}
    verdict = "genuine"
    if Effect.FORGED in effects:
        verdict = "forged"
    elif effects & {Effect.UNKNOWN, Effect.UNCHECKED}:
        verdict = "unknown"
    policy = "none"
    if Effect.VIOLATED in effects:
        policy = "violated"
    elif verdict == "genuine" and case.setting.policy is not None:
        policy = "met"
    return Verification(
        kind=kind,
        verdict=verdict,
        policy=policy,
        availability="could_not_check" if Effect.UNCHECKED in effects else "checked",
        findings=findings,
        steps=tuple(done),
        device_id=case.device_id,
        digest=case.digest,
        evidence_digest=case.evidence.digest,
        facts=case.facts,
        evaluated_us=case.setting.at_us,
        evidence_us=case.evidence_us,
        signer_not_after_us=case.signer_not_after_us,
        judged_by=case.setting.policy,
    )


class Verifier(Protocol):
    """Judges one kind of evidence. Never raises, whatever the evidence is."""

    def detect(self, evidence: Evidence) -> int:
        """Return how surely the evidence is of this kind: 0 = it is not; of two, the surer is taken."""
        ...

    def time_us(self, evidence: Evidence) -> int | None:
        """Return when the evidence says that it was made, unchecked; None where it says nothing."""
        ...

    def verify(self, evidence: Evidence, setting: Setting) -> Verification: ...


VERIFIERS: Registry[Verifier] = Registry("ingest.attestation")

_Class = TypeVar("_Class", bound=type)


def verifier(kind: str) -> Callable[[_Class], _Class]:
    """Register a verifier class under the kind that people write; it is built without arguments."""

    def register(cls: _Class) -> _Class:
        VERIFIERS.add(kind, cls())
        return cls

    return register


def detect(evidence: Evidence) -> str | None:
    """Return the kind that evidence is of; None where no verifier knows it."""
    sure = {kind: one.detect(evidence) for kind, one in VERIFIERS.all().items()}
    best = max(sure, key=sure.__getitem__, default="")
    return best if sure.get(best) else None
