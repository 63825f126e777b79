"""Notifiers and the courier: told at least once, in order, and never at the cost of judging."""

import io
import threading
import time
from typing import Any

import pytest

from alerts.courier import Courier
from alerts.engine import Engine, EngineOptions
from alerts.journal import Journal
from alerts.notifier import Notification, build_notifiers
from alerts.notify.stdout import StdoutConfig, StdoutNotifier
from alerts.testing import Receiver, rule_text, rules_of
from contract.bus import Record
from contract.bus.testing import MemoryBus
from contract.codec import encode_columns, headers_of
from contract.errors import ConfigError, NotifyError, TransportError
from contract.reader import read_batch
from contract.streams import STREAMS
from contract.streams.alerts import ALERTS, NOTIFICATIONS
from contract.testing import FakeClock

GPU = STREAMS["gpu_samples"]


class Hall:
    """An engine over a bus in memory; every sample of margin -1 fires, every other one ends."""

    def __init__(self, folder, *notifiers, rules=None):
        self.clock = FakeClock()
        self.bus = MemoryBus(self.clock)
        self.bus.ensure_topics(STREAMS.values())
        self.folder = folder
        self.rules = rules or rules_of(rule_text())
        self.notifiers = build_notifiers(notifiers)
        self.sequence = 0
        self.start()

    def start(self):
        options = EngineOptions(folder=self.folder, hall="demo", fsync=False)
        self.engine = Engine(options, self.bus, self.rules, self.notifiers, clock=self.clock)
        self.engine.step()

    def asset(self, asset, kind, parent):
        stream = STREAMS["inventory"]
        values = {
            "hall": "demo",
            "asset": asset,
            "kind": kind,
            "parent": parent,
            "state": "active",
            "version": "v",
        }
        self.put(stream, values)

    def put(self, stream, values):
        self.sequence += 1
        values = {"ts": self.clock.now_us(), "synthetic": False} | values
        body = encode_columns(stream, {name: [value] for name, value in values.items()})
        partition = stream.partition_of(str(values[stream.key]))
        self.bus.append(
            stream.topic, partition, Record("k", headers_of(stream, "c", "e", self.sequence), body)
        )

    def sample(self, margin, gpu="GPU-1"):
        self.clock.advance(1)
        self.put(GPU, {"host": "h1", "gpu_uuid": gpu, "temperature_margin_celsius": margin})
        self.engine.step()

    def told(self):
        messages = self.bus.topics[NOTIFICATIONS.topic].messages[0]
        return read_batch(NOTIFICATIONS, messages, {}).table.to_pylist()


class Fake:
    """A notifier without a receiver; tests say what telling it does."""

    batch_size = 10
    refresh_seconds = None

    def refresh(self, *_, **__):
        """Show nothing."""

    def close(self):
        """Hold nothing."""


def alertmanager(receiver, **fields):
    return {"notifier": "alertmanager", "url": receiver.url, "timeout_seconds": 2} | fields


def test_alertmanager_is_told_when_an_alert_begins_and_when_it_ends(tmp_path) -> None:
    with Receiver() as receiver:
        hall = Hall(tmp_path, alertmanager(receiver))
        for asset, kind, parent in (
            ("demo", "hall", None),
            ("a", "row", "demo"),
            ("a01", "rack", "a"),
            ("h1", "host", "a01"),
            ("GPU-1", "gpu", "h1"),
        ):
            hall.asset(asset, kind, parent)
        hall.sample(-1.0)
        hall.sample(9.0)
        hall.engine.close()
    firing, ended = (alert for alert in receiver.alerts if "chain_head" in alert["annotations"] and alert)
    assert set(receiver.paths) == {"/api/v2/alerts"}
    assert firing["labels"] == ended["labels"]
    assert firing["labels"] == {
        "alertname": "hot",
        "severity": "major",
        "entity": "GPU-1",
        "entity_kind": "gpu_uuid",
        "hall": "demo",
        "host": "h1",
        "place": "demo/a/a01/h1",
    }
    assert firing["startsAt"] == ended["startsAt"] == "2026-06-01T00:00:01.000000Z"
    assert firing["endsAt"] == "2026-06-01T04:00:01.000000Z"
    assert ended["endsAt"] == "2026-06-01T00:00:02.000000Z"
    assert firing["annotations"]["runbook"] == "docs/runbooks/hot.md"
    assert firing["annotations"]["summary"] == "GPU-1 is hot"
    assert ended["annotations"]["end_reason"] == "cleared"
    assert firing["annotations"]["idempotency_key"] != ended["annotations"]["idempotency_key"]
    assert [row["outcome"] for row in hall.told()] == ["delivered", "delivered"]


def test_what_fires_is_renewed_each_minute_and_the_watchdog_with_it(tmp_path) -> None:
    with Receiver() as receiver:
        hall = Hall(tmp_path, alertmanager(receiver))
        hall.sample(-1.0)
        receiver.bodies.clear()
        hall.clock.advance(61)
        hall.engine.step()
        renewed = receiver.alerts
        watchdogs = [a for body in receiver.bodies for a in body if a not in renewed]
        hall.sample(9.0)
        receiver.bodies.clear()
        hall.clock.advance(61)
        hall.engine.step()
        hall.engine.close()
    assert [(a["labels"]["entity"], a["endsAt"]) for a in renewed] == [
        ("GPU-1", "2026-06-01T04:01:02.000000Z")
    ]
    assert [a["labels"] for a in watchdogs] == [
        {"alertname": "HallwatchWatchdog", "severity": "info", "hall": "demo"}
    ]
    assert receiver.alerts == []


def test_the_watchdog_stops_when_the_engine_no_longer_judges(tmp_path) -> None:
    """The thread that tells may live on; what it says about the engine must not."""
    with Receiver() as receiver:
        hall = Hall(tmp_path, alertmanager(receiver))
        receiver.bodies.clear()
        hall.clock.advance(120)
        hall.engine._courier.run_once()
        assert receiver.bodies == []
        hall.engine.step()
        hall.clock.advance(60)
        hall.engine.step()
        assert len(receiver.bodies) == 1
        hall.engine.close()


def test_a_receiver_that_is_away_is_told_everything_in_order_when_it_is_back(tmp_path) -> None:
    receiver = Receiver()
    receiver.status = 503
    with receiver:
        hall = Hall(tmp_path, alertmanager(receiver))
        hall.sample(-1.0)
        hall.sample(9.0)
        hall.sample(-1.0, "GPU-2")
        assert receiver.alerts == []
        receiver.status = 200
        for _ in range(90):
            hall.clock.advance(1)
            hall.engine.step()
        hall.engine.close()
    told = [a for a in receiver.alerts if a["annotations"].get("idempotency_key")]
    keys = list(dict.fromkeys(a["annotations"]["idempotency_key"] for a in told))
    assert [key.split("/")[1] for key in keys] == ["0", "1", "2"]
    assert [row["outcome"] for row in hall.told()] == ["delivered"] * 3
    assert hall.told()[0]["attempts"] > 1


def test_a_notifier_that_breaks_is_tried_again(tmp_path) -> None:
    class Broken(Fake):
        def notify(self, notifications):
            failures.append(notifications[0].told_us)
            if len(failures) == 1:
                raise KeyError("a fault of the plug-in")
            return f"told {len(notifications)}"

    failures: list[int] = []
    hall = Hall(tmp_path, {"notifier": "stdout"})
    hall.engine._courier._tellers[0]._notifier = Broken()
    hall.sample(-1.0)
    hall.clock.advance(5)
    hall.engine.step()
    hall.engine.close()
    assert [(row["outcome"], row["attempts"], row["detail"]) for row in hall.told()] == [
        ("delivered", 2, "told 1")
    ]


def test_a_defect_in_a_producer_ends_no_courier_and_the_next_one_sends_everything(tmp_path, caplog) -> None:
    class Broken:
        closed = False

        def send(self, *_):
            raise RuntimeError("a selector that was closed")

        def close(self):
            self.closed = True

    hall = Hall(tmp_path, {"notifier": "stdout"})
    broken: Any = Broken()
    hall.engine._courier._publisher._producer = broken
    hall.sample(-1.0)
    assert broken.closed
    assert "defect" in caplog.text
    for _ in range(3):
        hall.clock.advance(1)
        hall.engine.step()
    hall.engine.close()
    assert [row["outcome"] for row in hall.told()] == ["delivered"]
    assert len(hall.bus.topics[ALERTS.topic].messages[0]) == 1


def test_an_alert_told_late_still_ends_four_hours_from_now(tmp_path) -> None:
    """Counted from the event, an end would be over when it arrives, and Alertmanager would resolve the alert."""
    receiver = Receiver()
    receiver.status = 503
    with receiver:
        hall = Hall(tmp_path, alertmanager(receiver))
        hall.sample(-1.0)
        hall.clock.advance(6 * 3600)
        receiver.status = 200
        hall.engine.step()
        hall.engine.close()
    assert receiver.alerts[0]["endsAt"] == "2026-06-01T10:00:01.000000Z"


def test_one_notification_that_is_refused_does_not_hold_up_the_others(tmp_path) -> None:
    class Picky(Fake):
        def notify(self, notifications):
            if any(n.row["entity"] == "GPU-1" for n in notifications):
                raise NotifyError("rejected", "not this one")
            seen.extend(n.row["entity"] for n in notifications)
            return "ok"

    seen: list[str] = []
    hall = Hall(tmp_path, {"notifier": "stdout", "name": "picky"})
    hall.engine._courier._tellers[0]._notifier = Picky()
    hall.clock.advance(1)
    for gpu in ("GPU-0", "GPU-1", "GPU-2"):
        hall.put(GPU, {"host": "h1", "gpu_uuid": gpu, "temperature_margin_celsius": -1.0})
    hall.engine.step()
    hall.engine.close()
    assert seen == ["GPU-0", "GPU-2"]
    assert [(row["outbox_id"], row["outcome"]) for row in hall.told()] == [
        (0, "delivered"),
        (1, "given_up"),
        (2, "delivered"),
    ]


class Deaf:
    """A receiver that is never there."""

    batch_size = 1
    refresh_seconds = None

    def notify(self, notifications):
        raise NotifyError("unreachable", f"{len(notifications)} not taken")

    def refresh(self, firing, now_us, *, alive, hall):
        """Nothing is renewed."""

    def close(self):
        """Nothing is open."""


def test_a_receiver_that_takes_nothing_for_a_day_is_given_up(tmp_path) -> None:
    hall = Hall(tmp_path, {"notifier": "stdout"})
    (teller,) = hall.engine._courier._tellers
    teller._notifier = Deaf()
    hall.sample(-1.0)
    for _ in range(25 * 60):
        hall.clock.advance(60)
        teller.tell()
    hall.engine.step()
    hall.engine.close()
    assert [(row["outcome"], row["attempts"]) for row in hall.told()] == [("given_up", 1_441)]


@pytest.mark.parametrize("hours", [-3, 30])
def test_a_clock_that_is_set_neither_puts_a_notification_off_nor_gives_it_up(tmp_path, hours) -> None:
    hall = Hall(tmp_path, {"notifier": "stdout"})
    (teller,) = hall.engine._courier._tellers
    notifier, teller._notifier = teller._notifier, Deaf()
    hall.sample(-1.0)
    hall.clock.set(hours * 3600)
    teller.tell()
    teller._notifier = notifier
    hall.clock.advance(60)
    hall.engine.step()
    hall.engine.close()
    assert [row["outcome"] for row in hall.told()] == ["delivered"]


@pytest.mark.parametrize(
    ("status", "reason"),
    [(400, "rejected"), (404, "rejected"), (429, "unreachable"), (500, "unreachable"), (302, "unreachable")],
)
def test_answers_of_alertmanager_are_final_or_for_later(status, reason) -> None:
    receiver = Receiver()
    receiver.status, receiver.answer = status, b"x" * 100_000
    with receiver:
        (configured,) = build_notifiers([alertmanager(receiver)])
        with pytest.raises(NotifyError) as caught:
            configured.notifier.notify([notification()])
        configured.notifier.close()
    assert caught.value.reason == reason
    assert len(str(caught.value)) < 600


def test_a_receiver_that_does_not_answer_is_a_timeout() -> None:
    receiver = Receiver()
    receiver.delay_seconds = 1.0
    with receiver:
        (configured,) = build_notifiers([alertmanager(receiver, timeout_seconds=0.1)])
        with pytest.raises(NotifyError) as caught:
            configured.notifier.notify([notification()])
        configured.notifier.close()
    assert caught.value.reason == "timeout"


def test_a_receiver_that_is_not_there_is_unreachable() -> None:
    with Receiver() as receiver:
        table = alertmanager(receiver)
    (configured,) = build_notifiers([table])
    with pytest.raises(NotifyError) as caught:
        configured.notifier.notify([notification()])
    configured.notifier.close()
    assert caught.value.reason == "unreachable"


def notification(**row):
    values = {
        "ts": 1,
        "began": 1,
        "rule": "hot",
        "severity": "major",
        "entity": "g",
        "entity_kind": "gpu_uuid",
    }
    values |= {"transition": "firing", "summary": "it is hot", "owner": "x", "fingerprint": "f"} | row
    return Notification(key="c/0/n", hall="demo", told_us=1, place=None, row=values, head=None)


def test_a_slow_receiver_never_delays_judging(tmp_path) -> None:
    """The courier's threads wait for the receiver; the engine's step does not."""
    released = threading.Event()

    class Stuck(Fake):
        def notify(self, notifications):
            released.wait(20)
            return f"late: {len(notifications)}"

    hall = Hall(tmp_path, {"notifier": "stdout", "name": "stuck"}, {"notifier": "stdout", "name": "quick"})
    quick = io.StringIO()
    hall.engine._courier._tellers[0]._notifier = Stuck()
    hall.engine._courier._tellers[1]._notifier = StdoutNotifier(StdoutConfig(notifier="stdout"), quick)
    hall.engine._courier.start()
    for _ in range(5):
        hall.sample(-1.0)
        hall.sample(9.0)
    wait_for(lambda: quick.getvalue().count("\n") == 10)
    journal = Journal(tmp_path, read_only=True)
    assert len(journal.waiting("stuck", 100)) == 10
    released.set()
    wait_for(lambda: journal.outbox_depth() == 0)
    journal.close()
    hall.engine.close()


def wait_for(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_is_told_before_the_bus_has_it(tmp_path, capsys) -> None:
    hall = Hall(tmp_path, {"notifier": "stdout"})
    hall.bus.fail_with = TransportError("full", "no room")
    hall.sample(-1.0)
    assert capsys.readouterr().out == ""
    hall.bus.fail_with = None
    hall.clock.advance(1)
    hall.engine.step()
    assert "FIRING" in capsys.readouterr().out
    assert [row["outcome"] for row in hall.told()] == ["delivered"]
    assert len(hall.bus.topics[ALERTS.topic].messages[0]) == 1
    hall.engine.close()


def test_a_notifier_is_told_only_what_it_asked_for(tmp_path, capsys) -> None:
    rules = rules_of(
        rule_text(), rule_text(rule="small", severity="minor"), rule_text(rule="quiet", notify=False)
    )
    hall = Hall(tmp_path, {"notifier": "stdout", "severities": ["minor"]}, rules=rules)
    hall.sample(-1.0)
    hall.engine.close()
    assert [line.split("  ")[3] for line in capsys.readouterr().out.splitlines()] == ["small"]
    assert len(hall.bus.topics[ALERTS.topic].messages[0]) == 3


def test_an_alert_that_is_only_recorded_is_not_renewed_either(tmp_path) -> None:
    with Receiver() as receiver:
        hall = Hall(tmp_path, alertmanager(receiver), rules=rules_of(rule_text(notify=False)))
        hall.sample(-1.0)
        hall.clock.advance(61)
        hall.engine.step()
        hall.engine.close()
    assert receiver.alerts == []
    assert receiver.bodies


def test_two_notifiers_settle_in_sequences_of_their_own(tmp_path) -> None:
    """Readers drop what is not above the last sequence: one shared by two would lose the slower one's rows."""
    with Receiver() as receiver:
        receiver.status = 503
        hall = Hall(tmp_path, {"notifier": "stdout"}, alertmanager(receiver))
        hall.sample(-1.0)
        receiver.status = 200
        for _ in range(10):
            hall.clock.advance(1)
            hall.engine.step()
        hall.engine.close()
    assert sorted((row["notifier"], row["outbox_id"]) for row in hall.told()) == [
        ("alertmanager", 0),
        ("stdout", 0),
    ]


@pytest.mark.parametrize(
    ("table", "reason", "text"),
    [
        ({"notifier": "pigeon"}, "unknown_name", "none of alertmanager, stdout"),
        ({}, "unknown_name", "notifier None"),
        ({"notifier": "stdout", "colour": True}, "unknown_key", "unknown key 'colour'"),
        ({"notifier": "alertmanager"}, "invalid", "url"),
        ({"notifier": "alertmanager", "url": "ftp://x"}, "invalid", "url"),
        ({"notifier": "stdout", "severities": ["bad"]}, "invalid", "severities"),
    ],
)
def test_a_notifiers_table_is_checked_before_anything_runs(table, reason, text) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        build_notifiers([table])
    assert caught.value.reason == reason


def test_two_notifiers_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two notifiers"):
        build_notifiers([{"notifier": "stdout"}, {"notifier": "stdout"}])


def test_a_secret_is_not_shown() -> None:
    (configured,) = build_notifiers(
        [{"notifier": "alertmanager", "url": "http://x", "bearer_token": "s3cret"}]
    )
    assert "s3cret" not in repr(configured)
    configured.notifier.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_stdout_is_coloured_only_on_a_terminal_and_prints_no_control_characters() -> None:
    for stream, coloured in ((io.StringIO(), False), (Terminal(), True)):
        notifier = StdoutNotifier(StdoutConfig(notifier="stdout"), stream)
        notifier.notify([notification(summary="a\x1b[31mb\nc")])
        assert ("\x1b[31mFIRING" in stream.getvalue()) is coloured
        assert "a?[31mb?c" in stream.getvalue()


def test_a_closed_stdout_is_an_error_and_not_a_crash() -> None:
    stream = io.StringIO()
    stream.close()
    with pytest.raises(NotifyError):
        StdoutNotifier(StdoutConfig(notifier="stdout"), stream).notify([notification()])


def test_a_producer_that_died_is_replaced_and_everything_unmarked_goes_again(tmp_path, monkeypatch) -> None:
    hall = Hall(tmp_path)
    made = []

    class Dying:
        def __init__(self, inner):
            self.inner, self.sent = inner, 0
            made.append(self)

        def send(self, *args):
            self.sent += 1
            if len(made) == 1 and self.sent == 2:
                raise TransportError("timeout", "died")
            self.inner.send(*args)

        def flush(self):
            self.inner.flush()

        def close(self):
            raise TransportError("closed", "already dead")

    producer = hall.bus.producer
    monkeypatch.setattr(hall.bus, "producer", lambda: Dying(producer()))
    hall.clock.advance(1)
    for gpu in ("GPU-0", "GPU-1", "GPU-2"):
        hall.put(GPU, {"host": "h1", "gpu_uuid": gpu, "temperature_margin_celsius": -1.0})
    hall.engine.step()
    hall.clock.advance(1)
    hall.engine.step()
    hall.engine.close()
    sequences = [m.headers["ce_sequence"] for m in hall.bus.topics[ALERTS.topic].messages[0]]
    assert sequences == ["0", "0", "1", "2"]
    assert len(made) == 2


def test_the_couriers_threads_end_with_it(tmp_path) -> None:
    journal = Journal(tmp_path)
    journal.begin_chain("demo")
    bus = MemoryBus()
    bus.ensure_topics(STREAMS.values())
    clock = FakeClock()
    courier = Courier(
        lambda: Journal(tmp_path),
        bus,
        build_notifiers([{"notifier": "stdout"}]),
        hall="demo",
        synthetic=False,
        clock=clock,
        count=lambda *_: None,
        checkpoint=lambda _: None,
    )
    courier.start()
    assert courier.is_running
    courier.close()
    assert not any(thread.is_alive() for thread in courier._threads)
    journal.close()
