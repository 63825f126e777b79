"""Reading registers over TCP under hard bounds, whatever the device does.

pymodbus frames and parses; the socket is ours, so that one deadline cuts every operation of a reading, which neither a
device that sends a byte a second nor one that sends for ever can move. Its own client counts a timeout per request and
per retry.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol

from contract.clock import Clock
from contract.errors import CollectError, ConfigError
from ingest.coolant.modbus_map import BIT_FUNCTIONS, Function

if TYPE_CHECKING:
    from pymodbus.pdu import ModbusPDU

MAX_ANSWER_BYTES = 1_024
"""An answer has at most 260 (Modbus Messaging on TCP/IP Implementation Guide, 3.1.3); the rest is noise."""

EXCEPTIONS = {
    1: "illegal_function",
    2: "illegal_address",
    3: "illegal_value",
    4: "device_failure",
    5: "acknowledge",
    6: "device_busy",
    8: "memory_parity",
    10: "gateway_path",
    11: "gateway_target",
}
"""Modbus Application Protocol 1.1b3, section 7."""

FUNCTION_CODES: dict[Function, int] = {"coil": 1, "discrete": 2, "holding": 3, "input": 4}

Framing = Literal["tcp", "rtu"]


class Refused(Exception):
    """The device answered, but not with what was asked for: the connection is as good as before."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class RegisterReader(Protocol):
    """What a collector needs of a connection."""

    def begin(self) -> None:
        """Start the time of a reading."""
        ...

    def read(self, function: Function, address: int, count: int) -> Sequence[int]:
        """Return registers, or bits as 0 and 1; raise Refused or CollectError."""
        ...

    def close(self) -> None: ...


class ModbusClient:
    """One connection to one device, kept between readings; it never writes."""

    def __init__(
        self, host: str, port: int, *, unit_id: int, framing: Framing, timeout_seconds: float, clock: Clock
    ) -> None:
        """Raise ConfigError where pymodbus is not installed."""
        self._where = f"{host}:{port}"
        self._address = host, port
        self._unit_id = unit_id
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._requests, self._framer = _pymodbus(framing)
        self._socket: socket.socket | None = None
        self._end = 0.0
        self._transaction = 0

    def begin(self) -> None:
        """Start the time of a reading: it ends `timeout_seconds` from now, however many blocks it has."""
        self._end = self._clock.monotonic() + self._timeout_seconds

    def read(self, function: Function, address: int, count: int) -> Sequence[int]:
        """Return `count` registers, or bits as 0 and 1.

        Raises Refused for an exception, by its name, and for an answer of another size. Raises CollectError where
        there is no answer (unreachable, timeout) or one that is no Modbus (unreadable); the connection is closed
        then, so that a late answer is never taken for a later one.
        """
        try:
            pdu = self._ask(function, address, count)
        except CollectError:
            self.close()
            raise
        if pdu.isError():
            raise Refused(EXCEPTIONS.get(pdu.exception_code, "exception"))
        if pdu.function_code != FUNCTION_CODES[function]:
            raise Refused("wrong_function")
        if function in BIT_FUNCTIONS:
            bits = [int(bit) for bit in pdu.bits]
            if len(bits) != -(-count // 8) * 8:
                raise Refused("wrong_size")
            return bits[:count]
        if len(pdu.registers) != count:
            raise Refused("wrong_size")
        return pdu.registers

    def close(self) -> None:
        """Close the connection; the next read opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, function: Function, address: int, count: int) -> ModbusPDU:
        """Ask once; once more where the device had closed the kept connection meanwhile."""
        kept = self._socket is not None
        try:
            return self._exchange(function, address, count)
        except CollectError as error:
            if not kept or error.reason != "unreachable":
                raise
            self.close()
            return self._exchange(function, address, count)

    def _exchange(self, function: Function, address: int, count: int) -> ModbusPDU:
        self._transaction = self._transaction % 65_535 + 1
        request = self._requests[function](
            address=address, count=count, dev_id=self._unit_id, transaction_id=self._transaction
        )
        connection = self._connected()
        try:
            connection.settimeout(self._left())
            connection.sendall(self._framer.buildFrame(request))
            return self._answer(connection)
        except TimeoutError as error:
            raise CollectError("timeout", f"{self._where}: no whole answer in time") from error
        except OSError as error:
            raise CollectError("unreachable", f"{self._where}: {error.strerror or error}") from error

    def _answer(self, connection: socket.socket) -> ModbusPDU:
        from pymodbus.exceptions import ModbusException

        received, total = b"", 0
        while True:
            connection.settimeout(self._left())
            part = connection.recv(MAX_ANSWER_BYTES)
            if not part:
                raise CollectError("unreachable", f"{self._where}: closed the connection")
            received, total = received + part, total + len(part)
            if total > MAX_ANSWER_BYTES:
                raise CollectError(
                    "unreadable", f"{self._where}: an answer of more than {MAX_ANSWER_BYTES} bytes"
                )
            try:
                used, pdu = self._framer.handleFrame(received, self._unit_id, self._transaction)
            except (ModbusException, ValueError, IndexError) as error:
                raise CollectError("unreadable", f"{self._where}: {error}") from error
            if pdu is not None:
                return pdu  # type: ignore[no-any-return]
            received = received[used:]

    def _connected(self) -> socket.socket:
        if self._socket is None:
            try:
                self._socket = socket.create_connection(self._address, timeout=self._left())
            except TimeoutError as error:
                raise CollectError("timeout", f"{self._where}: no connection in time") from error
            except OSError as error:
                raise CollectError("unreachable", f"{self._where}: {error.strerror or error}") from error
            with suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _left(self) -> float:
        left = self._end - self._clock.monotonic()
        if left <= 0:
            raise CollectError("timeout", f"{self._where}: the time for the whole reading is over")
        return left


def _pymodbus(framing: Framing) -> tuple[dict[Function, Callable[..., ModbusPDU]], Any]:
    """Import what is needed of pymodbus: the requests by function, and a framer."""
    try:
        from pymodbus.framer import FramerRTU, FramerSocket
        from pymodbus.pdu import DecodePDU, bit_message, register_message
    except ImportError as error:
        raise ConfigError("missing", "pymodbus is not installed: install the extra `coolant`") from error
    # What it logs about a bad frame is in the error already.
    logging.getLogger("pymodbus").setLevel(logging.CRITICAL)
    requests: dict[Function, Callable[..., ModbusPDU]] = {
        "coil": bit_message.ReadCoilsRequest,
        "discrete": bit_message.ReadDiscreteInputsRequest,
        "holding": register_message.ReadHoldingRegistersRequest,
        "input": register_message.ReadInputRegistersRequest,
    }
    framers = {"tcp": FramerSocket, "rtu": FramerRTU}
    return requests, framers[framing](DecodePDU(False))
