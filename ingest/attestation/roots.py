"""Certificates that are trusted as they are, and how a chain is followed to one of them.

What is shipped lies in the folder `anchors`, one file per vendor's root: the root and the intermediates that its vendor publishes
with it (AMD Key Distribution Service, `cert_chain`).
"""

from __future__ import annotations

import binascii
import warnings
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from contract.errors import CollectError, ConfigError

MAX_CERTIFICATE_BYTES = 16_384
MAX_CERTIFICATES = 64

_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)

_SHIPPED = Path(__file__).with_name("anchors")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Roots:
    """What is trusted, by name of the root: `amd_milan`, `aws_nitro`. Each has its root first.

    Equal to itself alone, so that answers can be remembered by it.
    """

    chains: dict[str, tuple[x509.Certificate, ...]]
    synthetic: bool = False
    """Holds roots of the twin: only for rows that say they are synthetic."""

    def root(self, name: str) -> tuple[x509.Certificate, ...]:
        """Return every certificate that is trusted as the root of this name."""
        return self.chains.get(name, ())[:1]

    def intermediates(self, name: str) -> tuple[x509.Certificate, ...]:
        """Return what was published with the root; not trusted by itself."""
        return self.chains.get(name, ())[1:]


@cache
def shipped_roots() -> Roots:
    """Return the roots of the vendors."""
    return Roots(chains=_read_folder(_SHIPPED))


def with_twin_roots(folder: Path, *, synthetic: bool) -> Roots:
    """Return the twin's roots alone, for a hall whose rows are synthetic; raise ConfigError for any other."""
    if not synthetic:
        raise ConfigError("invalid", f"{folder}: roots of the twin, in a hall that is not synthetic")
    return Roots(chains=_read_folder(folder), synthetic=True)


def _read_folder(folder: Path) -> dict[str, tuple[x509.Certificate, ...]]:
    chains = {path.stem: tuple(read_certificates(path.read_bytes())) for path in sorted(folder.glob("*.crt"))}
    if not chains or not all(chains.values()):
        raise ConfigError("unreadable", f"{folder}: no roots, or a file without certificates")
    return chains


def read_certificate(der: bytes) -> x509.Certificate:
    """Read one certificate in DER; raise CollectError(unreadable).

    AMD numbers its endorsement keys' certificates 0, which RFC 5280 forbids and the library warns of.
    """
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise CollectError("too_large", f"a certificate of {len(der)} bytes")
    return _read_certificate(der)


@lru_cache(maxsize=4_096)
def _read_certificate(der: bytes) -> x509.Certificate:
    with warnings.catch_warnings():
        # Of odd names and numbers that a stranger chose; the class of deprecations is below it.
        warnings.simplefilter("ignore", UserWarning)
        try:
            certificate = x509.load_der_x509_certificate(der)
            # The library reads these when they are asked for; one that cannot be read is refused here.
            _ = certificate.subject, certificate.issuer, certificate.extensions, certificate.serial_number
            _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc, certificate.public_key()
        except _UNREADABLE as error:
            raise CollectError("unreadable", f"not a certificate: {error}") from error
    return certificate


def read_certificates(data: bytes) -> list[x509.Certificate]:
    """Read certificates out of a DER or PEM file, in order; raise CollectError where there is none or a bad one."""
    if data[:1] == b"\x30":
        return [read_certificate(data)]
    found = [read_certificate(der) for der in pem_bodies(data, b"CERTIFICATE")]
    if not found:
        raise CollectError("unreadable", "no certificate in it")
    return found


def pem_bodies(data: bytes, label: bytes) -> list[bytes]:
    """Return the bodies of PEM blocks of a label, the first MAX_CERTIFICATES of them."""
    bodies: list[bytes] = []
    begin, end = b"-----BEGIN " + label + b"-----", b"-----END " + label + b"-----"
    for part in data.split(begin)[1 : MAX_CERTIFICATES + 1]:
        text, found, _ = part.partition(end)
        try:
            if not found:
                raise ValueError("it has no end")
            bodies.append(binascii.a2b_base64(b"".join(text.split()), strict_mode=True))
        except ValueError as error:
            raise CollectError("unreadable", f"a PEM block that is none: {error}") from error
    return bodies


def der_of(certificate: x509.Certificate) -> bytes:
    """Return a certificate's bytes."""
    return certificate.public_bytes(Encoding.DER)


@lru_cache(maxsize=16_384)
def is_issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Tell whether the issuer's name and key stand behind a certificate; says nothing of time.

    Remembered: the answer depends on the bytes of both alone.
    """
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def is_valid_at(certificate: x509.Certificate, at_us: int) -> bool:
    """Tell whether a time lies within a certificate's validity."""
    return not_before_us(certificate) <= at_us <= not_after_us(certificate)


def not_before_us(certificate: x509.Certificate) -> int:
    """Return the beginning of its validity, microseconds UTC."""
    return round(certificate.not_valid_before_utc.timestamp()) * 1_000_000


def not_after_us(certificate: x509.Certificate) -> int:
    """Return the end of its validity, microseconds UTC."""
    return round(certificate.not_valid_after_utc.timestamp()) * 1_000_000


@lru_cache(maxsize=4_096)
def is_authority(certificate: x509.Certificate) -> bool:
    """Tell whether a certificate may sign others (RFC 5280, sections 4.2.1.3 and 4.2.1.9)."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return False
    return constraints.ca and usage.key_cert_sign
