"""The unit that answers Modbus on loopback: its protocol, seen with nothing but sockets."""

import socket
import struct

import pytest

from twin.modbus_unit import FloatUnit, LoopState, ModbusUnit


@pytest.fixture
def unit():
    with FloatUnit(unit_id=3) as unit:
        yield unit


def ask(unit, function, address, count):
    with socket.create_connection(("127.0.0.1", unit.port), timeout=5) as connection:
        connection.sendall(struct.pack(">HHHBBHH", 7, 0, 6, 3, function, address, count))
        answer = connection.recv(1_024)
    assert struct.unpack(">HHHB", answer[:7]) == (7, 0, len(answer) - 6, 3)
    return answer[7:]


def number(unit, address):
    low, high = struct.unpack(">HH", ask(unit, 3, address, 2)[2:])
    return struct.unpack(">f", struct.pack(">HH", high, low))[0]


def test_registers_follow_the_loop(unit):
    assert number(unit, 5022) == 150.0
    unit.follow(LoopState(flow_liters_per_minute=42.5, supply_celsius=30.0))
    assert (number(unit, 5022), number(unit, 5000)) == (42.5, 30.0)


def test_a_probe_that_is_not_built_in_reads_what_cannot_be(unit):
    assert number(unit, 5002) > 1_000


def test_detectors_are_discrete_inputs(unit):
    assert ask(unit, 2, 2, 2) == b"\x02\x01\x00"
    unit.follow(LoopState(leak=True, leak_sensor_broken=True))
    assert ask(unit, 2, 2, 2) == b"\x02\x01\x03"


@pytest.mark.parametrize(
    ("function", "address", "answer"),
    [(3, 4_999, b"\x83\x02"), (5, 5_000, b"\x85\x01"), (3, 5_063, b"\x83\x02")],
)
def test_what_is_not_there_is_refused(unit, function, address, answer):
    assert ask(unit, function, address, 2) == answer


def test_a_fault_is_on_its_address_and_goes_with_it(unit):
    unit.exceptions[5_000] = 4
    assert ask(unit, 3, 5_000, 2) == b"\x83\x04"
    assert number(unit, 5022) == 150.0
    unit.exceptions.clear()
    assert number(unit, 5000) == 32.0


def test_a_unit_that_is_gone_refuses_connections():
    with ModbusUnit() as unit:
        port = unit.port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_tenths_are_cut_to_sixteen_bits():
    unit = ModbusUnit()
    unit.set_tenths(1, -50.0)
    unit.set_tenths(2, 3_300.0)
    assert unit.holding == {1: 65_036, 2: 33_000}
