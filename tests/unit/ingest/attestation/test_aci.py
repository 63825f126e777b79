"""Container sets under roots that the test made: the endorsement's checks each decide alone."""

import base64
import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache

import cbor2
import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID, ObjectIdentifier

from contract.testing import START_US
from ingest.attestation.aci import ROOT, AciVerifier
from ingest.attestation.evidence import read_evidence
from ingest.attestation.policy import parse_policy
from ingest.attestation.roots import Roots, read_certificates
from ingest.attestation.steps import Setting, Verification, detect
from twin.evidence import Guest, Maker, Processor

BEGIN = datetime.fromtimestamp(START_US / 1e6, UTC)
USAGE = "1.3.6.1.4.1.311.76.59.1.2"
CONTAINER_POLICY = b"package policy\nallow := true\n"
GUEST = replace(Guest.named("utility machine"), host_data=hashlib.sha256(CONTAINER_POLICY).digest())
TCB = {"bootloader": 4, "tee": 0, "snp": 27, "microcode": 219}


class Endorsers:
    """A root, an authority and a signer, as Microsoft has them."""

    def __init__(self) -> None:
        self.keys = {
            name: rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
            for name in ("root", "authority", "signer", "stranger")
        }
        self.root = self.issue("root", "root", authority=True)
        self.authority = self.issue("authority", "root", authority=True)
        self.signer = self.issue("signer", "authority")

    def issue(
        self,
        name: str,
        issuer: str,
        *,
        by: str = "",
        authority: bool = False,
        usage: str = USAGE,
        days: int = 365,
    ) -> bytes:
        names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, issuer)]
        builder = x509.CertificateBuilder(subject_name=names[0], issuer_name=names[1])
        builder = builder.serial_number(7).public_key(self.keys[name].public_key())
        builder = builder.not_valid_before(BEGIN - timedelta(days=1)).not_valid_after(
            BEGIN + timedelta(days=days)
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        uses = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "crl_sign")
        none = dict.fromkeys((*uses, "encipher_only", "decipher_only"), False)
        key_usage = x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, **none)
        builder = builder.add_extension(key_usage, critical=True)
        if not authority:
            builder = builder.add_extension(x509.ExtendedKeyUsage([ObjectIdentifier(usage)]), critical=False)
        return builder.sign(self.keys[by or issuer], SHA384()).public_bytes(Encoding.DER)


@cache
def endorsers() -> Endorsers:
    return Endorsers()


@cache
def chip() -> Processor:
    return Processor(maker=Maker("Milan", START_US), chip_id=b"\x11" * 64, tcb=TCB)


@cache
def roots() -> Roots:
    return Roots(
        chains={
            "amd_milan": tuple(read_certificates(chip().maker.chain)),
            ROOT: tuple(read_certificates(endorsers().root)),
        }
    )


def did(certificate: bytes, usage: str = USAGE) -> str:
    fingerprint = base64.urlsafe_b64encode(hashlib.sha256(certificate).digest()).rstrip(b"=").decode()
    return f"did:x509:0:sha256:{fingerprint}::eku:{usage}"


@dataclass(frozen=True, kw_only=True)
class Endorsement:
    """What is endorsed, and how."""

    measurement: str = GUEST.measurement.hex()
    svn: object = "22"
    issuer: str = ""
    feed: str = "ContainerPlat-AMD-UVM"
    chain: tuple[bytes, ...] = ()
    key: str = "signer"

    def write(self) -> bytes:
        made = endorsers()
        chain = list(self.chain or (made.signer, made.authority, made.root))
        headers = {1: -38, 33: chain, "iss": self.issuer or did(made.root), "feed": self.feed}
        payload = {"x-ms-sevsnpvm-guestsvn": self.svn, "x-ms-sevsnpvm-launchmeasurement": self.measurement}
        protected, body = cbor2.dumps(headers), orjson.dumps(payload)
        signed = cbor2.dumps(["Signature1", protected, b"", body])
        pss = padding.PSS(padding.MGF1(SHA384()), SHA384().digest_size)
        signature = made.keys[self.key].sign(signed, pss, SHA384())
        return cbor2.dumps(cbor2.CBORTag(18, [protected, {}, body, signature]))


POLICY = """policy: test
uvm:
  issuers: ["{issuer}"]
  feeds: [ContainerPlat-AMD-UVM]
  minimum_svn: 22
"""


def judge(
    endorsement: Endorsement | bytes | None, *, at_us: int = START_US, policy: bytes = CONTAINER_POLICY
):
    attached = {"vcek.der": chip().certificate, "security-policy-base64": base64.b64encode(policy)}
    if endorsement is not None:
        body = endorsement if isinstance(endorsement, bytes) else endorsement.write()
        attached["reference-info-base64"] = base64.b64encode(body)
    evidence = read_evidence(chip().report(GUEST), "report", attached)
    assert detect(evidence) == "aci"
    rules = parse_policy(POLICY.format(issuer=did(endorsers().root)).encode(), "p.yaml")
    return AciVerifier().verify(evidence, Setting(at_us=at_us, roots=roots(), policy=rules))


def summary(result: Verification) -> tuple[str, str, str, set[str]]:
    return result.verdict, result.policy, result.availability, set(result.codes) - {"crl_missing"}


def test_a_whole_set_is_genuine_and_meets_the_policy():
    result = judge(Endorsement())
    assert summary(result) == ("genuine", "met", "checked", set())
    assert {step.outcome for step in result.steps if step.name not in ("freshness", "revocation")} == {"held"}
    assert result.facts["uvm_svn"] == 22


def test_the_chain_may_leave_out_the_root_that_is_pinned():
    made = endorsers()
    assert judge(Endorsement(chain=(made.signer, made.authority))).verdict == "genuine"


@pytest.mark.parametrize(
    ("endorsement", "verdict", "found"),
    [
        (Endorsement(measurement="00" * 48), "forged", {"uvm_measurement_mismatch"}),
        (Endorsement(key="stranger"), "forged", {"uvm_signature_wrong"}),
        (Endorsement(measurement="00"), "unknown", {"uvm_unreadable"}),
        (Endorsement(svn=None), "unknown", {"uvm_unreadable"}),
        (Endorsement(svn="many"), "unknown", {"uvm_unreadable"}),
        (Endorsement(issuer="did:web:microsoft.com"), "forged", {"uvm_issuer_mismatch"}),
        (b"", "unknown", {"uvm_unreadable"}),
        (b"\xd2\x84", "unknown", {"uvm_unreadable"}),
    ],
)
def test_an_endorsement_that_is_not_in_order_makes_no_genuine_set(endorsement, verdict, found):
    assert summary(judge(endorsement)) == (verdict, "none", "checked", found)


def test_the_issuer_must_name_a_certificate_of_the_chain_and_a_usage_that_the_signer_has():
    made = endorsers()
    for issuer in (did(made.signer), did(b"another"), did(made.root, "1.2.3.4")):
        assert summary(judge(Endorsement(issuer=issuer))) == (
            "forged",
            "none",
            "checked",
            {"uvm_issuer_mismatch"},
        )


def test_a_signer_whom_a_stranger_certified_is_not_believed():
    made = endorsers()
    forged = made.issue("signer", "authority", by="stranger")
    result = judge(Endorsement(chain=(forged, made.authority, made.root)))
    assert summary(result) == ("forged", "none", "checked", {"uvm_chain_broken"})


def test_one_who_may_not_certify_certifies_nobody():
    made = endorsers()
    chain = (made.issue("stranger", "signer"), made.signer, made.authority, made.root)
    result = judge(Endorsement(chain=chain, key="stranger"))
    assert summary(result) == ("forged", "none", "checked", {"uvm_chain_broken"})


def test_a_chain_of_its_own_root_is_not_believed_although_it_bears_the_name():
    made = Endorsers()
    result = judge(Endorsement(chain=(made.signer, made.authority, made.root), issuer=did(made.root)))
    assert (result.verdict, "uvm_chain_broken" in result.codes) == ("forged", True)


@pytest.mark.parametrize(("days", "found"), [(400, "uvm_signer_expired"), (-30, "uvm_signer_not_yet_valid")])
def test_an_endorser_outside_its_time_vouches_for_nothing(days, found):
    result = judge(Endorsement(), at_us=START_US + days * 86_400_000_000)
    assert summary(result) == ("unknown", "none", "checked", {found})


@pytest.mark.parametrize(
    ("endorsement", "found"),
    [
        (Endorsement(svn="21"), {"uvm_svn_below_minimum"}),
        (Endorsement(svn="23"), set()),
        (Endorsement(feed="Another"), {"uvm_feed_not_allowed"}),
    ],
)
def test_the_policy_decides_feed_and_version(endorsement, found):
    assert summary(judge(endorsement)) == ("genuine", "violated" if found else "met", "checked", found)


def test_another_issuer_under_the_same_root_is_the_policys_business():
    result = judge(Endorsement(issuer=did(endorsers().authority)))
    assert summary(result) == ("genuine", "violated", "checked", {"uvm_issuer_not_allowed"})


def test_without_the_endorsement_nothing_is_forged_and_it_is_said_what_is_missing():
    result = judge(None)
    assert summary(result) == ("unknown", "none", "could_not_check", {"uvm_missing"})


def test_another_container_policy_than_the_one_that_was_bound_is_seen():
    result = judge(Endorsement(), policy=CONTAINER_POLICY + b"\n")
    assert summary(result) == ("forged", "none", "checked", {"container_policy_mismatch"})
