"""A network device between two interfaces that loses, delays and repeats UDP packets as it is told.

Run in a network namespace with the names of both interfaces. It forwards frames from one to the other as they are. A
line of JSON on its standard input sets what happens to UDP packets that go from the first to the second; it answers
with a line that counts what it did since the line before. Kernels without netem or a filter have raw sockets, too, and
what was dropped here, and how long a packet was held, is known exactly: a busy
machine holds it longer than it was told.
"""

from __future__ import annotations

import heapq
import json
import random
import select
import socket
import statistics
import struct
import sys
import time
import zlib
from typing import Any

_ALL_PROTOCOLS = 3  # ETH_P_ALL, linux/if_ether.h
_OUTGOING = 4  # PACKET_OUTGOING, linux/if_packet.h: our own frames come by again
_SOL_PACKET, _VNET_HEADER = 263, 15  # PACKET_VNET_HDR: keeps what a frame leaves for hardware to fill in
_HEADER_BYTES = 10  # struct virtio_net_hdr

NOTHING = {"loss": 0.0, "delay_us": 0, "dead_way": None, "ways": 8, "repeat": 0.0}


def way_of(source_port: int, ways: int) -> int:
    """Return over which of several equal ways a switch sends the packets of a source port."""
    return zlib.crc32(source_port.to_bytes(2, "big")) % ways


class Middlebox:
    """Two interfaces and what happens between them."""

    def __init__(self, first: str, second: str) -> None:
        self._sockets = [_open(first), _open(second)]
        self._random = random.Random(7)
        self._waiting: list[tuple[float, int, float, bytes]] = []
        self._number = 0
        self._faults: dict[str, Any] = dict(NOTHING)
        self._counts = {"seen": 0, "lost": 0, "dead": 0, "repeated": 0}
        self._held_seconds: list[float] = []

    def run(self) -> None:
        while True:
            wait = max(0.0, self._waiting[0][0] - time.perf_counter()) if self._waiting else 1.0
            readable, _, _ = select.select([*self._sockets, sys.stdin], [], [], wait)
            while self._waiting and self._waiting[0][0] <= time.perf_counter():
                _, _, came, frame = heapq.heappop(self._waiting)
                self._send(1, frame)
                self._held_seconds.append(time.perf_counter() - came)
            if sys.stdin in readable:
                line = sys.stdin.readline()
                if not line:
                    return
                self._obey(line)
            for at, source in enumerate(self._sockets):
                if source in readable:
                    self._forward(at)

    def _obey(self, line: str) -> None:
        self._faults = NOTHING | json.loads(line)
        held_us = statistics.median(self._held_seconds or [0.0]) * 1e6
        print(json.dumps(self._counts | {"held_us": held_us}), flush=True)  # noqa: T201 - the answer
        self._held_seconds = []
        self._counts = dict.fromkeys(self._counts, 0)

    def _forward(self, at: int) -> None:
        frame, (_, _, kind, *_) = self._sockets[at].recvfrom(65_535)
        if kind == _OUTGOING:
            return
        source_port = _udp_source_port(frame[_HEADER_BYTES:])
        if at == 0 and source_port is not None:
            self._pass(frame, source_port)
        else:
            self._send(1 - at, frame)

    def _pass(self, frame: bytes, source_port: int) -> None:
        faults = self._faults
        self._counts["seen"] += 1
        if faults["dead_way"] is not None and way_of(source_port, faults["ways"]) == faults["dead_way"]:
            self._counts["dead"] += 1
        elif self._random.random() < faults["loss"]:
            self._counts["lost"] += 1
        elif faults["delay_us"]:
            self._number += 1
            came = time.perf_counter()
            heapq.heappush(self._waiting, (came + faults["delay_us"] / 1e6, self._number, came, frame))
        else:
            self._send(1, frame)
            if self._random.random() < faults["repeat"]:
                self._counts["repeated"] += 1
                self._send(1, frame)

    def _send(self, to: int, frame: bytes) -> None:
        try:
            self._sockets[to].send(frame)
        except OSError:
            self._counts["refused"] = self._counts.get("refused", 0) + 1


def _open(interface: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    raw.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    raw.bind((interface, 0))
    return raw


def _udp_source_port(frame: bytes) -> int | None:
    """Return the source port of an IPv4 UDP packet in an Ethernet frame."""
    if len(frame) < 42 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_UDP:
        return None
    port: int = struct.unpack_from("!H", frame, 14 + (frame[14] & 15) * 4)[0]
    return port


if __name__ == "__main__":
    Middlebox(sys.argv[1], sys.argv[2]).run()
