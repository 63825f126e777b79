"""From dcgm-exporter pages to rows: names, entities, blanks, workloads, links, switches."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import CollectError
from contract.stream import ColumnKind
from contract.streams.gpu import GPU_EVENTS, GPU_INSTANCES, GPU_LINKS, GPU_SAMPLES, GPU_SWITCHES
from ingest.gpu import fields
from ingest.testing import clean, fake_dcgm, rows_of

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "dcgm"
NOW = 1_780_272_000_000_000
SECOND = 1_000_000
GPU = 'gpu="0",UUID="GPU-a"'


def fixture(name):
    return (FIXTURES / name).read_bytes()


def page(*lines):
    return "".join(f"{line}\n" for line in lines).encode()


def sample(*lines, **config):
    """Return the one gpu_samples row of a page."""
    (row,) = rows_of(fake_dcgm(**config).read_page(page(*lines), NOW), GPU_SAMPLES)
    return row


def test_the_old_and_the_new_names_give_the_same_rows():
    old = fake_dcgm().read_page(fixture("two-gpus-dcgm-4.5.prom"), NOW)
    new = fake_dcgm().read_page(fixture("two-gpus-dcgm-4.6.prom"), NOW)
    assert rows_of(old, GPU_SAMPLES) == rows_of(new, GPU_SAMPLES)
    for reading in (old, new):
        assert (reading.rejected, reading.skipped) == ({}, {})


def test_a_page_fills_the_columns_its_families_belong_to():
    busy, idle = rows_of(fake_dcgm().read_page(fixture("two-gpus-dcgm-4.5.prom"), NOW), GPU_SAMPLES)
    assert busy == {
        "host": "host1",
        "gpu_uuid": "GPU-00000000-1111-2222-3333-444444444440",
        "gpu_index": 0,
        "pci_bus_id": "00000000:53:00.0",
        "model": "NVIDIA H100 80GB HBM3",
        "driver_version": "580.105.08",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "clock_event_reasons": 0,
        "memory_temperature_celsius": 71,
        "temperature_celsius": 62,
        "temperature_margin_celsius": 25,
        "power_watts": 655.12,
        "energy_millijoules": 9_007_199_254_740_993,
        "pcie_replays": 3,
        "utilization_percent": 100,
        "memory_copy_utilization_percent": 43,
        "last_xid": 0,
        "framebuffer_free_mib": 2410,
        "framebuffer_used_mib": 78670,
        "framebuffer_reserved_mib": 479,
        "uncorrectable_remapped_rows": 0,
        "correctable_remapped_rows": 0,
        "row_remap_failed": 0,
        "nvlink_megabytes_per_second": 412_331,
        "graphics_engine_active_ratio": 0.99123,
        "tensor_active_ratio": 0.51234,
        "dram_active_ratio": 0.431,
    }
    assert idle["gpu_index"] == 1
    assert idle["clock_event_reasons"] == 1


@pytest.mark.parametrize("label", ["UUID", "uuid", "gpu_uuid"])
@pytest.mark.parametrize("model", ["modelName", "model_name"])
def test_identity_is_found_under_old_and_new_labels(label, model):
    row = sample(f'DCGM_FI_DEV_GPU_TEMP{{gpu="3",{label}="GPU-a",{model}="NVIDIA H200"}} 30')
    assert (row["gpu_uuid"], row["gpu_index"], row["model"]) == ("GPU-a", 3, "NVIDIA H200")


@pytest.mark.parametrize(
    ("labels", "workload"),
    [
        ('pod="p",namespace="n",container="c"', ("n", "p", "c")),
        ('pod_name="p",pod_namespace="n",container_name="c"', ("n", "p", "c")),
        ('pod="",namespace="",container=""', (None, None, None)),
        (
            'pod="nvidia-dcgm-exporter-x",namespace="gpu-operator",container="nvidia-dcgm-exporter"',
            (None, None, None),
        ),
        ('pod="dcgm-exporter-x",namespace="monitoring",container="exporter"', (None, None, None)),
        (
            'pod="e",namespace="n2",exported_pod="p",exported_namespace="n",exported_container="c"',
            ("n", "p", "c"),
        ),
        ('pod="e",namespace="n2",container="x",exported_pod=""', (None, None, None)),
    ],
)
def test_only_the_workloads_pod_is_claimed_never_the_exporters(labels, workload):
    row = sample(f"DCGM_FI_DEV_GPU_TEMP{{{GPU},{labels}}} 30")
    assert (row.get("namespace"), row.get("pod"), row.get("container")) == workload


def test_a_batch_job_is_named_beside_any_pod():
    row = sample(f'DCGM_FI_DEV_GPU_TEMP{{{GPU},hpc_job="4711",pod="dcgm-exporter-x"}} 30')
    assert row["hpc_job"] == "4711"
    assert "pod" not in row


BLANKS = [
    *range(2_147_483_632, 2_147_483_636),
    *range(9_223_372_036_854_775_792, 9_223_372_036_854_775_796),
    9_223_372_036_854_776_000,
    *range(140_737_488_355_328, 140_737_488_355_332),
]


@pytest.mark.parametrize("blank", BLANKS)
@pytest.mark.parametrize(
    ("family", "column"),
    [
        ("DCGM_FI_DEV_GPU_TEMP", "temperature_celsius"),
        ("DCGM_FI_DEV_POWER_USAGE", "power_watts"),
        ("DCGM_FI_PROF_DRAM_ACTIVE", "dram_active_ratio"),
        ("DCGM_FI_DEV_XID_ERRORS", "last_xid"),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replays"),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "energy_millijoules"),
    ],
)
def test_every_blank_of_dcgm_is_null_in_every_kind_of_column(family, column, blank):
    reading = fake_dcgm().read_page(page(f"{family}{{{GPU}}} {blank}"), NOW)
    (row,) = rows_of(reading, GPU_SAMPLES)
    assert column not in row
    assert reading.skipped == {"blank": 1}
    assert all(not clean(rows)[1] for rows in reading.rows)


def test_a_blank_that_somebody_multiplied_is_still_no_ratio():
    reading = fake_dcgm().read_page(page(f"DCGM_FI_PROF_SM_ACTIVE{{{GPU}}} 14073748835532800.000000"), NOW)
    assert reading.skipped == {"blank": 1}


def test_a_count_may_truly_pass_the_blanks_of_narrower_types():
    row = sample(
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{GPU}}} 140737488355900",
        f"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{{{GPU}}} 2147483640",
    )
    assert row["energy_millijoules"] == 140_737_488_355_900
    assert row["nvlink_replays"] == 2_147_483_640


@pytest.mark.parametrize(
    ("family", "column", "value", "reason"),
    [
        ("DCGM_FI_DEV_GPU_TEMP", "temperature_celsius", "345", "out_of_range"),
        ("DCGM_FI_DEV_GPU_TEMP", "temperature_celsius", "4278190080", "out_of_range"),
        ("DCGM_FI_DEV_GPU_TEMP", "temperature_celsius", "NaN", "not_a_number"),
        ("DCGM_FI_DEV_GPU_UTIL", "utilization_percent", "2619", "out_of_range"),
        ("DCGM_FI_DEV_GPU_UTIL", "utilization_percent", "4294967295", "out_of_range"),
        ("DCGM_FI_DEV_GPU_UTIL", "utilization_percent", "99.5", "not_whole"),
        ("DCGM_FI_DEV_POWER_USAGE", "power_watts", "-Inf", "not_a_number"),
        ("DCGM_FI_PROF_SM_ACTIVE", "sm_active_ratio", "1.01", "out_of_range"),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "clock_event_reasons", "-1", "out_of_range"),
    ],
)
def test_finite_garbage_is_null_and_counted_by_reason(family, column, value, reason):
    reading = fake_dcgm().read_page(page(f"{family}{{{GPU}}} {value}"), NOW)
    (rows,) = reading.rows
    cleaned, rejected = clean(rows)
    assert cleaned[0][column] is None
    assert rejected == {(column, reason): 1}


def test_a_missing_series_is_null_and_a_zero_is_zero():
    row = sample(f"DCGM_FI_DEV_GPU_UTIL{{{GPU}}} 0")
    assert row["utilization_percent"] == 0
    assert "temperature_celsius" not in row


@pytest.mark.parametrize("family", ["DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS"])
def test_a_memory_of_zero_degrees_has_no_thermometer_but_a_gpu_of_zero_margin_is_hot(family):
    row = sample(f"{family}{{{GPU}}} 0", f"DCGM_FI_DEV_GPU_TEMP_LIMIT{{{GPU}}} 0")
    assert "memory_temperature_celsius" not in row
    assert row["temperature_margin_celsius"] == 0


def test_the_averaged_power_wins_over_the_instant_one_in_either_order():
    lines = [f"DCGM_FI_DEV_POWER_USAGE_INSTANT{{{GPU}}} 500.5", f"DCGM_FI_DEV_POWER_USAGE{{{GPU}}} 400.5"]
    assert sample(*lines)["power_watts"] == sample(*reversed(lines))["power_watts"] == 400.5
    assert sample(lines[0])["power_watts"] == 500.5


def test_of_two_rows_of_one_gpu_the_first_wins():
    row = sample(
        f'DCGM_FI_DEV_GPU_TEMP{{{GPU},pod="a"}} 40',
        f'DCGM_FI_DEV_GPU_TEMP{{{GPU},pod="b"}} 41',
    )
    assert (row["temperature_celsius"], row["pod"]) == (40, "a")


def test_where_only_instances_show_a_value_of_the_whole_gpu_it_is_taken_once():
    reading = fake_dcgm().read_page(fixture("mig.prom"), NOW)
    assert rows_of(reading, GPU_SAMPLES) == [
        {"host": "host1", "gpu_uuid": "GPU-m", "gpu_index": 0, "temperature_celsius": 51, "last_xid": 43}
    ]
    left, right = rows_of(reading, GPU_INSTANCES)
    assert (left["instance"], left["framebuffer_used_mib"], left["pod"]) == (1, 1000, "left")
    assert left["graphics_engine_active_ratio"] == 0.25
    assert (right["instance"], right["framebuffer_used_mib"], right["pod"]) == (2, 3000, "right")


def test_a_whole_gpus_own_row_wins_over_its_instances_even_when_it_is_blank():
    instance = f'DCGM_FI_DEV_POWER_USAGE{{{GPU},GPU_I_ID="1",GPU_I_PROFILE="1g.5gb"}} 100'
    whole = f"DCGM_FI_DEV_POWER_USAGE{{{GPU}}}"
    assert sample(instance, f"{whole} 300")["power_watts"] == 300
    assert "power_watts" not in sample(instance, f"{whole} {BLANKS[0]}")


def test_an_instance_without_a_number_is_nobody():
    with pytest.raises(CollectError, match="no GPU"):
        fake_dcgm().read_page(page(f'DCGM_FI_DEV_FB_USED{{{GPU},GPU_I_ID="<<<NULL>>>"}} 1'), NOW)


def test_the_driver_version_may_be_a_label_or_a_family():
    assert (
        sample(f'DCGM_FI_DEV_GPU_TEMP{{{GPU},DCGM_FI_DRIVER_VERSION="580.1"}} 30')["driver_version"]
        == "580.1"
    )
    assert (
        sample(f'DCGM_FI_DEV_GPU_TEMP{{{GPU},DCGM_FI_SYSTEM_DRIVER_VERSION="595.2"}} 30')["driver_version"]
        == "595.2"
    )
    assert sample(f"DCGM_FI_DRIVER_VERSION{{{GPU}}} 535.154.05")["driver_version"] == "535.154.05"
    assert "driver_version" not in sample(f"DCGM_FI_DRIVER_VERSION{{{GPU}}} <<<NOT_SUPPORTED>>>")


def test_cpu_entities_and_unknown_families_are_counted_not_kept():
    reading = fake_dcgm().read_page(
        page(
            'DCGM_FI_DEV_CPU_TEMP_CURRENT{cpu="0",hostname="node1"} 45.0',
            'DCGM_FI_DEV_CPU_UTIL_TOTAL{cpucore="0",cpu="0",hostname="node1"} 0.5',
            f"DCGM_FI_DEV_FAN_SPEED{{{GPU}}} 40",
            "DCGM_FI_DEV_GPU_TEMP 50",
        ),
        NOW,
    )
    assert reading.skipped == {"other_entity": 2, "unmapped_family": 1}
    assert reading.rejected == {"no_identity": 1}
    assert len(rows_of(reading, GPU_SAMPLES)) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no_data"),
        (b"# HELP only\n", "no_data"),
        (b"<html><body>Not here</body></html>\n", "unreadable"),
        (b"\x00\x01\x02" * 100, "unreadable"),
        (b'node_load1{cpu="0"} 1\n', "no_data"),
        (b"go_goroutines 12\n", "no_data"),
    ],
)
def test_a_page_without_any_gpu_is_an_error_never_an_empty_host(content, reason):
    with pytest.raises(CollectError) as raised:
        fake_dcgm().read_page(content, NOW)
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("line", "stream"),
    [
        ('DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-{}"}} 30', GPU_SAMPLES),
        ('DCGM_FI_DEV_GPU_NVLINK_ERRORS{{gpu="0",UUID="GPU-{}",nvlink="1"}} 30', GPU_LINKS),
        ('DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT{{nvswitch="{}"}} 30', GPU_SWITCHES),
    ],
)
def test_a_page_that_names_a_new_device_in_every_line_gives_as_many_as_a_hall_may_have(line, stream):
    lines = [line.format(n) for n in range(5_000)]
    reading = fake_dcgm().read_page(page(*lines, *lines[:10]), NOW)
    assert [len(rows) for rows in reading.rows if rows.stream is stream] == [4_096]
    assert reading.rejected["too_many_devices"] == 5_000 - 4_096


def test_the_host_comes_from_labels_only_where_asked():
    line = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",Hostname="424773df46e0"} 30'
    assert sample(line, host="node7")["host"] == "node7"
    assert sample(line, host="node7", host_from_label=True)["host"] == "424773df46e0"
    assert (
        sample('DCGM_FI_DEV_GPU_TEMP{UUID="GPU-a"} 30', host="node7", host_from_label=True)["host"] == "node7"
    )


def test_links_of_all_three_forms_become_rows_of_links():
    reading = fake_dcgm().read_page(fixture("nvlink.prom"), NOW)
    links = {
        (row.get("gpu_uuid"), row.get("nvswitch"), row["link"]): row for row in rows_of(reading, GPU_LINKS)
    }
    assert set(links) == {
        ("GPU-a", None, 0),
        ("GPU-a", None, 17),
        ("GPU-b", None, 3),
        (None, "nvswitch1", 12),
        (None, "nvswitch1", 13),
    }
    numbered = links["GPU-a", None, 0]
    assert numbered["crc_flit_errors"] == 5
    assert numbered["megabytes_per_second"] == 25_000
    assert numbered["tx_bytes_per_second"] == 12_500_000_000
    assert links["GPU-a", None, 17]["replays"] == 2
    labelled = links["GPU-b", None, 3]
    assert (labelled["link_state"], labelled["recoveries"], labelled["gpu_index"]) == ("down", 1, 1)
    switch = links[None, "nvswitch1", 12]
    assert (switch["link_state"], switch["replays"]) == ("up", 7)
    assert "link_state" not in links[None, "nvswitch1", 13]
    assert reading.skipped == {"unknown_state": 1}


def test_a_switch_becomes_a_row_of_switches_and_its_sxid_an_event():
    reading = fake_dcgm().read_page(fixture("nvlink.prom"), NOW)
    assert rows_of(reading, GPU_SWITCHES) == [
        {
            "host": "host1",
            "nvswitch": "nvswitch1",
            "temperature_celsius": 44,
            "shutdown_temperature_celsius": 110,
            "last_fatal_sxid": 20034,
            "last_nonfatal_sxid": 0,
        }
    ]
    assert rows_of(reading, GPU_EVENTS) == [
        {
            "host": "host1",
            "event": "sxid",
            "nvswitch": "nvswitch1",
            "code": 20034,
            "evidence": "last_code",
            "occurrences": 1,
            "detail": "fatal",
            "name": "LTSSM Fault Up",
            "severity": "fatal",
            "class": "link",
            "action": "reset_fabric",
        }
    ]


def link_page(state=1, errors=0, rate=100, uuid="GPU-a"):
    labels = f'nvlink="0",gpu="0",gpu_uuid="{uuid}"'
    return page(
        f"DCGM_FI_DEV_NVLINK_GET_STATE{{{labels}}} {state}",
        f"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_PER_LINK_TOTAL{{{labels}}} {errors}",
        f"DCGM_FI_DEV_NVLINK_THROUGHPUT_PER_LINK{{{labels}}} {rate}",
        f"DCGM_FI_DEV_GPU_TEMP{{{GPU}}} 30",
    )


def test_links_are_sent_each_minute_and_at_once_when_a_state_or_an_error_count_changes():
    collector = fake_dcgm()

    def sent(second, **values):
        return len(rows_of(collector.read_page(link_page(**values), NOW + second * SECOND), GPU_LINKS))

    assert sent(0) == 1
    assert sent(1) == 0
    assert sent(2, rate=5_000) == 0
    assert sent(3, errors=1) == 1
    assert sent(4, errors=1) == 0
    assert sent(5, errors=1, state=0) == 1
    assert [sent(second, errors=1, state=0) for second in (6, 59, 60, 61, 119, 120)] == [0, 0, 1, 0, 0, 1]


def test_switches_are_sent_every_ten_seconds_and_after_the_clock_went_back():
    collector = fake_dcgm()
    content = page('DCGM_FI_DEV_NVSWITCH_TEMP_CELSIUS{nvswitch="nvswitch0"} 40')

    def sent(second):
        return len(rows_of(collector.read_page(content, NOW + round(second * SECOND)), GPU_SWITCHES))

    assert [sent(second) for second in (0, 1, 9, 9.8, 10.8, 19.9, -100, -99)] == [1, 0, 0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("table", "stream"),
    [
        (fields.GPU_FIELDS, GPU_SAMPLES),
        ({name: field for name, field in fields.GPU_FIELDS.items() if field.own}, GPU_INSTANCES),
        (fields.LINK_FIELDS, GPU_LINKS),
        (fields.NUMBERED_LINK_FIELDS, GPU_LINKS),
        (fields.SWITCH_FIELDS, GPU_SWITCHES),
    ],
)
def test_every_field_fills_a_column_of_its_stream_and_counts_fill_counters(table, stream):
    for name, field in table.items():
        column = stream.by_name[field.column]
        assert field.counts == (column.kind is ColumnKind.COUNTER), name
        assert field.bits == (column.kind is ColumnKind.BITMASK), name
        assert (field.words is not None) == (column.kind is ColumnKind.STATE), name
        assert set((field.words or {}).values()) <= set(column.states), name


def test_every_column_that_a_page_can_fill_has_a_field():
    described = {"ts", "host", "synthetic", "gpu_uuid", "gpu_index", "pci_bus_id", "model", "driver_version"}
    workload = {"namespace", "pod", "container", "hpc_job"}
    filled = {field.column for field in fields.GPU_FIELDS.values()}
    assert {column.name for column in GPU_SAMPLES.columns} - filled == described | workload


def test_two_hundred_fields_hold_the_number_of_a_link():
    assert len(fields.NUMBERED_LINK_FIELDS) == 18 * 12
    assert fields.NUMBERED_LINK_FIELDS["DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L17"].link == 17


PAGES = [fixture(name.name) for name in sorted(FIXTURES.glob("*.prom"))]
ODD_VALUES = ["", "NaN", "-1", "1e300", "99999999999999999999", *map(str, BLANKS)]


@st.composite
def mutated_pages(draw):
    """Draw a page with some of its bytes cut, doubled, replaced, or its values made odd."""
    content = bytearray(draw(st.sampled_from(PAGES)))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["cut", "double", "replace", "value"])):
            case "cut":
                del content[at : at + draw(st.integers(1, 200))]
            case "double":
                content[at:at] = content[at : at + draw(st.integers(1, 400))]
            case "replace":
                content[at : at + 1] = draw(st.binary(min_size=1, max_size=4))
            case "value":
                end = content.find(b"\n", at)
                start = content.rfind(b" ", 0, max(end, 0))
                if 0 <= start < end:
                    content[start:end] = f" {draw(st.sampled_from(ODD_VALUES))}".encode()
    return bytes(content)


@given(st.lists(mutated_pages() | st.binary(max_size=500), min_size=1, max_size=3), st.booleans())
def test_no_page_makes_anything_but_rows_that_fit_their_streams_or_an_error(pages, host_from_label):
    collector = fake_dcgm(host_from_label=host_from_label)
    for number, content in enumerate(pages):
        try:
            reading = collector.read_page(content, NOW + number * SECOND)
        except CollectError:
            continue
        for rows in reading.rows:
            cleaned, _ = clean(rows)
            assert len(cleaned) == len(rows) > 0
        restored = fake_dcgm()
        restored.restore(collector.cursor())
        assert restored.cursor() == collector.cursor()


@pytest.mark.parametrize(
    "value", ["1e308", "-1e308", "99999999999999999999", "-99999999999999999999", "0.5", "NaN"]
)
def test_a_count_that_is_none_costs_only_itself(value):
    other = f'DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{UUID="GPU-b"}} {2**60}'
    reading = fake_dcgm().read_page(page(f"DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{GPU}}} {value}", other), NOW)
    odd, exact = rows_of(reading, GPU_SAMPLES)
    assert "pcie_replays" not in odd
    assert exact["pcie_replays"] == 2**60


def test_a_count_written_as_a_float_is_a_count():
    assert sample(f"DCGM_FI_DEV_PCIE_REPLAY_COUNTER{{{GPU}}} 2.5e9")["pcie_replays"] == 2_500_000_000
