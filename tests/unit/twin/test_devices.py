"""What stands beside the GPUs is coupled to them, and shows itself as the real devices do."""

import pytest

from twin.devices import Devices
from twin.hall import Hall
from twin.plan import draw_plan
from twin.run import Twin
from twin.scenario import Injection, Scenario

HOSTS = 4


@pytest.fixture
def plan():
    return draw_plan(hosts=HOSTS, seed=4)


def make_twin(plan, folder, *injections):
    return Twin(plan, Scenario(injections=injections), start_us=1_780_000_000_000_000, folder=folder)


def unit(twin):
    return twin.hall.devices.cdus[twin.plan.hosts[0].cdu]


def test_a_hall_opens_with_its_units_in_balance(plan, tmp_path):
    twin = make_twin(plan, tmp_path)
    for _ in range(20):
        twin.step(1.0)
    assert unit(twin).removed_kilowatts == pytest.approx(unit(twin).heat_kilowatts, rel=0.08)
    assert unit(twin).heat_kilowatts > HOSTS * 8 * 0.07
    assert twin.hall.plate.max() == pytest.approx(1.0, abs=0.02)


def test_a_pump_that_fails_starves_every_plate_behind_it(plan, tmp_path):
    healthy, failed = (make_twin(plan, tmp_path / name) for name in ("healthy", "failed"))
    for pump in (1, 2):
        unit(failed).degrade_pump(pump, 0.2)
    for _ in range(60):
        healthy.step(1.0)
        failed.step(1.0)
    hotter = failed.hall.die_celsius - healthy.hall.die_celsius
    running = healthy.hall.activity.running
    assert hotter[running].min() > 3
    assert hotter.min() > 0


def test_each_host_proves_itself_again_and_again_with_a_nonce_of_its_own(plan, tmp_path):
    twin = make_twin(plan, tmp_path)
    for _ in range(35):
        twin.step(1.0)
    proofs = [sorted((tmp_path / "evidence" / host.name).glob("*.evidence")) for host in plan.hosts]
    assert {len(files) for files in proofs} <= {2, 3}
    assert len({file.read_bytes() for files in proofs for file in files}) == sum(map(len, proofs))
    assert not list((tmp_path / "evidence").rglob("*.part"))


def test_ports_count_what_jobs_send_and_a_cut_one_counts_nothing(plan, tmp_path):
    host = plan.hosts[0]
    twin = make_twin(
        plan, tmp_path, Injection(name="link-down", host=host.name, onset_seconds=5, gpu_index=1)
    )
    counters = tmp_path / "hosts" / host.name / "sys" / "class/infiniband"

    def sent():
        return [int((counters / f"mlx5_{n}/ports/1/counters/port_xmit_data").read_text()) for n in range(2)]

    for _ in range(10):
        twin.step(1.0)
    before = sent()
    for _ in range(20):
        twin.step(1.0)
    after = sent()
    assert after[0] > before[0]
    assert after[1] == before[1]
    assert (counters / "mlx5_1/ports/1/state").read_text() == "1: DOWN\n"


def test_a_hall_of_gpus_alone_cannot_leak(plan):
    twin = Twin(
        plan,
        Scenario(injections=(Injection(name="leak", host=plan.hosts[0].name, onset_seconds=0),)),
        start_us=0,
    )
    with pytest.raises(ValueError, match="nothing but GPUs"):
        twin.step(1.0)


def test_the_same_hall_is_drawn_with_and_without_devices(plan, tmp_path):
    alone, whole = Hall(plan), Hall(plan)
    whole.devices = Devices(plan, whole, tmp_path, 0)
    assert (alone.die_celsius == whole.die_celsius).all()
