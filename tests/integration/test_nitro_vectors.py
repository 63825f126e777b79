"""Every real Nitro document of the capture folder, to the truth its list states, and with every signed byte changed."""

import hashlib
from pathlib import Path

import cbor2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from ingest.attestation.cbor import read_cbor
from ingest.attestation.cose import read_sign1
from ingest.attestation.evidence import Evidence, read_evidence
from ingest.attestation.nitro import NitroVerifier
from ingest.attestation.policy import Policy, baseline
from ingest.attestation.roots import read_certificate, shipped_roots
from ingest.attestation.steps import Setting, Verification, detect

GENUINE = ("valid_2022-10-13_evervault.cbor", "debug_2022-10-12_evervault.cbor")
FORGED = "neg_selfsigned_blocky.b64"
ROOT = "641a0321a3e244efe456463195d606317ed7cdcc3c1756e09893f3c68f79bb5b"


@pytest.fixture
def nitro(vectors: Path) -> Path:
    return vectors / "attestation" / "nitro"


def read(path: Path) -> Evidence:
    return read_evidence(path.read_bytes(), path.name)


def verify(evidence: Evidence, at_us: int | None = None, policy: Policy | None = None) -> Verification:
    """Verify at a time, or at the evidence's own."""
    at_us = NitroVerifier().time_us(evidence) if at_us is None else at_us
    assert at_us is not None
    return NitroVerifier().verify(evidence, Setting(at_us=at_us, roots=shipped_roots(), policy=policy))


def test_the_root_that_is_shipped_is_the_one_that_aws_publishes(nitro):
    (root,) = shipped_roots().root("aws_nitro")
    assert root.fingerprint(SHA256()).hex() == ROOT
    assert (
        root.public_key()
        == x509.load_pem_x509_certificate((nitro / "aws_nitro_root_g1.pem").read_bytes()).public_key()
    )


@pytest.mark.parametrize("name", [*GENUINE, FORGED])
def test_every_document_is_detected(nitro, name):
    assert detect(read(nitro / name)) == "nitro"


def test_a_document_of_production_is_genuine_and_meets_the_baseline(nitro):
    result = verify(read(nitro / GENUINE[0]), policy=baseline())
    assert (result.verdict, result.policy, result.availability) == ("genuine", "met", "checked")
    assert result.findings == ()
    assert result.device_id == "i-020b6af9246d90e92-enc0183d09086c24190"
    assert sorted(map(int, result.facts["registers"])) == [0, 1, 2, 3, 4, 8]
    assert result.facts["debug"] is False
    assert result.evidence_us == 1_665_651_482_136_000


def test_a_document_of_debug_mode_is_genuine_and_violates_the_baseline(nitro):
    result = verify(read(nitro / GENUINE[1]), policy=baseline())
    assert (result.verdict, result.policy, result.codes) == ("genuine", "violated", ("debug_allowed",))
    assert sorted(map(int, result.facts["registers"])) == [3, 4]
    assert result.facts["debug"] is True


def test_a_document_that_vouches_for_itself_is_forged_although_its_signature_holds(nitro):
    evidence = read(nitro / FORGED)
    result = verify(evidence, policy=baseline())
    assert (result.verdict, result.policy) == ("forged", "none")
    assert result.codes == ("instance_mismatch", "no_authority", "time_unit")
    assert len(result.facts["registers"]) == 32
    envelope = read_sign1(evidence.body)
    itself = read_certificate(read_cbor(envelope.payload)["certificate"])
    assert envelope.is_signed_by(itself.public_key())


@pytest.mark.parametrize("name", GENUINE)
def test_an_old_document_is_genuine_at_its_time_and_expired_now(nitro, name):
    evidence = read(nitro / name)
    now = verify(evidence, at_us=1_780_272_000_000_000)
    assert (now.verdict, now.availability) == ("unknown", "checked")
    assert "signer_expired" in now.codes
    before = verify(evidence, at_us=1_600_000_000_000_000)
    assert (before.verdict, before.codes) == ("unknown", ("evidence_from_the_future", "signer_not_yet_valid"))


@pytest.mark.parametrize("name", GENUINE)
def test_no_byte_of_what_is_signed_can_change_and_none_of_the_signature(nitro, name):
    body = (nitro / name).read_bytes()
    at_us = NitroVerifier().time_us(read_evidence(body))
    protected, _, payload, signature = cbor2.loads(body)
    regions = [
        range(start := body.index(part), start + len(part)) for part in (protected, payload, signature)
    ]
    digest = verify(read_evidence(body), at_us).digest
    for region in regions:
        for at in region:
            changed = body[:at] + bytes([body[at] ^ 0x01]) + body[at + 1 :]
            result = verify(read_evidence(changed), at_us)
            assert result.verdict != "genuine", at
            assert result.digest != digest or region is regions[2], at


@pytest.mark.parametrize("name", GENUINE)
def test_bytes_that_are_not_signed_never_change_the_digest(nitro, name):
    body = (nitro / name).read_bytes()
    at_us = NitroVerifier().time_us(read_evidence(body))
    digest = verify(read_evidence(body), at_us).digest
    protected, _, payload, signature = cbor2.loads(body)
    order = int(
        "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16
    )
    mirrored = signature[:48] + (order - int.from_bytes(signature[48:], "big")).to_bytes(48, "big")
    for other in (
        cbor2.CBORTag(18, [protected, {}, payload, signature]),
        [protected, {4: b"key", "x": [1, 2]}, payload, signature],
        [protected, {}, payload, mirrored],
    ):
        result = verify(read_evidence(cbor2.dumps(other)), at_us)
        assert (result.verdict, result.digest) == ("genuine", digest)
        assert result.evidence_digest != hashlib.sha256(body).hexdigest()
    unsigned = set(range(len(body))) - {
        at for part in (protected, payload) for at in range(body.index(part), body.index(part) + len(part))
    }
    for at in sorted(unsigned):
        result = verify(read_evidence(body[:at] + bytes([body[at] ^ 0x01]) + body[at + 1 :]), at_us)
        assert result.digest == digest or result.codes == ("malformed",), at


@pytest.mark.parametrize("name", [*GENUINE, FORGED])
def test_a_document_cut_anywhere_or_longer_is_malformed(nitro, name):
    evidence = read(nitro / name)
    at_us = NitroVerifier().time_us(evidence)
    for length in range(0, len(evidence.body), 5):
        result = verify(read_evidence(evidence.body[:length]), at_us)
        assert (result.verdict, result.codes) == ("forged", ("malformed",)), length
    for more in (b"\0", evidence.body):
        assert verify(read_evidence(evidence.body + more), at_us).codes == ("malformed",)


def test_a_key_given_twice_is_malformed_although_other_readers_take_one(nitro):
    protected, _, payload, signature = cbor2.loads((nitro / GENUINE[0]).read_bytes())
    assert payload[0] == 0xA9
    twice = b"\xaa" + payload[1:] + cbor2.dumps("digest") + cbor2.dumps("SHA384")
    assert cbor2.loads(twice) == cbor2.loads(payload)
    result = verify(read_evidence(cbor2.dumps([protected, {}, twice, signature])), 1_665_651_482_136_000)
    assert (result.verdict, result.codes) == ("forged", ("malformed",))
    assert "twice" in result.findings[0].got
