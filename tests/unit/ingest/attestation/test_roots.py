"""What is trusted, and how certificates are read."""

import hashlib
import warnings

import pytest

from contract.errors import CollectError, ConfigError
from contract.testing import START_US
from ingest.attestation.roots import (
    der_of,
    is_authority,
    is_issued_by,
    is_valid_at,
    read_certificate,
    read_certificates,
    shipped_roots,
    with_twin_roots,
)
from ingest.attestation.snp_leaf import read_leaf
from twin.evidence import Maker, Processor

TCB = {"bootloader": 4, "tee": 0, "snp": 27, "microcode": 219}


@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [
        ("amd_milan", "69d063b4"),
        ("amd_genoa", "4c6598d1"),
        ("amd_turin", "1f084161"),
        ("microsoft_uvm", "23ffe2b8bdb9a1711515d4cff"),
    ],
)
def test_the_shipped_roots_are_those_of_their_vendors(name, fingerprint):
    (root,) = shipped_roots().root(name)
    assert hashlib.sha256(der_of(root)).hexdigest().startswith(fingerprint)
    for intermediate in shipped_roots().intermediates(name):
        assert is_issued_by(intermediate, root)
        assert is_authority(intermediate)


def test_nothing_is_trusted_under_a_name_that_is_not_known():
    assert shipped_roots().root("amd_venice") == ()


def test_roots_of_the_twin_are_refused_where_rows_are_real(tmp_path):
    Maker("Milan", START_US).write_root(tmp_path)
    with pytest.raises(ConfigError, match="not synthetic"):
        with_twin_roots(tmp_path, synthetic=False)
    roots = with_twin_roots(tmp_path, synthetic=True)
    assert roots.synthetic
    assert list(roots.chains) == ["amd_milan"]
    assert roots.root("amd_milan") != shipped_roots().root("amd_milan")


def test_a_folder_without_roots_is_a_mistake(tmp_path):
    with pytest.raises(ConfigError, match="no roots"):
        with_twin_roots(tmp_path, synthetic=True)


def test_a_certificate_numbered_0_is_read_without_a_warning():
    chip = Processor(maker=Maker("Milan", START_US), chip_id=b"\x01" * 64, tcb=TCB)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certificate = read_certificate(chip.certificate)
        leaf = read_leaf(certificate)
    assert leaf is not None
    assert leaf.chip_id == chip.chip_id
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert certificate.serial_number == 0


def test_validity_includes_both_ends():
    (root,) = shipped_roots().root("amd_milan")
    first = round(root.not_valid_before_utc.timestamp()) * 1_000_000
    last = round(root.not_valid_after_utc.timestamp()) * 1_000_000
    assert is_valid_at(root, first)
    assert is_valid_at(root, last)
    assert not is_valid_at(root, first - 1)
    assert not is_valid_at(root, last + 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x30\x03\x02\x01\x00",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAA\xff\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA",
        b"\x30" + b"\0" * 100_000,
    ],
)
def test_what_is_no_certificate_is_an_error_of_its_kind(data):
    with pytest.raises(CollectError):
        read_certificates(data)


def test_every_certificate_cut_or_changed_is_read_or_refused():
    der = der_of(shipped_roots().root("amd_milan")[0])
    for place in range(0, len(der), 5):
        for body in (der[:place], der[:place] + bytes([der[place] ^ 0x81]) + der[place + 1 :]):
            try:
                read_leaf(read_certificate(body))
            except CollectError as error:
                assert error.reason in {"unreadable", "too_large"}  # noqa: PT017
