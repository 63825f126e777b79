"""Confidential containers on Azure: an SNP report, the container policy it is bound to, and the utility machine's endorsement.

Sources: microsoft/confidential-sidecar-containers, pkg/attest (what belongs to a set, and the names of its files);
did:x509 method specification (issuer); RFC 9052 and RFC 9360 (envelope and its certificates).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import orjson
from cryptography import x509

from contract.errors import CollectError
from ingest.attestation.cose import Sign1, read_sign1
from ingest.attestation.evidence import Evidence, plain
from ingest.attestation.finding import Finding, Findings, NotApplicable
from ingest.attestation.roots import (
    der_of,
    is_authority,
    is_issued_by,
    not_after_us,
    not_before_us,
    read_certificate,
)
from ingest.attestation.snp import EVIDENCE_STEPS, POLICY_STEPS, SnpCase, looks_like_report
from ingest.attestation.steps import Setting, Step, Verification, take, verifier

ROOT = "microsoft_uvm"
MAX_CHAIN = 6

_POLICY_NAMES = ("security_policy",)
_ENDORSEMENT_NAMES = ("uvm_reference_info", "reference_info")
_DID = re.compile(r"did:x509:0:sha256:([A-Za-z0-9_-]{43})((?:::eku:[0-9.]{3,64}){1,4})")
_MEASUREMENT, _SVN = "x-ms-sevsnpvm-launchmeasurement", "x-ms-sevsnpvm-guestsvn"


class AciCase(SnpCase):
    """What the steps learn beside the report."""

    findings = Findings.read("snp.tsv", "aci.tsv")

    endorsement: Sign1
    chain: list[x509.Certificate]
    """The endorsement's signer first, the pinned root last."""
    measurement: str
    svn: int

    def attached(self, names: tuple[str, ...]) -> bytes | None:
        """Return the attachment whose name begins with one of these, dash or underscore."""
        for name, body in self.evidence.attached.items():
            if _plain_name(name).startswith(names):
                return plain(body)
        return None


def _plain_name(name: str) -> str:
    return name.lower().replace("-", "_")


def check_container_policy(case: AciCase) -> Iterator[Finding]:
    """Compare the digest of the container policy with what the host bound to the guest."""
    policy = case.attached(_POLICY_NAMES)
    if policy is None:
        raise case.refuse("container_policy_missing", expected="a file security_policy")
    digest = hashlib.sha256(policy).digest()
    if digest != case.report.host_data:
        yield case.found("container_policy_mismatch", expected=case.report.host_data, got=digest)


def check_endorsement(case: AciCase) -> Iterator[Finding]:
    """Read the endorsement: what it says, and who it says signed it."""
    body = case.attached(_ENDORSEMENT_NAMES)
    if body is None:
        raise case.refuse("uvm_missing", expected="a file uvm_reference_info")
    try:
        case.endorsement = read_sign1(body)
        case.chain = [read_certificate(der) for der in case.endorsement.certificates()[:MAX_CHAIN]]
        case.measurement, case.svn = _read_payload(case.endorsement.payload)
    except CollectError as error:
        raise case.refuse("uvm_unreadable", got=error) from error
    if not case.chain:
        yield case.found("uvm_unreadable", expected="the signer's certificates", got="none")
    case.facts["uvm_svn"] = case.svn
    case.facts["uvm_feed"] = _header(case, "feed")
    case.facts["uvm_issuer"] = _header(case, "iss")


def _header(case: AciCase, name: str) -> str:
    found = case.endorsement.headers.get(name)
    return found if isinstance(found, str) else ""


def _read_payload(payload: bytes) -> tuple[str, int]:
    """Return measurement and security version; the version is written as a text."""
    try:
        values = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise CollectError("unreadable", f"the endorsement is no JSON: {error}") from error
    measurement = values.get(_MEASUREMENT) if isinstance(values, dict) else None
    svn = str(values.get(_SVN)) if isinstance(values, dict) else ""
    if not isinstance(measurement, str) or not re.fullmatch(r"[0-9a-fA-F]{96}", measurement):
        raise CollectError("unreadable", "the endorsement holds no measurement of 48 bytes")
    if not re.fullmatch(r"[0-9]{1,9}", svn):
        raise CollectError("unreadable", "the endorsement holds no security version")
    return measurement.lower(), int(svn)


def check_endorser(case: AciCase) -> Iterator[Finding]:
    """Follow the signer's certificates to the pinned root, and the issuer's name to both ends of that chain."""
    trusted = case.setting.roots.root(ROOT)
    if not trusted:
        raise case.refuse("root_unsupported", expected=ROOT)
    if case.chain[-1] != trusted[0]:
        case.chain.append(trusted[0])
    for child, issuer in pairwise(case.chain):
        if not (is_authority(issuer) and is_issued_by(child, issuer)):
            name = child.issuer.rfc4514_string()
            raise case.refuse("uvm_chain_broken", expected=trusted[0].subject.rfc4514_string(), got=name)
    if not case.endorsement.is_signed_by(case.chain[0].public_key()):
        yield case.found("uvm_signature_wrong")
    issuer_name = _header(case, "iss")
    if not _is_issuer(issuer_name, case.chain):
        yield case.found("uvm_issuer_mismatch", got=issuer_name)


def _is_issuer(did: str, chain: list[x509.Certificate]) -> bool:
    """Tell whether a did:x509 names an authority of the chain, and usages that the signer has."""
    match = _DID.fullmatch(did)
    if match is None:
        return False
    fingerprints = {
        base64.urlsafe_b64encode(hashlib.sha256(der_of(one)).digest()).rstrip(b"=").decode()
        for one in chain[1:]
    }
    try:
        usages = chain[0].extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    has = {usage.dotted_string for usage in usages}
    return match[1] in fingerprints and set(match[2].split("::eku:")[1:]) <= has


def check_endorser_validity(case: AciCase) -> Iterator[Finding]:
    """Judge the endorser's certificates at the time of the verification."""
    for certificate in case.chain:
        name = certificate.subject.rfc4514_string()
        if case.setting.at_us > not_after_us(certificate):
            until = certificate.not_valid_after_utc
            yield case.found(
                "uvm_signer_expired", expected=f"valid until {until:%Y-%m-%d %H:%M:%S}", got=name
            )
        elif case.setting.at_us < not_before_us(certificate):
            since = certificate.not_valid_before_utc
            yield case.found(
                "uvm_signer_not_yet_valid", expected=f"valid from {since:%Y-%m-%d %H:%M:%S}", got=name
            )


def check_endorsed(case: AciCase) -> Iterator[Finding]:
    """Compare what is endorsed with what was started."""
    if case.measurement != case.report.measurement.hex():
        yield case.found("uvm_measurement_mismatch", expected=case.measurement, got=case.report.measurement)


def judge_endorsement(case: AciCase) -> Iterator[Finding]:
    """Compare issuer, feed and version with the policy. The report's own guest_svn is another count."""
    rules = case.policy.rules.uvm
    if rules is None:
        raise NotApplicable("the policy says nothing of utility machines")
    issuer, feed = _header(case, "iss"), _header(case, "feed")
    if issuer not in rules.issuers:
        yield case.found("uvm_issuer_not_allowed", expected=f"one of {len(rules.issuers)}", got=issuer)
    if feed not in rules.feeds:
        yield case.found("uvm_feed_not_allowed", expected=", ".join(rules.feeds), got=feed)
    if case.svn < rules.minimum_svn:
        yield case.found("uvm_svn_below_minimum", expected=rules.minimum_svn, got=case.svn)


ENDORSEMENT_STEPS: tuple[Step[Any], ...] = (
    Step(
        name="container-policy",
        words="the container policy is the one that was bound to the guest",
        check=check_container_policy,
        needs=("format",),
    ),
    Step(
        name="endorsement",
        words="the utility machine's endorsement is at hand and well made",
        check=check_endorsement,
        needs=("format",),
    ),
    Step(
        name="endorser",
        words="Microsoft's pinned root stands behind the endorsement and its issuer",
        check=check_endorser,
        needs=("endorsement",),
    ),
    Step(
        name="endorser-validity",
        words="every certificate of the endorsement is valid at the time of judgement",
        check=check_endorser_validity,
        needs=("endorsement", "endorser"),
    ),
    Step(
        name="endorsed",
        words="the endorsement is for the utility machine that was started",
        check=check_endorsed,
        needs=("endorsement",),
    ),
)

_STEPS: tuple[Step[Any], ...] = (
    *EVIDENCE_STEPS,
    *ENDORSEMENT_STEPS,
    *POLICY_STEPS,
    Step(
        name="utility-machine",
        words="issuer, feed and version of the endorsement are allowed",
        check=judge_endorsement,
        needs=("endorsement",),
        judges_policy=True,
    ),
)


@verifier("aci")
class AciVerifier:
    """Confidential containers on Azure: the SNP report with its policy and endorsement beside it."""

    def detect(self, evidence: Evidence) -> int:
        names = [_plain_name(name) for name in evidence.attached]
        belongs = any(name.startswith((*_POLICY_NAMES, *_ENDORSEMENT_NAMES)) for name in names)
        return 2 if belongs and looks_like_report(evidence.body) else 0

    def time_us(self, evidence: Evidence) -> int | None:
        return evidence.taken_us

    def verify(self, evidence: Evidence, setting: Setting) -> Verification:
        return take("aci", AciCase(evidence, setting), _STEPS)
