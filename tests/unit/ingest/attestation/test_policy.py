"""Policies: what is allowed, read strictly."""

from pathlib import Path

import pytest

from contract.errors import ConfigError
from ingest.attestation.policy import Cpu, baseline, parse_policy, read_policy

LEAST = "{cpu: 19/00-0F/any, product: Milan, snp: 24, effective_from: 2025-02-03, source: S}"


def mistakes(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text.encode(), "p.yaml")
    assert caught.value.reason == "invalid"
    return str(caught.value)


def test_the_baseline_forbids_debugging_and_asks_for_what_the_bulletins_ask_for():
    policy = baseline()
    assert (policy.name, policy.rules.debug, policy.rules.migration_agent) == ("baseline", False, False)
    cpu = Cpu(family=0x19, model=0x01, stepping=0x01)
    assert [one.parts for one in policy.minimum_tcb("Milan", cpu)] == [{"snp": 0x18}, {"snp": 0x1B}]
    assert {one.source for one in policy.minimum_tcb("Genoa", None)} == {"AMD-SB-3019", "AMD-SB-3023"}
    turin = Cpu(family=0x1A, model=0x02, stepping=0x01)
    assert [one.parts for one in policy.minimum_tcb("Turin", turin)] == [{"snp": 4}]


def test_equal_texts_have_equal_digests_and_other_texts_others():
    one, other = (parse_policy(f"policy: {name}".encode(), "p") for name in ("a", "b"))
    assert one.digest == parse_policy(b"policy: a", "elsewhere").digest
    assert one.digest != other.digest


def test_digits_are_read_as_they_are_written_and_never_as_numbers():
    policy = parse_policy(b"policy: p\nmeasurements: [0011, '00']\nhost_data: [0e10]\n", "p")
    assert policy.rules.measurements == ("0011", "00")
    assert policy.rules.host_data == ("0e10",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml:1: empty"),
        ("- a\n", "p.yaml:1: empty"),
        ("policy: p\ndebgu: true\n", "p.yaml:2: debgu: unknown key"),
        ("policy: p\ndebug: maybe\n", "p.yaml:2: debug: "),
        ("policy: p\nvmpl: [4]\n", "p.yaml:2: vmpl.0: "),
        ("policy: p\nmeasurements:\n  - xyz\n", "p.yaml:3: measurements.0: 'xyz' where at most 64 bytes"),
        ("debug: false\n", "p.yaml:1: policy: Field required"),
        ("policy: p\npolicy: q\n", "p.yaml:2: policy: again, first on line 1"),
        (
            "policy: p\nminimum_tcb:\n  - {cpu: 19/0, snp: 1, effective_from: 2025-01-01, source: S}\n",
            "p.yaml:3: ",
        ),
        (
            "policy: p\nminimum_tcb:\n  - {cpu: 19/00/any, effective_from: 2025-01-01, source: S}\n",
            "no version",
        ),
        (
            "policy: p\nminimum_tcb:\n  - {cpu: 19/00/any, snp: 1, effective_from: soon, source: S}\n",
            "p.yaml:3: ",
        ),
        (
            "policy: p\nminimum_tcb:\n  - {cpu: 19/00/any, snp: 256, effective_from: 2025-01-01, source: S}\n",
            "snp",
        ),
        ("policy: p\nregisters: {32: ['00']}\n", "p.yaml:2: registers.32"),
        ("policy: p\nvmpl: &a [0]\nmeasurements: *a\n", "an alias"),
        ("policy: p\nmax_age_seconds: 0\n", "p.yaml:2: max_age_seconds"),
        ("policy: [", "not YAML"),
    ],
)
def test_every_mistake_has_its_line(text, message):
    assert message in mistakes(text)


def test_all_mistakes_are_told_at_once():
    text = mistakes("policy: p\nvmpl: [9]\ndebgu: true\nnonce: zz\n")
    assert text.count("p.yaml:") == 3


@pytest.mark.parametrize(
    ("pattern", "cpu", "concerned"),
    [
        ("19/00-0F/any", Cpu(family=0x19, model=0x0F, stepping=9), True),
        ("19/00-0F/any", Cpu(family=0x19, model=0x10, stepping=9), False),
        ("19/00-0F/any", Cpu(family=0x1A, model=0x01, stepping=9), False),
        ("19/11/2", Cpu(family=0x19, model=0x11, stepping=2), True),
        ("19/11/2", Cpu(family=0x19, model=0x11, stepping=1), False),
        ("19/11/2", None, False),
        ("19/11/any", None, True),
    ],
)
def test_a_minimum_concerns_the_processors_that_it_names(pattern, cpu, concerned):
    text = f"policy: p\nminimum_tcb: [{{cpu: {pattern}, product: Genoa, snp: 1, effective_from: 2025-01-01, source: S}}]"
    assert bool(list(parse_policy(text.encode(), "p").minimum_tcb("Genoa", cpu))) is concerned


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.yaml") as caught:
        read_policy(tmp_path / "none.yaml")
    assert caught.value.reason == "unreadable"


def test_a_file_is_read_as_its_bytes_are(tmp_path: Path):
    path = tmp_path / "p.yaml"
    path.write_text(f"policy: p\nminimum_tcb: [{LEAST}]\n")
    assert read_policy(path).digest == parse_policy(path.read_bytes(), "p").digest
