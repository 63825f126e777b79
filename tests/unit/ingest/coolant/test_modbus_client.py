"""Answers of a device, byte by byte: whatever comes, what leaves is a value or a typed error."""

import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.clock import SystemClock
from contract.errors import CollectError
from ingest.coolant.modbus_client import EXCEPTIONS, MAX_ANSWER_BYTES, ModbusClient, Refused


def connected(framing="tcp"):
    """Return a client on one end of a connection, and the other end."""
    client = ModbusClient(
        "192.0.2.1", 502, unit_id=1, framing=framing, timeout_seconds=0.2, clock=SystemClock()
    )
    ours, theirs = socket.socketpair()
    client._socket = ours
    client._connected = lambda: ours  # type: ignore[method-assign]
    client.begin()
    return client, theirs


def ask(answer, *, function="holding", count=2, framing="tcp"):
    """Read with an answer that waits already, and nothing behind it."""
    client, device = connected(framing)
    device.sendall(answer)
    device.shutdown(socket.SHUT_WR)
    try:
        return client.read(function, 0, count)
    finally:
        client.close()
        device.close()


def framed(body, *, transaction=1, unit=1, protocol=0):
    return struct.pack(">HHHB", transaction, protocol, len(body) + 1, unit) + body


def checksum(data):
    """Return the sum of a serial frame (Modbus over Serial Line, 6.2.2)."""
    value = 0xFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xA001 if value & 1 else 0)
    return value


def test_registers_and_bits_are_read():
    assert ask(framed(b"\x03\x04\x00\x01\xff\xff")) == [1, 0xFFFF]
    assert ask(framed(b"\x02\x02\x05\x01"), function="discrete", count=9) == [1, 0, 1, 0, 0, 0, 0, 0, 1]


def test_an_answer_in_pieces_is_put_together():
    client, device = connected()
    for byte in framed(b"\x03\x04\x00\x01\xff\xff"):
        device.sendall(bytes((byte,)))
    assert client.read("holding", 0, 2) == [1, 0xFFFF]
    client.close()
    device.close()


def test_a_serial_frame_is_read_and_one_with_a_wrong_sum_is_not():
    body = b"\x01\x03\x04\x00\x01\xff\xff"
    frame = body + struct.pack("<H", checksum(body))
    assert ask(frame, framing="rtu") == [1, 0xFFFF]
    with pytest.raises(CollectError):
        ask(body + struct.pack("<H", checksum(body) ^ 1), framing="rtu")


@pytest.mark.parametrize("code", range(256))
def test_every_exception_has_a_name_out_of_a_short_list(code):
    with pytest.raises(Refused) as raised:
        ask(framed(bytes((0x83, code))))
    assert raised.value.reason in {*EXCEPTIONS.values(), "exception"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (framed(b"\x03\x02\x00\x01"), "wrong_size"),
        (framed(b"\x03\x06" + bytes(6)), "wrong_size"),
        (framed(b"\x03\x00"), "wrong_size"),
        (framed(b"\x04\x04" + bytes(4)), "wrong_function"),
    ],
)
def test_an_answer_to_another_question_is_refused(answer, reason):
    with pytest.raises(Refused) as raised:
        ask(answer)
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        framed(b"\x03\xfa\x00\x01"),
        framed(b"\x03"),
        framed(b"\x7b\x04" + bytes(4)),
        framed(b"\x03\x04" + bytes(4), transaction=9),
        framed(b"\x03\x04" + bytes(4), unit=7),
        framed(b"\x03\x04" + bytes(4), protocol=5),
        bytes(MAX_ANSWER_BYTES + 1),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_an_error_and_closes_the_connection(answer):
    with pytest.raises(CollectError) as raised:
        ask(answer)
    assert raised.value.reason in {"unreadable", "unreachable", "timeout"}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(answer=st.binary(max_size=300), framing=st.sampled_from(["tcp", "rtu"]))
def test_no_bytes_raise_anything_else(answer, framing):
    try:
        found = ask(answer, framing=framing)
    except (CollectError, Refused):
        return
    assert len(found) == 2
