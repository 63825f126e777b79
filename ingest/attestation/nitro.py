"""AWS Nitro Enclaves: the attestation document (aws-nitro-enclaves-nsm-api, docs/attestation_process.md).

Real documents differ from that description: they carry no CBOR tag, and null where it forbids null.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from contract.errors import CollectError
from ingest.attestation.cbor import read_cbor
from ingest.attestation.cose import NAMES, Sign1, read_sign1
from ingest.attestation.evidence import Evidence
from ingest.attestation.finding import Finding, Findings, NotApplicable
from ingest.attestation.roots import (
    der_of,
    is_authority,
    is_issued_by,
    not_after_us,
    not_before_us,
    read_certificate,
)
from ingest.attestation.steps import Case, Setting, Step, Verification, take, verifier

KIND = "nitro"
MAX_DOCUMENT_BYTES = 65_536
"""A document with everything at its largest has less than 32 KB."""

_ROOT = "aws_nitro"
_ES384 = -35
_SKEW_US = 300_000_000
"""Clocks that differ by less are clocks that differ, not attacks."""

_FIRST_MS = 1_500_000_000_000
"""July 2017, before Nitro: a smaller number of a document's time counts seconds."""

_MAX_CERTIFICATES = 8
_MAX_CERTIFICATE_BYTES = 1_024
_REGISTER_BYTES = 48
_NO_REGISTER = bytes(_REGISTER_BYTES)
_BINARY = {"public_key": 1_024, "user_data": 512, "nonce": 512}
_CLAIMS = frozenset({"module_id", "digest", "timestamp", "pcrs", "certificate", "cabundle", *_BINARY})
_MODULE = re.compile(r"(i-[0-9a-f]{8,32})-enc[0-9a-f]{1,64}")
_KNOWN_CRITICAL = frozenset({x509.BasicConstraints.oid, x509.KeyUsage.oid})


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The claims, of the right types and sizes; nothing else is said of them yet."""

    module_id: str
    timestamp_ms: int
    registers: Mapping[int, bytes]
    certificate: bytes
    authorities: tuple[bytes, ...]
    """The root first."""
    public_key: bytes | None
    user_data: bytes | None
    nonce: bytes | None

    @property
    def time_us(self) -> int:
        """When it was made, also where it counts seconds."""
        unit = 1_000 if self.timestamp_ms >= _FIRST_MS else 1_000_000
        return self.timestamp_ms * unit

    @property
    def is_debug(self) -> bool:
        """Tell whether the enclave is open to its parent: the registers of its image are zero."""
        return all(self.registers[number] == _NO_REGISTER for number in (0, 1, 2))

    @property
    def instance(self) -> str | None:
        """The EC2 instance that the module says it runs on."""
        match = _MODULE.fullmatch(self.module_id)
        return match[1] if match else None


class NitroCase(Case):
    """A Nitro document under verification."""

    findings = Findings.read("nitro.tsv")

    envelope: Sign1
    document: Document
    certificates: tuple[x509.Certificate, ...] = ()
    """The root first, the signer last."""


def _shape(case: NitroCase) -> Iterable[Finding]:
    try:
        case.envelope = read_sign1(case.evidence.body, max_bytes=MAX_DOCUMENT_BYTES)
    except CollectError as error:
        raise case.refuse("malformed", expected="a COSE_Sign1", got=error) from error
    case.digest = case.envelope.digest
    algorithm = case.envelope.algorithm
    if algorithm != _ES384:
        yield case.found("algorithm", expected=NAMES[_ES384], got=NAMES.get(algorithm or 0, algorithm))


def _claims(case: NitroCase) -> Iterable[Finding]:
    try:
        claims = read_cbor(case.envelope.payload)
    except CollectError as error:
        raise case.refuse("malformed", expected="a map of claims", got=error) from error
    if not isinstance(claims, dict):
        raise case.refuse("malformed", expected="a map of claims", got=type(claims).__name__)
    if "nitrotpm_pcrs" in claims:
        raise case.refuse("other_product", expected="pcrs", got="nitrotpm_pcrs")
    for name, words in _faults(claims):
        raise case.refuse("malformed", expected=f"{name}: {words}", got=claims.get(name))
    if claims["digest"] != "SHA384":
        yield case.found("digest_algorithm", expected="SHA384", got=claims["digest"])
    if unknown := sorted(str(name)[:64] for name in claims.keys() - _CLAIMS):
        yield case.found("unknown_claim", got=", ".join(unknown))
    case.document = _document(claims)
    _tell(case)


def _faults(claims: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is not of its type or size, and what belongs there."""
    if not _is_text(claims.get("module_id")):
        yield "module_id", "a text"
    if not _is_text(claims.get("digest")):
        yield "digest", "a text"
    if not _is_number(claims.get("timestamp"), 2**53):
        yield "timestamp", "milliseconds"
    if not _are_registers(claims.get("pcrs")):
        yield "pcrs", "registers 0, 1, 2 and more, each of 48 bytes"
    if not _is_binary(claims.get("certificate"), _MAX_CERTIFICATE_BYTES):
        yield "certificate", f"1 to {_MAX_CERTIFICATE_BYTES} bytes"
    bundle = claims.get("cabundle")
    if bundle is not None and not (isinstance(bundle, list) and len(bundle) <= _MAX_CERTIFICATES):
        yield "cabundle", f"at most {_MAX_CERTIFICATES} certificates"
    elif not all(_is_binary(one, _MAX_CERTIFICATE_BYTES) for one in bundle or ()):
        yield "cabundle", f"certificates of 1 to {_MAX_CERTIFICATE_BYTES} bytes"
    for name, most in _BINARY.items():
        value = claims.get(name)
        if value is not None and not (isinstance(value, bytes) and len(value) <= most):
            yield name, f"at most {most} bytes"


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable()


def _is_number(value: object, beyond: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < beyond


def _is_binary(value: object, most: int) -> bool:
    return isinstance(value, bytes) and 0 < len(value) <= most


def _are_registers(value: object) -> bool:
    return (
        isinstance(value, dict)
        and {0, 1, 2} <= value.keys()
        and all(_is_number(number, 32) for number in value)
        and all(isinstance(one, bytes) and len(one) == _REGISTER_BYTES for one in value.values())
    )


def _document(claims: Mapping[str, Any]) -> Document:
    return Document(
        module_id=claims["module_id"],
        timestamp_ms=claims["timestamp"],
        registers=dict(sorted(claims["pcrs"].items())),
        certificate=claims["certificate"],
        authorities=tuple(claims.get("cabundle") or ()),
        public_key=claims.get("public_key"),
        user_data=claims.get("user_data"),
        nonce=claims.get("nonce"),
    )


def _tell(case: NitroCase) -> None:
    """Keep what the document says. Of a customer's bytes only the digest: the pipeline holds no more than it must."""
    document = case.document
    case.device_id = document.module_id
    case.evidence_us = document.time_us
    case.facts = {
        "product": "Nitro Enclaves",
        "signer": "nitro-hypervisor",
        "measurement": document.registers[0].hex(),
        "report_data": document.nonce.hex() if document.nonce else None,
        "debug": document.is_debug,
        "instance": document.instance,
        "registers": {
            str(number): one.hex() for number, one in document.registers.items() if one != _NO_REGISTER
        },
        "user_data_sha256": _digest(document.user_data),
        "public_key_sha256": _digest(document.public_key),
    }


def _digest(value: bytes | None) -> str | None:
    return hashlib.sha256(value).hexdigest() if value else None


def _root(case: NitroCase) -> Iterable[Finding]:
    if not case.document.authorities:
        raise case.refuse("no_authority", expected="a cabundle")
    trusted = {der_of(root): root for root in case.setting.roots.root(_ROOT)}
    given = case.document.authorities[0]
    if given in trusted:
        return
    names = [root.subject for root in trusted.values()]
    code = "root_forged" if _named(given) in names else "root_unsupported"
    fingerprints = ", ".join(hashlib.sha256(der).hexdigest() for der in trusted)
    yield case.found(code, expected=fingerprints, got=hashlib.sha256(given).hexdigest())


def _named(der: bytes) -> x509.Name | None:
    try:
        return read_certificate(der).subject
    except (CollectError, ValueError):
        return None


def _chain(case: NitroCase) -> Iterable[Finding]:
    """Follow the chain from the root down. The root itself is known by its bytes: its own signature says nothing."""
    try:
        chain = tuple(map(read_certificate, (*case.document.authorities, case.document.certificate)))
    except CollectError as error:
        raise case.refuse("chain_broken", expected="certificates", got=error) from error
    for at, (issuer, issued) in enumerate(pairwise(chain)):
        if not is_issued_by(issued, issuer):
            raise case.refuse("chain_broken", expected=f"{at + 1} issued by {at}", got=_subject(issued))
    case.certificates = chain
    for at, certificate in enumerate(chain[:-1]):
        if not _may_issue(certificate, len(chain) - 2 - at):
            yield case.found("chain_misused", expected=f"{at} may issue", got=_subject(certificate))
    if not _may_sign(chain[-1]):
        yield case.found("chain_misused", expected="the last may sign", got=_subject(chain[-1]))


@lru_cache(maxsize=4_096)
def _may_issue(certificate: x509.Certificate, below: int) -> bool:
    """Tell whether a certificate may issue others, with so many authorities below it."""
    if not is_authority(certificate) or not _is_understood(certificate):
        return False
    most = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length
    return most is None or below <= most


@lru_cache(maxsize=4_096)
def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return False
    return usage.digital_signature and not constraints.ca and _is_understood(certificate)


def _is_understood(certificate: x509.Certificate) -> bool:
    """Tell whether nothing critical is in it that is not checked here (RFC 5280, section 4.2)."""
    try:
        return all(one.oid in _KNOWN_CRITICAL for one in certificate.extensions if one.critical)
    except (x509.DuplicateExtension, ValueError):
        return False


def _subject(certificate: x509.Certificate) -> str:
    try:
        return certificate.subject.rfc4514_string()
    except ValueError:
        return "a name that cannot be read"


def _validity(case: NitroCase) -> Iterable[Finding]:
    at_us = case.setting.at_us
    for certificate in case.certificates:
        begin_us, end_us = _window(certificate)
        if at_us < begin_us:
            code = "clock_skew" if begin_us - at_us <= _SKEW_US else "signer_not_yet_valid"
            expected = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M:%S} or later"
            yield case.found(code, expected=expected, got=_subject(certificate))
        elif at_us > end_us:
            code = "clock_skew" if at_us - end_us <= _SKEW_US else "signer_expired"
            expected = f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} or earlier"
            yield case.found(code, expected=expected, got=_subject(certificate))
    begin_us, end_us = _window(case.certificates[-1])
    case.signer_not_after_us = end_us
    if not begin_us - _SKEW_US <= case.document.time_us <= end_us + _SKEW_US:
        yield case.found("time_outside_signer", got=case.document.timestamp_ms)


@lru_cache(maxsize=4_096)
def _window(certificate: x509.Certificate) -> tuple[int, int]:
    return not_before_us(certificate), not_after_us(certificate)


def _signature(case: NitroCase) -> Iterable[Finding]:
    try:
        key = case.certificates[-1].public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise case.refuse("signature_wrong", expected="a key on P-384", got=error) from error
    if not case.envelope.is_signed_by(key):
        yield case.found("signature_wrong")


def _time(case: NitroCase) -> Iterable[Finding]:
    document = case.document
    if document.timestamp_ms < _FIRST_MS:
        yield case.found("time_unit", expected="milliseconds", got=document.timestamp_ms)
    if document.time_us > case.setting.at_us + _SKEW_US:
        yield case.found(
            "evidence_from_the_future", expected=case.setting.at_us // 1000, got=document.timestamp_ms
        )


def _instance(case: NitroCase) -> Iterable[Finding]:
    """Register 4 is what measuring the instance's id into an empty register gives."""
    if case.document.instance is None:
        raise case.refuse("instance_mismatch", expected="i-…-enc…", got=case.document.module_id)
    expected = hashlib.sha384(_NO_REGISTER + case.document.instance.encode()).digest()
    got = case.document.registers.get(4, b"")
    if got != expected:
        yield case.found("instance_mismatch", expected=expected, got=got)


def _debug(case: NitroCase) -> Iterable[Finding]:
    if case.document.is_debug and not case.policy.rules.debug:
        yield case.found("debug_allowed", expected="registers 0, 1 and 2", got="zeros")


def _registers(case: NitroCase) -> Iterable[Finding]:
    rules, registers = case.policy.rules, case.document.registers
    if rules.measurements is None and not rules.registers:
        raise NotApplicable("the policy names no values")
    if rules.measurements is not None and registers[0].hex() not in rules.measurements:
        yield case.found("measurement_not_allowed", expected=" ".join(rules.measurements), got=registers[0])
    for number, allowed in rules.registers.items():
        got = registers.get(number, b"")
        if got.hex() not in allowed:
            yield case.found("register_not_allowed", expected=f"{number}: {' '.join(allowed)}", got=got)


def _age(case: NitroCase) -> Iterable[Finding]:
    most = case.policy.rules.max_age_seconds
    if most is None:
        raise NotApplicable("the policy names no age")
    age_seconds = (case.setting.at_us - case.document.time_us) // 1_000_000
    if age_seconds > most:
        yield case.found("evidence_stale", expected=f"at most {most} s", got=f"{age_seconds} s")


def _nonce(case: NitroCase) -> Iterable[Finding]:
    expected, got = case.policy.rules.nonce, case.document.nonce or b""
    if expected is None:
        raise NotApplicable("the policy names no nonce")
    if got.hex() != expected:
        yield case.found("nonce_mismatch", expected=expected, got=got)


STEPS: tuple[Step[NitroCase], ...] = (
    Step(name="shape", words="it is a COSE_Sign1 envelope, signed with ES384", check=_shape),
    Step(
        name="claims",
        words="its claims have the types and sizes that AWS describes",
        check=_claims,
        needs=("shape",),
    ),
    Step(
        name="root",
        words="its chain begins at AWS's pinned root",
        check=_root,
        needs=("claims",),
    ),
    Step(
        name="chain",
        words="each certificate was issued by the one before it, and for this use",
        check=_chain,
        needs=("root",),
    ),
    Step(
        name="validity",
        words="every certificate is valid at the time of judgement, and the signer's was when it signed",
        check=_validity,
        needs=("chain",),
    ),
    Step(
        name="signature",
        words="the signature is that certificate's, over all that it claims",
        check=_signature,
        needs=("chain",),
    ),
    Step(
        name="time",
        words="it says when it was made, and that is not later than the time of judgement",
        check=_time,
        needs=("claims",),
    ),
    Step(
        name="instance",
        words="its register 4 is that of the instance that it names",
        check=_instance,
        needs=("claims",),
    ),
    Step(
        name="debug",
        words="no debugger may look into the enclave, or the policy allows that",
        check=_debug,
        needs=("claims",),
        judges_policy=True,
    ),
    Step(
        name="registers",
        words="the registers have values that the policy allows",
        check=_registers,
        needs=("claims",),
        judges_policy=True,
    ),
    Step(
        name="age",
        words="it is as fresh as the policy asks",
        check=_age,
        needs=("claims",),
        judges_policy=True,
    ),
    Step(
        name="nonce",
        words="it answers the nonce of the policy",
        check=_nonce,
        needs=("claims",),
        judges_policy=True,
    ),
)


@verifier(KIND)
class NitroVerifier:
    """Judges documents of Nitro Enclaves."""

    def detect(self, evidence: Evidence) -> int:
        body = evidence.body
        envelope = body[:1] == b"\x84" or body[:2] == b"\xd2\x84"
        return 2 * envelope if b"module_id" in body[:MAX_DOCUMENT_BYTES] else 0

    def time_us(self, evidence: Evidence) -> int | None:
        try:
            claims = read_cbor(read_sign1(evidence.body, max_bytes=MAX_DOCUMENT_BYTES).payload)
        except CollectError:
            return None
        if not isinstance(claims, dict) or next(_faults(claims), None) is not None:
            return None
        return _document(claims).time_us

    def verify(self, evidence: Evidence, setting: Setting) -> Verification:
        return take(KIND, NitroCase(evidence, setting), STEPS)
