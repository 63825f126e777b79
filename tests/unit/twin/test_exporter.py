"""The page is what dcgm-exporter prints, and says what the sensors read."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from twin.exporter import FAMILIES, Exporter
from twin.hall import Hall
from twin.plan import draw_plan
from twin.sensors import read

PRESENT = (True,) * 8


@pytest.fixture(scope="module")
def plan():
    return draw_plan(seed=11)


@pytest.fixture(scope="module")
def readings(plan):
    hall = Hall(plan)
    hall.corrected_errors[9] = 17
    hall.pcie_replays[8] = 4
    return read(hall)


def samples(page):
    """Read a page with the Prometheus client: (name, GPU index) -> (labels, value).

    The client gives every counter the suffix of OpenMetrics, `_total`, which is not on the page.
    """
    found = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found[sample.name.removesuffix("_total"), int(sample.labels["gpu"])] = sample.labels, sample.value
    return found


@pytest.mark.parametrize("naming", ["4.5", "4.6"])
def test_every_number_comes_back_as_it_was_read(plan, readings, naming):
    page = samples(Exporter(plan.hosts[1], naming).page(readings, 8, PRESENT))
    assert len(page) == len(FAMILIES) * 8
    for family in FAMILIES:
        name = "DCGM_FI_" + ((naming == "4.6" and family.renamed) or family.name)
        assert [page[name, index][1] for index in range(8)] == readings[family.reading][8:16].tolist()


def test_the_labels_name_the_gpu_its_place_and_its_driver(plan, readings):
    host = plan.hosts[1]
    labels, _ = samples(Exporter(host, "4.5").page(readings, 8, PRESENT))["DCGM_FI_DEV_GPU_TEMP", 2]
    assert labels == {
        "gpu": "2",
        "UUID": host.gpus[2].uuid,
        "pci_bus_id": "00000000:75:00.0",
        "device": "nvidia2",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": host.name,
        "DCGM_FI_DRIVER_VERSION": "580.105.08",
    }


def test_new_names_come_with_the_lower_case_host_label(plan, readings):
    page = Exporter(plan.hosts[0], "4.6").page(readings, 0, PRESENT)
    labels, _ = samples(page)["DCGM_FI_DEV_GPU_TEMP_CELSIUS", 0]
    assert labels["hostname"] == plan.hosts[0].name
    assert b"Hostname" not in page
    for renamed in ("BOARD_POWER_WATTS", "GPU_TEMP_MARGIN_CELSIUS", "CLOCKS_EVENT_REASONS", "XID_ERROR"):
        assert f"\nDCGM_FI_DEV_{renamed}{{".encode() in page


def test_doubles_have_six_decimals_and_whole_numbers_none(plan, readings):
    page = Exporter(plan.hosts[0], "4.5").page(readings, 0, PRESENT).decode()
    numbers = dict(re.findall(r'^(\w+)\{gpu="0".*\} (\S+)$', page, re.MULTILINE))
    doubles = {name for name, number in numbers.items() if re.fullmatch(r"\d+\.\d{6}", number)}
    assert doubles == {
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "DCGM_FI_PROF_DRAM_ACTIVE",
    }
    assert numbers["DCGM_FI_DEV_POWER_USAGE"].endswith("000")
    assert all(re.fullmatch(r"-?\d+", number) for name, number in numbers.items() if name not in doubles)


def test_a_lost_gpu_keeps_only_the_row_of_its_xid(plan, readings):
    present = tuple(index != 5 for index in range(8))
    xids = np.zeros_like(readings["last_xid"])
    xids[5] = 79
    page = samples(Exporter(plan.hosts[0], "4.5").page({**readings, "last_xid": xids}, 0, present))
    assert [name for name, index in page if index == 5] == ["DCGM_FI_DEV_XID_ERRORS"]
    labels, value = page["DCGM_FI_DEV_XID_ERRORS", 5]
    assert value == 79
    assert (labels["UUID"], labels["err_code"]) == (plan.gpus[5].uuid, "79")
    assert labels["err_msg"] == "GPU has fallen off the bus"
    assert len([name for name, index in page if index == 4]) == len(FAMILIES)


def test_a_host_without_any_gpu_left_has_an_empty_page(plan, readings):
    assert Exporter(plan.hosts[0], "4.5").page(readings, 0, (False,) * 8) == b""


def test_shared_families_read_as_in_a_real_scrape(plan, readings):
    """A whole scrape of an L4 as captured: same families in the same order, same heads, labels and formats."""
    default = Path(__file__).parents[4] / "shared" / "vectors"
    capture = Path(os.environ.get("HALLWATCH_VECTORS", default)) / "gpu" / "dcgm" / "l4-idle-full-scrape.prom"
    if not capture.exists():
        pytest.skip("the captures are not here; set HALLWATCH_VECTORS")
    real = skeleton(capture.read_text())
    ours = skeleton(Exporter(plan.hosts[0], "4.5").page(readings, 0, PRESENT).decode())
    assert list(real) == [name for name in ours if name in real]
    assert {name: ours[name] for name in real} == real


def skeleton(page):
    """Reduce a page to what does not depend on the device: head, label keys and number format per family."""
    found = {}
    for head, kind, name, labels, number in re.findall(
        r"^# HELP \S+ (.*)\n# TYPE \S+ (\w+)\n(\w+)\{(.*)\} (\S+)$", page, re.MULTILINE
    ):
        found[name] = head, kind, re.findall(r'(\w+)="', labels), "." in number
    return found
