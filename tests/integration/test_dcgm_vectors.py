"""Every real dcgm-exporter page and answer of the capture folder, read to the truth its list states."""

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from contract.errors import CollectError
from contract.stream import Stream
from contract.streams import STREAMS
from contract.streams.gpu import GPU_EVENTS, GPU_INSTANCES, GPU_SAMPLES
from ingest.collector import Reading
from ingest.testing import clean, fake_dcgm, read_answer, rows_of

NOW = 1_780_272_000_000_000


@pytest.fixture
def dcgm(vectors: Path) -> Path:
    return vectors / "gpu" / "dcgm"


def read(path: Path, **config: Any) -> Reading:
    return fake_dcgm(**config).read_page(path.read_bytes(), NOW)


def counts(reading: Reading) -> dict[str, int]:
    return {rows.stream.name: len(rows) for rows in reading.rows}


def values_rejected(reading: Reading) -> dict[tuple[str, str], int]:
    return {key: count for rows in reading.rows for key, count in clean(rows)[1].items()}


def only(reading: Reading, stream: Stream) -> dict[str, Any]:
    (row,) = rows_of(reading, stream)
    return row


def without_identity(row: dict[str, Any]) -> dict[str, Any]:
    identity = ("host", "gpu_uuid", "gpu_index", "pci_bus_id", "model", "driver_version")
    return {name: value for name, value in row.items() if name not in identity}


@pytest.mark.parametrize(
    ("file", "holder", "watts", "node_pod"),
    [
        ("h100x8-one-gpu-in-pod.prom", 0, 113.611, "vllm-agg-0-vllmdecodeworker-s65j5"),
        ("h100x8-other-node-one-gpu-in-pod.prom", 6, 115.22, "vllm-agg-0-vllmdecodeworker-5fljt"),
    ],
)
def test_eight_h100_give_eight_rows_of_which_one_names_its_pod(dcgm, file, holder, watts, node_pod):
    reading = read(dcgm / file)
    assert counts(reading) == {"gpu_samples": 8}
    assert (reading.rejected, reading.skipped, values_rejected(reading)) == ({}, {}, {})
    rows = rows_of(reading, GPU_SAMPLES)
    assert [row["gpu_index"] for row in rows] == list(range(8))
    assert {row["host"] for row in rows} == {"host1"}
    assert {row["model"] for row in rows} == {"NVIDIA H100 80GB HBM3"}
    assert {row["driver_version"] for row in rows} == {"580.105.08"}
    with_pod = {
        row["gpu_index"]: (row["namespace"], row["pod"], row["container"]) for row in rows if "pod" in row
    }
    assert with_pod == {holder: ("dynamo-workload", node_pod, "main")}
    assert rows[holder]["power_watts"] == watts
    assert all(row["utilization_percent"] == 0 for row in rows)


def test_a_family_cut_short_by_its_author_is_null_for_the_rest_and_loses_no_gpu(dcgm):
    rows = rows_of(read(dcgm / "h100x8-one-gpu-in-pod.prom"), GPU_SAMPLES)
    assert [row.get("memory_copy_utilization_percent") for row in rows] == [0] * 6 + [None] * 2
    assert [row["temperature_celsius"] for row in rows] == [30, 29, 26, 29, 28, 26, 28, 26]


def test_a_busy_t4_is_hot_but_its_memory_has_no_thermometer(dcgm):
    reading = read(dcgm / "t4-busy-74C-memtemp0.prom")
    assert (reading.rejected, reading.skipped, values_rejected(reading)) == ({}, {"blank": 1}, {})
    row = only(reading, GPU_SAMPLES)
    assert without_identity(row) == {
        "temperature_celsius": 74,
        "power_watts": 68.244,
        "energy_millijoules": 15_152_422_938,
        "sm_clock_mhz": 660,
        "memory_clock_mhz": 5000,
        "utilization_percent": 91,
        "memory_copy_utilization_percent": 73,
        "encoder_utilization_percent": 0,
        "decoder_utilization_percent": 0,
        "framebuffer_used_mib": 5120,
        "framebuffer_free_mib": 9791,
        "framebuffer_reserved_mib": 447,
        "graphics_engine_active_ratio": 0.156205,
        "tensor_active_ratio": 0.005822,
        "dram_active_ratio": 0.092781,
        "pcie_tx_bytes_per_second": 4_791_810,
        "pcie_rx_bytes_per_second": 6_935_930,
        "pcie_replays": 0,
        "vgpu_license_status": 0,
    }


@pytest.mark.parametrize(
    ("file", "pci", "driver", "energy"),
    [
        ("l4-idle-full-scrape.prom", "00000000:31:00.0", "580.105.08", 4_742_776),
        ("l40s-vm-driver595.prom", "00000000:00:07.0", "595.58.03", 5_551_899_580),
    ],
)
def test_a_whole_default_page_fills_every_family_it_has(dcgm, file, pci, driver, energy):
    reading = read(dcgm / file)
    assert counts(reading) == {"gpu_samples": 1}
    assert (reading.rejected, reading.skipped, values_rejected(reading)) == ({}, {"blank": 1}, {})
    row = only(reading, GPU_SAMPLES)
    assert (row["pci_bus_id"], row["driver_version"], row["energy_millijoules"]) == (pci, driver, energy)
    assert len(without_identity(row)) == 22  # of 23 families: the memory temperature of 0 is no value
    assert "last_xid" not in row
    assert "nvlink_megabytes_per_second" not in row


def test_a_vgpu_shows_neither_temperature_nor_power_and_is_no_lost_gpu(dcgm):
    reading = read(dcgm / "vgpu-a100-10c-no-temp-no-power.prom")
    assert counts(reading) == {"gpu_samples": 1}
    assert (reading.rejected, reading.skipped) == ({}, {"blank": 1})
    row = only(reading, GPU_SAMPLES)
    assert row["gpu_uuid"] == "GPU-44d2411e-1604-478f-aa96-5a3c00000000"
    assert row["sm_clock_mhz"] == 1410
    missing = {"temperature_celsius", "power_watts", "energy_millijoules", "correctable_remapped_rows"}
    assert not missing & set(row)
    assert not any(name.endswith("_ratio") for name in row)


def test_mig_keeps_the_whole_gpu_and_its_instance_apart(dcgm):
    reading = read(dcgm / "a100-mig-parent-and-instance-rows.prom")
    assert counts(reading) == {"gpu_samples": 1, "gpu_instances": 1}
    assert (reading.rejected, reading.skipped, values_rejected(reading)) == ({}, {}, {})
    whole = only(reading, GPU_SAMPLES)
    assert len(without_identity(whole)) == 17
    assert whole["temperature_celsius"] == 61
    assert whole["memory_temperature_celsius"] == 69
    assert whole["power_watts"] == 409.692
    assert whole["graphics_engine_active_ratio"] == 0.99563
    assert whole["last_xid"] == 0
    assert only(reading, GPU_INSTANCES) == {
        "host": "host1",
        "gpu_uuid": "GPU-34319582-d595-d1c7-d1d2-179bcfa61660",
        "gpu_index": 0,
        "instance": 13,
        "profile": "1g.5gb",
        "graphics_engine_active_ratio": 0.995687,
        "tensor_active_ratio": 0.930433,
        "dram_active_ratio": 0.800339,
    }


def test_the_old_style_has_spaces_after_commas_and_a_sentinel(dcgm):
    reading = read(dcgm / "old-style-space-after-comma-and-sentinel.prom")
    assert (reading.rejected, reading.skipped, values_rejected(reading)) == ({}, {"blank": 1}, {})
    assert only(reading, GPU_SAMPLES) == {
        "host": "host1",
        "gpu_uuid": "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52",
        "gpu_index": 0,
        "sm_clock_mhz": 139,
        "memory_clock_mhz": 405,
    }


def test_three_gpus_of_three_hosts_in_one_text_and_fourteen_dummies_of_nobody(dcgm):
    reading = read(dcgm / "t4-three-gpus-mixed-and-labelless-dummies.prom", host_from_label=True)
    assert counts(reading) == {"gpu_samples": 3}
    assert reading.rejected == {"no_identity": 14}
    assert reading.skipped == {"unmapped_family": 6}
    rows = {row["host"]: row for row in rows_of(reading, GPU_SAMPLES)}
    assert set(rows) == {"424773df46e0", "551bdf382151", "ip-11111"}
    assert rows["424773df46e0"]["temperature_celsius"] == 25
    assert rows["424773df46e0"]["last_xid"] == 0
    assert rows["551bdf382151"]["clock_event_reasons"] == 1
    assert rows["551bdf382151"]["framebuffer_reserved_mib"] == 15109
    assert "temperature_celsius" not in rows["551bdf382151"]
    assert rows["ip-11111"]["dram_active_ratio"] == 0.000003
    assert rows["ip-11111"]["pod"] == "ray-1111111"


def test_the_host_of_the_configuration_holds_unless_labels_are_asked_for(dcgm):
    reading = read(dcgm / "t4-three-gpus-mixed-and-labelless-dummies.prom", host="edge-7")
    assert [row["host"] for row in rows_of(reading, GPU_SAMPLES)] == ["edge-7"] * 3


def test_an_answer_of_two_nodes_claims_a_workload_for_one_gpu_of_sixteen(dcgm):
    answer = read_answer((dcgm / "promapi-h100-2nodes-gpu-temp.json").read_bytes())
    rows = rows_of(fake_dcgm(host_from_label=True).read(answer, NOW), GPU_SAMPLES)
    assert len(rows) == 16
    assert [row["host"] for row in rows].count("gpu-node-1") == 8
    assert [row["host"] for row in rows].count("gpu-node-2") == 8
    (held,) = [row for row in rows if {"pod", "namespace", "container"} & set(row)]
    assert held["gpu_uuid"] == "GPU-c4529c8d-69c4-b61d-e0bc-7b2460096005"
    assert (held["namespace"], held["pod"]) == ("dynamo-workload", "vllm-agg-0-vllmdecodeworker-s65j5")
    assert held["temperature_celsius"] == 30


def test_where_the_workload_is_exported_the_pod_is_always_the_exporter(dcgm):
    answer = read_answer((dcgm / "promapi-h100-exported-pod-labels.json").read_bytes())
    rows = rows_of(fake_dcgm(host_from_label=True).read(answer, NOW), GPU_SAMPLES)
    assert len(rows) == 8
    (held,) = [row for row in rows if {"pod", "namespace", "container"} & set(row)]
    assert held["gpu_index"] == 6
    assert (held["namespace"], held["pod"], held["container"]) == (
        "dynamo-workload",
        "vllm-agg-0-vllmdecodeworker-5fljt",
        "main",
    )


@dataclass(frozen=True)
class Outcome:
    """What one quirk line alone must give; `None` = the line is no page with a GPU."""

    rows: dict[str, dict[str, Any]] | None = None
    rejected: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    values: dict[tuple[str, str], int] = field(default_factory=dict)


def sample(**values: Any) -> dict[str, dict[str, Any]]:
    return {"gpu_samples": values}


A30, T400 = "GPU-265c9814-6156-355b-e589-ff2064894f16", "GPU-b9f9e81b-bee7-34bc-af17-132ef6592740"

OUTCOMES = [
    # 1, 2: an instance row carries a value of the whole GPU: it is the GPU's, and the instance is there.
    Outcome(
        {
            "gpu_samples": {"gpu_uuid": A30, "memory_temperature_celsius": 35},
            "gpu_instances": {"gpu_uuid": A30, "instance": 3, "profile": "1g.6gb"},
        }
    ),
    Outcome(
        {
            "gpu_samples": {"gpu_uuid": A30, "memory_temperature_celsius": 35},
            "gpu_instances": {"gpu_uuid": A30, "instance": 4, "profile": "1g.6gb"},
        }
    ),
    Outcome(),  # 3: a HELP line with a degree sign
    Outcome(sample(gpu_index=1, pci_bus_id="00000000:B1:00.0", temperature_celsius=44)),  # 4
    Outcome(  # 5: the pod of an instance is not the pod of the whole GPU
        {
            "gpu_samples": {"gpu_index": 2, "temperature_celsius": 45, "pod": None, "namespace": None},
            "gpu_instances": {"instance": 3, "pod": "triton-server-f7cb5d77-95xcf", "namespace": "default"},
        }
    ),
    Outcome(  # 6: <<<NULL>>> is no profile
        {"gpu_samples": {"sm_clock_mhz": 1410}, "gpu_instances": {"instance": 6, "profile": None}}
    ),
    Outcome(  # 7: the profile as it is written, empty pod labels as none
        {
            "gpu_samples": {"sm_clock_mhz": 1410, "driver_version": "535.154.05"},
            "gpu_instances": {"instance": 0, "profile": "7g.79gb", "pod": None},
        }
    ),
    Outcome(  # 8: a code of nobody: at least this happened
        {
            "gpu_events": {
                "event": "xid",
                "code": 45,
                "evidence": "last_code",
                "gpu_uuid": None,
                "occurrences": 1,
            }
        }
    ),
    Outcome(sample(last_xid=0, model="GRID A100-8C")),  # 9: err_code 0 is no event
    Outcome(  # 10
        {
            "gpu_samples": {"gpu_uuid": T400},
            "gpu_events": {
                "gpu_uuid": T400,
                "code": 42,
                "evidence": "window_count",
                "occurrences": 1,
                "gpu_index": 0,
            },
        }
    ),
    Outcome(
        sample(pci_bus_id="00000008:01:00.0", model="NVIDIA GB200"), skipped={"unmapped_family": 1}
    ),  # 11
    Outcome(sample(pci_bus_id="00000008:01:00.0", nvlink_symbol_bit_error_ratio=0.0)),  # 12
    Outcome(sample(pci_bus_id="00000019:01:00.0", nvlink_recoveries=0)),  # 13
    Outcome(  # 14: an instance's own value never becomes the whole GPU's
        {
            "gpu_samples": {"pci_bus_id": "00000001:00:00.0", "graphics_engine_active_ratio": None},
            "gpu_instances": {"instance": 8, "graphics_engine_active_ratio": 0.029399},
        }
    ),
    Outcome(sample(pcie_rx_bytes_per_second=23792, pod="pod1", namespace="gpu-test3", container="ctr")),  # 15
    Outcome(sample(memory_temperature_celsius=None), skipped={"blank": 1}),  # 16: a rounded sentinel
    *[  # 17 to 20: no GPU is that hot
        Outcome(sample(temperature_celsius=None), values={("temperature_celsius", "out_of_range"): 1})
    ]
    * 4,
    *[  # 21 to 23: nothing is used above 100 %
        Outcome(sample(utilization_percent=None), values={("utilization_percent", "out_of_range"): 1})
    ]
    * 3,
    # 24, 25: one alone is a switch; the two together are judged below
    Outcome({"gpu_switches": {"nvswitch": "nvswitch0", "temperature_celsius": 40}}),
    Outcome({"gpu_switches": {"nvswitch": "nvswitch0", "temperature_celsius": 39}}),
    Outcome(  # 26: the link of a switch, whatever GPU labels it has too
        {"gpu_links": {"nvswitch": "0", "link": 0, "gpu_uuid": None}}, skipped={"unmapped_family": 1}
    ),
    Outcome(),  # 27: a CPU core is no GPU
    Outcome(),  # 28: labels shortened by a person
]


def quirks(dcgm: Path) -> list[str]:
    with (dcgm / "quirk_lines.tsv").open(encoding="utf-8", newline="") as file:
        return [row["line"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


@pytest.mark.parametrize("number", range(1, 29))
def test_a_quirk_line_has_its_right_outcome(dcgm, number):
    lines = quirks(dcgm)
    assert len(lines) == len(OUTCOMES) == 28
    page, outcome = (lines[number - 1] + "\n").encode(), OUTCOMES[number - 1]
    if outcome.rows is None:
        with pytest.raises(CollectError, match="no GPU"):
            fake_dcgm().read_page(page, NOW)
        return
    reading = fake_dcgm().read_page(page, NOW)
    assert counts(reading) == dict.fromkeys(outcome.rows, 1)
    for name, expected in outcome.rows.items():
        row = only(reading, STREAMS[name])
        assert {name: row.get(name) for name in expected} == expected
    assert reading.rejected == outcome.rejected
    assert reading.skipped == outcome.skipped
    assert values_rejected(reading) == outcome.values


def test_all_quirk_lines_in_one_page_leave_each_other_alone(dcgm):
    """One bad line, one core, one torn series or one absurd value costs only itself."""
    page = "".join(line + "\n" for line in quirks(dcgm)).encode()
    reading = fake_dcgm().read_page(page, NOW)
    assert reading.rejected == {"bad_labels": 1, "duplicate_series": 2 + 2 + 3 + 2}
    assert reading.skipped == {"blank": 1, "unmapped_family": 2, "other_entity": 1}
    assert {row["code"] for row in rows_of(reading, GPU_EVENTS)} == {42, 45}
    assert [row for row in rows_of(reading, GPU_INSTANCES) if row["gpu_uuid"] == A30] == [
        {"host": "host1", "gpu_uuid": A30, "gpu_index": 0, "instance": 3, "profile": "1g.6gb"},
        {"host": "host1", "gpu_uuid": A30, "gpu_index": 0, "instance": 4, "profile": "1g.6gb"},
    ]
    samples = [row for row in rows_of(reading, GPU_SAMPLES) if row["gpu_uuid"] == A30]
    assert [row["memory_temperature_celsius"] for row in samples] == [35]


def test_two_switches_under_one_name_are_neither(dcgm):
    page = "".join(line + "\n" for line in quirks(dcgm)[23:25]).encode()
    with pytest.raises(CollectError, match="no GPU"):
        fake_dcgm().read_page(page, NOW)
    alive = b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 30\n'
    reading = fake_dcgm().read_page(page + alive, NOW)
    assert counts(reading) == {"gpu_samples": 1}
    assert reading.rejected == {"duplicate_series": 2}
