"""The attestation report of AMD SEV-SNP, byte by byte (AMD 56860, SEV Secure Nested Paging Firmware ABI, ATTESTATION_REPORT)."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ingest.attestation.policy import Cpu

SIZE_BYTES = 1_184
SIGNED_BYTES = 0x2A0
VERSIONS = (2, 3, 4, 5)

VCEK, VLEK, NOBODY = 0, 1, 7
"""Who signed: the chip's own key, a key that was loaded, nobody (bits 2 to 4 of key_info)."""

ECDSA_P384_SHA384 = 1

NO_MIGRATION_AGENT = b"\xff" * 32

_HALF_BYTES = 72
_KEY_BYTES = 48

_ALWAYS_ZERO = ((0x04C, 0x050), (0x18B, 0x1A0), (0x1EB, 0x1EC), (0x1EF, 0x1F0), (0x208, 0x2A0))
_PADDING = (
    (SIGNED_BYTES + _KEY_BYTES, SIGNED_BYTES + _HALF_BYTES),
    (SIGNED_BYTES + _HALF_BYTES + _KEY_BYTES, SIGNED_BYTES + 2 * _HALF_BYTES),
    (SIGNED_BYTES + 2 * _HALF_BYTES, SIZE_BYTES),
)
"""Around the two halves of the signature: not signed, so nothing may hide there."""

GUEST_POLICY_BITS = {
    16: "smt",
    18: "migration_agent",
    19: "debug",
    20: "single_socket",
    21: "cxl",
    22: "aes_256_xts",
    23: "rapl_off",
    24: "ciphertext_hiding",
    25: "page_swap_disabled",
}
PLATFORM_BITS = {
    0: "smt",
    1: "tsme",
    2: "ecc",
    3: "rapl_off",
    4: "ciphertext_hiding",
    5: "alias_check_complete",
    7: "tio",
}
_KNOWN_POLICY = 0xFFFF | 1 << 17 | sum(1 << bit for bit in GUEST_POLICY_BITS)
"""With the version of the interface, and the bit that is always one."""
_KNOWN_PLATFORM = sum(1 << bit for bit in PLATFORM_BITS)

_HEAD = struct.Struct("<IIQ16s16sII8sQII64s48s32s48s48s32s32s8sBBB")
_TAIL = struct.Struct("<64s8sBBBxBBBx8sQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A generation of processors: how its reports are read."""

    name: str
    family: int
    models: tuple[range, ...]
    tcb: Mapping[str, int]
    """Place of each part's version within the eight bytes of a TCB."""
    chip_id_bytes: int = 64

    @property
    def root(self) -> str:
        """The name of its root among the trusted ones."""
        return f"amd_{self.name.lower()}"


_ZEN_3 = {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}
_ZEN_5 = {"fmc": 0, "bootloader": 1, "tee": 2, "snp": 3, "microcode": 7}

PRODUCTS = {
    one.name: one
    for one in (
        Product(name="Milan", family=0x19, models=(range(0x10),), tcb=_ZEN_3),
        Product(name="Genoa", family=0x19, models=(range(0x10, 0x20), range(0xA0, 0xB0)), tcb=_ZEN_3),
        Product(name="Turin", family=0x1A, models=(range(0x12),), tcb=_ZEN_5, chip_id_bytes=8),
    )
}
"""Bergamo and Siena are Genoa to its roots."""


def product_of(cpu: Cpu) -> Product | None:
    """Return the product of a processor; None where it is not known."""
    for product in PRODUCTS.values():
        if cpu.family == product.family and any(cpu.model in models for models in product.models):
            return product
    return None


@dataclass(frozen=True, kw_only=True)
class Report:
    """The fields of a report. Nothing in it is checked but its shape."""

    raw: bytes = field(repr=False)
    version: int
    guest_svn: int
    policy: int
    family_id: bytes
    image_id: bytes
    vmpl: int
    algorithm: int
    current_tcb: bytes
    platform: int
    key_info: int
    report_data: bytes
    measurement: bytes
    host_data: bytes
    id_key_digest: bytes
    author_key_digest: bytes
    report_id: bytes
    report_id_ma: bytes
    reported_tcb: bytes
    cpu: Cpu | None
    """None before version 3."""
    chip_id: bytes
    committed_tcb: bytes
    current_firmware: str
    committed_firmware: str
    launch_tcb: bytes

    @cached_property
    def signed(self) -> bytes:
        return self.raw[:SIGNED_BYTES]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what is signed, hexadecimal."""
        return hashlib.sha256(self.signed).hexdigest()

    @property
    def signature(self) -> tuple[int, int]:
        """The two halves of the signature."""
        middle = SIGNED_BYTES + _HALF_BYTES
        halves = self.raw[SIGNED_BYTES:middle], self.raw[middle : middle + _HALF_BYTES]
        return int.from_bytes(halves[0], "little"), int.from_bytes(halves[1], "little")

    @property
    def signer(self) -> int:
        return self.key_info >> 2 & 7

    @property
    def is_chip_masked(self) -> bool:
        """Whether the chip does not say which one it is."""
        return bool(self.key_info & 2) or not any(self.chip_id)

    @property
    def allows_debug(self) -> bool:
        return bool(self.policy >> 19 & 1)

    @property
    def allows_migration_agent(self) -> bool:
        return bool(self.policy >> 18 & 1)

    def not_zero(self) -> str | None:
        """Return the first place that must be zero and is not, hexadecimal."""
        ranges = [*_ALWAYS_ZERO, *_PADDING]
        if self.version == min(VERSIONS):
            ranges.append((0x188, 0x18B))
        if self.version < max(VERSIONS):
            ranges.append((0x1F8, 0x208))
        for first, last in ranges:
            if any(self.raw[first:last]):
                return f"{first:03X}-{last - 1:03X}"
        return None

    def unknown_bits(self) -> list[str]:
        """Name the bits of the guest policy and of the platform that have no meaning here."""
        unknown = (("policy", self.policy & ~_KNOWN_POLICY), ("platform", self.platform & ~_KNOWN_PLATFORM))
        return [
            f"{where} bit {bit}" for where, bits in unknown if bits for bit in range(64) if bits >> bit & 1
        ]


def read_report(raw: bytes) -> Report:
    """Cut a report into its fields; raise ValueError where it has another size."""
    if len(raw) != SIZE_BYTES:
        raise ValueError(f"{len(raw)} bytes")
    head, tail = _HEAD.unpack_from(raw), _TAIL.unpack_from(raw, 0x1A0)
    cpu = Cpu(family=head[19], model=head[20], stepping=head[21]) if head[0] > min(VERSIONS) else None
    return Report(
        raw=raw,
        version=head[0],
        guest_svn=head[1],
        policy=head[2],
        family_id=head[3],
        image_id=head[4],
        vmpl=head[5],
        algorithm=head[6],
        current_tcb=head[7],
        platform=head[8],
        key_info=head[9],
        report_data=head[11],
        measurement=head[12],
        host_data=head[13],
        id_key_digest=head[14],
        author_key_digest=head[15],
        report_id=head[16],
        report_id_ma=head[17],
        reported_tcb=head[18],
        cpu=cpu,
        chip_id=tail[0],
        committed_tcb=tail[1],
        current_firmware=f"{tail[4]}.{tail[3]}.{tail[2]}",
        committed_firmware=f"{tail[7]}.{tail[6]}.{tail[5]}",
        launch_tcb=tail[8],
    )


def tcb_parts(tcb: bytes, product: Product) -> dict[str, int]:
    """Return the version of each part of a TCB."""
    return {part: tcb[at] for part, at in product.tcb.items()}
