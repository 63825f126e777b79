"""COSE_Sign1 (RFC 9052, section 4.2): an envelope with one signature, as Nitro and Azure's endorsements use it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

from contract.errors import CollectError
from ingest.attestation.cbor import MAX_BYTES, Tagged, read_cbor, write_bytes, write_head

TAG = 18
ALGORITHM, CRITICAL, CERTIFICATES = 1, 2, 33
"""Labels of headers (RFC 9052, section 3.1; RFC 9360, section 2)."""

_CONTEXT = b"Signature1"
_BEGIN = write_head(4, 4) + write_head(3, len(_CONTEXT)) + _CONTEXT

_CURVES: dict[int, tuple[ec.EllipticCurve, HashAlgorithm]] = {
    -7: (ec.SECP256R1(), SHA256()),
    -35: (ec.SECP384R1(), SHA384()),
    -36: (ec.SECP521R1(), SHA512()),
}
_PSS: dict[int, HashAlgorithm] = {-37: SHA256(), -38: SHA384(), -39: SHA512()}

NAMES = {-7: "ES256", -35: "ES384", -36: "ES512", -37: "PS256", -38: "PS384", -39: "PS512"}
"""Algorithms that can be checked (IANA registry "COSE Algorithms")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign1:
    """An envelope. Only `protected` and `payload` are signed."""

    protected: bytes
    headers: Mapping[Any, Any]
    """What `protected` says."""
    payload: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    signed: bytes = field(repr=False)
    """The bytes that the signature is over: RFC 9052's Sig_structure, without external data."""

    @property
    def algorithm(self) -> int | None:
        """The algorithm that the signed headers name; None where they name none."""
        found = self.headers.get(ALGORITHM)
        return found if isinstance(found, int) else None

    @property
    def digest(self) -> str:
        """SHA-256 of what is signed, hexadecimal: the same however the rest of the envelope is written."""
        return hashlib.sha256(self.signed).hexdigest()

    def certificates(self) -> list[bytes]:
        """Return the signed chain of certificates, the signer's first; empty where there is none or no list."""
        found = self.headers.get(CERTIFICATES)
        chain = found if isinstance(found, list) else [found]
        certificates = [one for one in chain if isinstance(one, bytes)]
        return certificates if len(certificates) == len(chain) else []

    def is_signed_by(self, key: PublicKeyTypes) -> bool:
        """Tell whether the signature is this key's, under the algorithm that the signed headers name."""
        return is_signature(self.signature, self.signed, key, self.algorithm)


def read_sign1(data: bytes, *, max_bytes: int = MAX_BYTES) -> Sign1:
    """Read an envelope, with its tag or without.

    Raises CollectError: too_large; unreadable for what is no COSE_Sign1 with its payload inside, and for headers that
    ask the reader to understand more than this one does.
    """
    value = read_cbor(data, max_bytes=max_bytes)
    if isinstance(value, Tagged) and value.tag == TAG:
        value = value.value
    if not isinstance(value, list) or len(value) != 4:
        raise CollectError("unreadable", "no COSE_Sign1: a list of four belongs here")
    protected, unprotected, payload, signature = value
    if not all(isinstance(part, bytes) for part in (protected, payload, signature)):
        raise CollectError("unreadable", "no COSE_Sign1: headers, payload and signature must be bytes")
    if unprotected is not None and not isinstance(unprotected, dict):
        raise CollectError("unreadable", "no COSE_Sign1: the unsigned headers are no map")
    headers = read_cbor(protected) if protected else {}
    if not isinstance(headers, dict):
        raise CollectError("unreadable", "no COSE_Sign1: the signed headers are no map")
    if CRITICAL in headers:
        raise CollectError("unreadable", "a header marked critical that is not known here")
    return Sign1(
        protected=protected,
        headers=headers,
        payload=payload,
        signature=signature,
        signed=_BEGIN + write_bytes(protected) + write_bytes(b"") + write_bytes(payload),
    )


def is_signature(signature: bytes, signed: bytes, key: PublicKeyTypes, algorithm: int | None) -> bool:
    """Tell whether `signature` is the key's over `signed`; False too where key and algorithm do not fit."""
    try:
        if algorithm in _CURVES and isinstance(key, ec.EllipticCurvePublicKey):
            curve, digest = _CURVES[algorithm]
            half = (curve.key_size + 7) // 8
            if key.curve.name != curve.name or len(signature) != 2 * half:
                return False
            r, s = (int.from_bytes(part, "big") for part in (signature[:half], signature[half:]))
            key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(digest))
        elif algorithm in _PSS and isinstance(key, rsa.RSAPublicKey):
            digest = _PSS[algorithm]
            key.verify(signature, signed, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
        else:
            return False
    except InvalidSignature:
        return False
    return True
