"""The physics: heat balances, energy adds up, a starved GPU hovers at its limit and the rest stay cool."""

from dataclasses import replace

import numpy as np
import pytest

from twin import physics
from twin.faults import KINDS, Target
from twin.hall import Hall
from twin.plan import draw_plan
from twin.sensors import read


def steady_plan(*, running=True, intensity=1.0, seed=1):
    """A hall whose jobs compute without a break, or not at all."""
    plan = draw_plan(seed=seed)
    steady = {
        "compute_share": 1.0,
        "intensity": intensity,
        "running": running,
        "first_checkpoint_seconds": 1e9,
    }
    return replace(plan, jobs=tuple(replace(job, **steady) for job in plan.jobs))


@pytest.mark.parametrize("running", [True, False])
def test_in_steady_state_all_power_leaves_through_the_plate(running):
    hall = Hall(steady_plan(running=running, intensity=0.9))
    hall.advance(120)
    die, hbm = physics.heat_flow(
        hall.die_celsius, hall.hbm_celsius, hall.coolant_celsius, hall.contact, hall.plate
    )
    assert np.allclose(die + hbm, hall.power_watts, rtol=1e-3)
    plate_celsius = hall.coolant_celsius + physics.PLATE_KELVIN_PER_WATT * hall.power_watts
    die_celsius = plate_celsius + physics.DIE_KELVIN_PER_WATT * hall.contact * hall.die_watts
    assert np.allclose(hall.die_celsius, die_celsius, atol=0.05)


def test_an_idle_gpu_reads_as_a_real_one_does():
    readings = read(Hall(steady_plan(running=False)))
    assert (readings["power_watts"] > 64).all()
    assert (readings["power_watts"] < 76).all()
    assert (readings["temperature_celsius"] < 45).all()
    assert (readings["margin_celsius"] > 40).all()
    assert (readings["sm_clock_mhz"] == 345).all()
    assert (readings["clock_reasons"] == 0x1).all()
    assert (readings["utilization_percent"] == 0).all()
    assert (readings["framebuffer_used_mib"] == 0).all()


def test_the_heaviest_load_meets_the_board_limit_and_no_gpu_passes_it():
    hall = Hall(steady_plan())
    hall.advance(30)
    assert (hall.power_watts <= physics.BOARD_LIMIT_WATTS + 1e-6).all()
    assert hall.power_capped.any()
    capped = read(hall)["clock_reasons"] == 0x4
    assert (capped == hall.power_capped).all()
    assert (hall.speed[hall.power_capped] < 1).all()


@pytest.mark.parametrize("seed", range(8))
def test_a_healthy_hall_at_full_load_keeps_a_wide_margin(seed):
    hall = Hall(steady_plan(seed=seed))
    lowest = []
    for _ in range(60):
        hall.advance(1.0)
        lowest.append(read(hall)["margin_celsius"].min())
    assert min(lowest) >= 17


def test_temperature_plus_margin_is_what_was_captured_on_a_real_gpu():
    """87 idle (41 and 46 degrees), 85 at 630 W (59 and 26), give or take a degree of rounding."""
    idle, busy = read(Hall(steady_plan(running=False))), read(Hall(steady_plan()))
    for readings, total in ((idle, 87), (busy, 85)):
        assert (abs(readings["temperature_celsius"] + readings["margin_celsius"] - total) <= 1).all()


def test_the_energy_counter_is_the_integral_of_power_over_irregular_steps():
    hall = Hall(draw_plan(seed=2))
    steps = [0.4, 1.0, 3.7, 0.25, 11.0, 1.003]
    before = hall.energy_joules.copy()
    joules = np.zeros(len(before))
    for seconds in steps:
        hall.advance(seconds)
        joules += hall.power_watts * seconds
    assert np.allclose(hall.energy_joules - before, joules, rtol=1e-9)
    assert (read(hall)["energy_millijoules"] == np.floor(hall.energy_joules * 1000)).all()


def test_the_same_steps_give_the_same_hall_and_other_steps_nearly_the_same():
    first, second, finer = (Hall(draw_plan(seed=9)) for _ in range(3))
    for _ in range(20):
        first.advance(1.0)
        second.advance(1.0)
        finer.advance(0.5)
        finer.advance(0.5)
    assert all((a == b).all() for a, b in zip(read(first).values(), read(second).values(), strict=True))
    assert np.allclose(first.die_celsius, finer.die_celsius, atol=0.5)
    assert np.allclose(first.energy_joules, finer.energy_joules, rtol=1e-6)


def test_time_does_not_stand_still_or_run_back():
    hall = Hall(draw_plan(hosts=1))
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="forward"):
            hall.advance(seconds)


def starve(hall, gpu, *, factor=8.0, seconds=75):
    """Take the coolant from one GPU and return the readings of each second."""
    seen = []
    for age in range(seconds):
        hold = KINDS["thermal"].hold
        hold(
            hall,
            Target(host=gpu // 8, gpu=gpu),
            {"resistance_factor": factor, "ramp_seconds": 3.0},
            age + 1.0,
        )
        hall.advance(1.0)
        seen.append(read(hall))
    return seen


@pytest.mark.parametrize("factor", [7.0, 10.0])
def test_a_starved_gpu_falls_to_its_limit_and_hovers_there(factor):
    hall = Hall(draw_plan(seed=4))
    seen = starve(hall, 3, factor=factor)
    margins = np.array([readings["margin_celsius"][3] for readings in seen])
    first = int(np.argmax(margins <= 0))
    assert margins[0] > 15
    assert 0 < first <= 15
    assert (margins[first:] <= 0).mean() > 0.95
    assert margins.min() >= -4
    assert margins[first:].max() <= 2
    at_limit = seen[first + 20 :]
    reasons = np.bitwise_or.reduce([readings["clock_reasons"][3] for readings in at_limit])
    assert reasons & 0x68 == 0x68
    assert all(readings["sm_clock_mhz"][3] < 1980 for readings in at_limit)
    assert np.mean([readings["power_watts"][3] for readings in at_limit]) < 350
    assert max(readings["temperature_celsius"][3] for readings in at_limit) >= 85


def test_a_starved_gpu_heats_no_other_and_slows_only_its_own_job():
    hurt, well = Hall(draw_plan(seed=4)), Hall(draw_plan(seed=4))
    seen = starve(hurt, 3)[-1]
    for _ in range(75):
        well.advance(1.0)
        healthy = read(well)
    same_job = hurt.workload.job_of_gpu == hurt.workload.job_of_gpu[3]
    others = ~same_job
    assert all((seen[name][others] == healthy[name][others]).all() for name in seen)
    assert np.delete(seen["margin_celsius"], 3).min() >= 17
    mates = same_job & (np.arange(len(same_job)) != 3)
    assert hurt.energy_joules[mates].sum() < well.energy_joules[mates].sum()
    assert (hurt.die_celsius[mates] < well.die_celsius[mates] + 0.5).mean() > 0.9


def test_a_starved_idle_gpu_stays_below_its_limit():
    hall = Hall(steady_plan(running=False))
    assert min(readings["margin_celsius"][0] for readings in starve(hall, 0, factor=10.0)) > 20


def test_a_checkpoint_pauses_the_job_and_moves_its_data_to_the_host():
    plan = draw_plan(seed=6)
    plan = replace(plan, jobs=tuple(replace(job, first_checkpoint_seconds=62.0) for job in plan.jobs))
    hall = Hall(plan)
    working = read(hall)
    hall.advance(5.0)
    saving = read(hall)
    busy = working["utilization_percent"] > 0
    assert (saving["utilization_percent"][busy] < 60).all()
    assert (saving["power_watts"][busy] < working["power_watts"][busy]).all()
    assert (saving["pcie_tx_bytes_per_second"][busy] > 2e9).all()
