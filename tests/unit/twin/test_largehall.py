"""What follows what in a large hall: each handle is struck, and the far end of its chain is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from twin.handles import HANDLES
from twin.largehall import LargeHall, Target
from twin.site import GPUS_PER_HOST, PORTS_PER_HOST, draw_site


def _hall(gpus: int = 512, seed: int = 3) -> LargeHall:
    return LargeHall(draw_site(gpus=gpus, seed=seed))


def _strike(
    hall: LargeHall, name: str, magnitude: float, seconds: int, target: Target | None = None
) -> Target:
    handle = HANDLES[name]
    target = target or hall.targets(handle)[0]
    handle.begin(hall, target, magnitude)
    for age in range(seconds):
        handle.hold(hall, target, magnitude, float(age))
        hall.advance(1)
    return target


def test_a_seed_gives_one_hall_and_another_seed_another() -> None:
    one, same, other = _hall(), _hall(), _hall(seed=4)
    for hall in (one, same, other):
        hall.advance(20)
    assert one.site.gpus == same.site.gpus
    assert np.array_equal(one.chips.die_celsius, same.chips.die_celsius)
    assert set(one.site.hosts).isdisjoint(other.site.hosts)


def test_the_heat_that_goes_into_the_plates_comes_out_at_the_exchangers() -> None:
    hall = _hall(2_048)
    given = taken = 0.0
    for _ in range(600):
        hall.advance(1)
        given += float(hall.loops.host_heat_watts.sum())
        taken += float(hall.loops.exchanged_watts.sum())
    assert taken == pytest.approx(given, rel=0.02)


def test_a_worn_pump_slows_every_job_behind_it_by_way_of_flow_and_heat() -> None:
    hall, sound = _hall(), _hall()
    struck = _strike(hall, "pump-efficiency", 0.85, 400)
    sound.advance(400)
    racks = hall.site.cdu_of_rack == struck.index
    gpus = np.repeat(racks[hall.site.rack_of_host], GPUS_PER_HOST) & hall.tasks.busy
    assert hall.loops.cdu_flow[struck.index] == pytest.approx(0.15 * sound.loops.cdu_flow[struck.index])
    assert (hall.loops.return_celsius - sound.loops.return_celsius)[struck.index] > 8
    assert (hall.chips.die_celsius - sound.chips.die_celsius)[gpus].mean() > 15
    assert hall.chips.software_thermal[gpus].any()
    jobs = np.unique(hall.tasks.job_of_gpu[gpus & hall.chips.software_thermal])
    slower = hall.tasks.step_seconds[jobs] / sound.tasks.step_seconds[jobs]
    assert slower.min() > 1
    assert slower.mean() > 1.1


def test_without_the_coupling_by_coolant_a_worn_pump_heats_no_gpu() -> None:
    hall, sound = _hall(), _hall()
    hall.cuts.add("coolant")
    sound.cuts.add("coolant")
    _strike(hall, "pump-efficiency", 0.85, 200)
    sound.advance(200)
    assert np.array_equal(hall.chips.die_celsius, sound.chips.die_celsius)
    assert not hall.chips.software_thermal.any()
    coupled = _hall()
    _strike(coupled, "pump-efficiency", 0.85, 200)
    assert coupled.chips.software_thermal.any()


def test_without_the_coupling_by_coolant_warm_water_heats_no_gpu() -> None:
    hall, sound = _hall(), _hall()
    hall.cuts.add("coolant")
    sound.cuts.add("coolant")
    _strike(hall, "facility-supply", 20.0, 200)
    sound.advance(200)
    assert np.array_equal(hall.chips.die_celsius, sound.chips.die_celsius)


def test_without_the_coupling_by_throttle_a_hot_gpu_slows_no_job() -> None:
    hall, sound = _hall(), _hall()
    hall.cuts.add("throttle")
    sound.cuts.add("throttle")
    _strike(hall, "pump-efficiency", 0.85, 200)
    sound.advance(200)
    assert hall.chips.software_thermal.any()
    assert np.array_equal(hall.tasks.step_seconds, sound.tasks.step_seconds)


def test_without_the_coupling_by_network_a_dirty_optic_slows_no_job() -> None:
    hall, sound = _hall(), _hall()
    hall.cuts.add("network")
    sound.cuts.add("network")
    port = _strike(hall, "optic-attenuation", 6.5, 120).index
    sound.advance(120)
    assert hall.network.delay_us[port] > 50
    assert np.array_equal(hall.tasks.step_seconds, sound.tasks.step_seconds)


def test_without_the_coupling_by_jobs_a_lost_gpu_stops_none() -> None:
    hall = _hall()
    hall.cuts.add("jobs")
    gpu = _strike(hall, "gpu-presence", 20.0, 180).index
    assert not hall.gpu_up[gpu]
    assert hall.tasks.running.all()


def test_a_fouled_plate_heats_its_host_alone() -> None:
    hall, sound = _hall(), _hall()
    host = _strike(hall, "plate-fouling", 0.85, 200).index
    sound.advance(200)
    hotter = (hall.chips.die_celsius - sound.chips.die_celsius).reshape(-1, GPUS_PER_HOST).mean(axis=1)
    assert hotter[host] > 5
    assert np.delete(hotter, host).max() < 2


def test_a_dirty_optic_delays_its_path_and_the_collectives_of_its_job() -> None:
    hall, sound = _hall(), _hall()
    port = _strike(hall, "optic-attenuation", 6.5, 120).index
    sound.advance(120)
    job = hall.tasks.job_of_gpu[port]
    assert hall.network.delay_us[port] > 50
    assert hall.network.symbol_errors[port] > sound.network.symbol_errors[port] + 100
    assert hall.tasks.collective_ratio[job] > 1.5 * sound.tasks.collective_ratio[job]


def test_a_capped_rack_is_slow_and_not_hot() -> None:
    hall, sound = _hall(), _hall()
    rack = _strike(hall, "rack-power-cap", 0.4, 60).index
    sound.advance(60)
    gpus = np.repeat(hall.site.rack_of_host == rack, GPUS_PER_HOST)
    assert hall.chips.braked[gpus].all()
    assert not hall.chips.braked[~gpus].any()
    assert hall.chips.die_celsius[gpus].mean() < sound.chips.die_celsius[gpus].mean()


def test_wear_goes_from_corrected_errors_to_the_end_of_the_job() -> None:
    hall = _hall()
    gpu = _strike(hall, "hbm-wear", 3.0, 120).index
    codes = [event.row["code"] for event in hall.take_happened() if event.row.get("event") == "xid"]
    assert codes == [63, 64, 95]
    assert not hall.tasks.running[hall.tasks.job_of_gpu[gpu]]
    assert hall.uncorrected_errors[gpu] == 1


def test_a_gpu_falls_off_after_errors_on_its_bus_and_stops_its_job() -> None:
    hall = _hall()
    gpu = _strike(hall, "gpu-presence", 20.0, 180).index
    told = [(event.row["event"], event.row.get("code")) for event in hall.take_happened()]
    assert told.index(("pcie_aer", None)) < told.index(("xid", 79))
    assert not hall.gpu_up[gpu]
    assert not hall.tasks.running[hall.tasks.job_of_gpu[gpu]]


def test_a_leak_is_sensed_shuts_its_rack_and_takes_its_hosts_off() -> None:
    hall = _hall()
    rack = _strike(hall, "leak-rate", 2.0, 40).index
    events = [event.row["event"] for event in hall.take_happened() if event.stream == "coolant_events"]
    assert events == ["leak_changed", "valve_changed"]
    assert not hall.host_up[hall.site.rack_of_host == rack].any()
    HANDLES["leak-rate"].end(hall, Target(kind="rack", entity=hall.site.racks[rack], index=rack), 2.0)
    hall.advance(120)
    assert hall.host_up.all()


def test_warm_facility_water_warms_every_loop_alike() -> None:
    hall, sound = _hall(1_024), _hall(1_024)
    _strike(hall, "facility-supply", 18.0, 400)
    sound.advance(400)
    assert (hall.loops.supply_celsius - sound.loops.supply_celsius > 3).all()


def test_a_flapping_link_tells_of_each_loss() -> None:
    hall = _hall()
    port = _strike(hall, "link-flap", 30.0, 100)
    downs = [e for e in hall.take_happened() if e.row["event"] == "link_down"]
    assert len(downs) >= 3
    assert {e.row["port_id"] for e in downs} == {hall.site.ports[port.index]}
    assert {e.key for e in downs} == {hall.site.hosts[port.index // PORTS_PER_HOST]}


def test_a_host_that_restarts_has_another_boot_id_and_its_job_waits() -> None:
    hall = _hall()
    target = next(t for t in hall.targets(HANDLES["boot-unplanned"]) if hall.tasks.busy[8 * t.index])
    before = hall.trust.boot_ids[target.index]
    _strike(hall, "boot-unplanned", 1.0, 30, target)
    assert not hall.host_up[target.index]
    hall.advance(90)
    assert hall.host_up[target.index]
    assert hall.trust.boot_ids[target.index] != before
    gpus = slice(8 * target.index, 8 * target.index + 8)
    assert (hall.chips.energy_joules[gpus] < 120 * 1_200).all(), "the driver counts from its loading on"


@pytest.mark.parametrize("name", sorted(HANDLES))
def test_every_handle_finds_targets_and_can_be_begun_held_and_ended(name: str) -> None:
    hall, handle = _hall(), HANDLES[name]
    targets = hall.targets(handle)
    assert targets, "no hall of 512 GPUs has what this handle moves"
    magnitude = handle.draw(np.random.default_rng(1))
    assert handle.low <= magnitude <= handle.high
    _strike(hall, name, magnitude, 5, targets[-1])
    handle.end(hall, targets[-1], magnitude, 5.0)
    hall.advance(5)
    assert np.isfinite(hall.chips.die_celsius).all()
