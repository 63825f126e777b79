"""Clocks that are set: the engine judges on as if nothing had happened, and finds the same again after a crash."""

import pytest

from alerts.arrival import Timekeeper
from alerts.engine import current_alerts
from alerts.testing import absence_text
from contract.bus.testing import MemoryBus
from contract.testing import START_US, FakeClock
from tests.unit.alerts.test_engine import HOT, SILENT, Hall

HOUR = 3_600
SETS = pytest.mark.parametrize("hours", [-3, 3], ids=["back", "forward"])


@SETS
def test_the_engines_time_goes_on_when_the_wall_clock_is_set(hours) -> None:
    clock = FakeClock()
    keeper = Timekeeper(clock, START_US, 0)
    assert keeper.read() == (START_US, 0)
    clock.advance(2)
    clock.set(hours * HOUR)
    now_us, offset_us = keeper.read()
    assert now_us + offset_us == START_US + 2_000_000
    assert now_us == START_US + 2_000_000 + hours * HOUR * 1_000_000
    assert keeper.steps == 1
    clock.advance(1)
    assert sum(keeper.read()) == START_US + 3_000_000


def test_small_corrections_are_followed_and_never_let_the_engines_time_fall() -> None:
    clock = FakeClock()
    keeper = Timekeeper(clock, START_US, 0)
    own = []
    for correction in (0, 2, -3, 0, -4):
        clock.advance(1)
        clock.set(correction)
        own.append((sum(keeper.read()) - START_US) / 1e6)
    assert own == [1, 4, 4, 4, 4]
    assert keeper.steps == 0
    clock.advance(5)
    assert keeper.read() == (START_US + 5_000_000, 0)


def test_a_start_while_the_clock_is_behind_the_journal_goes_on_from_the_journal() -> None:
    clock = FakeClock(START_US)
    keeper = Timekeeper(clock, START_US + HOUR * 1_000_000, 0)
    now_us, offset_us = keeper.read()
    assert (now_us, offset_us) == (START_US, HOUR * 1_000_000)


@SETS
def test_a_condition_that_holds_fires_in_its_time_though_the_clock_is_set_meanwhile(tmp_path, hours) -> None:
    hall = Hall(tmp_path).start().samples(3, -1.0)
    hall.clock.set(hours * HOUR)
    hall.samples(3, -1.0)
    assert hall.history() == []
    hall.samples(3, -1.0).samples(2, 9.0)
    assert hall.history() == [("hot", "firing", None), ("hot", "ended", "cleared")]
    fired = current_alerts(tmp_path).history[1]
    assert abs(fired["ts"] - hall.clock.now_us()) < 10_000_000
    hall.crash().start().close()


@SETS
def test_silence_is_found_in_its_time_and_only_then_though_the_clock_is_set(tmp_path, hours) -> None:
    hall = Hall(tmp_path, SILENT, HOT).start().samples(20, 9.0)
    hall.clock.set(hours * HOUR)
    hall.samples(20, 9.0).wait(28)
    assert hall.history() == []
    hall.wait(4)
    assert hall.history() == [("bus-silent", "firing", None)]
    fired = current_alerts(tmp_path).history[0]
    assert (hall.clock.now_us() - fired["ts"]) // 1_000_000 < 5
    assert (hall.clock.now_us() - fired["began"]) // 1_000_000 in range(30, 35)
    hall.clock.set(-hours * HOUR)
    hall.wait(2).samples(1, 9.0)
    assert hall.history()[1:] == [("bus-silent", "ended", "cleared")]
    hall.crash().start()
    assert hall.history()[1:] == [("bus-silent", "ended", "cleared")]
    hall.close()


@pytest.mark.parametrize("hours", [-3, 3], ids=["behind", "ahead"])
def test_a_bus_that_stamps_with_a_wrong_clock_hides_no_silence_and_makes_none(tmp_path, hours) -> None:
    bus_clock = FakeClock()
    bus = MemoryBus(bus_clock)
    gone = absence_text(rule="host-silent", expect="host", after="30s", on="gpu_samples")
    hall = Hall(tmp_path, gone, bus=bus)
    hall.send("inventory", hall="demo", asset="h1", kind="host", state="active", version="v")
    hall.start()
    bus_clock.set(hours * HOUR)

    def pass_by(seconds, *, rows):
        for second in range(seconds):
            bus_clock.advance(1)
            if rows:
                hall.samples(1, 9.0)
            else:
                hall.wait(1)
            if second % 10 == 0:
                status = {"source": "c@h1/0", "collector": "c", "epoch": "e", "state": "working"}
                hall.send("collector_status", sequence=hall.clock.now_us() - START_US, **status)

    pass_by(60, rows=True)
    assert hall.history() == []
    pass_by(45, rows=False)
    assert hall.history() == [("host-silent", "firing", None)]
    hall.crash().start()
    pass_by(2, rows=True)
    assert hall.history()[1:] == [("host-silent", "ended", "cleared")]
    hall.close()


def test_a_restart_while_the_clock_is_behind_judges_on(tmp_path) -> None:
    hall = Hall(tmp_path, SILENT, HOT).start().samples(20, 9.0).close()
    hall.clock.set(-3 * HOUR)
    hall.start().samples(7, -1.0)
    assert hall.history() == [("hot", "firing", None)]
    hall.wait(32)
    assert hall.history()[1:] == [("bus-silent", "firing", None)]
    hall.close()
