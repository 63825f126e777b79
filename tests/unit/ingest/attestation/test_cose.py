from typing import Any

import cbor2
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from contract.errors import CollectError
from ingest.attestation.cose import Sign1, read_sign1

P384_ORDER = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16
)


def structure(protected: bytes, payload: bytes) -> bytes:
    return cbor2.dumps(["Signature1", protected, b"", payload])


def es384(key: ec.EllipticCurvePrivateKey, signed: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(signed, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(48, "big") + s.to_bytes(48, "big")


def envelope(
    *, headers: Any = None, unprotected: Any = None, payload: Any = b"payload", signature: Any = bytes(96)
):
    protected = cbor2.dumps({1: -35} if headers is None else headers)
    return [protected, {} if unprotected is None else unprotected, payload, signature]


def read(value: Any) -> Sign1:
    return read_sign1(cbor2.dumps(value))


def refusal(value: Any) -> str:
    with pytest.raises(CollectError) as caught:
        read(value)
    assert caught.value.reason == "unreadable"
    return str(caught.value)


@pytest.fixture(scope="module")
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def test_what_is_signed_is_the_structure_of_the_standard():
    sign1 = read(envelope(payload=b"x" * 1000))
    assert sign1.signed == structure(cbor2.dumps({1: -35}), b"x" * 1000)
    assert (sign1.algorithm, sign1.payload) == (-35, b"x" * 1000)


def test_an_elliptic_signature_holds_under_its_key_only(key):
    signature = es384(key, structure(cbor2.dumps({1: -35}), b"payload"))
    sign1 = read(envelope(signature=signature))
    assert sign1.is_signed_by(key.public_key())
    assert not sign1.is_signed_by(ec.generate_private_key(ec.SECP384R1()).public_key())
    assert not sign1.is_signed_by(ec.generate_private_key(ec.SECP256R1()).public_key())
    assert not read(envelope(signature=signature + b"\0")).is_signed_by(key.public_key())
    assert not read(envelope(signature=b"")).is_signed_by(key.public_key())


def test_an_rsa_signature_holds_under_the_padding_that_its_header_names():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    headers = {1: -38, 33: [b"leaf", b"root"]}
    digest = hashes.SHA384()
    signature = key.sign(
        structure(cbor2.dumps(headers), b"payload"), padding.PSS(padding.MGF1(digest), 48), digest
    )
    sign1 = read(envelope(headers=headers, signature=signature))
    assert sign1.is_signed_by(key.public_key())
    assert sign1.certificates() == [b"leaf", b"root"]
    assert not read(envelope(headers=headers | {1: -37}, signature=signature)).is_signed_by(key.public_key())


@pytest.mark.parametrize("algorithm", [-36, -7, -37, 5, "ES384", None, True])
def test_another_algorithm_than_the_keys_is_no_signature(key, algorithm):
    headers = {} if algorithm is None else {1: algorithm}
    signature = es384(key, structure(cbor2.dumps(headers), b"payload"))
    assert not read(envelope(headers=headers, signature=signature)).is_signed_by(key.public_key())


def test_the_digest_is_of_the_signed_part_only(key):
    signature = es384(key, structure(cbor2.dumps({1: -35}), b"payload"))
    r, s = signature[:48], int.from_bytes(signature[48:], "big")
    written = envelope(signature=signature)
    twin = envelope(signature=r + (P384_ORDER - s).to_bytes(48, "big"), unprotected={4: b"other"})
    both = [
        read(written),
        read(twin),
        read(cbor2.CBORTag(18, written)),
        read([*written[:1], None, *written[2:]]),
    ]
    assert all(one.is_signed_by(key.public_key()) for one in both)
    assert len({one.digest for one in both}) == 1
    assert read(envelope(payload=b"another")).digest != both[0].digest
    assert read(envelope(headers={1: -36})).digest != both[0].digest


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "a list of four"),
        (b"", "a list of four"),
        ({1: 2}, "a list of four"),
        (cbor2.CBORTag(98, envelope()), "a list of four"),
        (cbor2.CBORTag(18, cbor2.CBORTag(18, envelope())), "a list of four"),
        (envelope(payload=None), "must be bytes"),
        (envelope(signature="x"), "must be bytes"),
        (envelope(unprotected=[1]), "no map"),
        (envelope(headers=[1]), "no map"),
        (envelope(headers={1: -35, 2: [99]}), "critical"),
        ([b"\xa2\x01\x01\x01\x02", {}, b"", b""], "twice"),
        ([b"\xa1\x01\x38\x22\x00", {}, b"", b""], "behind the end"),
    ],
)
def test_what_is_no_envelope_is_refused(value, words):
    assert words in refusal(value)


def test_headers_may_be_empty_and_then_name_no_algorithm(key):
    sign1 = read([b"", {}, b"payload", bytes(96)])
    assert sign1.algorithm is None
    assert sign1.certificates() == []
    assert not sign1.is_signed_by(key.public_key())


def test_a_single_certificate_is_a_chain_of_one():
    assert read(envelope(headers={1: -35, 33: b"leaf"})).certificates() == [b"leaf"]
    assert read(envelope(headers={1: -35, 33: [b"leaf", 7]})).certificates() == []
