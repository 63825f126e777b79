"""Each fault and decoy shows on the pages as it does on real devices, and its label says when."""

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from twin.faults import KINDS
from twin.plan import draw_plan
from twin.run import Twin
from twin.scenario import Injection, Scenario

START_US = 1_780_272_000_000_000
PLAN = draw_plan(seed=21)
BUSY = PLAN.hosts[PLAN.jobs[0].hosts[0]].name
IDLE = next(PLAN.hosts[job.hosts[0]].name for job in PLAN.jobs if not job.running)


def play(*injections: Injection) -> Twin:
    return Twin(PLAN, Scenario(injections=injections), start_us=START_US)


def step(twin, seconds):
    for _ in range(seconds):
        twin.step(1.0)


def value(twin, host, metric, gpu):
    for family in text_string_to_metric_families(twin.page(host).decode()):
        for sample in family.samples:
            if (sample.name.removesuffix("_total"), sample.labels["gpu"]) == (f"DCGM_FI_{metric}", str(gpu)):
                return sample.value
    return None


def answer(twin, host):
    return twin.answers[[entry.name for entry in PLAN.hosts].index(host)]


def test_a_thermal_fault_is_shown_when_the_margin_on_the_page_is_gone():
    strength = {"resistance_factor": 8.0, "ramp_seconds": 2.0}
    twin = play(Injection(name="thermal", host=BUSY, gpu_index=6, onset_seconds=4.5, magnitude=strength))
    step(twin, 4)
    assert value(twin, BUSY, "DEV_GPU_TEMP_LIMIT", 6) > 15
    while twin.labels[0]["shown_us"] is None:
        assert value(twin, BUSY, "DEV_GPU_TEMP_LIMIT", 6) > 0
        twin.step(1.0)
    assert value(twin, BUSY, "DEV_GPU_TEMP_LIMIT", 6) <= 0
    label = twin.labels[0]
    assert label["onset_us"] == START_US + 4_500_000
    assert label["shown_us"] == twin.now_us
    assert (label["kind"], label["entity_kind"], label["host"]) == ("fault", "gpu", BUSY)
    assert label["entity"] == next(host for host in PLAN.hosts if host.name == BUSY).gpus[6].uuid
    assert label["ended_us"] is None
    assert label["magnitude"] == strength


def test_a_gpu_off_the_bus_leaves_one_row_and_stops_its_job():
    twin = play(Injection(name="xid79", host=BUSY, gpu_index=2, onset_seconds=2.0))
    twin.step(1.0)
    assert value(twin, BUSY, "DEV_XID_ERRORS", 2) == 0
    assert value(twin, BUSY, "DEV_GPU_UTIL", 1) > 90
    step(twin, 2)
    assert value(twin, BUSY, "DEV_XID_ERRORS", 2) == 79
    assert value(twin, BUSY, "DEV_GPU_TEMP", 2) is None
    assert value(twin, BUSY, "DEV_GPU_UTIL", 1) == 0
    assert value(twin, BUSY, "DEV_XID_ERRORS", 1) == 0
    assert twin.labels[0]["shown_us"] == START_US + 2_000_000


@pytest.mark.parametrize("manner", ["hang", "refuse"])
def test_a_silent_host_stops_answering_for_good(manner):
    twin = play(Injection(name="silent-host", host=BUSY, onset_seconds=2.0, magnitude={"manner": manner}))
    twin.step(1.0)
    assert answer(twin, BUSY) == "serve"
    step(twin, 60)
    assert answer(twin, BUSY) == manner
    assert [entry for entry in twin.answers if entry != "serve"] == [manner]
    label = twin.labels[0]
    assert (label["kind"], label["entity_kind"], label["entity"]) == ("fault", "host", BUSY)
    assert (label["shown_us"], label["ended_us"]) == (START_US + 2_000_000, None)


def test_a_job_start_is_a_step_of_power_and_heat_far_below_the_limit():
    twin = play(Injection(name="job-start", host=IDLE, onset_seconds=3.0))
    step(twin, 2)
    assert [value(twin, IDLE, "DEV_GPU_UTIL", gpu) for gpu in range(8)] == [0] * 8
    cold = value(twin, IDLE, "DEV_GPU_TEMP", 0)
    step(twin, 30)
    assert all(value(twin, IDLE, "DEV_GPU_UTIL", gpu) > 90 for gpu in range(8))
    assert value(twin, IDLE, "DEV_POWER_USAGE", 0) > 300
    assert value(twin, IDLE, "DEV_GPU_TEMP", 0) > cold + 10
    assert all(value(twin, IDLE, "DEV_GPU_TEMP_LIMIT", gpu) >= 17 for gpu in range(8))
    assert (twin.labels[0]["kind"], twin.labels[0]["shown_us"]) == ("decoy", START_US + 3_000_000)


def test_an_exporter_restart_forgets_the_last_xid_but_not_the_energy():
    twin = play(
        Injection(name="exporter-restart", host=BUSY, onset_seconds=5.0, magnitude={"lasts_seconds": 3.5})
    )
    twin.hall.last_xid[PLAN.jobs[0].hosts[0] * 8] = 43
    step(twin, 4)
    assert value(twin, BUSY, "DEV_XID_ERRORS", 0) == 43
    energy = value(twin, BUSY, "DEV_TOTAL_ENERGY_CONSUMPTION", 0)
    seen = []
    for _ in range(6):
        twin.step(1.0)
        seen.append(answer(twin, BUSY))
    assert seen == ["refuse"] * 4 + ["serve"] * 2
    assert value(twin, BUSY, "DEV_XID_ERRORS", 0) == 0
    assert value(twin, BUSY, "DEV_TOTAL_ENERGY_CONSUMPTION", 0) > energy
    label = twin.labels[0]
    assert (label["shown_us"], label["ended_us"]) == (START_US + 5_000_000, START_US + 9_000_000)


def test_a_restarted_exporter_no_longer_knows_a_lost_gpu():
    restart = Injection(
        name="exporter-restart", host=BUSY, onset_seconds=3.0, magnitude={"lasts_seconds": 3.0}
    )
    twin = play(Injection(name="xid79", host=BUSY, gpu_index=2, onset_seconds=1.0), restart)
    step(twin, 2)
    assert value(twin, BUSY, "DEV_XID_ERRORS", 2) == 79
    step(twin, 6)
    assert value(twin, BUSY, "DEV_XID_ERRORS", 2) is None
    assert value(twin, BUSY, "DEV_XID_ERRORS", 3) == 0


def test_a_step_says_whether_a_label_changed():
    twin = play(Injection(name="job-start", host=IDLE, onset_seconds=2.0))
    assert [twin.step(1.0) for _ in range(4)] == [False, True, False, False]


def test_every_kind_draws_a_magnitude_within_its_range():
    rng = np.random.default_rng(0)
    drawn = {name: [dict(kind.draw(rng)) for _ in range(50)] for name, kind in KINDS.items()}
    assert {7 <= float(entry["resistance_factor"]) <= 10 for entry in drawn["thermal"]} == {True}
    assert {entry["manner"] for entry in drawn["silent-host"]} == {"hang", "refuse"}
    assert {3 <= float(entry["lasts_seconds"]) <= 6 for entry in drawn["exporter-restart"]} == {True}
