import tracemalloc
from datetime import timedelta
from typing import Any

import cbor2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.streams.attestation import ATTESTATION_RESULTS
from contract.testing import START_US
from ingest.attestation.evidence import read_evidence
from ingest.attestation.nitro import MAX_DOCUMENT_BYTES, NitroVerifier
from ingest.attestation.policy import Policy, parse_policy
from ingest.attestation.roots import Roots, shipped_roots
from ingest.attestation.steps import Setting, Verification

HOUR_US = 3_600_000_000


def policy(text: str = "") -> Policy:
    return parse_policy(f"policy: test\n{text}".encode(), "test")


@pytest.fixture
def verify(authorities):
    def verify(
        body: bytes, *, at_us: int = START_US, roots: Roots | None = None, by: Policy | None = None
    ) -> Verification:
        setting = Setting(at_us=at_us, roots=roots or authorities.roots(), policy=by)
        return NitroVerifier().verify(read_evidence(body), setting)

    return verify


@pytest.fixture
def outcome(verify, document):
    """Verify a document with changed claims; return the verdict and the codes."""

    def outcome(**changed: Any) -> tuple[str, tuple[str, ...]]:
        result = verify(document(**changed))
        return result.verdict, result.codes

    return outcome


def test_a_document_under_a_trusted_root_is_genuine_and_says_what_it_claims(verify, document):
    result = verify(document(user_data=b"a customer's", public_key=b"key"), by=policy())
    assert (result.verdict, result.policy, result.availability) == ("genuine", "met", "checked")
    assert result.findings == ()
    row = result.row()
    assert row["measurement"] == "01" * 48
    assert row["report_data"] == b"a nonce".hex()
    assert row["debug"] is False
    assert "customer" not in str(row)
    assert b"a customer's".hex() not in str(row)
    envelope = {"ts": START_US, "host": "host1", "synthetic": False}
    ATTESTATION_RESULTS.table({name: [value] for name, value in (row | envelope).items()})


@pytest.mark.parametrize("registers", [16, 32])
def test_a_document_has_sixteen_registers_or_thirty_two(outcome, authorities, registers):
    more = authorities.claims()["pcrs"] | {number: bytes(48) for number in range(16, registers)}
    assert outcome(pcrs=more) == ("genuine", ())


@pytest.mark.parametrize("name", ["public_key", "user_data", "nonce"])
@pytest.mark.parametrize("value", [None, ..., b""])
def test_what_is_optional_may_be_null_left_out_or_empty(outcome, name, value):
    assert outcome(**{name: value}) == ("genuine", ())


@pytest.mark.parametrize(
    "changed",
    [
        {"module_id": ...},
        {"module_id": b"i-1"},
        {"module_id": ""},
        {"module_id": "x" * 257},
        {"module_id": "i-1\n"},
        {"digest": None},
        {"timestamp": "now"},
        {"timestamp": -1},
        {"timestamp": 2**53},
        {"timestamp": True},
        {"pcrs": ...},
        {"pcrs": []},
        {"pcrs": {0: bytes(48), 1: bytes(48)}},
        {"pcrs": {0: bytes(48), 1: bytes(48), 2: bytes(48), 32: bytes(48)}},
        {"pcrs": {0: bytes(48), 1: bytes(48), 2: bytes(32)}},
        {"pcrs": {0: bytes(48), 1: bytes(48), 2: bytes(48), "3": bytes(48)}},
        {"certificate": ...},
        {"certificate": b""},
        {"certificate": bytes(1025)},
        {"cabundle": b"one"},
        {"cabundle": [b""]},
        {"cabundle": [b"x"] * 9},
        {"cabundle": [bytes(1025)]},
        {"nonce": bytes(513)},
        {"user_data": "text"},
        {"public_key": bytes(1025)},
    ],
)
def test_a_claim_of_another_type_or_size_makes_it_no_document(outcome, changed):
    assert outcome(**changed) == ("forged", ("malformed",))


def test_another_hash_or_algorithm_than_every_documents_is_told(verify, authorities):
    assert verify(authorities.document(digest="SHA256")).codes == ("digest_algorithm",)
    payload = cbor2.dumps(authorities.claims())
    assert verify(authorities.sign(payload, headers={1: -7})).codes == ("algorithm",)
    assert verify(authorities.sign(payload, headers={})).codes == ("algorithm",)


def test_a_document_of_the_tpm_of_an_instance_is_another_product(outcome):
    assert outcome(pcrs=..., nitrotpm_pcrs={0: bytes(48)}) == ("unknown", ("other_product",))


def test_a_claim_that_nobody_described_is_told_and_decides_nothing(outcome):
    assert outcome(new=1) == ("genuine", ("unknown_claim",))


def test_a_document_without_authorities_is_forged(outcome):
    for bundle in (None, list[bytes](), ...):
        assert outcome(cabundle=bundle) == ("forged", ("no_authority",))


def test_a_root_that_is_not_known_vouches_for_nothing(verify, document):
    result = verify(document(), roots=shipped_roots())
    assert (result.verdict, result.codes) == ("unknown", ("root_unsupported",))


def test_a_root_that_took_the_name_of_a_known_one_is_forged(outcome, authorities):
    root = authorities.issue("root", key=authorities.keys["root"])
    assert root != authorities.certificates["root"]
    assert outcome(root=root) == ("forged", ("root_forged",))


@pytest.mark.parametrize("name", ["region", "zone", "instance", "signer"])
def test_a_certificate_that_another_key_issued_breaks_the_chain(outcome, authorities, name):
    assert outcome(**{name: authorities.issue(name, key=authorities.stranger)}) == (
        "forged",
        ("chain_broken",),
    )


def test_certificates_in_another_order_or_that_are_none_break_the_chain(outcome, authorities):
    bundle = authorities.claims()["cabundle"]
    for other in ([*bundle[:1], bundle[2], bundle[1], bundle[3]], bundle[:-1], [*bundle[:1], b"none"]):
        assert outcome(cabundle=other) == ("forged", ("chain_broken",))


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("region", {"authority": False}),
        ("zone", {"path_length": 0}),
        ("region", {"path_length": 1}),
        ("signer", {"authority": True}),
    ],
)
def test_a_certificate_used_for_what_it_was_not_issued_for_is_told(outcome, authorities, name, changed):
    assert outcome(**{name: authorities.issue(name, **changed)}) == ("forged", ("chain_misused",))


def test_keys_are_used_as_their_certificates_allow(outcome, authorities):
    signs = authorities.certificates["signer"].extensions.get_extension_for_class(x509.KeyUsage).value
    issues = authorities.certificates["zone"].extensions.get_extension_for_class(x509.KeyUsage).value
    assert outcome(signer=authorities.issue("signer", use=issues)) == ("forged", ("chain_misused",))
    assert outcome(zone=authorities.issue("zone", use=signs)) == ("forged", ("chain_misused",))


def test_a_critical_extension_that_is_not_checked_is_not_passed_over(outcome, authorities):
    limits = x509.NameConstraints(permitted_subtrees=[x509.DNSName("a.test")], excluded_subtrees=None)
    zone = authorities.issue("zone", extension=limits)
    assert outcome(zone=zone) == ("forged", ("chain_misused",))


@pytest.mark.parametrize(
    ("seconds", "verdict", "codes"),
    [
        (0, "genuine", ()),
        (2 * 3600 - 1, "genuine", ()),
        (2 * 3600 + 60, "genuine", ("clock_skew",)),
        (2 * 3600 + 400, "unknown", ("signer_expired",)),
    ],
)
def test_certificates_are_judged_at_the_time_that_is_asked_about(verify, document, seconds, verdict, codes):
    result = verify(document(), at_us=START_US + seconds * 1_000_000)
    assert (result.verdict, result.codes) == (verdict, codes)


def test_a_signer_that_is_not_valid_yet_vouches_for_nothing(verify, authorities):
    body = authorities.document(
        signer=authorities.issue("signer", begin=_at(authorities) + timedelta(hours=1)), timestamp=_ms(90)
    )
    assert verify(body, at_us=START_US + HOUR_US * 3 // 2).verdict == "genuine"
    assert verify(body).codes == ("evidence_from_the_future", "signer_not_yet_valid")


def test_a_document_made_before_its_signer_was_valid_is_told(outcome):
    assert outcome(timestamp=_ms(-120)) == ("unknown", ("time_outside_signer",))


def test_a_time_in_seconds_or_in_the_future_is_told(outcome):
    assert outcome(timestamp=START_US // 1_000_000) == ("unknown", ("time_unit",))
    assert outcome(timestamp=_ms(60)) == ("unknown", ("evidence_from_the_future",))


def test_a_signature_of_another_key_or_over_other_claims_is_forged(verify, authorities):
    payload = cbor2.dumps(authorities.claims())
    assert verify(authorities.sign(payload, key=authorities.stranger)).codes == ("signature_wrong",)
    signed = cbor2.loads(authorities.sign(payload))
    other = cbor2.dumps(authorities.claims(nonce=b"another"))
    result = verify(cbor2.dumps([signed[0], {}, other, signed[3]]))
    assert (result.verdict, result.codes) == ("forged", ("signature_wrong",))


def test_a_document_that_swaps_its_signer_is_forged(outcome, authorities):
    assert outcome(certificate=authorities.certificates["instance"].public_bytes(Encoding.DER))[0] == "forged"


def test_register_four_is_of_the_instance_that_the_module_names(outcome):
    for module in ("i-0123456789abcdef1-enc0123456789abcdef", "somebody"):
        assert outcome(module_id=module) == ("unknown", ("instance_mismatch",))


@pytest.mark.parametrize(
    ("text", "changed", "codes"),
    [
        ("", {}, ()),
        ("debug: false", {"pcrs": {0: 0, 1: 0, 2: 0}}, ("debug_allowed",)),
        ("debug: true", {"pcrs": {0: 0, 1: 0, 2: 0}}, ()),
        ("debug: false", {"pcrs": {0: 0, 1: 0, 2: 1}}, ()),
        (f"measurements: ['{'01' * 48}']", {}, ()),
        (f"measurements: ['{'01' * 48}']", {"pcrs": {0: 9}}, ("measurement_not_allowed",)),
        ("measurements: []", {}, ("measurement_not_allowed",)),
        (f"registers: {{2: ['{'03' * 48}']}}", {}, ()),
        (f"registers: {{2: ['{'03' * 48}', '{'05' * 48}']}}", {"pcrs": {2: 5}}, ()),
        (f"registers: {{2: ['{'03' * 48}']}}", {"pcrs": {2: 4}}, ("register_not_allowed",)),
        (f"registers: {{8: ['{'03' * 48}']}}", {}, ("register_not_allowed",)),
        (f"registers: {{31: ['{'03' * 48}']}}", {}, ("register_not_allowed",)),
        (f"nonce: {b'a nonce'.hex()}", {}, ()),
        (f"nonce: {b'b nonce'.hex()}", {}, ("nonce_mismatch",)),
        (f"nonce: {b'a nonce'.hex()}", {"nonce": None}, ("nonce_mismatch",)),
        ("max_age_seconds: 60", {}, ()),
        ("max_age_seconds: 60", {"timestamp": START_US // 1000 - 61_000}, ("evidence_stale",)),
    ],
)
def test_the_policy_is_judged_apart_from_the_verdict(verify, authorities, text, changed, codes):
    if "pcrs" in changed:
        registers = {number: bytes([value]) * 48 for number, value in changed["pcrs"].items()}
        changed = {"pcrs": authorities.claims()["pcrs"] | registers}
    result = verify(authorities.document(**changed), by=policy(text))
    assert (result.verdict, result.codes) == ("genuine", codes)
    assert result.policy == ("violated" if codes else "met")


def test_without_a_policy_nothing_is_met_or_violated(verify, document, authorities):
    zeros = authorities.claims()["pcrs"] | dict.fromkeys((0, 1, 2), bytes(48))
    result = verify(document(pcrs=zeros))
    assert (result.verdict, result.policy, result.codes) == ("genuine", "none", ())
    assert result.row()["debug"] is True


def test_a_forged_document_is_not_judged_by_the_policy(verify, document):
    assert verify(document(cabundle=None), by=policy("measurements: []")).policy == "none"


def test_the_digest_is_of_what_is_signed_however_it_is_wrapped(verify, document):
    body = document()
    parts = cbor2.loads(body)
    wrapped = [
        body,
        cbor2.dumps(cbor2.CBORTag(18, parts)),
        cbor2.dumps([parts[0], {5: b"unsigned"}, *parts[2:]]),
        cbor2.dumps([parts[0], None, *parts[2:]]),
        body.hex().encode(),
    ]
    results = [verify(one) for one in wrapped]
    assert {one.verdict for one in results} == {"genuine"}
    assert len({one.digest for one in results}) == 1
    assert len({one.evidence_digest for one in results}) == len(wrapped)
    assert verify(document(nonce=b"other")).digest != results[0].digest


def test_a_document_that_is_cut_or_goes_on_is_malformed_whatever_its_length(verify, document):
    body = document()
    for length in range(0, len(body), 7):
        assert verify(body[:length]).codes == ("malformed",), length
    for more in (b"\0", body, b"\xff" * 100):
        result = verify(body + more)
        assert (result.verdict, result.codes) == ("forged", ("malformed",))


@pytest.mark.parametrize(
    "body",
    [
        b"\x84" * 5_000,
        b"\x84\x44\xa1\x01\x38\x22\xa0\x5b" + b"\xff" * 8,
        b"\xd2" * 5_000,
        bytes(MAX_DOCUMENT_BYTES + 1),
        cbor2.dumps([cbor2.dumps({1: -35}), {}, b"\x9a\xff\xff\xff\xff", bytes(96)]),
        cbor2.dumps([cbor2.dumps({1: -35}), {}, b"\x81" * 60_000, bytes(96)]),
        cbor2.dumps([cbor2.dumps({1: -35}), {}, cbor2.dumps([0] * 60_000), bytes(96)]),
        cbor2.dumps([cbor2.dumps({1: -35}), {}, b"\xa2\x66digest\x60\x66digest\x60", bytes(96)]),
    ],
)
def test_a_bomb_is_a_finding_in_little_memory(verify, body):
    tracemalloc.start()
    try:
        result = verify(body)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert (result.verdict, result.codes) == ("forged", ("malformed",))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_document_with_any_bytes_changed_is_never_genuine_and_never_an_error(authorities, data):
    body = bytearray(_kept(authorities))
    at = data.draw(st.integers(0, len(body) - 1))
    size = data.draw(st.integers(1, 40))
    body[at : at + size] = data.draw(st.binary(max_size=60))
    setting = Setting(at_us=START_US, roots=authorities.roots())
    result = NitroVerifier().verify(read_evidence(bytes(body)), setting)
    assert (
        result.verdict != "genuine"
        or bytes(body) == _kept(authorities)
        or _only_wrapping(bytes(body), authorities)
    )


def test_detection_knows_documents_with_a_tag_and_without(document):
    verifier = NitroVerifier()
    body = document()
    tagged = cbor2.dumps(cbor2.CBORTag(18, cbor2.loads(body)))
    assert verifier.detect(read_evidence(body)) == verifier.detect(read_evidence(tagged)) == 2
    for other in (b"", b"module_id", b"\x84", bytes(1184), b"{}"):
        assert verifier.detect(read_evidence(other)) == 0


def test_the_time_of_a_document_is_its_own_also_in_seconds(document):
    verifier = NitroVerifier()
    assert verifier.time_us(read_evidence(document())) == START_US
    assert verifier.time_us(read_evidence(document(timestamp=START_US // 1_000_000))) == START_US
    for other in (b"", document()[:-1], document(timestamp="now")):
        assert verifier.time_us(read_evidence(other)) is None


def _kept(authorities) -> bytes:
    """Return the same document each time: a signature is another one each time."""
    kept: bytes = getattr(authorities, "kept", None) or authorities.document()
    authorities.kept = kept
    return kept


def _only_wrapping(body: bytes, authorities) -> bool:
    """Tell whether the signed parts are the same: a change can hit what is not signed."""
    try:
        changed, before = cbor2.loads(bytes(body)), cbor2.loads(_kept(authorities))
    except Exception:  # noqa: BLE001 - whatever the other library says, it is not the same then
        return False
    return isinstance(changed, list) and [changed[0], *changed[2:]] == [before[0], *before[2:]]


def _at(authorities):
    return authorities.certificates["signer"].not_valid_before_utc + timedelta(hours=1)


def _ms(minutes: int) -> int:
    return START_US // 1000 + minutes * 60_000
