"""The log of a host reads like a real one, and says what happened to the host."""

import re

import pytest

from twin.plan import DRIVER_VERSION, draw_plan
from twin.run import Twin
from twin.scenario import Injection, Scenario, draw_demo_scenario
from twin.syslog import NOISE, pci

START_US = 1_780_272_000_000_000
PLAN = draw_plan(hosts=2, seed=21)
HOST = PLAN.hosts[0]
GPU = HOST.gpus[2]
LINE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00) (\S+) ([^:]+): (?:\[ *\d+\.\d{6}\] )?(.*)")


def play(name, seconds, **magnitude):
    """Return what a host logs after its boot while one thing happens to its third GPU or card in the second second."""
    what = Injection(name=name, host=HOST.name, gpu_index=2, onset_seconds=2.0, magnitude=magnitude)
    twin = Twin(PLAN, Scenario(injections=(what,)), start_us=START_US)
    twin.take_log(HOST.name)
    for _ in range(seconds):
        twin.step(1.0)
    matches = [LINE.fullmatch(line) for line in twin.take_log(HOST.name)]
    noise = [(message.tag, message.text) for message in NOISE]
    return [
        (match[1], match[3], match[4]) for match in matches if match and (match[3], match[4]) not in noise
    ]


def test_a_log_begins_with_the_boot_days_ago():
    twin = Twin(PLAN, Scenario(injections=()), start_us=START_US)
    lines = twin.take_log(0)
    assert all(LINE.fullmatch(line) for line in lines)
    assert all(line < "2026-05-30" for line in lines)
    assert (
        sum(f"NVRM: GPU at PCI:{pci(gpu.pci_bus_id)}: {gpu.uuid}" in "\n".join(lines) for gpu in HOST.gpus)
        == 8
    )
    assert any(DRIVER_VERSION in line for line in lines)
    assert twin.take_log(0) == []


def test_a_gpu_off_the_bus_is_told_as_the_driver_tells_it():
    lines = play("xid79", 5)
    assert {tag for _, tag, _ in lines} == {"kernel"}
    assert lines[0][0] == "2026-06-01T00:00:02.000000+00:00"
    texts = [text for _, _, text in lines]
    bus = pci(GPU.pci_bus_id)
    assert (
        texts[0] == f"NVRM: Xid (PCI:{bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )
    assert texts[1] == f"NVRM: GPU {bus}.0: GPU has fallen off the bus."
    assert texts[-1].startswith(f"NVRM: Xid (PCI:{bus}): 154, ")
    assert [at for at, _, _ in lines] == sorted({at for at, _, _ in lines})


def test_a_failed_link_is_in_the_log_and_its_code_is_hidden_on_the_page():
    texts = [text for _, _, text in play("nvlink", 5, link=8.0)]
    assert ": 74, " in texts[0]
    assert "fatal error detected on link 8(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)" in texts[0]
    assert ": 154, " in texts[1]
    assert len(texts) == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [("nic", ["health compromised"]), ("nic-notices", ["sufficient power (75W)", "Cable plugged"])],
)
def test_what_happens_to_a_network_card_names_its_address(name, words):
    texts = [text for _, _, text in play(name, 5)]
    assert len(texts) == len(words)
    for text, word in zip(texts, words, strict=True):
        assert text.startswith(f"mlx5_core {HOST.nics[2].pci_bus_id}: ")
        assert word in text


def test_a_forged_line_is_the_drivers_word_for_word_under_the_tag_of_a_program():
    ((_, tag, forged),) = play("forged-xid", 5)
    ((_, _, real), *_) = play("xid79", 5)
    assert forged == real
    assert tag != "kernel"


def test_a_quiet_host_says_something_now_and_then():
    twin = Twin(PLAN, Scenario(injections=()), start_us=START_US)
    twin.take_log(0)
    for _ in range(200):
        twin.step(1.0)
    lines = twin.take_log(0)
    assert 2 <= len(lines) <= 25
    assert len({line.split(" ", 2)[2].rpartition("] ")[2] for line in lines}) >= 2


def test_two_runs_of_one_seed_write_the_same_lines():
    plan = draw_plan(seed=2)
    first, second = (Twin(plan, draw_demo_scenario(plan, 2, devices=False), start_us=7) for _ in range(2))
    for _ in range(40):
        first.step(1.0)
        second.step(1.0)
    assert [first.take_log(number) for number in range(8)] == [second.take_log(number) for number in range(8)]
