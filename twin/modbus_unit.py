"""A coolant unit that answers Modbus TCP on loopback: its registers, and the ways in which such a unit misbehaves.

`ModbusUnit` is any unit; `FloatUnit` lays a loop out as the controller of a 200 kW liquid-to-air unit does (floats from
holding register 5000, low word first; detectors as discrete inputs).
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from typing_extensions import override

Answering = Literal["serve", "hang", "busy", "drip", "short", "garbage", "endless", "close"]
"""Serve: as it should. Hang: takes requests, answers none. Busy: refuses each with exception 6. Drip: a byte a
second. Short: one value too few. Garbage: bytes that are no Modbus. Endless: never stops answering. Close: cuts the
connection at each request."""

_ILLEGAL_FUNCTION, _ILLEGAL_ADDRESS, _BUSY = 1, 2, 6
_BIT_FUNCTIONS = (1, 2)
_REQUEST = struct.Struct(">HHHBBHH")
"""Transaction, protocol, length, unit, function, address, count."""


class ModbusUnit:
    """Serve four tables of values by address, as long as the context is open; what is not in a table is illegal.

    `coils`, `discrete`, `holding` and `input` may be changed at any time, as may `answering`, `busy_requests` (how many
    requests are still refused as a busy unit does) and `exceptions`: the code that a request is refused with, by an
    address in it. `requests` counts what was asked.
    """

    def __init__(self, *, unit_id: int = 1, port: int = 0) -> None:
        self.coils: dict[int, int] = {}
        self.discrete: dict[int, int] = {}
        self.holding: dict[int, int] = {}
        self.input: dict[int, int] = {}
        self.exceptions: dict[int, int] = {}
        self.answering: Answering = "serve"
        self.busy_requests = 0
        self.requests = 0
        self._unit_id = unit_id
        self._server = _Server(("127.0.0.1", port), _Connection, bind_and_activate=False)
        self._server.unit = self
        self._port = port

    @property
    def port(self) -> int:
        """Where it listens, once the context is open."""
        return self._port

    def set_float(self, address: int, value: float) -> None:
        """Write a float into two holding registers, low word first."""
        high, low = struct.unpack(">HH", struct.pack(">f", value))
        self.holding |= {address: low, address + 1: high}

    def set_tenths(self, address: int, value: float) -> None:
        """Write a value into one holding register, in tenths and cut to 16 bits."""
        self.holding[address] = round(value * 10) & 0xFFFF

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request of 12 bytes."""
        transaction, _, _, unit, function, address, count = _REQUEST.unpack(request)
        self.requests += 1
        body = self._body(function, address, count)
        head = struct.pack(">HHHB", transaction, 0, len(body) + 1, unit)
        return head + body

    def _body(self, function: int, address: int, count: int) -> bytes:
        if self.answering == "busy" or self.busy_requests:
            self.busy_requests = max(0, self.busy_requests - 1)
            return bytes((function | 0x80, _BUSY))
        tables = {1: self.coils, 2: self.discrete, 3: self.holding, 4: self.input}
        if function not in tables:
            return bytes((function | 0x80, _ILLEGAL_FUNCTION))
        wanted = range(address, address + count)
        for refused in self.exceptions.keys() & set(wanted):
            return bytes((function | 0x80, self.exceptions[refused]))
        if any(at not in tables[function] for at in wanted):
            return bytes((function | 0x80, _ILLEGAL_ADDRESS))
        values = [tables[function][at] for at in wanted]
        if self.answering == "short":
            values.pop()
        data = _packed(values) if function in _BIT_FUNCTIONS else struct.pack(f">{len(values)}H", *values)
        return bytes((function, len(data))) + data

    def __enter__(self) -> Self:
        self._server.server_bind()
        self._server.server_activate()
        self._port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="modbus unit", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.drop()
        self._server.server_close()
        self._thread.join()


@dataclass(slots=True, kw_only=True)
class LoopState:
    """What a unit measures of its loop and of the air beside it."""

    supply_celsius: float = 32.0
    return_celsius: float = 42.0
    flow_liters_per_minute: float = 150.0
    supply_kpa: float = 220.0
    return_kpa: float = 110.0
    pump_percent: tuple[float, float, float] = (60.0, 60.0, 0.0)
    fan_percent: float = 55.0
    ambient_celsius: float = 25.0
    humidity_percent: float = 40.0
    heat_kilowatts: float = 100.0
    power_kilowatts: float = 4.0
    leak: bool = False
    leak_sensor_broken: bool = False


class FloatUnit(ModbusUnit):
    """A 200 kW unit whose registers follow a loop."""

    def __init__(self, *, unit_id: int = 1, port: int = 0) -> None:
        super().__init__(unit_id=unit_id, port=port)
        for address in range(5000, 5064):
            self.holding[address] = 0
        self.discrete |= dict.fromkeys(range(4), 0)
        self.follow(LoopState())

    def follow(self, loop: LoopState) -> None:
        """Show another state from now on; probes that are not built in read far outside of what can be."""
        values = {
            5000: loop.supply_celsius,
            5002: 1_020.0,
            5004: loop.return_celsius,
            5006: 1_020.0,
            5010: loop.supply_kpa,
            5012: loop.supply_kpa,
            5014: loop.return_kpa,
            5016: loop.return_kpa,
            5018: loop.return_kpa,
            5020: loop.return_kpa - 6.0,
            5022: loop.flow_liters_per_minute,
            5024: loop.ambient_celsius,
            5026: loop.humidity_percent,
            5030: 8.5,
            5032: 1_900.0,
            5034: 1.0,
            5036: loop.power_kilowatts,
            5038: loop.power_kilowatts * 1000 / 3**0.5 / 400,
            5046: loop.heat_kilowatts,
        }
        values |= {5040 + 2 * at: speed for at, speed in enumerate(loop.pump_percent)}
        values |= {5048 + 2 * at: loop.fan_percent for at in range(8)}
        for address, value in values.items():
            self.set_float(address, value)
        self.discrete |= {2: int(loop.leak), 3: int(loop.leak_sensor_broken)}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    unit: ModbusUnit

    def __init__(self, *args: object, **options: object) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def note(self, connection: socket.socket, *, opened: bool) -> None:
        """Remember a connection as long as it is open."""
        (self._open.add if opened else self._open.discard)(connection)

    def drop(self) -> None:
        """Cut every open connection, as the end of a unit does."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @override
    def handle_error(self, request: object, client_address: object) -> None:
        """Stay quiet: a client that left is no error of the unit."""


class _Connection(socketserver.BaseRequestHandler):
    server: _Server

    @override
    def handle(self) -> None:
        self.server.note(self.request, opened=True)
        try:
            while len(request := self.request.recv(_REQUEST.size, socket.MSG_WAITALL)) == _REQUEST.size:
                if not self._respond(self.server.unit, request):
                    return
        finally:
            self.server.note(self.request, opened=False)

    def _respond(self, unit: ModbusUnit, request: bytes) -> bool:
        """Answer as the unit does; return whether the connection stays open."""
        match unit.answering:
            case "close":
                return False
            case "hang":
                unit.requests += 1
            case "garbage":
                self.request.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" + bytes(300))
            case "endless":
                while True:
                    self.request.sendall(unit.answer(request) * 100)
            case "drip":
                for byte in unit.answer(request):
                    self.request.sendall(bytes((byte,)))
                    time.sleep(1)
            case _:
                self.request.sendall(unit.answer(request))
        return True


def _packed(bits: list[int]) -> bytes:
    """Pack bits into bytes, the first into the lowest bit."""
    data = bytearray(-(-len(bits) // 8))
    for at, bit in enumerate(bits):
        data[at // 8] |= (bit & 1) << at % 8
    return bytes(data)
