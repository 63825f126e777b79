"""The death of the engine at any step costs nothing: the history is that of an undisturbed run, byte for byte, and
everybody is told everything, under one key for each notification.

Covered: SIGKILL before and after the journal's commit, between publishing and its mark, while a request to a
receiver is under way, between telling and its mark, before a notification's row is marked, and before a snapshot is
written. Not covered: loss of power; for that the journal relies on SQLite's synchronous=FULL.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from alerts.chain import load_public_key, verify_chain
from alerts.engine import signed_heads, verify_journal
from alerts.journal import Journal
from alerts.testing import Receiver
from contract.bus import Record, TopicPartition
from contract.bus.local import LocalBus
from contract.codec import encode_columns, headers_of
from contract.reader import read_batch
from contract.streams import STREAMS
from contract.streams.alerts import ALERTS, NOTIFICATIONS
from contract.testing import FakeClock
from tests.faults.engine_child import Killer, make_engine

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CHECKOUT = Path(__file__).resolve().parents[2]
PATTERNS = {
    "GPU-0": "xx.xx.xxxx......xxxxxxxxxx....",
    "GPU-1": "......xxxxxxxxx?????..........",
    "GPU-2": "x.x.x.x.xxxxxxx      xxxxx....",
}
MARGINS = {"x": -1.0, ".": 9.0, "?": None}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """Return a folder with an engine that has begun its chain, and a bus with half a minute it has not read."""
    folder: Path = tmp_path_factory.mktemp("prepared")
    clock = FakeClock()
    bus = LocalBus(folder / "bus", fsync=False, clock=clock, retention_hours=1e6)
    bus.ensure_topics(STREAMS.values())
    engine = make_engine(folder, "", Killer("-"))
    engine.step()
    engine.close()
    for second in range(len(PATTERNS["GPU-0"])):
        clock.advance(1)
        for gpu, pattern in PATTERNS.items():
            if pattern[second] != " ":
                values = {"gpu_uuid": gpu, "temperature_margin_celsius": MARGINS[pattern[second]]}
                send(bus, clock, "gpu_samples", f"sampler-{gpu}", second, values)
        if second % 6 == 0:
            # Every Xid is sent again and again, as a collector does whose acknowledgement was lost: it is one.
            values = {"gpu_uuid": f"GPU-{second}", "event": "xid", "evidence": "kernel_log", "code": 79}
            for _ in range(2):
                send(bus, clock, "gpu_events", "xids", second, values)
        if second >= 10 and second % 6 == 4:
            values = {"gpu_uuid": f"GPU-{second - 10}", "event": "xid", "evidence": "kernel_log", "code": 79}
            send(bus, clock, "gpu_events", "xids", second - 10, values)
    send(
        bus,
        clock,
        "gpu_events",
        "xids",
        99,
        {"gpu_uuid": "GPU-0", "event": "xid", "evidence": "kernel_log", "code": 79},
    )
    bus.close()
    return folder


def send(bus, clock, stream, source, sequence, values) -> None:
    declared = STREAMS[stream]
    columns = {"ts": clock.now_us(), "host": "h1", "synthetic": False} | values
    body = encode_columns(declared, {name: [value] for name, value in columns.items()})
    record = Record("h1", headers_of(declared, source, "e1", sequence), body)
    bus.append([(declared.topic, declared.partition_of("h1"), record)])


class Run:
    """A copy of the prepared folder, an engine that dies as planned, and what is left when it was let finish."""

    def __init__(self, prepared: Path, folder: Path, plans: tuple[str, ...], guard: str = "-") -> None:
        shutil.copytree(prepared, folder, dirs_exist_ok=True)
        self.folder = folder
        with Receiver() as receiver:
            receiver.delay_seconds = 0.1 if any(plan.startswith("asking") for plan in plans) else 0.0
            self.died = [self.start(receiver.url, plan, guard) == -9 for plan in plans]
            self.finished = self.start(receiver.url, "-", guard) == 0
            self.told = [alert["annotations"]["idempotency_key"] for alert in receiver.alerts]
        self.alerts = self.read(ALERTS)
        self.notifications = self.read(NOTIFICATIONS)

    def start(self, url: str, plan: str, guard: str) -> int:
        arguments = [sys.executable, "-m", "tests.faults.engine_child", str(self.folder), url, plan, guard]
        return subprocess.run(arguments, cwd=CHECKOUT, timeout=120, check=False).returncode

    def read(self, stream):
        """Return the rows of a topic as every reader sees them: each event once."""
        bus = LocalBus(self.folder / "bus", fsync=False, retention_hours=1e6)
        consumer = bus.consumer("audit")
        consumer.assign([TopicPartition(stream.topic, 0)])
        consumer.seek(TopicPartition(stream.topic, 0), 0)
        batch = read_batch(stream, consumer.poll(0.0, 100_000), {})
        consumer.close()
        bus.close()
        assert not batch.dead
        return batch.table.to_pylist()

    def journaled(self) -> list[bytes]:
        journal = Journal(self.folder / "engine", read_only=True)
        bodies = [transition.body for transition in journal.all_transitions()]
        journal.close()
        return bodies

    def audit(self, undisturbed: Run) -> None:
        """Compare with a run in which nothing happened; raise AssertionError."""
        assert self.finished
        assert self.alerts == undisturbed.alerts
        assert self.journaled() == undisturbed.journaled()
        engine = self.folder / "engine"
        key = load_public_key(engine / "chain.pub")
        chain = signed_heads(engine)[0].chain
        assert verify_chain([row | {"_epoch": chain} for row in self.alerts], key, signed_heads(engine)) == []
        assert verify_journal(engine, key) == []
        keys = [f"{chain}/{row['chain_index']}/alertmanager" for row in self.alerts]
        assert set(self.told) == set(keys)
        assert [row["idempotency_key"] for row in self.notifications] == keys
        assert {row["outcome"] for row in self.notifications} == {"delivered"}


@pytest.fixture(scope="module")
def undisturbed(prepared, tmp_path_factory) -> Run:
    return Run(prepared, tmp_path_factory.mktemp("undisturbed"), ())


def test_an_undisturbed_run_tells_a_story_worth_comparing(undisturbed) -> None:
    found = [(row["rule"], row["entity"], row["transition"]) for row in undisturbed.alerts]
    hot = {gpu: [what for rule, entity, what in found if (rule, entity) == ("hot", gpu)] for gpu in PATTERNS}
    assert hot == {
        "GPU-0": ["firing", "ended", "firing", "ended"],
        "GPU-1": ["firing", "ended"],
        "GPU-2": ["firing", "ended"],
    }
    assert [(entity, what) for rule, entity, what in found if rule == "xid"] == [("GPU-0", "firing")]
    undisturbed.audit(undisturbed)
    assert sorted(undisturbed.told) == sorted(set(undisturbed.told))


@pytest.mark.parametrize(
    "plans",
    [
        ("before_commit:3", "before_commit:2"),
        ("after_commit:3", "after_commit:4"),
        ("published:2",),
        ("notifying:2",),
        ("asking:2",),
        ("notified:2",),
        ("reported:2",),
        ("during_snapshot:2",),
    ],
    ids=lambda plans: plans[0].partition(":")[0],
)
def test_a_kill_at_any_step_changes_nothing(prepared, undisturbed, tmp_path, plans) -> None:
    run = Run(prepared, tmp_path, plans)
    assert all(run.died)
    run.audit(undisturbed)


@pytest.mark.parametrize(
    ("guard", "plan"),
    [
        ("replay", "after_commit:7"),
        ("marks", "after_commit:7"),
        ("publish-then-mark", "published:1"),
        ("tell-then-settle", "notifying:3"),
    ],
)
def test_without_its_guard_the_same_kill_is_noticed(prepared, undisturbed, tmp_path, guard, plan) -> None:
    """A test that cannot fail would prove nothing."""
    run = Run(prepared, tmp_path, (plan,), guard)
    assert run.died == [True]
    with pytest.raises(AssertionError):
        run.audit(undisturbed)
