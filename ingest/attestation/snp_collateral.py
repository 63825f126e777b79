"""What an SNP report is checked with: signers' certificates, intermediates and revocation lists, as they are found.

Found in the wild: DER, PEM chains, and the JSON of Azure's host with PEM texts in it (`vcekCert`, `certificateChain`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import orjson
from cryptography import x509

from contract.errors import CollectError
from ingest.attestation.evidence import plain
from ingest.attestation.roots import (
    Roots,
    is_authority,
    is_issued_by,
    not_after_us,
    not_before_us,
    pem_bodies,
    read_certificate,
)
from ingest.attestation.snp_leaf import Leaf, read_leaf
from ingest.attestation.snp_report import Product, Report, tcb_parts

MAX_FILE_BYTES = 1_048_576

_MAX_REMEMBERED_BYTES = 32_768
_PEM = b"-----BEGIN "
_MAX_JSON_TEXTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Who stands behind a leaf."""

    intermediate: x509.Certificate
    root: x509.Certificate
    not_before_us: int
    not_after_us: int
    """While both are valid."""


@dataclass(frozen=True, slots=True)
class Collateral:
    """Sorted by what it is. Nothing in it is trusted."""

    leaves: tuple[Leaf, ...] = ()
    intermediates: tuple[x509.Certificate, ...] = ()
    revocation_lists: tuple[x509.CertificateRevocationList, ...] = ()
    unreadable: tuple[str, ...] = ()

    @classmethod
    def gather(cls, files: Iterable[bytes]) -> Collateral:
        """Sort what several files hold."""
        parts = [collateral_of(file) for file in files]
        return cls(
            leaves=tuple(one for part in parts for one in part.leaves),
            intermediates=tuple(one for part in parts for one in part.intermediates),
            revocation_lists=tuple(one for part in parts for one in part.revocation_lists),
            unreadable=tuple(one for part in parts for one in part.unreadable),
        )

    def leaf_of(self, report: Report, product: Product | None, at_us: int) -> Leaf | None:
        """Return the leaf that fits a report in everything; of several, one that is valid at the time."""
        fitting = [one for one in self.leaves if all(fits(one, report, product))]
        return max(fitting, key=lambda one: one.not_before_us <= at_us <= one.not_after_us, default=None)

    def nearest(self, report: Report, product: Product | None) -> Leaf | None:
        """Return the leaf that fits best; None where there is none at all."""
        return max(self.leaves, key=lambda one: fits(one, report, product), default=None)


def fits(leaf: Leaf, report: Report, product: Product | None) -> tuple[bool, bool, bool, bool]:
    """Tell whether a leaf fits in kind, product, chip and firmware, in this order."""
    return (
        leaf.signer == report.signer,
        product in (None, leaf.product),
        leaf.chip_id is None or report.is_chip_masked or is_chip(leaf.chip_id, report),
        leaf.tcb == tcb_parts(report.reported_tcb, leaf.product),
    )


@lru_cache(maxsize=4_096)
def authorities_of(leaf: Leaf, roots: Roots, brought: tuple[x509.Certificate, ...]) -> Authorities | None:
    """Follow a leaf to the root of its product, over an intermediate that is shipped or brought; None: there is no way.

    The root's key comes first: no stranger's key is used before something trusted stands behind it. Remembered: time and
    revocation are no part of the answer.
    """
    name = leaf.product.root
    for root in roots.root(name):
        for one in (*roots.intermediates(name), *brought):
            if is_issued_by(one, root) and is_authority(one) and is_issued_by(leaf.certificate, one):
                return Authorities(
                    intermediate=one,
                    root=root,
                    not_before_us=max(not_before_us(one), not_before_us(root)),
                    not_after_us=min(not_after_us(one), not_after_us(root)),
                )
    return None


def is_chip(chip_id: bytes, report: Report) -> bool:
    """Compare a certificate's chip with a report's: a short id is followed by zeros there."""
    return report.chip_id == chip_id.ljust(len(report.chip_id), b"\0")


def collateral_of(file: bytes) -> Collateral:
    """Sort what one file holds; a file that is no collateral holds none."""
    if len(file) > MAX_FILE_BYTES:
        return Collateral()
    return _remembered(file) if len(file) <= _MAX_REMEMBERED_BYTES else _sort(file)


def _sort(file: bytes) -> Collateral:
    leaves: list[Leaf] = []
    intermediates: list[x509.Certificate] = []
    lists: list[x509.CertificateRevocationList] = []
    unreadable: list[str] = []
    try:
        ders = list(_ders(plain(file)))
    except CollectError as error:
        return Collateral(unreadable=(str(error),))
    for der in ders:
        try:
            read = _read(der)
            if isinstance(read, x509.CertificateRevocationList):
                lists.append(read)
                continue
            leaf = read_leaf(read)
        except CollectError as error:
            unreadable.append(str(error))
            continue
        if leaf is None:
            intermediates.append(read)
        else:
            leaves.append(leaf)
    return Collateral(tuple(leaves), tuple(intermediates), tuple(lists), tuple(unreadable))


_remembered = lru_cache(maxsize=1_024)(_sort)


def _ders(data: bytes) -> Iterable[bytes]:
    if data[:1] == b"\x30":
        yield data
    elif _PEM in data and data.lstrip()[:1] == b"{":
        for text in _texts(data):
            yield from _pems(text.encode())
    elif _PEM in data:
        yield from _pems(data)


def _pems(data: bytes) -> list[bytes]:
    return pem_bodies(data, b"CERTIFICATE") + pem_bodies(data, b"X509 CRL")


def _texts(data: bytes) -> list[str]:
    try:
        values = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CollectError("unreadable", f"certificates in what is no JSON: {error}") from error
    texts = [one for one in values.values() if isinstance(one, str)] if isinstance(values, dict) else []
    return texts[:_MAX_JSON_TEXTS]


def _read(der: bytes) -> x509.Certificate | x509.CertificateRevocationList:
    try:
        return read_certificate(der)
    except CollectError:
        return _read_revocation_list(der)


def _read_revocation_list(der: bytes) -> x509.CertificateRevocationList:
    try:
        revocations = x509.load_der_x509_crl(der)
        # Read when asked for; what cannot be read is refused here.
        _ = revocations.issuer, revocations.last_update_utc, revocations.next_update_utc
        _ = revocations.get_revoked_certificate_by_serial_number(0)
    except (ValueError, TypeError) as error:
        raise CollectError("unreadable", f"neither certificate nor revocation list: {error}") from error
    return revocations
