"""The absence kind: each silence is told once, at the highest thing that fell silent."""

import orjson
import pytest

from alerts.evaluator import Evaluator
from alerts.testing import Feed, absence_text, judge, rules_of, verdicts
from alerts.watcher import Tick
from contract.testing import START_US

RULES = rules_of(
    absence_text(rule="gpu-lost", expect="gpu", on="gpu_samples", after="60s"),
    absence_text(rule="host-silent", expect="host", on="gpu_samples", after="30s"),
    absence_text(rule="collector-silent", expect="source", after="60s"),
    absence_text(rule="bus-silent", expect="bus", after="60s"),
)


class Hall:
    """Two hosts of two GPUs, each with a collector; every part can be given the time when it stops."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.rows = []
        for host in ("h1", "h2"):
            self.rows.append(self.feed.asset(0, host, "host", None))
            self.rows += [self.feed.asset(0, gpu, "gpu", host) for gpu in self.gpus(host)]

    def gpus(self, host):
        return (f"{host}-GPU-0", f"{host}-GPU-1")

    def talk(self, start, end, *, without=(), failing=()):
        for host in ("h1", "h2"):
            source = f"gpu-dcgm@{host}/0"
            for at in range(start, end):
                for gpu in self.gpus(host):
                    if not {gpu, host, source, "bus"} & {*without, *failing}:
                        self.rows.append(self.feed.gpu(at, gpu, host=host))
                if at % 10 == 0 and source not in without and "bus" not in without:
                    state = "failing" if host in failing else "working"
                    error = {"last_error_reason": "timeout"} if host in failing else {}
                    self.rows.append(self.feed.status(at, source, host, state, **error))
        return self

    def judge(self, until=0):
        self.drafts = judge(Evaluator(RULES, "demo"), self.rows, until=until)
        return [
            (d.rule.rule, *verdict) for d, verdict in zip(self.drafts, verdicts(self.drafts), strict=True)
        ]


def test_a_hall_that_talks_is_quiet() -> None:
    assert Hall().talk(0, 300).judge() == []


def test_a_lost_gpu_is_lost_while_its_host_reports() -> None:
    hall = Hall().talk(0, 50).talk(50, 200, without=["h1-GPU-1"]).talk(200, 260)
    assert hall.judge() == [
        ("gpu-lost", 109, "firing", "h1-GPU-1", None),
        ("gpu-lost", 200, "ended", "h1-GPU-1", "cleared"),
    ]
    evidence = orjson.loads(hall.drafts[0].evidence)
    assert evidence["reason"] == "its host reports, this GPU does not"
    assert evidence["last_seen"] == "2026-06-01T00:00:49.000000Z"
    assert hall.drafts[0].host == "h1"


def test_a_silent_host_is_one_alert_and_none_for_its_gpus() -> None:
    hall = Hall().talk(0, 50).talk(50, 300, failing=["h1"])
    assert hall.judge() == [("host-silent", 80, "firing", "h1", None)]
    evidence = orjson.loads(hall.drafts[0].evidence)
    assert (evidence["collector_state"], evidence["last_error_reason"]) == ("failing", "timeout")


def test_a_silent_collector_is_one_alert_and_none_for_its_host() -> None:
    hall = Hall().talk(0, 50).talk(50, 300, without=["gpu-dcgm@h1/0"])
    assert hall.judge() == [("collector-silent", 100, "firing", "gpu-dcgm@h1/0", None)]
    assert hall.drafts[0].host == "h1"


def test_a_dead_bus_is_one_alert_and_none_for_anything_on_it() -> None:
    hall = Hall().talk(0, 50)
    assert hall.judge(until=1_000) == [("bus-silent", 109, "firing", "demo", None)]


def test_when_the_bus_comes_back_everybody_is_given_time_to_be_heard() -> None:
    hall = Hall().talk(0, 50).talk(600, 660)
    assert hall.judge() == [
        ("bus-silent", 109, "firing", "demo", None),
        ("bus-silent", 600, "ended", "demo", "cleared"),
    ]


def test_when_a_host_comes_back_its_gpus_are_given_time_and_then_missed() -> None:
    hall = Hall().talk(0, 50).talk(50, 300, failing=["h1"]).talk(300, 400, without=["h1-GPU-1"])
    assert hall.judge() == [
        ("host-silent", 80, "firing", "h1", None),
        ("host-silent", 300, "ended", "h1", "cleared"),
        ("gpu-lost", 360, "firing", "h1-GPU-1", None),
    ]


def test_an_unreadable_bus_is_told_with_its_reason() -> None:
    evaluator = Evaluator(RULES, "demo")
    judge(evaluator, Hall().talk(0, 20).rows)
    behind = {("gpu_samples", 0): START_US}
    now = Tick(now_us=START_US + 200_000_000, behind=behind)
    (draft,) = evaluator.apply([], now, error="the bus cannot be read: unreachable")
    assert draft.rule.rule == "bus-silent"
    assert orjson.loads(draft.evidence or "")["reason"] == "the bus cannot be read: unreachable"


def test_an_engine_that_is_behind_calls_nobody_silent() -> None:
    """What was not read yet may be what is missed."""
    evaluator = Evaluator(RULES, "demo")
    hall = Hall().talk(0, 20)
    judge(evaluator, hall.rows)
    rows = hall.feed.row
    other = [rows("collector_status", 300, source="x@h9/0", collector="x", epoch="e", state="working")]
    read_to = START_US + 20_000_000
    behind = {(s, p): read_to for s in ("gpu_samples", "collector_status") for p in range(24)}
    assert evaluator.apply(other, Tick(now_us=START_US + 301_000_000, behind=behind)) == []
    read_to_end = evaluator.apply([], Tick(now_us=START_US + 302_000_000, behind={}))
    assert read_to_end == []  # the bus was silent too, so everybody has time to be heard


@pytest.mark.parametrize("pace", [1, 5, 30])
def test_a_host_may_be_silent_for_three_of_its_own_intervals(pace) -> None:
    feed = Feed()
    rows = [feed.asset(0, "h1", "host", None)]
    rows += [feed.gpu(at, host="h1") for at in range(0, 121, pace)]
    rows += [feed.status(at, "c@h1/0", "h1") for at in range(0, 400, 10)]
    ruleset = rules_of(absence_text(rule="host-silent", expect="host", on="gpu_samples", after="30s"))
    found = verdicts(judge(Evaluator(ruleset, "demo"), rows))
    assert [at for at, *_ in found] == [120 + max(30, 3 * pace)]


def test_a_stopped_collector_is_told_and_given_up_in_the_end() -> None:
    feed = Feed()
    rows = [feed.status(at, "c@h1/0", "h1", "stopping" if at == 20 else "working") for at in (0, 10, 20)]
    rows += [feed.status(at, "c@h2/0", "h2") for at in range(0, 1000, 10)]
    ruleset = rules_of(absence_text(expect="source", after="60s", expires="600s"))
    drafts = judge(Evaluator(ruleset, "demo"), rows)
    assert verdicts(drafts) == [
        (80, "firing", "c@h1/0", None),
        (620, "ended", "c@h1/0", "expired"),
    ]
    assert orjson.loads(drafts[0].evidence or "")["reason"] == "it said that it stops"


def test_a_retired_host_ends_what_is_open_about_it_and_is_not_missed_again() -> None:
    hall = Hall().talk(0, 50).talk(50, 150, without=["gpu-dcgm@h1/0"])
    hall.rows.append(hall.feed.asset(150, "h1", "host", None, "retired"))
    hall.rows += [hall.feed.asset(150, gpu, "gpu", "h1", "retired") for gpu in hall.gpus("h1")]
    hall.talk(150, 400, without=["gpu-dcgm@h1/0"])
    assert hall.judge() == [
        ("collector-silent", 100, "firing", "gpu-dcgm@h1/0", None),
        ("collector-silent", 150, "ended", "gpu-dcgm@h1/0", "superseded"),
    ]


def test_a_listed_gpu_that_was_never_seen_counts_from_when_it_was_listed() -> None:
    hall = Hall().talk(0, 300)
    hall.rows.append(hall.feed.asset(100, "h1-GPU-9", "gpu", "h1"))
    assert hall.judge() == [("gpu-lost", 160, "firing", "h1-GPU-9", None)]


def test_a_collector_of_another_stream_does_not_speak_for_the_host() -> None:
    """Its own collector is dead: the host is not blamed because some other collector on it still talks."""
    feed = Feed()
    rows = [feed.asset(0, "h1", "host", None)]
    rows += [feed.gpu(at, host="h1") for at in range(20)]
    own, other = '{"gpu_samples": 9}', '{"gpu_links": 9}'
    rows += [feed.status(at, "gpu@h1/0", "h1", last_sequences=own) for at in (0, 10)]
    rows += [feed.status(at, "link@h1/0", "h1", last_sequences=other) for at in range(0, 300, 10)]
    ruleset = rules_of(absence_text(expect="host", on="gpu_samples", after="30s"))
    assert judge(Evaluator(ruleset, "demo"), rows) == []
