"""A demo scenario gives every fault enough time in a run of 75 seconds, whatever the seed."""

from typing import Any

import numpy as np
import pytest

from twin.plan import draw_plan
from twin.run import Twin
from twin.scenario import draw_demo_scenario

RUN_SECONDS = 75


@pytest.mark.parametrize("seed", range(12))
def test_all_effects_of_a_demo_are_held_long_enough(seed):
    plan = draw_plan(seed=seed)
    scenario = draw_demo_scenario(plan, seed, devices=False)
    twin = Twin(plan, scenario, start_us=0)
    hot = next(number for number, gpu in enumerate(plan.gpus) if gpu.uuid == twin.labels[0]["entity"])
    margins = []
    for _ in range(RUN_SECONDS):
        twin.step(1.0)
        margins.append(twin.readings["margin_celsius"])
    table = np.array(margins)
    assert (table[:, hot] <= 0).sum() >= 55
    assert np.delete(table, hot, axis=1).min() > 10
    labels: list[dict[str, Any]] = twin.labels
    held = {label["name"]: RUN_SECONDS - label["shown_us"] / 1e6 for label in labels}
    assert held["xid79"] >= 54
    assert held["silent-host"] >= 59
    assert held["job-start"] >= 44
    assert held["nvlink"] >= 54
    assert held["nic"] >= 50
    ended = {label["name"]: label["ended_us"] for label in labels}
    assert ended.pop("exporter-restart") <= 52e6
    assert set(ended.values()) == {None}


@pytest.mark.parametrize("seed", range(12))
def test_a_demo_strikes_five_different_hosts(seed):
    plan = draw_plan(seed=seed)
    injections = draw_demo_scenario(plan, seed, devices=False).injections
    assert len({injection.host for injection in injections[:5]}) == 5
    assert [injection.name for injection in injections] == [
        "thermal",
        "silent-host",
        "xid79",
        "job-start",
        "exporter-restart",
        "nvlink",
        "nic",
        "nic-notices",
        "forged-xid",
    ]


def test_a_demo_is_the_same_for_the_same_seed_and_differs_between_seeds():
    plan = draw_plan(seed=1)
    assert draw_demo_scenario(plan, 5) == draw_demo_scenario(plan, 5)
    assert draw_demo_scenario(plan, 5) != draw_demo_scenario(plan, 6)


def test_a_hall_too_small_for_a_demo_says_so():
    with pytest.raises(ValueError, match="5 hosts or more"):
        draw_demo_scenario(draw_plan(hosts=4), 0)


def test_two_runs_of_one_seed_show_the_same_pages_and_labels():
    plan = draw_plan(seed=2)
    first, second = (Twin(plan, draw_demo_scenario(plan, 2, devices=False), start_us=7) for _ in range(2))
    for seconds in [1.0, 0.7, 1.3, *[1.0] * 40]:
        first.step(seconds)
        second.step(seconds)
    assert all(first.page(host.name) == second.page(host.name) for host in plan.hosts)
    assert first.labels == second.labels
