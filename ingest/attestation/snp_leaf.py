"""The certificates of keys that sign SNP reports (AMD 57230, VCEK certificate and KDS interface specification).

A VCEK is a chip's own key and names the chip; a VLEK is loaded by a cloud provider and names the provider. Which it is
follows from what it holds, from its own name and from its issuer's: all three must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from contract.errors import CollectError
from ingest.attestation.roots import not_after_us, not_before_us
from ingest.attestation.snp_report import PRODUCTS, VCEK, VLEK, Product

_ARC = "1.3.6.1.4.1.3704.1."
_PARTS = {"3.1": "bootloader", "3.2": "tee", "3.3": "snp", "3.8": "microcode", "3.9": "fmc"}
_PRODUCT_NAME, _CHIP, _PROVIDER = "2", "4", "5"

_INTEGER, _OCTET_STRING, _IA5_STRING = 0x02, 0x04, 0x16
_NAMES = {VCEK: ("SEV-VCEK", "SEV-"), VLEK: ("SEV-VLEK", "SEV-VLEK-")}
"""Subject, and what the issuer's name begins with before the product's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaf:
    """A certificate of a signing key. Equal to itself alone, so that answers can be remembered by it."""

    certificate: x509.Certificate = field(repr=False)
    key: ec.EllipticCurvePublicKey = field(repr=False)
    signer: int
    product: Product
    tcb: Mapping[str, int]
    """Versions the key was made for."""
    chip_id: bytes | None
    """None for a VLEK."""
    provider: str | None
    """Who loaded it; None for a VCEK."""
    not_before_us: int
    not_after_us: int


@lru_cache(maxsize=4_096)
def read_leaf(certificate: x509.Certificate) -> Leaf | None:
    """Read what a certificate says of a signing key; None where it is of none.

    Raises CollectError(unreadable) where it claims to be of one and is not made like one.
    """
    subject = _common_name(certificate.subject)
    signer = next((kind for kind, (name, _) in _NAMES.items() if name == subject), None)
    if signer is None:
        return None
    try:
        values = _extensions(certificate)
        key = certificate.public_key()
        product = _product(certificate, signer)
        if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
            raise ValueError("its key is not on P-384")
        if not _text(values[_PRODUCT_NAME]).partition("-")[0] == product.name:
            raise ValueError("it names another product than its issuer")
        if (_CHIP in values, _PROVIDER in values) != (signer == VCEK, signer == VLEK):
            raise ValueError("it must name its chip or its provider, as its subject says")
        return Leaf(
            certificate=certificate,
            key=key,
            signer=signer,
            product=product,
            tcb=_tcb(values, product),
            chip_id=_chip_id(values[_CHIP], product) if signer == VCEK else None,
            provider=_text(values[_PROVIDER]) if signer == VLEK else None,
            not_before_us=not_before_us(certificate),
            not_after_us=not_after_us(certificate),
        )
    except (ValueError, KeyError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise CollectError("unreadable", f"{subject}: {error}") from error


def _common_name(name: x509.Name) -> str:
    found = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def _product(certificate: x509.Certificate, signer: int) -> Product:
    name, start = _common_name(certificate.issuer), _NAMES[signer][1]
    product = PRODUCTS.get(name.removeprefix(start)) if name.startswith(start) else None
    if product is None:
        raise ValueError(f"its issuer {name!r} is of no product that is known")
    return product


def _extensions(certificate: x509.Certificate) -> dict[str, bytes]:
    """Return the raw values of AMD's extensions by the end of their identifier."""
    return {
        one.oid.dotted_string.removeprefix(_ARC): one.value.value
        for one in certificate.extensions
        if one.oid.dotted_string.startswith(_ARC) and isinstance(one.value, x509.UnrecognizedExtension)
    }


def _tcb(values: Mapping[str, bytes], product: Product) -> dict[str, int]:
    found = {part: _small(values[end]) for end, part in _PARTS.items() if end in values}
    if found.keys() != product.tcb.keys():
        raise ValueError(f"its versions are {sorted(found)}, of {product.name} {sorted(product.tcb)} belong")
    return found


def _small(value: bytes) -> int:
    """Read a DER INTEGER of 0 to 255."""
    if value[:2] == bytes((_INTEGER, 1)) and len(value) == 3 and value[2] < 0x80:
        return value[2]
    if value[:3] == bytes((_INTEGER, 2, 0)) and len(value) == 4 and value[3] >= 0x80:
        return value[3]
    raise ValueError(f"{value[:8].hex()} where a version of 0 to 255 belongs")


def _text(value: bytes) -> str:
    if len(value) < 2 or value[0] != _IA5_STRING or value[1] >= 0x80 or len(value) != 2 + value[1]:
        raise ValueError("a name that is no short text")
    return value[2:].decode("ascii")


def _chip_id(value: bytes, product: Product) -> bytes:
    """Take a chip id as it is, or out of an OCTET STRING: both are found."""
    size = product.chip_id_bytes
    if len(value) == size + 2 and value[:2] == bytes((_OCTET_STRING, size)):
        return value[2:]
    if len(value) != size:
        raise ValueError(f"a chip id of {len(value)} bytes, of {product.name} it has {size}")
    return value
