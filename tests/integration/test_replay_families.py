"""Real recordings of fabric, coolant and attestation through the whole path: device, collector, bus, lake, engine."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from hallwatch import connect
from hallwatch.replay import Played, play

pytestmark = pytest.mark.integration

EFA = ("s1_before_load", "s2_after_reboot_small_traffic", "s3_after_120s_bulk")
EFA_SECONDS = (0, 5, 125)
"""The bulk write took two minutes."""

EVIDENCE = {
    "snp-debug": ("snp", "milan_v2_gcp_report.bin", "milan_v2_gcp_vcek.der"),
    "snp-old": ("snp", "milan_v2_virtee_report.hex", "milan_v2_virtee_vcek.der"),
    "snp-vlek": ("snp", "milan_v3_aws_vlek_report.bin", "milan_v3_aws_vlek.der"),
    "snp-milan": ("snp", "milan_v3_aci_report.bin", "milan_v3_aci_vcek.pem"),
    "snp-genoa": ("snp", "genoa_v3_aci_report.bin", "genoa_v3_aci_vcek.pem"),
    "snp-fake": ("snp", "milan_v2_gcp_report.bin", "neg_fake_vcek_rawhwid.der"),
    "nitro-valid": ("nitro", "valid_2022-10-13_evervault.cbor"),
    "nitro-debug": ("nitro", "debug_2022-10-12_evervault.cbor"),
    "nitro-selfsigned": ("nitro", "neg_selfsigned_blocky.b64"),
}
"""Host -> its evidence and what it is checked with."""

TOLD = {
    "ib-host": ["port-narrow"],
    "efa-host": ["port-efa-timeouts", "port-efa-timeouts"],
    "cdu": ["coolant-device-critical"],
    "nvl": ["coolant-leak-sensor-lost", "coolant-leak-sensor-lost", "coolant-leak-suspect"],
    "C-F00-CDU-05": ["coolant-flow-impossible"],
}
"""What each device's list says is wrong with it, by the rule that tells it: nothing else is raised."""


def lay_out(vectors: Path, folder: Path) -> None:
    """Lay the captures out as recordings."""
    for name, seconds in zip(EFA, EFA_SECONDS, strict=True):
        shutil.copytree(
            vectors / "fabric/efa" / name / "sys", folder / f"efa-host/{seconds}.sysfs", symlinks=True
        )
    shutil.copytree(vectors / "fabric/sysfs-procfs", folder / "ib-host.sysfs/class/infiniband", symlinks=True)
    for name, source in (
        ("cdu", "public-cooling-unit"),
        ("server", "public-liquid-cooled-server"),
        ("nvl", "gb-nvl-leak"),
    ):
        shutil.copytree(vectors / "coolant/redfish" / source, folder / f"{name}.redfish")
    shutil.copy(vectors / "coolant/bms/dsx_exemplar_coolant.csv", folder / "pod.csv")
    shutil.copytree(vectors / "attestation/aci", folder / "aci.evidence")
    for host, (kind, *files) in EVIDENCE.items():
        (folder / f"{host}.evidence").mkdir()
        for file in files:
            shutil.copy(vectors / "attestation" / kind / file, folder / f"{host}.evidence")


@pytest.fixture(scope="module")
def played(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("recorded")
    lay_out(vectors, folder)
    return play(folder, tmp_path_factory.mktemp("replay") / "out", hold_seconds=20)


def test_every_recording_is_played(played: Played) -> None:
    assert played.hall.not_playable == ()
    assert Counter(recording.noun for recording in played.hall.recordings) == {
        "kernel tree": 2,
        "Redfish service": 3,
        "building record": 1,
        "evidence folder": 10,
    }


def test_each_device_raises_what_is_wrong_with_it_and_nothing_else(played: Played) -> None:
    told: dict[str, list[str]] = {}
    for alert in played.alerts:
        if not alert.rule.startswith("attestation-"):
            told.setdefault(alert.host or alert.entity.partition("/")[0], []).append(alert.rule)
    assert {device: sorted(rules) for device, rules in told.items()} == TOLD


def test_each_piece_of_evidence_is_judged_to_its_truth(played: Played) -> None:
    rows = (
        connect(played.config.lake.path)
        .sql("SELECT host, verdict, policy, debug FROM attestation_results ORDER BY host")
        .fetchall()
    )
    assert {host: (verdict, policy) for host, verdict, policy, _ in rows} == {
        "aci": ("unknown", "violated"),
        "nitro-debug": ("genuine", "violated"),
        "nitro-selfsigned": ("forged", "none"),
        "nitro-valid": ("genuine", "met"),
        "snp-debug": ("genuine", "violated"),
        "snp-fake": ("forged", "none"),
        "snp-genoa": ("genuine", "violated"),
        "snp-milan": ("genuine", "violated"),
        "snp-old": ("genuine", "violated"),
        "snp-vlek": ("unknown", "violated"),
    }
    told: dict[str, set[str]] = {}
    for alert in played.alerts:
        if alert.rule.startswith("attestation-") and alert.host:
            told.setdefault(alert.host, set()).add(alert.rule)
    assert told["nitro-selfsigned"] == told["snp-fake"] == {"attestation-forged"}
    assert told["nitro-debug"] == {"attestation-debug"}
    assert "attestation-debug" in told["snp-debug"]
    assert told["snp-vlek"] == {"attestation-unvouched", "attestation-tcb-old"}
    assert "nitro-valid" not in told


def test_one_question_joins_what_all_families_say(played: Played) -> None:
    with connect(played.config.lake.path) as lake:
        (row,) = lake.sql("""
            SELECT
                (SELECT count(DISTINCT port_id) FROM fabric_ports),
                (SELECT count(DISTINCT equipment) FROM coolant_readings),
                (SELECT count(*) FROM attestation_results),
                (SELECT count(*) FROM dead_letters)
        """).fetchall()
    ports, units, results, dead = row
    assert (ports, results, dead) == (6, 10, 0)
    assert units >= 9
