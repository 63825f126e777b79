"""SNP reports under a maker's roots that the test made: each check alone decides when its part is swapped."""

import inspect
from dataclasses import replace
from functools import cache

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from contract.streams.attestation import ATTESTATION_RESULTS
from contract.testing import START_US
from ingest.attestation import aci, snp, steps
from ingest.attestation.evidence import Evidence, read_evidence
from ingest.attestation.finding import Findings
from ingest.attestation.policy import Policy, parse_policy
from ingest.attestation.roots import Roots, read_certificates
from ingest.attestation.snp import SnpVerifier
from ingest.attestation.snp_report import PRODUCTS
from ingest.attestation.steps import Setting, Verification
from twin.evidence import Guest, Maker, Processor, Product, signed

HOUR_US = 3_600_000_000
YEAR_US = 365 * 24 * HOUR_US
CHIPS = {"Milan": b"\x11" * 64, "Genoa": b"\x22" * 64, "Turin": b"\x33" * 8}
OTHER_CHIPS = {
    "Milan": b"\x11" * 63 + b"\x12",
    "Genoa": b"\x22" * 63 + b"\x23",
    "Turin": b"\x33" * 7 + b"\x34",
}
GUEST = Guest.named("guest")
NO_VLEK = 0
VLEK = 1 << 2


def tcb_of(product: str, **parts: int) -> dict[str, int]:
    return dict.fromkeys(PRODUCTS[product].tcb, 30) | {"microcode": 219} | parts


@cache
def maker(product: Product) -> Maker:
    return Maker(product, START_US)


@cache
def stranger(product: Product) -> Maker:
    """Return somebody who calls himself the maker."""
    return Maker(product, START_US)


@cache
def roots() -> Roots:
    return Roots(
        chains={f"amd_{name.lower()}": tuple(read_certificates(maker(name).chain)) for name in PRODUCTS}
    )


@cache
def processor(product: str, version: int = 3) -> Processor:
    return Processor(maker=maker(product), chip_id=CHIPS[product], tcb=tcb_of(product), version=version)


def policy(text: str) -> Policy:
    return parse_policy(f"policy: test\n{text}".encode(), "test.yaml")


def judge(report: bytes, *attached: bytes, text: str = "", at_us: int = START_US, **setting) -> Verification:
    evidence = read_evidence(report, "report", {f"file-{n}": body for n, body in enumerate(attached)})
    return judge_evidence(evidence, text=text, at_us=at_us, **setting)


def judge_evidence(evidence: Evidence, *, text: str = "", at_us: int = START_US, **setting) -> Verification:
    given = Setting(at_us=at_us, roots=setting.pop("roots", roots()), policy=policy(text), **setting)
    return SnpVerifier().verify(evidence, given)


def codes(result: Verification) -> set[str]:
    return set(result.codes) - {"crl_missing"}


def summary(result: Verification) -> tuple[str, str, str, set[str]]:
    return result.verdict, result.policy, result.availability, codes(result)


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_report_of_every_product_and_version_is_genuine(product, version):
    chip = processor(product, version)
    result = judge(chip.report(GUEST), chip.certificate)
    assert summary(result) == ("genuine", "met", "checked", set())
    assert result.facts["product"] == product
    assert {part: result.facts[f"tcb_{part}"] for part in PRODUCTS[product].tcb} == tcb_of(product)
    assert result.device_id == CHIPS[product].ljust(64, b"\0").hex()


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_key_of_another_chip_is_seen_although_it_signed_the_report(product):
    """Sign with the key of one chip, under its certificate, a report that names another."""
    chip = processor(product)
    other = Processor(maker=maker(product), chip_id=OTHER_CHIPS[product], tcb=tcb_of(product))
    result = judge(signed(chip.body(GUEST, b""), other.key), other.certificate)
    assert summary(result) == ("forged", "none", "checked", {"chip_mismatch"})


def test_a_short_chip_id_is_compared_with_all_that_the_report_says():
    """Put something behind the eight bytes of a Turin."""
    chip = processor("Turin")
    body = bytearray(chip.body(GUEST, b""))
    body[0x1A0 + 8] = 1
    result = judge(signed(bytes(body), chip.key), chip.certificate)
    assert summary(result) == ("forged", "none", "checked", {"chip_mismatch"})


@pytest.mark.parametrize("product", PRODUCTS)
def test_every_part_of_the_firmware_is_compared_with_what_the_key_was_made_for(product):
    chip = processor(product)
    for part in PRODUCTS[product].tcb:
        old = Processor(maker=maker(product), chip_id=CHIPS[product], tcb=tcb_of(product, **{part: 29}))
        result = judge(signed(chip.body(GUEST, b""), old.key), old.certificate)
        assert summary(result) == ("forged", "none", "checked", {"tcb_mismatch"})


def test_the_firmware_is_read_in_the_layout_of_its_product():
    """Milan keeps the boot loader where Turin keeps its first mutable code: neither is taken for the other."""
    milan, turin = processor("Milan"), processor("Turin")
    assert "tcb_fmc" not in judge(milan.report(GUEST), milan.certificate).facts
    chip = Processor(
        maker=maker("Turin"), chip_id=CHIPS["Turin"], tcb=tcb_of("Turin", fmc=1, bootloader=2, snp=5)
    )
    facts = judge(chip.report(GUEST), chip.certificate).facts
    assert [facts[f"tcb_{part}"] for part in ("fmc", "bootloader", "snp", "microcode")] == [1, 2, 5, 219]
    assert turin.tcb_bytes != milan.tcb_bytes


def test_a_certificate_of_another_product_is_refused_although_it_signed():
    milan, genoa = processor("Milan"), processor("Genoa")
    result = judge(signed(milan.body(GUEST, b""), genoa.key), genoa.certificate)
    assert summary(result) == ("forged", "none", "checked", {"product_mismatch"})


def loaded_key(**tcb: int) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    key = ec.generate_private_key(ec.SECP384R1())
    parts = tcb_of("Milan", **tcb)
    return key, maker("Milan").certify(key.public_key(), parts, chip_id=None, provider="CN=cloud")


def test_a_report_of_a_loaded_key_is_genuine_and_names_its_provider():
    key, certificate = loaded_key()
    body = processor("Milan").body(GUEST, b"", key_info=VLEK)
    result = judge(signed(body, key), certificate)
    assert summary(result) == ("genuine", "met", "checked", set())
    assert (result.facts["signer"], result.facts["provider"]) == ("vlek", "CN=cloud")


def test_a_loaded_key_is_bound_to_its_firmware_too():
    key, certificate = loaded_key(snp=29)
    body = processor("Milan").body(GUEST, b"", key_info=VLEK)
    assert summary(judge(signed(body, key), certificate)) == ("forged", "none", "checked", {"tcb_mismatch"})


@pytest.mark.parametrize("said", [NO_VLEK, VLEK])
def test_a_key_of_one_kind_does_not_sign_reports_that_name_the_other(said):
    key, certificate = loaded_key()
    chip = processor("Milan")
    signer, leaf = (key, certificate) if said == NO_VLEK else (chip.key, chip.certificate)
    result = judge(signed(chip.body(GUEST, b"", key_info=said), signer), leaf)
    assert summary(result) == ("forged", "none", "checked", {"signer_mismatch"})


@pytest.mark.parametrize(
    ("key_info", "verdict", "found"),
    [(7 << 2, "forged", {"unsigned"}), (3 << 2, "unknown", {"unknown_signer"})],
)
def test_a_report_that_nobody_or_somebody_unknown_signed_is_not_genuine(key_info, verdict, found):
    chip = processor("Milan")
    result = judge(signed(chip.body(GUEST, b"", key_info=key_info), chip.key), chip.certificate)
    assert (result.verdict, codes(result)) == (verdict, found)


def test_a_masked_chip_is_noted_and_its_report_is_genuine():
    masked = Processor(maker=maker("Milan"), chip_id=CHIPS["Milan"], tcb=tcb_of("Milan"))
    body = bytearray(masked.body(GUEST, b"", key_info=2))
    body[0x1A0 : 0x1A0 + 64] = bytes(64)
    result = judge(signed(bytes(body), masked.key), masked.certificate)
    assert summary(result) == ("genuine", "met", "checked", {"chip_id_masked"})
    assert result.device_id is None


def test_a_stranger_who_calls_himself_the_maker_is_not_believed():
    """Bring a whole chain of the right names along: only the pinned root counts."""
    chip = Processor(maker=stranger("Milan"), chip_id=CHIPS["Milan"], tcb=tcb_of("Milan"))
    result = judge(chip.report(GUEST), chip.certificate, stranger("Milan").chain)
    assert summary(result) == ("forged", "none", "checked", {"chain_broken"})


def test_a_product_whose_root_nobody_trusts_is_unknown_and_not_forged():
    chip = processor("Genoa")
    only_milan = Roots(chains={"amd_milan": roots().chains["amd_milan"]})
    result = judge(chip.report(GUEST), chip.certificate, roots=only_milan)
    assert summary(result) == ("unknown", "none", "checked", {"root_unsupported"})


def test_an_intermediate_that_is_not_shipped_may_come_with_the_report():
    chip = processor("Milan")
    bare = Roots(chains={"amd_milan": roots().chains["amd_milan"][:1]})
    assert judge(chip.report(GUEST), chip.certificate, roots=bare).verdict == "forged"
    assert judge(chip.report(GUEST), chip.certificate, maker("Milan").chain, roots=bare).verdict == "genuine"


def test_a_processor_that_nobody_knows_is_unknown():
    chip = processor("Milan")
    body = bytearray(chip.body(GUEST, b""))
    body[0x188:0x18B] = bytes((0x1A, 0x50, 0))  # Venice
    result = judge(signed(bytes(body), chip.key), chip.certificate)
    assert summary(result) == ("unknown", "none", "checked", {"unknown_cpu"})


def test_a_version_that_nobody_knows_is_unknown():
    result = judge(processor("Milan", 9).report(GUEST), processor("Milan").certificate)
    assert summary(result) == ("unknown", "none", "checked", {"unsupported_version"})


@pytest.mark.parametrize("place", [0x4C, 0x18B, 0x1EB, 0x1EF, 0x1F8, 0x208, 0x29F])
def test_something_where_zeros_belong_is_refused_although_it_is_signed(place):
    chip = processor("Milan")
    body = bytearray(chip.body(GUEST, b""))
    body[place] = 1
    result = judge(signed(bytes(body), chip.key), chip.certificate)
    assert summary(result) == ("forged", "none", "checked", {"reserved_not_zero"})


def test_bits_of_tomorrow_are_noted_and_refuse_nothing():
    chip = processor("Turin")
    body = bytearray(chip.body(replace(GUEST, policy=GUEST.policy | 1 << 40), b""))
    body[0x40] |= 1 << 6
    result = judge(signed(bytes(body), chip.key), chip.certificate)
    assert summary(result) == ("genuine", "met", "checked", {"unknown_bits"})
    assert "policy bit 40, platform bit 6" in [one.got for one in result.findings]


@pytest.mark.parametrize(
    ("at_us", "found"),
    [(START_US - 2 * YEAR_US, "signer_not_yet_valid"), (START_US + 7 * YEAR_US, "signer_expired")],
)
def test_a_certificate_outside_its_time_vouches_for_nothing_and_forges_nothing(at_us, found):
    chip = processor("Milan")
    result = judge(chip.report(GUEST), chip.certificate, at_us=at_us)
    assert (result.verdict, result.policy, found in result.codes) == ("unknown", "none", True)


def test_a_current_list_without_the_issuer_leaves_nothing_to_say():
    chip = processor("Milan")
    current = maker("Milan").revocation_list(START_US - HOUR_US)
    result = judge(
        chip.report(GUEST), chip.certificate, kept=(current,), text="require_revocation_list: true"
    )
    assert (result.verdict, result.policy, result.codes) == ("genuine", "met", ())
    assert result.facts["collateral_age_seconds"] == 3600


def test_a_revoked_issuer_makes_forgeries_of_all_it_issued_also_in_a_list_that_is_not_the_newest():
    chip = processor("Milan")
    lists = (
        maker("Milan").revocation_list(START_US - 2 * HOUR_US, revoke="SEV-Milan"),
        maker("Milan").revocation_list(START_US - HOUR_US),
    )
    result = judge(chip.report(GUEST), chip.certificate, kept=lists)
    assert summary(result) == ("forged", "none", "checked", {"signer_revoked"})
    other = judge(chip.report(GUEST), chip.certificate, kept=lists[1:])
    assert other.verdict == "genuine"


def test_a_list_of_a_stranger_says_nothing():
    chip = processor("Milan")
    foreign = stranger("Milan").revocation_list(START_US, revoke="SEV-Milan")
    result = judge(chip.report(GUEST), chip.certificate, foreign)
    assert (result.verdict, result.codes) == ("genuine", ("crl_missing",))


def test_an_old_list_is_noted_and_is_no_forgery_but_may_be_too_little_for_the_policy():
    chip = processor("Milan")
    old = maker("Milan").revocation_list(START_US - 400 * 24 * HOUR_US)
    result = judge(chip.report(GUEST), chip.certificate, kept=(old,))
    assert summary(result) == ("genuine", "met", "checked", {"crl_stale"})
    strict = judge(chip.report(GUEST), chip.certificate, kept=(old,), text="require_revocation_list: true")
    assert summary(strict) == ("unknown", "none", "could_not_check", {"crl_stale", "crl_required"})


def test_certificates_of_other_chips_in_the_cache_make_no_forgery():
    chip, other = (
        processor("Milan"),
        Processor(maker=maker("Milan"), chip_id=b"\x44" * 64, tcb=tcb_of("Milan")),
    )
    result = judge(chip.report(GUEST), kept=(other.certificate,))
    assert summary(result) == ("unknown", "none", "could_not_check", {"leaf_missing"})
    assert judge(chip.report(GUEST), kept=(other.certificate, chip.certificate)).verdict == "genuine"


@pytest.mark.parametrize(
    ("text", "guest", "found"),
    [
        ("", Guest.named("guest", debug=True), {"debug_allowed"}),
        ("debug: true", Guest.named("guest", debug=True), set()),
        ("", replace(GUEST, policy=GUEST.policy | 1 << 18), {"migration_allowed"}),
        ("migration_agent: true", replace(GUEST, policy=GUEST.policy | 1 << 18), set()),
        ("vmpl: [0]", Guest.named("guest", vmpl=1), {"vmpl_not_allowed"}),
        ("vmpl: [0, 1]", Guest.named("guest", vmpl=1), set()),
        (f"measurements: ['{GUEST.measurement.hex()}']", GUEST, set()),
        (f"measurements: ['{'00' * 48}']", GUEST, {"measurement_not_allowed"}),
        (f"host_data: ['{GUEST.host_data.hex().upper()}']", GUEST, set()),
        ("host_data: []", GUEST, {"host_data_not_allowed"}),
        (f"id_keys: ['{'11' * 48}']", GUEST, {"id_key_not_allowed"}),
        (f"author_keys: ['{'11' * 48}']", GUEST, {"author_key_not_allowed"}),
        ("minimum_guest_svn: 2", GUEST, {"guest_svn_below_minimum"}),
        ("distrust_products: [Milan]", GUEST, {"product_distrusted"}),
        ("distrust_products: [Turin]", GUEST, set()),
    ],
)
def test_the_policy_decides_what_a_genuine_report_is_allowed_to_say(text, guest, found):
    chip = processor("Milan")
    result = judge(chip.report(guest), chip.certificate, text=text)
    assert summary(result) == ("genuine", "violated" if found else "met", "checked", found)


def test_the_alias_check_is_asked_for_by_policies_that_say_so():
    chip = processor("Milan")
    body = bytearray(chip.body(GUEST, b""))
    body[0x40] &= ~(1 << 5)
    report = signed(bytes(body), chip.key)
    assert codes(judge(report, chip.certificate, text="require_alias_check: true")) == {"alias_check_off"}
    assert judge(report, chip.certificate).policy == "met"


MINIMUM = "minimum_tcb: [{{cpu: {cpu}, product: Milan, snp: 31, effective_from: {day}{more}, source: S}}]"


@pytest.mark.parametrize(
    ("cpu", "day", "more", "found"),
    [
        ("19/00-0F/any", "2020-01-01", "", {"tcb_below_minimum"}),
        ("19/01/1", "2020-01-01", "", {"tcb_below_minimum"}),
        ("19/01/2", "2020-01-01", "", set()),
        ("19/10-1F/any", "2020-01-01", "", set()),
        ("1A/00-11/any", "2020-01-01", "", set()),
        ("19/00-0F/any", "2099-01-01", "", {"tcb_below_coming_minimum"}),
        ("19/00-0F/any", "2020-01-01", ", critical_from: 2020-02-01", {"tcb_minimum_overdue"}),
        ("19/00-0F/any", "2020-01-01", ", critical_from: 2099-02-01", {"tcb_below_minimum"}),
    ],
)
def test_minima_are_for_some_processors_from_a_day_on(cpu, day, more, found):
    chip = processor("Milan")
    result = judge(chip.report(GUEST), chip.certificate, text=MINIMUM.format(cpu=cpu, day=day, more=more))
    assert codes(result) == found


def test_firmware_at_the_minimum_is_new_enough():
    chip = processor("Milan")
    text = "minimum_tcb: [{cpu: 19/01/any, snp: 30, microcode: 219, effective_from: 2020-01-01, source: S}]"
    assert judge(chip.report(GUEST), chip.certificate, text=text).policy == "met"


def test_a_report_without_a_processor_is_judged_by_what_is_asked_of_all_steppings():
    chip = processor("Milan", 2)
    every = MINIMUM.format(cpu="19/00-0F/any", day="2020-01-01", more="")
    one = MINIMUM.format(cpu="19/01/1", day="2020-01-01", more="")
    assert codes(judge(chip.report(GUEST), chip.certificate, text=every)) == {"tcb_below_minimum"}
    assert codes(judge(chip.report(GUEST), chip.certificate, text=one)) == {"tcb_unjudged"}


def test_firmware_that_runs_ahead_of_what_is_committed_is_noted():
    chip = processor("Milan")
    body = bytearray(chip.body(GUEST, b""))
    body[0x38 + 7] = 220
    result = judge(signed(bytes(body), chip.key), chip.certificate)
    assert summary(result) == ("genuine", "met", "checked", {"tcb_not_committed"})
    body[0x38 + 7] = 218
    result = judge(signed(bytes(body), chip.key), chip.certificate)
    assert summary(result) == ("genuine", "met", "checked", {"tcb_disordered"})


@pytest.mark.parametrize(
    ("taken_us", "found"),
    [
        (START_US - 60_000_000, set()),
        (START_US - 61_000_000, {"evidence_stale"}),
        (START_US + 300_000_000, set()),
        (START_US + 301_000_000, {"evidence_from_the_future"}),
        (None, set()),
    ],
)
def test_age_is_judged_where_the_carrier_says_when_it_was_taken(taken_us, found):
    chip = processor("Milan")
    evidence = read_evidence(chip.report(GUEST), "", {"vcek": chip.certificate}, taken_us=taken_us)
    result = judge_evidence(evidence, text="max_age_seconds: 60")
    assert codes(result) == found
    freshness = {step.name: step.outcome for step in result.steps}["freshness"]
    assert freshness == ("skipped" if taken_us is None else "failed" if "evidence_stale" in found else "held")


def test_a_nonce_is_answered_as_it_is_or_by_its_digest_and_by_nothing_else():
    chip, nonce = processor("Milan"), b"nonce"
    asked = f"nonce: '{nonce.hex()}'"
    assert judge(chip.report(GUEST, nonce), chip.certificate, text=asked).policy == "met"
    for other in (b"", b"nonce2", b"\0nonce"):
        result = judge(chip.report(GUEST, other), chip.certificate, text=asked)
        assert summary(result) == ("genuine", "violated", "checked", {"nonce_mismatch"})


def test_without_a_policy_nothing_is_allowed_or_forbidden():
    chip = processor("Milan")
    evidence = read_evidence(chip.report(Guest.named("g", debug=True)), "", {"vcek": chip.certificate})
    result = SnpVerifier().verify(evidence, Setting(at_us=START_US, roots=roots()))
    assert (result.verdict, result.policy, result.facts["debug"]) == ("genuine", "none", True)
    why = {step.name: step.why for step in result.steps if step.outcome == "skipped"}
    assert why.pop("revocation") == "no list of the root's is at hand, and the policy asks for none"
    assert set(why.values()) == {"no policy was given"}


def test_the_policy_judges_nothing_that_is_forged():
    chip = processor("Milan")
    report = bytearray(chip.report(Guest.named("guest", debug=True)))
    report[0x90] ^= 1
    assert summary(judge(bytes(report), chip.certificate)) == (
        "forged",
        "none",
        "checked",
        {"signature_wrong"},
    )


@given(st.binary(max_size=2_000), st.lists(st.binary(max_size=500), max_size=3))
def test_nothing_that_is_handed_in_raises(body, attached):
    result = judge(body, *attached)
    assert result.verdict != "genuine"
    assert result.findings


@given(st.data())
def test_a_certificate_with_bytes_changed_is_never_of_use_and_never_raises(data):
    chip = processor("Milan")
    body = bytearray(chip.certificate)
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    assert judge(chip.report(GUEST), bytes(body)).verdict != "genuine"


def test_every_code_of_the_table_is_found_somewhere_in_the_steps():
    """A code that no step gives is a check that nobody makes."""
    text = "".join(inspect.getsource(module) for module in (aci, snp, steps))
    for code in Findings.read("snp.tsv", "aci.tsv").rows:
        assert f'"{code}"' in text, code


def outcomes(result: Verification) -> dict[str, str]:
    return {step.name: step.outcome for step in result.steps}


def test_a_check_that_was_not_made_is_never_told_as_one_that_held():
    chip = processor("Milan")
    result = judge(chip.report(GUEST), chip.certificate)
    assert (result.verdict, outcomes(result)["revocation"]) == ("genuine", "skipped")
    current = maker("Milan").revocation_list(START_US)
    result = judge(chip.report(GUEST), chip.certificate, current)
    assert outcomes(result)["revocation"] == "held"
    body = bytearray(chip.body(GUEST, b"", key_info=2))
    body[0x1A0 : 0x1A0 + 64] = bytes(64)
    result = judge(signed(bytes(body), chip.key), chip.certificate)
    assert (outcomes(result)["chip"], "chip_id_masked" in result.codes) == ("skipped", True)


def test_a_step_whose_ground_is_missing_is_skipped_and_says_what_it_needs():
    chip = processor("Milan")
    result = judge(chip.report(GUEST))
    skipped = {step.name: step.why for step in result.steps if step.outcome == "skipped"}
    assert skipped["signature"] == "it needs: leaf"
    assert outcomes(result)["leaf"] == "could_not_check"


def test_the_row_of_an_evaluation_fits_its_stream():
    """Every column is declared, of its type and within its bounds; what has none is in the claims."""
    chip = processor("Turin")
    row = judge(chip.report(GUEST), chip.certificate).row()
    columns = {name: [value] for name, value in row.items()} | {
        "ts": [START_US],
        "host": ["h1"],
        "synthetic": [True],
    }
    table, rejected = ATTESTATION_RESULTS.clean(columns)
    assert rejected == {}
    stored = table.to_pylist()[0]
    assert (stored["verdict"], stored["policy"], stored["severity"]) == ("genuine", "met", "info")
    assert (stored["tcb_fmc"], stored["tcb_microcode"], stored["debug"]) == (30, 219, False)
    assert stored["finding_codes"] == " crl_missing "
    assert '"report_id"' in stored["claims"]
