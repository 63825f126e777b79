"""A machine, its collector under the runner, and the shipped rules: what fires, and what only looks like a fault."""

from pathlib import Path

import pytest

from alerts.evaluator import Evaluator
from alerts.ruleset import check_rules
from alerts.watcher import Tick
from contract.bus import Message
from contract.config import HallSection
from contract.metrics import Metrics
from contract.testing import START_US, FakeClock
from ingest.host.host import MachineConfig
from ingest.host.testing import FakeTimekeeper, host_collector
from ingest.host.timekeeping import ClockState
from ingest.source import Source, SourceMetrics
from ingest.testing import FakeOutlet
from twin.host_tree import HostTree

GPU, NIC, DISK = "0000:53:00.0", "0000:52:00.0", "0000:01:00.0"
RULES = Path(__file__).resolve().parents[2] / "alerts/rules/host.yaml"
HALL = HallSection(name="hall", synthetic=True)


class Hall:
    """One small host, read every 10 s, and an engine's judgement of it."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.tree = HostTree(folder, START_US, gpus=(GPU,), nics=(NIC,), cores_per_socket=1)
        self.timekeeper = FakeTimekeeper(ClockState(source="kernel", synchronised=True, offset_seconds=0.0))
        self.outlet = FakeOutlet()
        self.evaluator = Evaluator(check_rules([RULES]), "hall", synthetic=True)
        self.alerts: list[tuple[str, str, str]] = []
        self._epochs = 0
        self.restart()

    def restart(self) -> None:
        """Start the collector anew, with what the outlet stored of the one before."""
        self._epochs += 1
        config = MachineConfig(collector="host", host="h1")
        collector = host_collector(self.tree.procfs, self.tree.sysfs, timekeeper=self.timekeeper)
        metrics = SourceMetrics(Metrics())
        self._source = Source(
            config, collector, self.outlet, HALL, f"epoch-{self._epochs}", self.clock, metrics
        )

    def run(self, seconds: int) -> None:
        """Let time pass; what was read goes to the rules."""
        messages: list[Message] = []
        for _ in range(seconds // 10):
            self.clock.advance(10)
            self.tree.advance(10)
            sent = len(self.outlet.records)
            assert self._source.poll()
            messages += [
                Message(
                    o.topic,
                    o.partition,
                    sent + at,
                    self.clock.now_us(),
                    o.record.key,
                    o.record.headers,
                    o.record.body,
                )
                for at, o in enumerate(self.outlet.records[sent:])
            ]
        drafts = self.evaluator.apply(messages, Tick(now_us=self.clock.now_us(), behind={}))
        self.alerts += [(draft.transition, draft.rule.rule, draft.entity) for draft in drafts]

    def take(self) -> set[tuple[str, str, str]]:
        """Return what was told since the last call."""
        told, self.alerts = self.alerts, []
        assert len(set(told)) == len(told)
        return set(told)


@pytest.fixture
def hall(tmp_path):
    hall = Hall(tmp_path)
    hall.run(60)
    return hall


def test_a_healthy_host_is_quiet(hall):
    hall.run(610)
    assert hall.take() == set()


def test_every_fault_of_a_host_is_one_alert_of_its_own(hall):
    hall.tree.uncorrected_errors("mc0/dimm1")
    hall.tree.corrected_errors("mc1/dimm0", 25)
    hall.tree.pcie_errors(NIC, "fatal", "MalfTLP")
    hall.tree.pcie_errors(NIC, "correctable", "BadTLP", 500)
    hall.tree.narrow(DISK, 2)
    hall.tree.lose(GPU)
    hall.timekeeper.now = ClockState(
        source="kernel", synchronised=False, offset_seconds=-0.2, maximum_error_seconds=16
    )
    hall.run(700)
    assert hall.take() == {
        ("firing", "dimm-uncorrectable", "h1/mc0/dimm1"),
        ("firing", "dimm-corrected", "h1/mc1/dimm0"),
        ("firing", "pcie-fatal", f"h1/{NIC}"),
        ("firing", "pcie-corrected", f"h1/{NIC}"),
        ("firing", "pcie-link-narrowed", f"h1/{DISK}"),
        ("firing", "pcie-device-missing", f"h1/{GPU}"),
        ("firing", "clock-offset", "h1"),
        ("firing", "clock-unsynchronised", "h1"),
    }


def test_what_is_mended_ends_and_lost_memory_is_not_forgotten_by_a_reboot(hall):
    hall.tree.uncorrected_errors("mc0/dimm1")
    hall.tree.lose(GPU)
    hall.tree.narrow(DISK, 2)
    hall.run(120)
    assert len(hall.take()) == 3
    hall.tree.restore(GPU)
    hall.tree.restore(DISK)
    hall.tree.reboot(seconds=0)
    hall.restart()
    hall.run(120)
    assert hall.take() == {
        ("ended", "pcie-device-missing", f"h1/{GPU}"),
        ("ended", "pcie-link-narrowed", f"h1/{DISK}"),
    }


def test_a_gpu_that_is_gone_after_a_reboot_is_told(hall):
    hall.tree.lose(GPU)
    hall.tree.reboot(seconds=0)
    hall.restart()
    hall.run(120)
    assert hall.take() == {("firing", "pcie-device-missing", f"h1/{GPU}")}


def test_what_only_looks_like_a_fault_is_quiet(hall, tmp_path):
    hall.tree.corrected_errors("mc1/dimm0")  # a single corrected error
    hall.tree.pcie_errors(NIC, "correctable", "RxErr", 3)
    hall.run(120)
    hall.tree.corrected_errors("mc1/dimm1", 20)
    hall.run(60)
    hall.tree.reload_edac()  # counters set back
    hall.run(60)
    hall.tree.lose(GPU)  # a rescan of the bus
    hall.run(20)
    hall.tree.restore(GPU)
    hall.run(60)
    hall.tree.reboot(seconds=0)
    hall.restart()
    hall.run(120)
    hall.timekeeper.now = ClockState(source="kernel", synchronised=False, offset_seconds=0.0)
    hall.run(120)
    hall.timekeeper.now = None  # a container that may not ask
    hall.run(610)
    (tmp_path / "sys/devices/system/edac").rename(tmp_path / "away")  # no driver any more
    hall.run(300)
    assert hall.take() == set()
