"""`hallwatch attest verify`: what a person reads, and the exit code."""

from __future__ import annotations

import base64
import io
import json
import sys
from pathlib import Path

import pytest

from hallwatch.cli import main

REPORT = bytes([2, 0, 0, 0]) + bytes(1_180)
"""Of the size and version of an SNP report; nothing else in it is true."""


@pytest.fixture
def verify(monkeypatch, capsys):
    def verify_(*arguments: object, given: bytes = b"") -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        with pytest.raises(SystemExit) as caught:
            main(["attest", "verify", *map(str, arguments)])
        output, messages = capsys.readouterr()
        return caught.value.code, output, messages

    return verify_


@pytest.fixture
def nitro(vectors: Path) -> Path:
    return vectors / "attestation" / "nitro"


def test_genuine_evidence_at_its_own_time_is_exit_code_zero(verify, nitro):
    code, output, messages = verify(nitro / "valid_2022-10-13_evervault.cbor", "--at", "evidence")
    assert (code, messages) == (0, "")
    assert "verdict       genuine:" in output
    assert "policy        met:" in output
    assert "availability  checked:" in output
    assert "made          2022-10-13 08:58:02 UTC" in output
    assert "FAILED" not in output
    assert output.count("  held     ") == 10
    assert output.count("  skipped  ") == 2


def test_old_evidence_judged_now_says_how_to_judge_it_at_another_time(verify, nitro):
    code, output, _ = verify(nitro / "valid_2022-10-13_evervault.cbor")
    assert code == 1
    assert "verdict       unknown:" in output
    assert "high, signer_expired: A certificate has expired" in output
    assert "--at judges it at another time" in output


def test_a_debug_enclave_is_genuine_and_violates_the_policy(verify, nitro):
    code, output, _ = verify(nitro / "debug_2022-10-12_evervault.cbor", "--at", "evidence")
    assert code == 1
    assert "verdict       genuine:" in output
    assert "policy        violated:" in output
    assert "critical, debug_allowed:" in output


def test_a_policy_that_allows_it_makes_it_exit_code_zero(verify, nitro, tmp_path):
    policy = tmp_path / "ours.yaml"
    policy.write_text("policy: ours\ndebug: true\n")
    file = nitro / "debug_2022-10-12_evervault.cbor"
    code, output, _ = verify(file, "--at", "2022-10-12T14:00:00Z", "--policy", policy)
    assert code == 0
    assert "policy        ours\n" in output
    assert "judged at     2022-10-12 14:00:00 UTC" in output


def test_forged_evidence_is_exit_code_one(verify, nitro):
    code, output, _ = verify(nitro / "neg_selfsigned_blocky.b64", "--at", "evidence")
    assert code == 1
    assert "forged: it claims a product that is known here, and does not verify" in output
    assert "critical, no_authority:" in output
    assert "(the evidence is forged)" in output


def test_json_is_one_object_with_everything(verify, nitro):
    file = nitro / "debug_2022-10-12_evervault.cbor"
    code, output, _ = verify(file, "--at", "evidence", "--format", "json")
    found = json.loads(output)
    assert code == 1
    assert (found["kind"], found["verdict"], found["policy"]) == ("nitro", "genuine", "violated")
    assert found["evidence_time"] == found["evaluated_at"] == "2022-10-12T13:50:06Z"
    (finding,) = found["findings"]
    assert (finding["code"], finding["severity"], finding["effect"]) == (
        "debug_allowed",
        "critical",
        "violated",
    )
    assert [step["step"] for step in found["steps"] if step["outcome"] == "failed"] == ["debug"]


def test_standard_input_is_read_and_may_be_text_or_a_parcel(verify, nitro):
    body = (nitro / "valid_2022-10-13_evervault.cbor").read_bytes()
    parcel = json.dumps({"evidence": base64.b64encode(body).decode(), "kind": "nitro"}).encode()
    for given in (body, body.hex().encode(), base64.encodebytes(body), parcel):
        assert verify("-", "--at", "evidence", given=given)[0] == 0
    assert verify("-", "--at", "evidence", given=body[:-1])[0] == 2
    assert verify("-", given=body[:-1])[0] == 1


def test_what_lies_beside_the_evidence_is_looked_at(verify, vectors):
    code, output, _ = verify(vectors / "attestation" / "aci" / "snp_report.bin", "--at", "2023-02-10")
    assert code == 0
    assert "aci, 1184 bytes" in output
    assert "beside it" in output
    assert "uvm_reference_info.cose" in output


def test_collateral_that_is_named_is_all_that_is_looked_at(verify, vectors):
    snp = vectors / "attestation" / "snp"
    report = snp / "milan_v3_aci_report.bin"
    at = ("--at", "2026-03-01")
    assert "verdict       genuine" in verify(report, *at, "--collateral", snp / "milan_v3_aci_vcek.pem")[1]
    code, output, _ = verify(report, *at, "--collateral", snp / "genoa_v3_aci_vcek.pem")
    assert code == 1
    assert "verdict       genuine" not in output
    assert "with " in output


def test_collateral_that_is_missing_says_what_to_do(verify, tmp_path, vectors):
    report = tmp_path / "report.bin"
    report.write_bytes((vectors / "attestation" / "snp" / "milan_v3_aci_report.bin").read_bytes())
    code, output, _ = verify(report)
    assert code == 1
    assert "availability  could_not_check:" in output
    assert "--collateral" in output


def test_without_a_real_capture_a_report_full_of_zeros_is_never_genuine(verify, tmp_path):
    path = tmp_path / "report.bin"
    path.write_bytes(REPORT)
    code, output, _ = verify(path)
    assert code == 1
    assert "genuine:" not in output
    assert "FAILED" in output


@pytest.mark.parametrize(
    ("arguments", "given", "words"),
    [
        (["-"], b"", "-: empty"),
        (["-"], b"a letter", "no evidence of a kind that is known here (aci, nitro, snp)"),
        (["-", "--kind", "maa"], b"x", "there is no kind 'maa'; there are aci, nitro, snp"),
        (["-", "--at", "soon", "--kind", "nitro"], b"x", "'soon' is no time; write one like"),
        (["-", "--at", "evidence", "--kind", "nitro"], b"x", "does not say when it was made"),
        (["-", "--policy", "/nowhere.yaml", "--kind", "nitro"], b"x", "/nowhere.yaml: No such file"),
        (["-", "--collateral", "/nowhere", "--kind", "nitro"], b"x", "/nowhere: there is no such file"),
        (["-", "--roots", "/nowhere", "--kind", "nitro"], b"x", "/nowhere: no roots"),
        (["/nowhere"], b"", "/nowhere: No such file"),
        (["-"], bytes(5_000_000), "more than"),
        (["-"], b'{"evidence": 5}', "base64"),
    ],
)
def test_a_mistake_of_the_caller_is_one_message_that_says_what_to_do(verify, arguments, given, words):
    code, output, messages = verify(*arguments, given=given)
    assert (code, output) == (2, "")
    assert words in messages


def test_what_evidence_says_cannot_write_to_the_terminal(verify, tmp_path):
    path = tmp_path / "a\x1b[2J.cbor"
    path.write_bytes(b"\x84module_id")
    code, output, _ = verify(path)
    assert code == 1
    assert "\x1b" not in output
