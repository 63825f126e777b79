"""Live = replay: however what was read is cut into batches, and wherever the state was written down and read back,
the transitions are the same, down to the byte.
"""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.chain import GENESIS, Chain
from alerts.evaluator import Evaluator
from alerts.state import pack, unpack
from alerts.testing import Feed, absence_text, in_order, rule_text, rules_of
from alerts.watcher import Tick
from contract.bus import Message
from contract.testing import START_US

COUNT = {"rule": "xid", "kind": "event_count", "on": "gpu_events", "within": "20s", "expires": "15s"}
UNLISTED = rule_text(rule="unknown", kind="unlisted", expect="gpu", after="5s", expires="30s")
del UNLISTED["when"]
RULES = rules_of(
    rule_text(for_="4s", min_duty=0.6, clear="temperature_margin_celsius > 3", keep_firing="2s"),
    rule_text(rule="strict", for_="3s"),
    rule_text(rule="now", when="power_watts > 600"),
    rule_text(rule="throws", when="CAST(model AS INTEGER) > 3"),
    rule_text(**COUNT, when="code = 79", count=2, burst_by=["code"], burst_gap="1s"),
    absence_text(rule="gpu-lost", expect="gpu", on="gpu_samples", after="6s"),
    absence_text(rule="host-silent", expect="host", on="gpu_samples", after="5s"),
    absence_text(rule="collector-silent", expect="source", after="12s", expires="20s"),
    absence_text(rule="bus-silent", expect="bus", after="8s"),
    UNLISTED,
)
GPUS = ("GPU-1", "GPU-2", "GPU-3")


def story(seed, seconds=45):
    """Draw three quarters of a minute of a small hall: samples with noise, gaps and late rows, Xids, status, inventory changes."""
    draw = random.Random(seed)
    feed = Feed()
    rows = [feed.asset(0, "h1", "host", None), *(feed.asset(0, gpu, "gpu", "h1") for gpu in GPUS[:2])]
    hot = {gpu: draw.random() < 0.5 for gpu in GPUS}
    gone = draw.choice([None, *GPUS])  # from 5 to 20 s
    for at in range(seconds):
        if draw.random() < 0.1 or (seed % 3 == 0 and 25 < at < 36):
            continue
        for gpu in GPUS:
            if draw.random() < 0.1:
                hot[gpu] = not hot[gpu]
            if (
                draw.random() < 0.85
                and not (gpu == gone and 5 < at < 20)
                and not (seed % 3 == 1 and 20 < at < 35)
            ):
                margin = (
                    draw.choice([-1.0, 0.0, 2.0, 9.0, None])
                    if draw.random() < 0.3
                    else (-1.0 if hot[gpu] else 9.0)
                )
                model = "H100" if draw.random() < 0.05 else "5"
                columns = {"temperature_margin_celsius": margin, "power_watts": draw.choice([100.0, 700.0])}
                ahead = draw.choice([0, 0, 0, -3, 90])
                rows.append(feed.gpu(at + draw.random(), gpu, ahead=ahead, model=model, **columns))
        if draw.random() < 0.1:
            rows.append(feed.event(at + draw.random(), draw.choice([79, 13]), draw.choice(GPUS)))
        if at % 3 == 0:
            source = "c@h1/0" if seed % 3 or at < 10 or at > 30 else "c@h1/1"
            rows.append(feed.status(at + draw.random(), source, "h1", draw.choice(["working", "failing"])))
        if draw.random() < 0.03:
            rows.append(
                feed.asset(
                    at + draw.random(), draw.choice(GPUS), "gpu", "h1", draw.choice(["active", "retired"])
                )
            )
    return in_order(rows)


def play(messages, cut, *, restart_every=0):
    """Apply messages with a tick at every whole second; `cut` says whether to end a batch after each message."""
    evaluator = Evaluator(RULES, "demo")
    chain = Chain("c", "demo", synthetic=False, index=0, head=GENESIS)
    found, batch, number = [], list[Message](), 0
    second = 0

    def end_batch(tick):
        nonlocal batch, number, evaluator
        found.extend(chain.extend(evaluator.apply(batch, tick), RULES.digest))
        batch, number = [], number + 1
        if restart_every and number % restart_every == 0:
            saved = unpack(pack(evaluator.dump()))
            evaluator = Evaluator(RULES, "demo")
            evaluator.load(saved)

    for message in messages:
        while message.received_us > START_US + second * 1_000_000:
            end_batch(Tick(now_us=START_US + second * 1_000_000, behind={}))
            second += 1
        batch.append(message)
        if cut():
            end_batch(None)
    for later in range(second, second + 25):
        end_batch(Tick(now_us=START_US + later * 1_000_000, behind={}))
    return found


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([0, 9, 25]))
def test_cuts_and_restarts_change_nothing(seed, cuts, restart_every) -> None:
    messages = story(seed)
    whole = play(messages, lambda: False)
    draw = random.Random(cuts)
    cut = play(messages, lambda: draw.random() < 0.4, restart_every=restart_every)
    assert [t.body for t in cut] == [t.body for t in whole]
    assert [t.hash for t in cut] == [t.hash for t in whole]


def test_the_stories_are_worth_telling() -> None:
    """Every rule both fires and ends in some of them, so the property above means something."""
    seen = set()
    for seed in range(9):
        for transition in play(story(seed), lambda: False):
            row = transition.row()
            seen.add((row["rule"], row["transition"]))
    wanted = {(rule.rule, what) for rule in RULES.rules for what in ("firing", "ended")}
    assert wanted | {("rule-failing", "firing")} <= seen
