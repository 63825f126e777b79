"""Every SNP report and Azure container set of the capture folder, judged to the truth that its list states."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ingest.attestation.aci import ENDORSEMENT_STEPS, AciCase
from ingest.attestation.cose import read_sign1
from ingest.attestation.evidence import Evidence, read_evidence
from ingest.attestation.policy import baseline
from ingest.attestation.roots import shipped_roots
from ingest.attestation.snp import EVIDENCE_STEPS
from ingest.attestation.snp_report import SIGNED_BYTES, SIZE_BYTES
from ingest.attestation.steps import VERIFIERS, Setting, Verification, detect, take

POSITIVES = {
    "milan_v2_gcp_report.bin": ("milan_v2_gcp_vcek.der", "2024-06-01"),
    "milan_v2_virtee_report.hex": ("milan_v2_virtee_vcek.der", "2024-06-01"),
    "milan_v3_aws_vlek_report.bin": ("milan_v3_aws_vlek.der", "2025-06-01"),
    "milan_v3_aci_report.bin": ("milan_v3_aci_vcek.pem", "2026-11-30"),
    "genoa_v3_aci_report.bin": ("genoa_v3_aci_vcek.pem", "2026-11-30"),
}
"""By report: the certificate of its signer, and a day on which that is valid."""


@pytest.fixture
def snp(vectors: Path) -> Path:
    return vectors / "attestation" / "snp"


@pytest.fixture
def aci(vectors: Path) -> Path:
    return vectors / "attestation" / "aci"


def at(day: str) -> int:
    return round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1_000_000


def judge(evidence: Evidence, day: str) -> Verification:
    kind = detect(evidence) or "snp"
    setting = Setting(at_us=at(day), roots=shipped_roots(), policy=baseline())
    return VERIFIERS.all()[kind].verify(evidence, setting)


def read(folder: Path, report: str, *certificates: str) -> Evidence:
    attached = {name: (folder / name).read_bytes() for name in certificates}
    return read_evidence((folder / report).read_bytes(), report, attached)


def with_body(evidence: Evidence, body: bytes) -> Evidence:
    return read_evidence(body, evidence.name, evidence.attached)


def aci_set(folder: Path, **changed: bytes) -> Evidence:
    attached = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "snp_report.bin"}
    names = {name.split(".")[0]: name for name in attached}
    attached |= {names[name]: body for name, body in changed.items()}
    return read_evidence((folder / "snp_report.bin").read_bytes(), "snp_report.bin", attached)


def codes(verification: Verification) -> set[str]:
    """Return what was found but that nobody has AMD's revocation lists here."""
    return set(verification.codes) - {"crl_missing"}


@pytest.mark.parametrize(
    ("report", "policy", "found", "facts"),
    [
        (
            "milan_v2_gcp_report.bin",
            "violated",
            {"debug_allowed", "tcb_below_coming_minimum"},
            {
                "debug": True,
                "tcb_snp": 5,
                "tcb_microcode": 0x44,
                "product": "Milan",
                "signer": "vcek",
                "cpu": None,
            },
        ),
        (
            "milan_v2_virtee_report.hex",
            "met",
            {"tcb_below_coming_minimum"},
            {"debug": False, "tcb_snp": 8, "tcb_microcode": 0x73},
        ),
        (
            "milan_v3_aws_vlek_report.bin",
            "violated",
            {"vmpl_not_allowed", "tcb_not_committed", "tcb_below_coming_minimum"},
            {"vmpl": 1, "signer": "vlek", "provider": "CN=cc-us-east-2.amazonaws.com", "tcb_microcode": 0xD9},
        ),
        (
            "milan_v3_aci_report.bin",
            "violated",
            {"tcb_below_minimum"},
            {"cpu": "19/01/01", "tcb_snp": 0x18, "guest_svn": 2, "debug": False, "product": "Milan"},
        ),
        (
            "genoa_v3_aci_report.bin",
            "violated",
            {"tcb_below_minimum"},
            {"cpu": "19/11/01", "tcb_snp": 0x17, "guest_svn": 2, "debug": False, "product": "Genoa"},
        ),
    ],
)
def test_real_reports_are_genuine_and_the_policy_sees_what_they_say(snp, report, policy, found, facts):
    leaf, day = POSITIVES[report]
    result = judge(read(snp, report, leaf), day)
    assert (result.kind, result.verdict, result.availability) == ("snp", "genuine", "checked")
    assert (result.policy, codes(result)) == (policy, found)
    assert {name: result.facts[name] for name in facts} == facts


def test_two_hosts_of_one_image_have_one_measurement_and_one_host_data(snp):
    milan = judge(read(snp, "milan_v3_aci_report.bin", "milan_v3_aci_vcek.pem"), "2026-11-30")
    genoa = judge(read(snp, "genoa_v3_aci_report.bin", "genoa_v3_aci_vcek.pem"), "2026-11-30")
    for name in ("measurement", "host_data"):
        assert milan.facts[name] == genoa.facts[name]
    assert milan.device_id != genoa.device_id


def test_a_certificate_that_was_issued_again_is_as_good_as_the_first(snp):
    first = judge(read(snp, "milan_v3_aci_report.bin", "milan_v3_aci_vcek.pem"), "2026-11-30")
    again = judge(read(snp, "milan_v3_aci_report.bin", "milan_v3_aci_vcek_reissued.pem"), "2026-11-30")
    assert (first.verdict, again.verdict) == ("genuine", "genuine")
    assert first.digest == again.digest
    assert first.signer_not_after_us != again.signer_not_after_us


def test_of_two_certificates_the_one_that_is_valid_at_the_time_is_taken(snp):
    both = read(snp, "milan_v3_aci_report.bin", "milan_v3_aci_vcek.pem", "milan_v3_aci_vcek_reissued.pem")
    assert judge(both, "2026-01-15").verdict == "genuine"  # only the second is valid yet
    assert judge(both, "2033-01-15").verdict == "genuine"  # only the first is valid still


def test_a_loaded_key_that_expired_vouches_no_longer_and_forges_nothing(snp):
    result = judge(read(snp, "milan_v3_aws_vlek_report.bin", "milan_v3_aws_vlek.der"), "2025-12-11")
    assert (result.verdict, result.availability) == ("unknown", "checked")
    assert "signer_expired" in result.codes
    assert "signature_wrong" not in result.codes


@pytest.mark.parametrize(
    ("report", "leaf", "found"),
    [
        (
            "milan_v3_aci_report.bin",
            "neg_fake_vcek_rawhwid.der",
            {"chain_broken", "tcb_mismatch", "chip_mismatch", "signature_wrong"},
        ),
        (
            "milan_v2_gcp_report.bin",
            "neg_fake_vcek_rawhwid.der",
            {"chain_broken", "tcb_mismatch", "chip_mismatch", "signature_wrong"},
        ),
        ("milan_v3_aci_report.bin", "turin_orphan_vcek.der", {"product_mismatch"}),
        (
            "milan_v2_gcp_report.bin",
            "turin_orphan_vcek.der",
            {"tcb_mismatch", "chip_mismatch", "signature_wrong"},
        ),
        ("milan_v3_aci_report.bin", "milan_v3_aws_vlek.der", {"signer_mismatch"}),
        ("milan_v3_aws_vlek_report.bin", "milan_v3_aci_vcek.pem", {"signer_mismatch"}),
    ],
)
def test_a_certificate_that_did_not_sign_the_report_makes_it_forged(snp, report, leaf, found):
    result = judge(read(snp, report, leaf), "2025-06-01" if "vlek" in leaf else "2026-11-30")
    assert (result.verdict, result.policy) == ("forged", "none")
    assert codes(result) == found


def test_without_its_certificate_nothing_is_forged_and_the_one_that_is_wanted_is_named(snp):
    result = judge(read(snp, "milan_v3_aci_report.bin"), "2026-11-30")
    assert (result.verdict, result.policy, result.availability) == ("unknown", "violated", "could_not_check")
    (missing,) = [one for one in result.findings if one.code == "leaf_missing"]
    assert "VCEK of Milan for TCB 04000000000018db and chip 4ffb5cb4" in missing.expected


@pytest.mark.parametrize("report", POSITIVES)
def test_no_signed_byte_can_be_changed(snp, report):
    leaf, day = POSITIVES[report]
    evidence = read(snp, report, leaf)
    assert judge(evidence, day).verdict == "genuine"
    for place in range(SIGNED_BYTES):
        body = bytearray(evidence.body)
        body[place] ^= 1 << place % 8
        result = judge(with_body(evidence, bytes(body)), day)
        assert result.verdict != "genuine", f"{place:03X}"
        assert result.findings


@pytest.mark.parametrize("report", POSITIVES)
def test_an_unsigned_byte_changes_the_verdict_and_not_the_digest(snp, report):
    leaf, day = POSITIVES[report]
    evidence = read(snp, report, leaf)
    digest = judge(evidence, day).digest
    assert digest == hashlib.sha256(evidence.body[:SIGNED_BYTES]).hexdigest()
    for place in range(SIGNED_BYTES, SIZE_BYTES, 3):
        body = bytearray(evidence.body)
        body[place] ^= 0x40
        result = judge(with_body(evidence, bytes(body)), day)
        assert result.digest == digest
        assert result.verdict == "forged", f"{place:03X}"


@pytest.mark.parametrize("size", [0, 1, 671, 1183])
def test_a_report_cut_short_or_with_more_behind_it_has_a_finding(snp, size):
    evidence = read(snp, "milan_v3_aci_report.bin", "milan_v3_aci_vcek.pem")
    for body in (evidence.body[:size], evidence.body + b"\0", evidence.body * 100):
        result = judge(with_body(evidence, body), "2026-11-30")
        assert (result.verdict, result.policy, codes(result)) == ("unknown", "none", {"wrong_size"})


def test_a_real_container_set_is_genuine_and_meets_the_baseline(aci):
    result = judge(aci_set(aci), "2023-03-01")
    assert (result.kind, result.verdict, result.policy, result.availability) == (
        "aci",
        "genuine",
        "met",
        "checked",
    )
    assert result.facts["uvm_svn"] == 22
    assert result.facts["guest_svn"] == 2
    assert result.facts["uvm_feed"] == "ContainerPlat-AMD-UVM"


def test_an_endorsement_whose_signer_expired_vouches_no_longer(aci):
    result = judge(aci_set(aci), "2024-01-04")
    assert (result.verdict, result.availability) == ("unknown", "checked")
    assert "uvm_signer_expired" in result.codes


def test_another_container_policy_is_not_the_one_that_was_bound(aci):
    result = judge(aci_set(aci, security_policy=b"cGFja2FnZSBwb2xpY3k="), "2023-03-01")
    assert (result.verdict, codes(result)) == ("forged", {"container_policy_mismatch"})


def test_the_endorsement_of_another_machine_does_not_fit(aci, snp):
    other = read(snp, "milan_v3_aci_report.bin", "milan_v3_aci_vcek.pem")
    attached = {**aci_set(aci).attached, **other.attached}
    result = judge(read_evidence(other.body, "", attached), "2026-11-30")
    assert result.verdict == "forged"
    assert {"uvm_measurement_mismatch", "container_policy_mismatch"} <= codes(result)


def judge_endorsement(evidence: Evidence, day: str) -> Verification:
    """Take the steps of the endorsement alone."""
    setting = Setting(at_us=at(day), roots=shipped_roots())
    return take("aci", AciCase(evidence, setting), (EVIDENCE_STEPS[0], *ENDORSEMENT_STEPS))


def changed(body: bytes, places: Iterable[int]) -> Iterator[bytes]:
    for place in places:
        copy = bytearray(body)
        copy[place] ^= 1 << place % 8
        yield bytes(copy)


def test_no_signed_byte_of_the_endorsement_can_be_changed(aci):
    whole, evidence = (aci / "uvm_reference_info.cose").read_bytes(), aci_set(aci)
    sign1 = read_sign1(whole)
    assert judge_endorsement(evidence, "2023-03-01").verdict == "genuine"
    for part in (sign1.protected, sign1.payload, sign1.signature):
        start = whole.index(part)
        for body in changed(whole, range(start, start + len(part))):
            attached = {**evidence.attached, "uvm_reference_info.cose": body}
            result = judge_endorsement(replace(evidence, attached=attached), "2023-03-01")
            assert result.verdict != "genuine"
            assert {code for code in codes(result) if code.startswith("uvm_")}


def test_what_is_not_signed_in_the_endorsement_decides_nothing(aci):
    whole, evidence = (aci / "uvm_reference_info.cose").read_bytes(), aci_set(aci)
    sign1 = read_sign1(whole)
    first, last = whole.index(sign1.protected) + len(sign1.protected) + 64, whole.index(sign1.payload) - 64
    for body in changed(whole, range(first, last, 97)):
        attached = {**evidence.attached, "uvm_reference_info.cose": body}
        result = judge_endorsement(replace(evidence, attached=attached), "2023-03-01")
        assert result.digest == hashlib.sha256(evidence.body[:SIGNED_BYTES]).hexdigest()


def test_an_endorsement_cut_short_or_with_more_behind_it_has_a_finding(aci):
    whole = (aci / "uvm_reference_info.cose").read_bytes()
    for body in (b"", whole[:100], whole[:-1], whole + b"\0", b"\x9f" * 100_000):
        result = judge(aci_set(aci, uvm_reference_info=body), "2023-03-01")
        assert (result.verdict, "uvm_unreadable" in result.codes) == ("unknown", True)
