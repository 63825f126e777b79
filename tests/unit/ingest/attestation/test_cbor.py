import tracemalloc

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.errors import CollectError
from ingest.attestation.cbor import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ITEMS,
    Tagged,
    read_cbor,
    write_bytes,
    write_head,
)

KEYS = st.integers(-(2**64), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def refusal(data: bytes) -> str:
    with pytest.raises(CollectError) as caught:
        read_cbor(data)
    return f"{caught.value.reason}: {caught.value}"


@given(VALUES)
@settings(max_examples=150, deadline=None)
def test_what_another_library_writes_is_read_as_it_was(value):
    if _depth(value) <= MAX_DEPTH:
        assert read_cbor(cbor2.dumps(value)) == value


@given(st.binary(max_size=64))
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_a_typed_error_or_the_value_that_another_library_reads(data):
    try:
        value = read_cbor(data)
    except CollectError:
        return
    if not _holds_tag(value):
        assert cbor2.loads(data) == value


@given(VALUES, st.data())
@settings(max_examples=100, deadline=None)
def test_a_value_that_is_cut_or_longer_is_refused(value, data):
    if _depth(value) > MAX_DEPTH:
        return
    body = cbor2.dumps(value)
    cut = data.draw(st.integers(0, len(body) - 1))
    assert "cut off" in refusal(body[:cut])
    assert "behind the end" in refusal(body + b"\0")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xa2\x01\x02\x01\x03", "the key '1' is there twice"),
        (b"\xa2\x01\x02\x18\x01\x03", "the key '1' is there twice"),
        (b"\xa2\x61a\x02\x61a\x03", "the key 'a' is there twice"),
        (b"\xa1\xf5\x02", "a key that is no number and no text"),
        (b"\xa1\x80\x02", "a key that is no number and no text"),
        (b"\x9f\x01\xff", "an open length"),
        (b"\xbf\x01\x02\xff", "an open length"),
        (b"\x5f\x41a\xff", "an open length"),
        (b"\x1c", "an open length"),
        (b"\xff", "a float, a break"),
        (b"\xf9\x00\x00", "a float, a break"),
        (b"\xf7", "a float, a break"),
        (b"\x62\xff\xfe", "not UTF-8"),
        (b"", "cut off"),
    ],
)
def test_what_evidence_is_never_made_of_is_refused_by_name(data, words):
    assert words in refusal(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x81" * 100_000 + b"\x01", f"nested more than {MAX_DEPTH} deep"),
        (b"\xc6" * 100_000 + b"\x01", f"nested more than {MAX_DEPTH} deep"),
        (b"\x9a\xff\xff\xff\xff", "cut off"),
        (b"\x9b" + b"\xff" * 8, "cut off"),
        (b"\xbb" + b"\xff" * 8, "cut off"),
        (b"\x5b" + b"\xff" * 8, "cut off"),
        (write_head(4, 500_000) + b"\x01" * 500_000, f"more than {MAX_ITEMS} items"),
        (write_head(4, 200) + (write_head(4, 100) + b"\x01" * 100) * 200, f"more than {MAX_ITEMS} items"),
    ],
)
def test_a_bomb_is_refused_in_little_memory(data, words):
    tracemalloc.start()
    try:
        assert words in refusal(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_more_bytes_than_evidence_has_are_not_looked_at():
    assert refusal(bytes(MAX_BYTES + 1)).startswith("too_large")


def test_a_tag_is_kept():
    assert read_cbor(cbor2.dumps(cbor2.CBORTag(18, [1]))) == Tagged(18, [1])


@given(st.binary(max_size=300))
def test_bytes_are_written_as_another_library_writes_them(value):
    assert write_bytes(value) == cbor2.dumps(value)


@given(st.integers(0, 2**64 - 1))
def test_a_head_is_the_shortest_there_is(number):
    assert write_head(0, number) == cbor2.dumps(number)


def test_a_number_that_no_head_can_hold_is_an_error():
    with pytest.raises(ValueError, match="no such length"):
        write_head(0, 2**64)


def _depth(value) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(_depth, inner), default=0)


def _holds_tag(value) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_tag, value.values()))
    return isinstance(value, Tagged) or (isinstance(value, list) and any(map(_holds_tag, value)))
