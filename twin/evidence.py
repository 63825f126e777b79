"""The processors' secure side, as a maker of processors and its chips act: certificates, and reports signed by chips.

The maker's keys are drawn anew for every hall and certify nothing outside it. Forms: AMD 56860 (report), AMD 57230
(certificates; their serial number is 0, as the real ones').
"""

from __future__ import annotations

import base64
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, TypeAlias

import orjson
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from contract.files import write_whole

Product: TypeAlias = Literal["Milan", "Genoa", "Turin"]

CPUS = {"Milan": (0x19, 0x01, 0x01), "Genoa": (0x19, 0x11, 0x01), "Turin": (0x1A, 0x02, 0x01)}
"""A family, model and stepping of each."""

_ZEN_3 = {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}
_ZEN_5 = {"fmc": 0, "bootloader": 1, "tee": 2, "snp": 3, "microcode": 7}
TCB_LAYOUTS = {"Milan": _ZEN_3, "Genoa": _ZEN_3, "Turin": _ZEN_5}

_PARTS = {"bootloader": "3.1", "tee": "3.2", "snp": "3.3", "microcode": "3.8", "fmc": "3.9"}
_ARC = "1.3.6.1.4.1.3704.1."
_KEY_BITS = 2_048  # nothing in the twin has to last
REAL_KEY_BITS = 4_096
"""What AMD's have; drawing three of them takes seconds."""

_PSS = padding.PSS(padding.MGF1(SHA384()), SHA384().digest_size)
_SIGNED_BYTES = 0x2A0
_DEBUG_BIT = 19
_PLAIN_GUEST_POLICY = 0x30000  # SMT allowed, and the bit that is always one


class Maker:
    """Makes one product: a root, an intermediate for chips' own keys and one for keys that providers load."""

    def __init__(self, product: Product, now_us: int, *, key_bits: int = _KEY_BITS) -> None:
        """Draw the keys; certificates begin a year before `now_us` and last as long as AMD's."""
        self.product = product
        self._since = datetime.fromtimestamp(now_us // 1_000_000, UTC) - timedelta(days=365)
        self._keys: dict[str, rsa.RSAPrivateKey] = {}
        self._certificates: dict[str, x509.Certificate] = {}
        root = f"ARK-{product}"
        for number, name in enumerate((root, f"SEV-{product}", f"SEV-VLEK-{product}")):
            self._keys[name] = rsa.generate_private_key(public_exponent=65_537, key_size=key_bits)
            self._certificates[name] = self._authority(name, root, 65_536 + number)

    @property
    def chain(self) -> bytes:
        """The root and its intermediates, PEM: what a verifier has to trust."""
        return b"".join(one.public_bytes(Encoding.PEM) for one in self._certificates.values())

    def write_root(self, folder: Path) -> Path:
        """Write that chain as a verifier looks for it; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"amd_{self.product.lower()}.crt"
        write_whole(path, self.chain)
        return path

    def certify(
        self,
        key: ec.EllipticCurvePublicKey,
        tcb: Mapping[str, int],
        *,
        chip_id: bytes | None,
        provider: str = "",
        days: int = 7 * 365,
    ) -> bytes:
        """Return the certificate, DER, of a chip's key or, without a chip, of one that a provider loads."""
        subject, issuer = (
            ("SEV-VCEK", f"SEV-{self.product}") if chip_id else ("SEV-VLEK", f"SEV-VLEK-{self.product}")
        )
        values = {"1": _integer(0), "2": _text(self.product)}
        values |= {_PARTS[part]: _integer(svn) for part, svn in tcb.items()}
        values |= {"4": chip_id} if chip_id else {"5": _text(provider)}
        builder = self._builder(subject, issuer, 1, days).public_key(key)
        for end, value in values.items():
            extension = x509.UnrecognizedExtension(x509.ObjectIdentifier(_ARC + end), value)
            builder = builder.add_extension(extension, critical=False)
        return _with_serial_0(
            builder.sign(self._keys[issuer], SHA384(), rsa_padding=_PSS), self._keys[issuer]
        )

    def revocation_list(self, now_us: int, *, revoke: str = "", days: int = 365) -> bytes:
        """Return a list of revoked certificates, DER, signed by the root; `revoke` names an intermediate."""
        now = datetime.fromtimestamp(now_us // 1_000_000, UTC)
        root = f"ARK-{self.product}"
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self._certificates[root].subject,
            last_update=now,
            next_update=now + timedelta(days=days),
        )
        if revoke:
            serial = self._certificates[revoke].serial_number
            one = x509.RevokedCertificateBuilder(serial_number=serial, revocation_date=now)
            builder = builder.add_revoked_certificate(one.build())
        signed = builder.sign(self._keys[root], SHA384(), rsa_padding=_PSS)
        return signed.public_bytes(Encoding.DER)

    def _authority(self, name: str, issuer: str, serial: int) -> x509.Certificate:
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = self._builder(name, issuer, serial, 25 * 365).public_key(self._keys[name].public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(usage, critical=True)
        return builder.sign(self._keys[issuer], SHA384(), rsa_padding=_PSS)

    def _builder(self, subject: str, issuer: str, serial: int, days: int) -> x509.CertificateBuilder:
        until = self._since + timedelta(days=days)
        builder = x509.CertificateBuilder(subject_name=_name(subject), issuer_name=_name(issuer))
        return builder.serial_number(serial).not_valid_before(self._since).not_valid_after(until)


def _name(common: str) -> x509.Name:
    # The organisation says what it is, wherever such a certificate turns up.
    parts = ((NameOID.ORGANIZATION_NAME, "hallwatch twin"), (NameOID.COMMON_NAME, common))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _integer(value: int) -> bytes:
    body = value.to_bytes(2 if value >= 0x80 else 1, "big")
    return bytes((0x02, len(body))) + body


def _text(value: str) -> bytes:
    return bytes((0x16, len(value))) + value.encode("ascii")


def _with_serial_0(certificate: x509.Certificate, key: rsa.RSAPrivateKey) -> bytes:
    """Write a certificate of serial number 1 anew with 0, which the library does not write."""
    before = b"\xa0\x03\x02\x01\x02\x02\x01"  # version 3, then an integer of one byte
    signed = certificate.tbs_certificate_bytes
    changed = signed.replace(before + b"\x01", before + b"\x00", 1)
    der = certificate.public_bytes(Encoding.DER)
    algorithm = der[der.index(signed) + len(signed) : -(key.key_size // 8 + 5)]
    signature = key.sign(changed, _PSS, SHA384())
    bits = b"\x03\x82" + (len(signature) + 1).to_bytes(2, "big") + b"\x00" + signature
    body = changed + algorithm + bits
    return b"\x30\x82" + len(body).to_bytes(2, "big") + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A confidential machine, as its processor sees it."""

    measurement: bytes = bytes(48)
    host_data: bytes = bytes(32)
    policy: int = _PLAIN_GUEST_POLICY
    vmpl: int = 0
    svn: int = 1
    report_id: bytes = bytes(32)

    @classmethod
    def named(cls, name: str, *, image: str = "image", debug: bool = False, vmpl: int = 0) -> Guest:
        """Return the guest of a name that started an image: always the same."""
        draw = hashlib.sha512(name.encode()).digest()
        return cls(
            measurement=hashlib.sha384(image.encode()).digest(),
            host_data=draw[:32],
            policy=_PLAIN_GUEST_POLICY | (debug << _DEBUG_BIT),
            vmpl=vmpl,
            report_id=draw[32:],
        )


@dataclass(slots=True, kw_only=True)
class Processor:
    """A chip with its key. Firmware that changes changes the key, as on the real ones."""

    maker: Maker
    chip_id: bytes
    """64 bytes; a Turin has 8, and zeros behind them in its reports."""
    tcb: Mapping[str, int]
    version: int = 3
    key: ec.EllipticCurvePrivateKey = field(init=False, repr=False)
    certificate: bytes = field(init=False, repr=False)
    """Of the key, DER."""

    def __post_init__(self) -> None:
        self.load(self.tcb)

    def load(self, tcb: Mapping[str, int]) -> None:
        """Start firmware of other versions."""
        self.tcb = dict(tcb)
        seed = hashlib.sha384(self.chip_id + orjson.dumps(self.tcb, option=orjson.OPT_SORT_KEYS)).digest()
        self.key = ec.derive_private_key(int.from_bytes(seed[:40], "big") + 1, ec.SECP384R1())
        self.certificate = self.maker.certify(self.key.public_key(), self.tcb, chip_id=self.chip_id)

    @property
    def tcb_bytes(self) -> bytes:
        """The versions, where the product keeps each."""
        packed = bytearray(8)
        for part, at in TCB_LAYOUTS[self.maker.product].items():
            packed[at] = self.tcb[part]
        return bytes(packed)

    def body(self, guest: Guest, report_data: bytes, *, key_info: int = 0) -> bytes:
        """Return the part of a report that is signed."""
        tcb = self.tcb_bytes
        cpu = CPUS[self.maker.product] if self.version > 2 else (0, 0, 0)
        head = struct.pack(
            "<IIQ16s16sII8sQII64s48s32s48s48s32s32s8sBBB",
            *(self.version, guest.svn, guest.policy, bytes(16), bytes(16), guest.vmpl, 1),
            *(tcb, 0x25, key_info, 0, report_data, guest.measurement, guest.host_data, bytes(48), bytes(48)),
            *(guest.report_id, b"\xff" * 32, tcb, *cpu),
        )
        tail = struct.pack("<64s8sBBBxBBBx8s", self.chip_id, tcb, 29, 55, 1, 29, 55, 1, tcb)
        return (head.ljust(0x1A0, b"\0") + tail).ljust(_SIGNED_BYTES, b"\0")

    def report(self, guest: Guest, report_data: bytes = b"") -> bytes:
        """Return a report of 1,184 bytes on a guest; `report_data` is what the guest binds to it."""
        return signed(self.body(guest, report_data), self.key)


def signed(body: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a report: its body and a key's signature."""
    r, s = decode_dss_signature(key.sign(body, ec.ECDSA(SHA384(), deterministic_signing=True)))
    return (body + r.to_bytes(72, "little") + s.to_bytes(72, "little")).ljust(1_184, b"\0")


def parcel(host: str, report: bytes, certificates: Mapping[str, bytes], taken_us: int) -> bytes:
    """Return what an agent in the guest hands in: the report, what it is checked with, and when it was taken."""
    values = {
        "host": host,
        "taken_us": taken_us,
        "evidence": base64.b64encode(report).decode(),
        "attached": {name: base64.b64encode(body).decode() for name, body in certificates.items()},
    }
    return orjson.dumps(values)
