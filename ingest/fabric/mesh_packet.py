"""Probes and their answers on the wire: fixed size, authenticated both ways, an answer never larger than its probe.

    0  magic "hwp1"        4
    4  kind                1   1 = probe, 2 = answer
    5  reserved            3   zero
    8  session             8   random, per start of a prober
    16 sequence            8   of the session
    24 sent_ns             8   prober's wall clock just before it sent
    32 received_ns         8   answer: responder's wall clock when the probe arrived
    40 answered_ns         8   answer: just before it answered
    48 mac                16   keyed BLAKE2s over both addresses, both ports, everything before it and the padding
    64 padding                 zeros, up to the size of the probe

Numbers are in network order. Both ends are part of what is authenticated, so a captured probe is worth nothing at
another responder and cannot be made to draw an answer to somebody else.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from contract.errors import ConfigError

MAGIC = b"hwp1"
PROBE, ANSWER = 1, 2
HEADER = struct.Struct("!4sB3x8sQQQQ")
MAC_BYTES = 16
LEAST_BYTES = HEADER.size + MAC_BYTES
MOST_BYTES = 65_000
MAX_SEQUENCE = 2**63

_LEAST_KEY_BYTES = 16
_MOST_KEYS = 4
_MAX_FILE_BYTES = 4_096

Fault = Literal["malformed", "spoofed"]


class End(NamedTuple):
    """An address with a port, and what of it goes into the MAC."""

    address: str
    port: int

    @property
    def mark(self) -> bytes:
        return ipaddress.ip_address(self.address).packed + self.port.to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class Packet:
    """What a probe or an answer says."""

    kind: int
    session: bytes
    sequence: int
    sent_ns: int
    received_ns: int = 0
    answered_ns: int = 0


class Keys:
    """The secret of a hall: the first key signs, all of them prove."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    def sign(self, marks: bytes, content: bytes) -> bytes:
        return _mac(self._keys[0], marks, content)

    def prove(self, marks: bytes, content: bytes, mac: bytes) -> bool:
        return any(hmac.compare_digest(_mac(key, marks, content), mac) for key in self._keys)


def read_keys(path: Path) -> Keys:
    """Read a key file: up to four keys, each a line of hexadecimal digits; raise ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("unreadable", f"{path}: {error.strerror}") from error
    try:
        keys = [bytes.fromhex(line) for line in content.decode("ascii").split()]
    except ValueError:
        raise ConfigError("invalid", f"{path}: each line is a key of hexadecimal digits") from None
    if not 1 <= len(keys) <= _MOST_KEYS or len(content) > _MAX_FILE_BYTES:
        raise ConfigError("invalid", f"{path}: holds {len(keys)} keys; 1 to {_MOST_KEYS} belong there")
    if not all(_LEAST_KEY_BYTES <= len(key) <= hashlib.blake2s.MAX_KEY_SIZE for key in keys):
        raise ConfigError("invalid", f"{path}: a key has 32 to 64 hexadecimal digits: openssl rand -hex 32")
    return Keys(keys)


def encode(packet: Packet, keys: Keys, marks: bytes, size: int = LEAST_BYTES) -> bytes:
    """Return the bytes of a packet; `marks` are those of its sender and its receiver, in this order."""
    head = HEADER.pack(
        MAGIC,
        packet.kind,
        packet.session,
        packet.sequence,
        packet.sent_ns,
        packet.received_ns,
        packet.answered_ns,
    )
    padding = bytes(size - LEAST_BYTES)
    return head + keys.sign(marks, head + padding) + padding


def decode(content: bytes, keys: Keys, marks: bytes, kind: int) -> Packet | Fault:
    """Return what authentic bytes say, or what is wrong with them."""
    if not LEAST_BYTES <= len(content) <= MOST_BYTES or content[:4] != MAGIC or content[4] != kind:
        return "malformed"
    head, mac, padding = content[: HEADER.size], content[HEADER.size : LEAST_BYTES], content[LEAST_BYTES:]
    if not keys.prove(marks, head + padding, mac):
        return "spoofed"
    _, kind, session, sequence, sent_ns, received_ns, answered_ns = HEADER.unpack(head)
    if sequence >= MAX_SEQUENCE:
        return "malformed"
    return Packet(kind, session, sequence, sent_ns, received_ns, answered_ns)


def _mac(key: bytes, marks: bytes, content: bytes) -> bytes:
    return hashlib.blake2s(marks + content, digest_size=MAC_BYTES, key=key).digest()


class ReplayWindow:
    """The sequences of one session that were seen, as far back as `WIDTH` (as in RFC 4303, section 3.4.3)."""

    WIDTH = 4_096

    __slots__ = ("_bits", "_highest")

    def __init__(self) -> None:
        self._highest = -1
        self._bits = 0

    def is_new(self, sequence: int) -> bool:
        """Return whether a sequence is seen for the first time; what is too old to tell is not."""
        ahead = sequence - self._highest
        if ahead > 0:
            self._bits = ((self._bits << ahead) | 1) & ((1 << self.WIDTH) - 1) if ahead < self.WIDTH else 1
            self._highest = sequence
            return True
        if -ahead >= self.WIDTH or self._bits >> -ahead & 1:
            return False
        self._bits |= 1 << -ahead
        return True
