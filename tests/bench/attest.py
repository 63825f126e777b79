"""Judging evidence: verifications per second of CPU time, beside the bare signature checks that they cannot do without.

The chains have keys of the real sizes (RSA-4096 with PSS, ECDSA on P-384). A fleet shows the same certificates again and
again, so the verifier remembers, by the bytes of both, which certificate another one stands behind. "Chain known" has that
memory, and its baseline is the one check left: the report's own signature. "Chain new" forgets everything before each
report, and its baseline is every check of the path: two of the chain and one of the report, under keys that are read
already, while ours reads the certificate, too: that happens once for each. Every report differs; policy and all other
checks are part of ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from attest_nitro import measure_nitro
from bench import BenchRow, median_ratio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from ingest.attestation import roots, snp_collateral, snp_leaf
from ingest.attestation.evidence import Evidence, read_evidence
from ingest.attestation.policy import baseline
from ingest.attestation.roots import Roots, read_certificates
from ingest.attestation.snp import SnpVerifier
from ingest.attestation.snp_report import read_report
from ingest.attestation.steps import Setting
from twin.evidence import REAL_KEY_BITS, Guest, Maker, Processor

NOW_US = 1_796_000_000_000_000
REPORTS = 200
_TCB = {"bootloader": 4, "tee": 0, "snp": 27, "microcode": 219}
_PSS = padding.PSS(padding.MGF1(SHA384()), SHA384().digest_size)


def measure() -> list[BenchRow]:
    """Return the figures; at 0.6 of the bare checks or more, and at half of that without memory."""
    maker = Maker("Milan", NOW_US, key_bits=REAL_KEY_BITS)
    chip = Processor(maker=maker, chip_id=b"\x11" * 64, tcb=_TCB)
    chain = tuple(read_certificates(maker.chain))
    setting = Setting(at_us=NOW_US, roots=Roots(chains={"amd_milan": chain}), policy=baseline())
    guests = [Guest.named(f"guest-{number}") for number in range(REPORTS)]
    evidence = [read_evidence(chip.report(one), "", {"vcek": chip.certificate}) for one in guests]
    leaf = roots.read_certificate(chip.certificate)
    known = median_ratio(lambda: _ours(evidence, setting), lambda: _bare(evidence, leaf, ()))
    links = ((chain[1], chain[0]), (leaf, chain[1]))
    new = median_ratio(lambda: _ours(evidence, setting, forget=_forget), lambda: _bare(evidence, leaf, links))
    return [
        _row("verify an SNP report, chain known", 0.6, *known),
        _row("verify an SNP report, chain new", 0.3, *new),
        *measure_nitro(),
    ]


def _row(name: str, least: float, ours: float, bare: float, ratio: float) -> BenchRow:
    goal = f">= {least} x bare signature checks"
    return BenchRow(
        name=name, value=ours, unit="reports/s CPU", baseline=bare, goal=goal, holds=ratio >= least
    )


def _ours(evidence: Sequence[Evidence], setting: Setting, forget: Callable[[], None] | None = None) -> float:
    verifier = SnpVerifier()
    begun = time.process_time()
    for one in evidence:
        if forget is not None:
            forget()
        result = verifier.verify(one, setting)
        if (result.verdict, result.policy) != ("genuine", "met"):
            raise AssertionError(result.findings)
    return len(evidence) / (time.process_time() - begun)


def _forget() -> None:
    for remembered in (
        roots._read_certificate,
        roots.is_issued_by,
        snp_leaf.read_leaf,
        snp_collateral._remembered,
        snp_collateral.authorities_of,
    ):
        remembered.cache_clear()


def _bare(
    evidence: Sequence[Evidence],
    leaf: x509.Certificate,
    links: Sequence[tuple[x509.Certificate, x509.Certificate]],
) -> float:
    """Check the signatures alone, on what was cut out before."""
    key = leaf.public_key()
    signed = []
    for one in evidence:
        report = read_report(one.body)
        signed.append((encode_dss_signature(*report.signature), report.signed))
    checks = [(issuer.public_key(), child.signature, child.tbs_certificate_bytes) for child, issuer in links]
    begun = time.process_time()
    for signature, body in signed:
        for issuer_key, link_signature, link_body in checks:
            issuer_key.verify(link_signature, link_body, _PSS, SHA384())  # type: ignore[union-attr, call-arg, arg-type]
        key.verify(signature, body, ec.ECDSA(SHA384()))  # type: ignore[union-attr, call-arg, arg-type]
    return len(signed) / (time.process_time() - begun)
