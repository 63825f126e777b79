"""How evidence is handed in: as bytes, as text, in a parcel."""

import base64
import hashlib

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import CollectError
from ingest.attestation.evidence import MAX_EVIDENCE_BYTES, plain, read_evidence

BODY = bytes(range(256))
BASE64 = base64.b64encode(BODY)


@pytest.mark.parametrize("raw", [BODY, BODY.hex().encode(), BODY.hex().upper().encode() + b"\n", BASE64])
def test_binary_hexadecimal_and_base64_are_the_same_evidence(raw):
    evidence = read_evidence(raw)
    assert evidence.body == BODY
    assert evidence.digest == hashlib.sha256(raw).hexdigest()


@given(st.binary(max_size=300))
def test_whatever_is_written_as_text_comes_back(body):
    assert plain(b"\xff" + body) == b"\xff" + body
    assert plain(body.hex().encode()) == body


def test_a_text_that_is_neither_stays_as_it_is():
    for text in (b"-----BEGIN", b"abc", b"{}", b""):
        assert plain(text) == text


def test_a_parcel_brings_attachments_its_host_and_its_time():
    parcel = {
        "evidence": BASE64.decode(),
        "attached": {"vcek": BASE64.decode()},
        "host": "h1",
        "taken_us": 5,
        "kind": "snp",
    }
    evidence = read_evidence(orjson.dumps(parcel), "file", {"beside": b"x"})
    assert (evidence.body, evidence.host, evidence.taken_us, evidence.kind) == (BODY, "h1", 5, "snp")
    assert evidence.attached == {"beside": b"x", "vcek": BODY}


def test_a_parcel_without_a_time_is_of_the_time_it_came_with():
    for parcel in ({"evidence": "AA=="}, {"evidence": "AA==", "taken_us": None}):
        assert read_evidence(orjson.dumps(parcel), taken_us=7).taken_us == 7


@pytest.mark.parametrize(
    "parcel",
    [
        {"evidence": 1},
        {"evidence": "***"},
        {"evidence": "AA==", "attached": []},
        {"evidence": "AA==", "attached": {"a": None}},
        {"evidence": "AA==", "attached": {str(n): "" for n in range(33)}},
        {"evidence": "AA==", "more": 1},
        {"evidence": "AA==", "host": 5},
        {"evidence": "AA==", "taken_us": "now"},
        {"evidence": "AA==", "taken_us": True},
        {"evidence": "AA==", "taken_us": 5.0},
        {"evidence": "AA==", "taken_us": -1},
        {"evidence": "AA==", "taken_us": 2**62},
        {"evidence": "AA==", "taken_us": 2**64 - 1},
    ],
)
def test_a_parcel_that_is_not_made_like_one_is_an_error_of_its_kind(parcel):
    with pytest.raises(CollectError) as caught:
        read_evidence(orjson.dumps(parcel))
    assert caught.value.reason == "unreadable"


def test_what_is_larger_than_any_evidence_is_refused():
    with pytest.raises(CollectError) as caught:
        read_evidence(b"\0" * (MAX_EVIDENCE_BYTES + 1))
    assert caught.value.reason == "too_large"


@given(st.binary(max_size=200))
def test_any_bytes_are_evidence_or_an_error_of_its_kind(raw):
    try:
        read_evidence(b"{" + raw)
    except CollectError as error:
        assert error.reason == "unreadable"  # noqa: PT017
