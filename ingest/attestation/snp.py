"""AMD SEV-SNP: whether a report is what a processor of AMD's said, and whether what it says is allowed.

Sources: AMD 56860 (report), AMD 57230 (certificates).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from ingest.attestation.evidence import Evidence
from ingest.attestation.finding import Finding, Findings, NotApplicable
from ingest.attestation.policy import begins
from ingest.attestation.roots import not_after_us, not_before_us
from ingest.attestation.snp_collateral import Authorities, Collateral, authorities_of, is_chip
from ingest.attestation.snp_leaf import Leaf
from ingest.attestation.snp_report import (
    ECDSA_P384_SHA384,
    GUEST_POLICY_BITS,
    NO_MIGRATION_AGENT,
    NOBODY,
    PLATFORM_BITS,
    SIZE_BYTES,
    VCEK,
    VERSIONS,
    VLEK,
    Product,
    Report,
    product_of,
    read_report,
    tcb_parts,
)
from ingest.attestation.steps import Case, Setting, Step, Verification, age_findings, take, verifier

SIGNERS = {VCEK: "vcek", VLEK: "vlek"}


class SnpCase(Case):
    """What the steps learn of a report."""

    findings = Findings.read("snp.tsv")

    report: Report
    leaf: Leaf
    authorities: Authorities

    def __init__(self, evidence: Evidence, setting: Setting) -> None:
        super().__init__(evidence, setting)
        self.product: Product | None = None
        self.brought = Collateral.gather(evidence.attached.values())
        self.collateral = Collateral.gather((*evidence.attached.values(), *setting.kept))

    def learn_product(self, product: Product) -> None:
        """Note the product, and the versions that only its layout gives."""
        self.product = product
        self.facts["product"] = product.name
        for part, svn in tcb_parts(self.report.reported_tcb, product).items():
            self.facts[f"tcb_{part}"] = svn


def check_format(case: SnpCase) -> Iterator[Finding]:
    """Cut the report into its fields and learn them."""
    body = case.evidence.body
    if len(body) != SIZE_BYTES:
        raise case.refuse("wrong_size", expected=f"{SIZE_BYTES} bytes", got=f"{len(body)} bytes")
    case.report = report = read_report(body)
    case.digest = report.digest
    if report.version not in VERSIONS:
        raise case.refuse(
            "unsupported_version", expected=f"{VERSIONS[0]} to {VERSIONS[-1]}", got=report.version
        )
    case.device_id = None if report.is_chip_masked else report.chip_id.hex()
    case.facts.update(_facts(report))
    if place := report.not_zero():
        yield case.found("reserved_not_zero", expected="zeros", got=f"something at {place}")


def _facts(report: Report) -> dict[str, Any]:
    return {
        "signer": SIGNERS.get(report.signer, "none"),
        "cpu": str(report.cpu) if report.cpu else None,
        "measurement": report.measurement.hex(),
        "host_data": report.host_data.hex(),
        "report_data": report.report_data.hex(),
        "debug": report.allows_debug,
        "vmpl": report.vmpl,
        "guest_svn": report.guest_svn,
        "version": report.version,
        "report_id": report.report_id.hex(),
        "id_key_digest": report.id_key_digest.hex(),
        "author_key_digest": report.author_key_digest.hex(),
        "family_id": report.family_id.hex(),
        "image_id": report.image_id.hex(),
        "guest_policy": [name for bit, name in GUEST_POLICY_BITS.items() if report.policy >> bit & 1],
        "platform": [name for bit, name in PLATFORM_BITS.items() if report.platform >> bit & 1],
        "reported_tcb": report.reported_tcb.hex(),
        "committed_tcb": report.committed_tcb.hex(),
        "current_tcb": report.current_tcb.hex(),
        "launch_tcb": report.launch_tcb.hex(),
        "current_firmware": report.current_firmware,
        "committed_firmware": report.committed_firmware,
    }


def check_signer(case: SnpCase) -> Iterator[Finding]:
    """Look at who is said to have signed, and how."""
    report = case.report
    if report.signer == NOBODY:
        yield case.found("unsigned")
    elif report.signer not in SIGNERS:
        yield case.found("unknown_signer", expected="VCEK (0) or VLEK (1)", got=report.signer)
    if report.algorithm != ECDSA_P384_SHA384:
        yield case.found("unsupported_algorithm", expected=ECDSA_P384_SHA384, got=report.algorithm)
    if bits := report.unknown_bits():
        yield case.found("unknown_bits", got=", ".join(bits))


def check_product(case: SnpCase) -> Iterator[Finding]:
    """Find the product from the processor's own numbers; before version 3 only the certificate tells."""
    if case.report.cpu is None:
        return
    product = product_of(case.report.cpu)
    if product is None:
        yield case.found("unknown_cpu", got=case.report.cpu)
    else:
        case.learn_product(product)


def check_leaf(case: SnpCase) -> Iterator[Finding]:
    """Choose the certificate: one that fits; where none does, the nearest of those that came with the report."""
    for words in case.brought.unreadable:
        yield case.found("collateral_unreadable", got=words)
    report, product = case.report, case.product
    leaf = case.collateral.leaf_of(report, product, case.setting.at_us) or case.brought.nearest(
        report, product
    )
    if leaf is None:
        raise case.refuse("leaf_missing", expected=_wanted(case))
    case.leaf = leaf
    case.signer_not_after_us = leaf.not_after_us
    if leaf.provider is not None:
        case.facts["provider"] = leaf.provider
    if leaf.signer != report.signer:
        yield case.found("signer_mismatch", expected=case.facts["signer"], got=SIGNERS[leaf.signer])
    if product is None and report.cpu is None:
        case.learn_product(leaf.product)
    elif product != leaf.product:
        yield case.found("product_mismatch", expected=product.name if product else "", got=leaf.product.name)


def _wanted(case: SnpCase) -> str:
    """Say which certificate is wanted, so that somebody can fetch it."""
    report, product = case.report, case.product
    if report.signer == VLEK:
        return f"the VLEK of the provider for TCB {report.reported_tcb.hex()}"
    name = product.name if product else "Milan or Genoa"
    chip = report.chip_id[: product.chip_id_bytes] if product else report.chip_id
    return f"the VCEK of {name} for TCB {report.reported_tcb.hex()} and chip {chip.hex()}"


def check_chain(case: SnpCase) -> Iterator[Finding]:
    """Follow the leaf to a pinned root."""
    name, leaf = case.leaf.product.root, case.leaf.certificate
    trusted = case.setting.roots.root(name)
    if not trusted:
        raise case.refuse("root_unsupported", expected=name)
    authorities = authorities_of(case.leaf, case.setting.roots, case.collateral.intermediates)
    if authorities is not None:
        case.authorities = authorities
        return
    yield case.found(
        "chain_broken", expected=f"issued under {_common(trusted[0].subject)}", got=_common(leaf.issuer)
    )


def _common(name: x509.Name) -> str:
    return name.rfc4514_string()


def check_validity(case: SnpCase) -> Iterator[Finding]:
    """Judge every certificate of the chain at the time of the verification."""
    leaf, authorities, at_us = case.leaf, case.authorities, case.setting.at_us
    first_us = max(leaf.not_before_us, authorities.not_before_us)
    if first_us <= at_us <= min(leaf.not_after_us, authorities.not_after_us):
        return
    for certificate in (leaf.certificate, authorities.intermediate, authorities.root):
        name = _common(certificate.subject)
        if at_us > not_after_us(certificate):
            until = certificate.not_valid_after_utc
            yield case.found("signer_expired", expected=f"valid until {until:%Y-%m-%d %H:%M:%S}", got=name)
        elif at_us < not_before_us(certificate):
            since = certificate.not_valid_before_utc
            yield case.found(
                "signer_not_yet_valid", expected=f"valid from {since:%Y-%m-%d %H:%M:%S}", got=name
            )


def check_revocation(case: SnpCase) -> Iterator[Finding]:
    """Look for the intermediate in every list that the root signed; the newest tells whether that is current."""
    lists = [
        one for one in case.collateral.revocation_lists if _is_signed_by_root(one, case.authorities.root)
    ]
    serial = case.authorities.intermediate.serial_number
    if any(one.get_revoked_certificate_by_serial_number(serial) is not None for one in lists):
        yield case.found("signer_revoked", got=_common(case.authorities.intermediate.subject))
    newest = max(lists, key=lambda one: one.last_update_utc, default=None)
    is_current = newest is not None and _is_current(newest, case)
    if newest is None:
        yield case.found("crl_missing")
    elif not is_current:
        yield case.found(
            "crl_stale", got=f"{newest.last_update_utc:%Y-%m-%d} to {newest.next_update_utc:%Y-%m-%d}"
        )
    policy = case.setting.policy
    if policy is not None and policy.rules.require_revocation_list and not is_current:
        yield case.found("crl_required")
    elif newest is None:
        raise NotApplicable("no list of the root's is at hand, and the policy asks for none")


def _is_signed_by_root(revocations: x509.CertificateRevocationList, root: x509.Certificate) -> bool:
    key = root.public_key()
    if revocations.issuer != root.subject or revocations.next_update_utc is None:
        return False
    try:
        return revocations.is_signature_valid(key)  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


def _is_current(revocations: x509.CertificateRevocationList, case: SnpCase) -> bool:
    since = round(revocations.last_update_utc.timestamp() * 1e6)
    until = round(revocations.next_update_utc.timestamp() * 1e6) if revocations.next_update_utc else since
    case.facts["collateral_age_seconds"] = max(0, case.setting.at_us - since) // 1_000_000
    return since <= case.setting.at_us <= until


def check_leaf_tcb(case: SnpCase) -> Iterator[Finding]:
    """Compare the firmware that the key was made for with the one reported, in the product's own layout."""
    reported = tcb_parts(case.report.reported_tcb, case.leaf.product)
    if reported != case.leaf.tcb:
        yield case.found("tcb_mismatch", expected=_versions(case.leaf.tcb), got=_versions(reported))


def _versions(parts: Any) -> str:
    return ", ".join(f"{name} {svn}" for name, svn in sorted(parts.items()))


def check_chip(case: SnpCase) -> Iterator[Finding]:
    """Compare the chip that the key belongs to with the one reported."""
    if case.leaf.chip_id is None:
        raise NotApplicable("a VLEK belongs to a provider, not to a chip")
    if case.report.is_chip_masked:
        yield case.found("chip_id_masked")
        raise NotApplicable("the chip does not say which one it is")
    if not is_chip(case.leaf.chip_id, case.report):
        yield case.found("chip_mismatch", expected=case.leaf.chip_id, got=case.report.chip_id)


def check_signature(case: SnpCase) -> Iterator[Finding]:
    """Check the signature over all that is signed."""
    r, s = case.report.signature
    try:
        case.leaf.key.verify(encode_dss_signature(r, s), case.report.signed, ec.ECDSA(SHA384()))
    except InvalidSignature:
        yield case.found("signature_wrong")


def check_firmware(case: SnpCase) -> Iterator[Finding]:
    """Compare the versions that are reported, committed and running."""
    product = case.leaf.product
    tcbs = (case.report.reported_tcb, case.report.committed_tcb, case.report.current_tcb)
    reported, committed, current = (tcb_parts(tcb, product) for tcb in tcbs)
    if reported == committed == current:
        return
    words = " / ".join(_versions(parts) for parts in (reported, committed, current))
    if any(reported[part] > committed[part] or committed[part] > current[part] for part in reported):
        yield case.found(
            "tcb_disordered", expected="reported, committed, running: none above the next", got=words
        )
    else:
        yield case.found("tcb_not_committed", got=words)


def judge_debug(case: SnpCase) -> Iterator[Finding]:
    """Look whether debugging is off, unless the policy allows it."""
    if case.report.allows_debug and not case.policy.rules.debug:
        yield case.found("debug_allowed", expected="no debugging")


def judge_migration(case: SnpCase) -> Iterator[Finding]:
    """Look whether no migration agent may be, and none is."""
    bound = case.report.report_id_ma != NO_MIGRATION_AGENT
    if (case.report.allows_migration_agent or bound) and not case.policy.rules.migration_agent:
        yield case.found("migration_allowed", got="an agent is bound" if bound else "an agent may be bound")


def judge_tcb(case: SnpCase) -> Iterator[Finding]:
    """Compare the reported firmware with every minimum for this processor, by when it takes effect."""
    product, cpu, at_us = case.product, case.report.cpu, case.setting.at_us
    if product is None:
        raise NotApplicable("the product is not known")
    if product.name in case.policy.rules.distrust_products:
        yield case.found("product_distrusted", got=product.name)
    if cpu is None and any(
        one.product == product.name and not one.cpu.endswith("/any") for one in case.policy.rules.minimum_tcb
    ):
        yield case.found("tcb_unjudged")
    reported = tcb_parts(case.report.reported_tcb, product)
    for minimum in case.policy.minimum_tcb(product.name, cpu):
        less = {part: least for part, least in minimum.parts.items() if reported.get(part, 0) < least}
        if less:
            code = "tcb_below_coming_minimum"
            if minimum.critical_from and begins(minimum.critical_from, at_us):
                code = "tcb_minimum_overdue"
            elif begins(minimum.effective_from, at_us):
                code = "tcb_below_minimum"
            expected = f"{_versions(less)} ({minimum.source}, from {minimum.effective_from})"
            yield case.found(
                code, expected=expected, got=_versions({part: reported.get(part, 0) for part in less})
            )


def judge_guest(case: SnpCase) -> Iterator[Finding]:
    """Compare what was started, by whom and with what, with the lists of the policy."""
    rules, report = case.policy.rules, case.report
    if rules.vmpl is not None and report.vmpl not in rules.vmpl:
        yield case.found("vmpl_not_allowed", expected=", ".join(map(str, rules.vmpl)), got=report.vmpl)
    for allowed, value, code in (
        (rules.measurements, report.measurement, "measurement_not_allowed"),
        (rules.id_keys, report.id_key_digest, "id_key_not_allowed"),
        (rules.author_keys, report.author_key_digest, "author_key_not_allowed"),
        (rules.host_data, report.host_data, "host_data_not_allowed"),
    ):
        if allowed is not None and value.hex() not in allowed:
            yield case.found(code, expected=f"one of {len(allowed)}", got=value)
    if report.guest_svn < rules.minimum_guest_svn:
        yield case.found("guest_svn_below_minimum", expected=rules.minimum_guest_svn, got=report.guest_svn)


def judge_platform(case: SnpCase) -> Iterator[Finding]:
    """Look whether the memory was checked for aliases, where the policy asks (AMD-SB-3015)."""
    if case.policy.rules.require_alias_check and "alias_check_complete" not in case.facts["platform"]:
        yield case.found("alias_check_off")


def judge_freshness(case: SnpCase) -> Iterator[Finding]:
    """Look at age and nonce. A report has no time of its own: its age is what its carrier says."""
    yield from age_findings(case)
    if case.policy.rules.nonce is None:
        if case.evidence_us is None:
            raise NotApplicable("nothing says when it was made, and the policy names no nonce")
        return
    nonce = bytes.fromhex(case.policy.rules.nonce)
    answers = (
        nonce,
        hashlib.sha256(nonce).digest(),
        hashlib.sha384(nonce).digest(),
        hashlib.sha512(nonce).digest(),
    )
    if case.report.report_data not in {answer.ljust(64, b"\0") for answer in answers}:
        yield case.found("nonce_mismatch", expected=nonce, got=case.report.report_data)


_FORMAT, _LEAF, _CHAIN = ("format",), ("format", "leaf"), ("format", "leaf", "chain")

EVIDENCE_STEPS: tuple[Step[Any], ...] = (
    Step(
        name="format",
        words="it has the form of an SNP report, and zeros where nothing belongs",
        check=check_format,
    ),
    Step(
        name="signer", words="a processor's key signed it, in a known way", check=check_signer, needs=_FORMAT
    ),
    Step(name="product", words="its processor is of a known product", check=check_product, needs=_FORMAT),
    Step(
        name="leaf",
        words="the certificate of the signing key is at hand and is for this product",
        check=check_leaf,
        needs=("format", "signer", "product"),
    ),
    Step(
        name="chain", words="AMD's pinned root stands behind that certificate", check=check_chain, needs=_LEAF
    ),
    Step(
        name="validity",
        words="every certificate is valid at the time of judgement",
        check=check_validity,
        needs=_CHAIN,
    ),
    Step(name="revocation", words="AMD did not revoke the issuer", check=check_revocation, needs=_CHAIN),
    Step(
        name="leaf-tcb",
        words="the key was made for the firmware that is reported",
        check=check_leaf_tcb,
        needs=_LEAF,
    ),
    Step(name="chip", words="the key belongs to the chip that is reported", check=check_chip, needs=_LEAF),
    Step(
        name="signature",
        words="the signature is that key's, over this report",
        check=check_signature,
        needs=_LEAF,
    ),
    Step(
        name="firmware",
        words="reported, committed and running firmware agree",
        check=check_firmware,
        needs=_LEAF,
    ),
)

POLICY_STEPS: tuple[Step[Any], ...] = tuple(
    Step(name=name, words=words, check=check, needs=_FORMAT, judges_policy=True)
    for name, words, check in (
        ("debug", "no debugger may look into the guest", judge_debug),
        ("migration", "nobody may move the guest elsewhere", judge_migration),
        ("minimum-tcb", "the firmware is as new as the policy asks for", judge_tcb),
        ("guest", "what was started is allowed: measurement, keys, host data, privilege level", judge_guest),
        ("platform", "the platform is set up as the policy asks for", judge_platform),
        ("freshness", "it is fresh, and answers the nonce where one was asked with", judge_freshness),
    )
)


@verifier("snp")
class SnpVerifier:
    """AMD SEV-SNP attestation reports, versions 2 to 5, of Milan, Genoa and Turin."""

    def detect(self, evidence: Evidence) -> int:
        return int(looks_like_report(evidence.body))

    def time_us(self, evidence: Evidence) -> int | None:
        return evidence.taken_us

    def verify(self, evidence: Evidence, setting: Setting) -> Verification:
        return take("snp", SnpCase(evidence, setting), (*EVIDENCE_STEPS, *POLICY_STEPS))


def looks_like_report(body: bytes) -> bool:
    """Tell whether bytes may be a report: by size and version."""
    return len(body) == SIZE_BYTES and int.from_bytes(body[:4], "little") in VERSIONS
