"""Probes and their answers on the wire: fixed size, authenticated both ways, an answer never larger than its probe.

    0  magic "hwp1"        4
    4  kind                1   1 = probe, 2 = answer
    5  reserved            3   zero
    8  session             8   random, per path and start of its prober
    16 sequence            8   of the session
    24 sent_ns             8   prober's wall clock just before it sent
    32 received_ns         8   answer: responder's wall clock when the probe arrived
    40 answered_ns         8   answer: just before it answered
    48 padding                 zeros, as many as the size asked for leaves room
    -16 mac               16   keyed BLAKE2s over both addresses, both ports and everything before it

Numbers are in network order. Both ends are part of what is authenticated, so a captured probe is worth nothing at
another responder and cannot be made to draw an answer to somebody else.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, NamedTuple

from contract.errors import ConfigError

MAGIC = b"hwp1"
PROBE, ANSWER = 1, 2
_BEGINNINGS = {kind: MAGIC + bytes([kind]) for kind in (PROBE, ANSWER)}
_ANSWERED = _BEGINNINGS[ANSWER]
HEADER = struct.Struct("!4sB3x8sQQQQ")
_SAID = struct.Struct("!B3x8sQQQQ")  # behind the magic
_TIMES = struct.Struct("!QQ")
MAC_BYTES = 16
LEAST_BYTES = HEADER.size + MAC_BYTES
MOST_BYTES = 9_000
"""What a jumbo frame holds."""
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
        return mark_of(self.address, self.port)


@lru_cache(maxsize=8_192)
def mark_of(address: str, port: int) -> bytes:
    """Return what a MAC says of one end."""
    return ip_address(address).packed + port.to_bytes(2, "big")


class Packet(NamedTuple):
    """What a probe or an answer says."""

    kind: int
    session: bytes
    sequence: int
    sent_ns: int
    received_ns: int = 0
    answered_ns: int = 0


_packet: Callable[..., Packet] = tuple.__new__  # a third of the time that Packet(...) takes


class Keys:
    """The secret of a hall: the first key signs, all of them prove."""

    __slots__ = ("_keyed",)

    def __init__(self, keys: Sequence[bytes]) -> None:
        # A key is worked in once, and then copied: that halves the cost of a MAC.
        self._keyed = [hashlib.blake2s(digest_size=MAC_BYTES, key=key) for key in keys]

    def sign(self, said: bytes) -> bytes:
        state = self._keyed[0].copy()
        state.update(said)
        return state.digest()

    def prove(self, said: bytes, mac: bytes) -> bool:
        for keyed in self._keyed:
            state = keyed.copy()
            state.update(said)
            if hmac.compare_digest(state.digest(), mac):
                return True
        return False


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
    content = head + bytes(size - LEAST_BYTES)
    return content + keys.sign(marks + content)


def answer(probe: bytes, received_ns: int, answered_ns: int, keys: Keys, marks: bytes) -> bytes:
    """Return the bytes that answer those of a proven probe."""
    content = (
        _ANSWERED + probe[5:32] + _TIMES.pack(received_ns, answered_ns) + probe[HEADER.size : -MAC_BYTES]
    )
    return content + keys.sign(marks + content)


def decode(content: bytes, keys: Keys, marks: bytes, kind: int) -> Packet | Fault:
    """Return what authentic bytes say, or what is wrong with them."""
    if not LEAST_BYTES <= len(content) <= MOST_BYTES or not content.startswith(_BEGINNINGS[kind]):
        return "malformed"
    if not keys.prove(marks + content[:-MAC_BYTES], content[-MAC_BYTES:]):
        return "spoofed"
    packet = _packet(Packet, _SAID.unpack_from(content, 4))
    return packet if packet.sequence < MAX_SEQUENCE else "malformed"


class ReplayWindow:
    """The sequences of one session that were seen, as far back as `WIDTH` (as in RFC 4303, section 3.4.3)."""

    WIDTH = 1_024

    _ALL = (1 << WIDTH) - 1

    __slots__ = ("_bits", "_highest")

    def __init__(self) -> None:
        self._highest = -1
        self._bits = 0

    def is_new(self, sequence: int) -> bool:
        """Return whether a sequence is seen for the first time; what is too old to tell is not."""
        ahead = sequence - self._highest
        if ahead > 0:
            self._bits = ((self._bits << ahead) | 1) & self._ALL if ahead < self.WIDTH else 1
            self._highest = sequence
            return True
        if -ahead >= self.WIDTH or self._bits >> -ahead & 1:
            return False
        self._bits |= 1 << -ahead
        return True
