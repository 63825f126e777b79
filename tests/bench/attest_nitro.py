"""Judging documents of Nitro Enclaves, beside the bare signature checks: all five on P-384, one where the chain is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from bench import BenchRow, median_ratio
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384

from contract.testing import START_US
from ingest.attestation import nitro, roots
from ingest.attestation.cose import read_sign1
from ingest.attestation.evidence import Evidence, read_evidence
from ingest.attestation.nitro import NitroVerifier
from ingest.attestation.policy import baseline
from ingest.attestation.steps import Setting
from ingest.attestation.testing import Authorities

DOCUMENTS = 200
_ES384 = ec.ECDSA(SHA384())


def measure_nitro() -> list[BenchRow]:
    """Return the figures; at 0.6 of the bare checks or more, with and without memory of the chain."""
    authorities = Authorities()
    setting = Setting(at_us=START_US, roots=authorities.roots(), policy=baseline())
    evidence = [read_evidence(authorities.document(nonce=b"%d" % number)) for number in range(DOCUMENTS)]
    known = median_ratio(lambda: _ours(evidence, setting), lambda: _bare(evidence, authorities, links=0))
    new = median_ratio(
        lambda: _ours(evidence, setting, _forget), lambda: _bare(evidence, authorities, links=4)
    )
    return [
        _row("verify a Nitro document, chain known", *known),
        _row("verify a Nitro document, chain new", *new),
    ]


def _row(name: str, ours: float, bare: float, ratio: float) -> BenchRow:
    goal = ">= 0.6 x bare signature checks"
    return BenchRow(
        name=name, value=ours, unit="documents/s CPU", baseline=bare, goal=goal, holds=ratio >= 0.6
    )


def _ours(evidence: Sequence[Evidence], setting: Setting, forget: Callable[[], None] | None = None) -> float:
    verifier = NitroVerifier()
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
        nitro._may_issue,
        nitro._may_sign,
        nitro._window,
    ):
        remembered.cache_clear()


def _bare(evidence: Sequence[Evidence], authorities: Authorities, *, links: int) -> float:
    """Check the signatures alone, on what was cut out before, under keys that are read already."""
    names = authorities.names
    chain = [
        (authorities.keys[issuer].public_key(), authorities.certificates[issued])
        for issuer, issued in pairwise(names)
    ][:links]
    parts = [(key, one.signature, one.tbs_certificate_bytes) for key, one in chain]
    signer = authorities.keys["signer"].public_key()
    envelopes = [read_sign1(one.body) for one in evidence]
    signed = [(_der(one.signature), one.signed) for one in envelopes]
    begun = time.process_time()
    for signature, body in signed:
        for key, link_signature, link_body in parts:
            key.verify(link_signature, link_body, _ES384)
        signer.verify(signature, body, _ES384)
    return len(signed) / (time.process_time() - begun)


def _der(signature: bytes) -> bytes:
    return encode_dss_signature(int.from_bytes(signature[:48], "big"), int.from_bytes(signature[48:], "big"))
