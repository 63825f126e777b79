"""Nitro documents under authorities that a test made, each part to be swapped."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import cbor2
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from contract.testing import START_US
from ingest.attestation.roots import Roots

BEGIN = datetime.fromtimestamp(START_US / 1e6, UTC)
INSTANCE = "i-0123456789abcdef0"
MODULE = f"{INSTANCE}-enc0123456789abcdef"


def usage(**used: bool) -> x509.KeyUsage:
    """Return the use of a key: what is named, nothing else."""
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: used.get(name, False) for name in names})


class Authorities:
    """A chain of the shape of AWS's: root, region, zone, instance, signer."""

    names = ("root", "region", "zone", "instance", "signer")

    def __init__(self) -> None:
        self.keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in self.names}
        self.stranger = ec.generate_private_key(ec.SECP384R1())
        self.certificates = {name: self.issue(name) for name in self.names}

    def issue(
        self,
        name: str,
        *,
        by: str | None = None,
        key: ec.EllipticCurvePrivateKey | None = None,
        begin: datetime = BEGIN - timedelta(hours=1),
        path_length: int | None = None,
        authority: bool | None = None,
        use: x509.KeyUsage | None = None,
        extension: x509.ExtensionType | None = None,
    ) -> x509.Certificate:
        """Issue a certificate of the chain, as it should be but for what is named."""
        at = self.names.index(name)
        issuer = by or self.names[max(0, at - 1)]
        is_signer = name == "signer"
        authority = not is_signer if authority is None else authority
        length = path_length if path_length is not None else (3 - at if 0 < at < 4 else None)
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.name(name))
            .issuer_name(self.name(issuer))
            .public_key(self.keys[name].public_key())
            .serial_number(7 + at)
            .not_valid_before(begin)
            .not_valid_after(begin + timedelta(hours=3))
            .add_extension(x509.BasicConstraints(authority, length if authority else None), critical=True)
            .add_extension(
                use or usage(digital_signature=is_signer, key_cert_sign=not is_signer), critical=True
            )
        )
        if extension is not None:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(key or self.keys[issuer], hashes.SHA384())

    def name(self, name: str) -> x509.Name:
        """Return the subject of a certificate of the chain."""
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"test {name}")])

    def roots(self) -> Roots:
        """Return its root as the one that is trusted."""
        return Roots(chains={"aws_nitro": (self.certificates["root"],)})

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Return claims as they should be, or other certificates by name, or other claims."""
        certificates = {
            name: (changed.pop(name, None) or self.certificates[name]).public_bytes(Encoding.DER)
            for name in self.names
        }
        registers = {number: bytes(48) for number in range(16)}
        registers |= {number: bytes([number + 1]) * 48 for number in (0, 1, 2)}
        registers[4] = hashlib.sha384(bytes(48) + INSTANCE.encode()).digest()
        claims = {
            "module_id": MODULE,
            "digest": "SHA384",
            "timestamp": START_US // 1000,
            "pcrs": registers,
            "certificate": certificates["signer"],
            "cabundle": [certificates[name] for name in self.names[:-1]],
            "public_key": None,
            "user_data": None,
            "nonce": b"a nonce",
        }
        return {name: value for name, value in (claims | changed).items() if value is not ...}

    def document(self, **changed: Any) -> bytes:
        """Return a signed document; `...` as a claim leaves it out."""
        return self.sign(cbor2.dumps(self.claims(**changed)))

    def sign(
        self,
        payload: bytes,
        *,
        headers: dict[int, Any] | None = None,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> bytes:
        """Put a payload into an envelope, signed by the signer unless another key is given."""
        protected = cbor2.dumps({1: -35} if headers is None else headers)
        signed = cbor2.dumps(["Signature1", protected, b"", payload])
        r, s = decode_dss_signature((key or self.keys["signer"]).sign(signed, ec.ECDSA(hashes.SHA384())))
        signature = r.to_bytes(48, "big") + s.to_bytes(48, "big")
        return cbor2.dumps([protected, {}, payload, signature])
