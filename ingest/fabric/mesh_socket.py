"""UDP sockets that tell when the kernel took a packet in, rather than when a program got round to it.

Linux Documentation/networking/timestamping.rst, section 1.1 (SO_TIMESTAMPNS). Elsewhere the time is the program's.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the module socket has no name for it
_TIMESPEC = struct.Struct("@qq")
_CUT = int(socket.MSG_TRUNC)  # as the enumeration that it is, one test takes a microsecond
_USUAL_BYTES, _MOST_BYTES = 2_048, 9_216
"""Room for a datagram: for one in a frame of the usual size, and for more than any probe."""
BUFFER_BYTES = 1_048_576
"""Room for what arrives while the program does not run."""


class Arrival(NamedTuple):
    """A datagram, who sent it, and when it came by the wall clock."""

    content: bytes
    address: str
    port: int
    received_ns: int


_arrival: Callable[..., Arrival] = tuple.__new__  # a third of the time that Arrival(...) takes


class ProbeSocket:
    """A socket bound to one address, so that what it sends leaves from that network port."""

    def __init__(
        self, address: str, port: int = 0, *, wait_seconds: float = 0, usual_bytes: int = _USUAL_BYTES
    ) -> None:
        """Bind; 0 is any free port. `wait_seconds` is how long `receive` waits. Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(wait_seconds > 0)
            if wait_seconds:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(wait_seconds))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self.kernel_times = self._ask_for_times()
            self._socket.bind((address, port))
        except OSError:
            self._socket.close()
            raise
        self.address, self.port = self._socket.getsockname()[:2]
        self._room_bytes = usual_bytes

    def _ask_for_times(self) -> bool:
        if sys.platform != "linux":
            return False
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            return False
        return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, content: bytes, address: str, port: int) -> None:
        """Send one datagram; raise OSError where the kernel refuses: no route, a filter, an earlier refusal."""
        self._socket.sendto(content, (address, port))

    def receive(self) -> Arrival | None:
        """Return the next datagram, or None where none comes.

        The first that is larger than usual comes cut, and from then on there is room: to make it costs 2 us.
        """
        try:
            content, extras, flags, sender = self._socket.recvmsg(self._room_bytes, 64)
        except OSError:  # none waits, or an earlier datagram found nobody: that says nothing of the next
            return None
        if flags & _CUT:
            self._room_bytes = _MOST_BYTES
        return _arrival(Arrival, (content, sender[0], sender[1], _time_of(extras)))

    def close(self) -> None:
        self._socket.close()


def _timeval(seconds: float) -> bytes:
    """Return a time-out of the kernel's own: unlike Python's it costs no call of its own."""
    return struct.pack("@ll", int(seconds), round(seconds % 1 * 1e6))


def _time_of(extras: list[tuple[int, int, bytes]]) -> int:
    if not extras:
        return time.time_ns()
    seconds, nanoseconds = _TIMESPEC.unpack(extras[0][2])  # the one that was asked for
    time_ns: int = seconds * 1_000_000_000 + nanoseconds
    return time_ns
