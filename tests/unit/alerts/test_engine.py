"""The engine: what it journals, what it tells, and how it comes back from every kind of end."""

import sqlite3
import threading
from typing import Any

import orjson
import pytest

from alerts.chain import verify_chain
from alerts.engine import Engine, EngineOptions, current_alerts, signed_heads, verify_journal
from alerts.intake import Intake
from alerts.journal import Journal
from alerts.notifier import build_notifiers
from alerts.testing import absence_text, rule_text, rules_of
from contract.bus import Record, TopicPartition
from contract.bus.local import LocalBus
from contract.bus.testing import MemoryBus
from contract.codec import encode_columns, headers_of
from contract.config import Config, EngineSection, HallSection
from contract.errors import ConfigError, LogReplaced, LogTruncated, StoreError, TransportError
from contract.metrics import Metrics
from contract.reader import read_batch
from contract.streams import STREAMS
from contract.streams.alerts import ALERTS, NOTIFICATIONS
from contract.testing import FakeClock

HOT = rule_text(for_="5s", clear="temperature_margin_celsius > 3")
SILENT = absence_text(rule="bus-silent", expect="bus", after="30s")


class Hall:
    """A bus with one GPU, and an engine that can be ended in any way."""

    def __init__(self, folder, *texts, bus=None):
        self.clock = FakeClock()
        self.bus = bus or MemoryBus(self.clock)
        self.folder = folder
        self.rules = rules_of(*(texts or (HOT,)))
        self.bus.ensure_topics([*STREAMS.values()])
        self.sequence = -1
        self.engine: Any = None

    def start(self, notifiers=(), **changes):
        notifiers = build_notifiers(notifiers)
        options = EngineOptions(folder=self.folder, hall="demo", fsync=False, **changes)
        self.engine = Engine(options, self.bus, self.rules, notifiers, clock=self.clock)
        self.engine.step()
        return self

    def send(self, stream="gpu_samples", sequence=None, **columns):
        declared = STREAMS[stream]
        self.sequence += 1
        values = {"ts": self.clock.now_us(), "synthetic": False, "host": "h1"} | columns
        body = encode_columns(declared, {name: [value] for name, value in values.items()})
        number = self.sequence if sequence is None else sequence
        record = Record("h1", headers_of(declared, "c@h1/0", "e1", number), body)
        self.bus.append(declared.topic, declared.partition_of(str(values.get(declared.key, ""))), record)

    def samples(self, seconds, margin):
        for _ in range(seconds):
            self.clock.advance(1)
            self.send(gpu_uuid="GPU-1", temperature_margin_celsius=margin)
            self.engine.step()
        return self

    def wait(self, seconds):
        for _ in range(seconds):
            self.clock.advance(1)
            self.engine.step()
        return self

    def crash(self):
        """End as kill -9 does: nothing is saved, nothing is told."""
        self.engine._intake.close()
        self.engine._lock.release()
        return self

    def close(self):
        self.engine.close()
        return self

    def history(self):
        return [
            (row["rule"], row["transition"], row["end_reason"])
            for row in (dict.fromkeys(["end_reason"]) | t for t in current_alerts(self.folder).history[::-1])
        ]

    def read(self, stream):
        messages = self.bus.topics[stream.topic].messages[0]
        return read_batch(stream, messages, {}).table.to_pylist()


def test_a_transition_is_journaled_published_told_and_reported(tmp_path, capsys) -> None:
    hall = Hall(tmp_path).start(notifiers=[{"notifier": "stdout"}]).samples(7, -1.0).samples(2, 9.0)
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]
    on_bus = hall.read(ALERTS)
    assert [row["transition"] for row in on_bus] == ["firing", "ended"]
    chain = hall.engine._journal.chain
    heads = signed_heads(tmp_path)
    assert verify_chain([row | {"_epoch": chain} for row in on_bus], hall.engine.public_key, heads) == []
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[1] for line in printed] == ["FIRING", "ended (cleared)"]
    told = hall.read(NOTIFICATIONS)
    assert [(row["outbox_id"], row["outcome"], row["attempts"]) for row in told] == [
        (0, "delivered", 1),
        (1, "delivered", 1),
    ]
    assert [row["idempotency_key"] for row in told] == [f"{chain}/0/stdout", f"{chain}/1/stdout"]
    hall.close()


def test_topology_is_read_from_its_beginning_and_the_rest_from_the_end(tmp_path) -> None:
    hall = Hall(tmp_path, rule_text())
    hall.send("inventory", hall="demo", asset="h1", kind="host", state="active", version="v")
    hall.send(gpu_uuid="GPU-1", temperature_margin_celsius=-1.0)
    hall.start()
    assert hall.engine._evaluator.counts["rows", "inventory"] == 1
    assert hall.history() == []
    hall.samples(1, -1.0).close()
    assert hall.history() == [("hot", "firing", None)]


def test_alerts_and_notifications_are_never_read(tmp_path) -> None:
    hall = Hall(tmp_path, HOT, SILENT).start()
    topics = {partition.topic for partition in hall.engine._intake._partitions}
    assert not topics & {ALERTS.topic, NOTIFICATIONS.topic, STREAMS["dead_letters"].topic}
    hall.close()


@pytest.mark.parametrize("end", ["crash", "close"])
@pytest.mark.parametrize("seconds", range(8))
def test_a_restart_at_any_moment_changes_nothing(tmp_path, seconds, end) -> None:
    """Also in the middle of pending: what was counted is still counted."""
    hall = Hall(tmp_path).start().samples(seconds, -1.0)
    getattr(hall, end)()
    hall.start().samples(8 - seconds, -1.0).samples(2, 9.0).close()
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]
    firing = current_alerts(tmp_path).history[1]
    assert firing["ts"] - firing["began"] == 5_000_000
    assert [row["chain_index"] for row in hall.read(ALERTS)] == [0, 1]


def test_what_was_sent_while_the_engine_was_down_is_judged_when_it_is_back(tmp_path) -> None:
    hall = Hall(tmp_path).start().samples(2, -1.0).crash()
    for _ in range(6):
        hall.clock.advance(1)
        hall.send(gpu_uuid="GPU-1", temperature_margin_celsius=-1.0)
    hall.start().close()
    assert hall.history() == [("hot", "firing", None)]


def test_a_clean_end_leaves_nothing_to_replay(tmp_path) -> None:
    hall = Hall(tmp_path).start().samples(9, -1.0).close()
    for partition in range(STREAMS["gpu_samples"].partitions):
        end = len(hall.bus.topics[STREAMS["gpu_samples"].topic].messages[partition])
        hall.bus.truncate(STREAMS["gpu_samples"].topic, partition, end)
    hall.start().samples(1, 9.0).close()
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]


def test_snapshots_bound_what_a_crash_replays(tmp_path) -> None:
    hall = Hall(tmp_path).start(snapshot_batches=5).samples(23, -1.0).crash()
    journal = Journal(tmp_path)
    found = journal.latest_snapshot()
    assert found is not None
    snapshot, _ = found
    assert snapshot == 20
    assert [record.number for record in journal.batches_after(0)] == list(range(15, 25))
    assert len(list(journal.batches_after(snapshot))) == 4
    journal.close()
    hall.start().samples(1, 9.0).close()
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]


def test_a_repeated_event_counts_once(tmp_path) -> None:
    count = rule_text(kind="event_count", on="gpu_events", when="code = 79", count=2, expires="1h")
    hall = Hall(tmp_path, count).start()
    for _ in range(5):
        hall.send("gpu_events", sequence=7, event="xid", evidence="kernel_log", code=79, gpu_uuid="GPU-1")
        hall.engine.step()
    assert hall.history() == []
    assert hall.engine._evaluator.counts["repeats", "gpu_events"] == 4
    hall.crash().start()
    hall.send("gpu_events", sequence=7, event="xid", evidence="kernel_log", code=79, gpu_uuid="GPU-1")
    hall.engine.step()
    assert hall.history() == []
    hall.close()


def test_an_alert_of_a_rule_that_is_no_more_is_superseded(tmp_path) -> None:
    hall = Hall(tmp_path, HOT, rule_text(rule="other")).start().samples(6, -1.0).crash()
    hall.rules = rules_of(rule_text(rule="other"))
    hall.start()
    assert hall.history() == [
        ("other", "firing", None),
        ("hot", "firing", None),
        ("hot", "ended", "superseded"),
    ]
    hall.crash().start().wait(3).close()
    assert [t["rules_digest"] == hall.rules.digest for t in current_alerts(tmp_path).history] == [
        True,
        False,
        False,
    ]


def test_a_changed_rule_keeps_its_alerts_and_judges_anew(tmp_path) -> None:
    hall = Hall(tmp_path).start().samples(6, -1.0).crash()
    hall.rules = rules_of(HOT | {"clear": "temperature_margin_celsius > 20"})
    hall.start().samples(2, 9.0)
    assert hall.history() == [("hot", "firing", None)]
    hall.samples(1, 21.0).close()
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]


def test_a_rule_that_reads_another_stream_starts_at_its_end(tmp_path) -> None:
    hall = Hall(tmp_path).start().samples(1, 9.0)
    hall.send("gpu_events", event="xid", evidence="kernel_log", code=79, gpu_uuid="GPU-1")
    hall.close()
    xid = rule_text(rule="xid", kind="event_count", on="gpu_events", when="code = 79", expires="1h")
    hall.rules = rules_of(HOT, xid)
    hall.start().wait(2)
    assert hall.history() == []
    hall.send("gpu_events", event="xid", evidence="kernel_log", code=79, gpu_uuid="GPU-1")
    hall.wait(1).close()
    assert hall.history() == [("xid", "firing", None)]


def test_a_second_engine_on_the_same_journal_does_not_start(tmp_path) -> None:
    hall = Hall(tmp_path).start()
    with pytest.raises(ConfigError, match="another engine") as caught:
        Hall(tmp_path, bus=hall.bus).start()
    assert caught.value.reason == "in_use"
    hall.close()


def test_a_journal_of_another_hall_is_refused(tmp_path) -> None:
    Hall(tmp_path).start().close()
    hall = Hall(tmp_path)
    with pytest.raises(ConfigError, match="journal of hall 'demo', not of 'other'"):
        Engine(EngineOptions(folder=tmp_path, hall="other"), hall.bus, hall.rules, clock=hall.clock)


def test_a_signing_key_that_is_gone_stops_the_engine(tmp_path) -> None:
    """Another key would make every head signed before look forged."""
    hall = Hall(tmp_path).start().close()
    (tmp_path / "chain.key").unlink()
    with pytest.raises(StoreError, match="the signing key cannot be used"):
        hall.start()


def test_a_new_chain_goes_on_from_the_newest_transition_on_the_bus(tmp_path) -> None:
    hall = Hall(tmp_path / "one").start().samples(6, -1.0).close()
    last = hall.read(ALERTS)[-1]["hash"]
    hall.folder = tmp_path / "two"
    hall.start().samples(6, -1.0).close()
    rows = hall.read(ALERTS)
    assert [row["chain_index"] for row in rows] == [0, 0]
    assert rows[1]["previous_hash"] == last


def test_a_new_chain_goes_on_from_the_lake_where_the_bus_is_empty(tmp_path) -> None:
    hall = Hall(tmp_path).start(old_head=lambda: "ab" * 32).samples(6, -1.0).close()
    assert hall.read(ALERTS)[0]["previous_hash"] == "ab" * 32


GPU_TOPIC = STREAMS["gpu_samples"].topic
PARTITION = STREAMS["gpu_samples"].partition_of("h1")


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (lambda bus: bus.recreate(GPU_TOPIC), LogReplaced),
        (lambda bus: bus.cut(GPU_TOPIC, PARTITION, 3), LogReplaced),
        (lambda bus: bus.truncate(GPU_TOPIC, PARTITION, 9), LogTruncated),
    ],
    ids=["another log", "a shorter log", "retention overtook"],
)
@pytest.mark.parametrize("end", ["crash", "close"])
def test_a_log_that_is_not_the_one_read_before_stops_the_engine_until_that_is_accepted(
    tmp_path, harm, error, end
) -> None:
    hall = Hall(tmp_path).start().samples(6, -1.0)
    getattr(hall, end)()
    for _ in range(4):
        hall.send(gpu_uuid="GPU-1", temperature_margin_celsius=-1.0)
    harm(hall.bus)
    with pytest.raises(error):
        hall.start()
    hall.start(accept_new_log=True)
    journal = Journal(tmp_path, read_only=True)
    assert any(record.accepted for record in journal.batches_after(0))
    journal.close()
    assert hall.history() == [("hot", "firing", None)]
    hall.samples(2, 9.0).close()
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]
    assert verify_journal(tmp_path, hall.engine.public_key) == []


def test_retention_that_overtakes_a_running_engine_stops_it(tmp_path) -> None:
    hall = Hall(tmp_path).start().samples(2, 9.0)
    for _ in range(5):
        hall.send(gpu_uuid="GPU-1", temperature_margin_celsius=9.0)
    hall.bus.truncate(GPU_TOPIC, PARTITION, 6)
    with pytest.raises(LogTruncated):
        hall.engine.step()
    hall.engine.close()
    hall.start(accept_new_log=True).samples(1, 9.0).close()


def edit(folder, statement):
    with sqlite3.connect(folder / "journal.sqlite") as db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE transitions SET body = CAST(replace(body, 'major', 'minor') AS BLOB)",
        "DELETE FROM transitions",
        "UPDATE batches SET record = replace(record, '\"end\":6', '\"end\":5')",
    ],
    ids=["a transition edited", "a transition removed", "a range edited"],
)
def test_a_journal_that_was_changed_is_noticed_at_the_start(tmp_path, statement) -> None:
    hall = Hall(tmp_path).start().samples(7, -1.0).crash()
    edit(tmp_path, statement)
    with pytest.raises(StoreError, match=r"replayed gives another history|offsets") as caught:
        hall.start()
    assert caught.value.reason == "damaged"


def test_an_operator_may_take_the_journals_word(tmp_path) -> None:
    hall = Hall(tmp_path).start().samples(7, -1.0).crash()
    hall.bus.recreate(GPU_TOPIC)
    hall.start(accept_new_log=True)
    assert list(hall.engine._evaluator.open_alerts()) == [("hot", "GPU-1")]
    hall.samples(1, 9.0).crash().start().close()
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]


def test_a_bus_that_cannot_be_read_is_told_and_its_return_too(tmp_path, monkeypatch) -> None:
    hall = Hall(tmp_path, HOT, SILENT).start().samples(3, 9.0)
    error = TransportError("unreachable", "no bus")

    def fails(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(hall.engine._intake.consumer, "poll", fails)
        hall.wait(40)
    assert hall.history() == [("bus-silent", "firing", None)]
    evidence = orjson.loads(current_alerts(tmp_path).firing[0]["evidence"])
    assert evidence["reason"] == "the bus cannot be read: unreachable"
    hall.samples(2, 9.0).close()
    assert hall.history()[-1] == ("bus-silent", "ended", "cleared")


def test_a_journal_that_cannot_be_written_holds_the_batch_until_it_can(tmp_path, monkeypatch) -> None:
    hall = Hall(tmp_path).start().samples(5, -1.0)
    commit, failures = Journal.commit, iter([StoreError("full", "no room"), StoreError("unwritable", "ro")])

    def failing(journal, batch):
        for error in failures:
            raise error
        commit(journal, batch)

    monkeypatch.setattr(Journal, "commit", failing)
    hall.samples(2, -1.0).samples(1, 9.0).close()
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]


def test_a_snapshot_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch) -> None:
    hall = Hall(tmp_path).start(snapshot_batches=2).samples(2, -1.0)

    def full(*_):
        raise StoreError("full", "no room")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save_snapshot", full)
        hall.samples(5, -1.0).crash()
    hall.start().samples(1, 9.0).close()
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]


def test_an_engine_that_cannot_journal_can_still_be_stopped(tmp_path, monkeypatch) -> None:
    hall = Hall(tmp_path).start()

    def full(*_):
        raise StoreError("full", "no room")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", full)
        hall.engine._stop.set()
        hall.clock.advance(1)
        with pytest.raises(StoreError):
            hall.engine.step()
        hall.engine.close()


def test_a_state_that_is_not_journaled_is_not_kept(tmp_path, monkeypatch) -> None:
    """A failure between judging and journaling must not leave a snapshot that is ahead of the history."""
    hall = Hall(tmp_path).start().samples(5, -1.0)

    def dies(*_):
        raise StoreError("damaged", "broken")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "commit", dies)
        with pytest.raises(StoreError):
            hall.samples(1, -1.0)
        hall.engine.close()
    hall.start().close()
    assert hall.history() == [("hot", "firing", None)]


def test_metrics_name_no_entity(tmp_path) -> None:
    from prometheus_client import generate_latest

    hall = Hall(tmp_path)
    metrics = Metrics()
    options = EngineOptions(folder=tmp_path, hall="demo", fsync=False)
    hall.engine = Engine(options, hall.bus, hall.rules, clock=hall.clock, metrics=metrics)
    hall.engine.step()
    hall.samples(7, -1.0)
    text = generate_latest(metrics.registry).decode()
    hall.close()
    assert 'hallwatch_engine_transitions_total{rule="hot",transition="firing"} 1.0' in text
    assert "hallwatch_engine_alerts_firing 1.0" in text
    assert "GPU-1" not in text
    assert "h1" not in text


def test_an_engine_runs_on_a_real_bus_until_it_is_stopped(tmp_path) -> None:
    bus = LocalBus(tmp_path / "bus", fsync=False)
    bus.ensure_topics(STREAMS.values())
    config = Config(
        hall=HallSection(name="demo"), engine=EngineSection(path=tmp_path / "engine", notifiers=())
    )
    engine = Engine.open(config, bus)
    engine.step()
    stop = threading.Event()
    thread = threading.Thread(target=engine.run, args=(stop,))
    thread.start()
    events = STREAMS["gpu_events"]
    values = {"ts": 1_780_272_000_000_000, "host": "h1", "synthetic": False, "event": "xid"}
    values |= {"evidence": "kernel_log", "code": 79, "gpu_uuid": "GPU-1"}
    values |= {"severity": "fatal", "class": "hardware", "action": "restart_host"}
    body = encode_columns(events, {name: [value] for name, value in values.items()})
    bus.append(
        [(events.topic, events.partition_of("h1"), Record("h1", headers_of(events, "c", "e", 0), body))]
    )
    consumer = bus.consumer("test")
    consumer.assign([TopicPartition(ALERTS.topic, 0)])
    consumer.seek(TopicPartition(ALERTS.topic, 0), 0)
    published = read_batch(ALERTS, consumer.poll(20.0), {}).table.to_pylist()
    stop.set()
    thread.join(20)
    consumer.close()
    bus.close()
    assert not thread.is_alive()
    assert [row["rule"] for row in published] == ["gpu-xid-fatal"]


def test_ranges_describe_messages_so_that_they_can_be_read_again(tmp_path) -> None:
    hall = Hall(tmp_path).start().samples(3, -1.0)
    intake: Intake = hall.engine._intake
    messages = hall.bus.topics[GPU_TOPIC].messages[PARTITION]
    mixed = [messages[0], messages[1], messages[2]]
    assert [(r.begin, r.end) for r in intake.ranges(mixed)] == [(0, 3)]
    holes = [messages[0], messages[2]]
    assert [(r.begin, r.end) for r in intake.ranges(holes)] == [(0, 3)]
    hall.close()
