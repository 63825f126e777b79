"""A plan is a believable hall, the same for the same seed."""

import re

import pytest
import yaml

from twin.plan import draw_plan, inventory_yaml


def test_the_same_seed_draws_the_same_hall_and_another_seed_another():
    assert draw_plan(seed=3) == draw_plan(seed=3)
    assert draw_plan(seed=3).gpus[0].uuid != draw_plan(seed=4).gpus[0].uuid


def test_identities_have_their_real_shape_and_are_unique():
    plan = draw_plan(hosts=70, seed=1)
    uuids = [gpu.uuid for gpu in plan.gpus]
    guids = [nic.guid for host in plan.hosts for nic in host.nics]
    names = [host.name for host in plan.hosts]
    assert len(set(uuids)) == 70 * 8
    assert len(set(guids)) == 70 * 8
    assert len(set(names)) == 70
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid) for uuid in uuids)
    assert all(re.fullmatch(r"0x[0-9a-f]{16}", guid) for guid in guids)
    assert all(re.fullmatch(r"h100-[a-z]+\d\d-\d\d", name) for name in names)
    assert plan.gpus[0].pci_bus_id == "00000000:53:00.0"


@pytest.mark.parametrize("hosts", [1, 2, 5, 8, 33])
def test_every_host_belongs_to_exactly_one_job(hosts):
    jobs = draw_plan(hosts=hosts, seed=2).jobs
    assert sorted(host for job in jobs for host in job.hosts) == list(range(hosts))


@pytest.mark.parametrize("seed", range(5))
def test_a_hall_of_eight_has_several_jobs_and_an_idle_host(seed):
    jobs = draw_plan(seed=seed).jobs
    assert sum(job.running for job in jobs) >= 3
    assert sum(len(job.hosts) for job in jobs if not job.running) == 1


def test_the_inventory_maps_every_rack_to_its_cdu_and_every_gpu_to_its_host():
    plan = draw_plan(seed=5)
    inventory = yaml.safe_load(inventory_yaml(plan))
    racks = [rack for row in inventory["rows"] for rack in row["racks"]]
    hosts = [host for rack in racks for host in rack["hosts"]]
    assert (inventory["hall"], inventory["synthetic"]) == ("demo", True)
    assert inventory["cdus"] == [{"cdu": "cdu-1"}, {"cdu": "cdu-2"}]
    assert [(rack["rack"], rack["cdu"]) for rack in racks] == [("a01", "cdu-1"), ("a02", "cdu-2")]
    assert [host["host"] for host in hosts] == [host.name for host in plan.hosts]
    assert [gpu["uuid"] for host in hosts for gpu in host["gpus"]] == [gpu.uuid for gpu in plan.gpus]
    assert hosts[0]["gpus"][1] == {
        "index": 1,
        "uuid": plan.gpus[1].uuid,
        "pci_bus_id": "00000000:64:00.0",
        "model": "NVIDIA H100 80GB HBM3",
    }
    assert hosts[0]["nics"][0] == {
        "nic": "mlx5_0",
        "guid": plan.hosts[0].nics[0].guid,
        "speed_gbps": 400,
        "width": 4,
        "rail": 0,
        "leaf": "leaf-1",
    }
    assert [nic["leaf"] for nic in hosts[0]["nics"]] == ["leaf-1"] * 4 + ["leaf-2"] * 4
    assert [(loop["loop"], loop["cdu"]) for loop in inventory["loops"]] == [
        ("loop-cdu-1", "cdu-1"),
        ("loop-cdu-2", "cdu-2"),
    ]


def test_rows_are_lettered_past_z():
    plan = draw_plan(hosts=27 * 8 * 4, gpus_per_host=1, seed=0)
    assert (plan.hosts[0].row, plan.hosts[26 * 32 - 1].row, plan.hosts[-1].row) == ("a", "z", "aa")


def test_a_host_with_more_gpus_than_the_board_has_places_is_refused():
    with pytest.raises(ValueError, match="1 to 8 GPUs"):
        draw_plan(gpus_per_host=9)
