"""What is not authentic, not for this address or not new is no probe; any bytes are safe to look at."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import ConfigError
from ingest.fabric.mesh_packet import (
    ANSWER,
    LEAST_BYTES,
    PROBE,
    End,
    Keys,
    Packet,
    ReplayWindow,
    answer,
    decode,
    encode,
    read_keys,
)

KEYS = Keys([b"k" * 32])
HERE, THERE = End("10.0.0.1", 42_000), End("10.0.0.2", 7_797)
MARKS = HERE.mark + THERE.mark
PACKETS = st.builds(
    Packet,
    st.just(PROBE),
    st.binary(min_size=8, max_size=8),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
PROBE_SENT = Packet(PROBE, b"session1", 7, 1_000)


@given(PACKETS, st.integers(LEAST_BYTES, 2_000))
def test_a_packet_comes_back_as_it_went_in_the_size_asked_for(packet: Packet, size: int) -> None:
    content = encode(packet, KEYS, MARKS, size)
    assert len(content) == size
    assert decode(content, KEYS, MARKS, PROBE) == packet


@given(st.integers(0, LEAST_BYTES + 19), st.integers(1, 255))
def test_one_byte_that_was_changed_is_enough_to_refuse(at: int, change: int) -> None:
    content = bytearray(encode(PROBE_SENT, KEYS, MARKS, LEAST_BYTES + 20))
    content[at] ^= change
    assert decode(bytes(content), KEYS, MARKS, PROBE) in ("malformed", "spoofed")


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_without_harm(content: bytes) -> None:
    assert decode(content, KEYS, MARKS, PROBE) in ("malformed", "spoofed")


@pytest.mark.parametrize("marks", [THERE.mark + HERE.mark, HERE.mark + End("10.0.0.3", 7_797).mark, b""])
def test_a_probe_counts_only_between_the_two_ends_it_was_made_for(marks: bytes) -> None:
    assert decode(encode(PROBE_SENT, KEYS, MARKS), KEYS, marks, PROBE) == "spoofed"


def test_an_answer_is_no_probe_and_a_longer_or_shorter_one_is_none_either() -> None:
    content = encode(PROBE_SENT, KEYS, MARKS, 100)
    assert decode(content, KEYS, MARKS, ANSWER) == "malformed"
    assert decode(content[:-1], KEYS, MARKS, PROBE) == "spoofed"
    assert decode(content + b"\0", KEYS, MARKS, PROBE) == "spoofed"
    assert decode(content[: LEAST_BYTES - 1], KEYS, MARKS, PROBE) == "malformed"


@given(PACKETS, st.integers(LEAST_BYTES, 2_000))
def test_an_answer_says_what_its_probe_said_and_when_it_came(packet: Packet, size: int) -> None:
    content = answer(encode(packet, KEYS, MARKS, size), 5, 7, KEYS, MARKS)
    assert len(content) == size
    expected = packet._replace(kind=ANSWER, received_ns=5, answered_ns=7)
    assert decode(content, KEYS, MARKS, ANSWER) == expected


def test_while_keys_are_changed_the_old_one_is_still_accepted() -> None:
    old, new = b"o" * 32, b"n" * 32
    assert decode(encode(PROBE_SENT, Keys([old]), MARKS), Keys([new, old]), MARKS, PROBE) == PROBE_SENT
    assert decode(encode(PROBE_SENT, Keys([old]), MARKS), Keys([new]), MARKS, PROBE) == "spoofed"


@given(st.lists(st.integers(0, 300), max_size=200))
def test_a_sequence_is_new_once(sequences: list[int]) -> None:
    window, seen = ReplayWindow(), set()
    for sequence in sequences:
        assert window.is_new(sequence) == (sequence not in seen)
        seen.add(sequence)


def test_what_is_older_than_the_window_is_refused_and_a_leap_forgets_nothing_it_could_tell() -> None:
    window = ReplayWindow()
    assert window.is_new(0)
    assert window.is_new(10 * ReplayWindow.WIDTH)
    assert not window.is_new(1)
    assert window.is_new(10 * ReplayWindow.WIDTH - 1)
    assert not window.is_new(10 * ReplayWindow.WIDTH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds 0 keys"),
        ("abcd", "openssl rand"),
        ("xyz", "hexadecimal"),
        ("ab" * 33, "openssl rand"),
        ("\n".join(["ab" * 32] * 5), "holds 5 keys"),
        ("é", "hexadecimal"),
    ],
)
def test_a_key_file_that_is_wrong_is_told_with_what_to_do(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_keys(tmp_path / "key")


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        read_keys(tmp_path / "nothing")
