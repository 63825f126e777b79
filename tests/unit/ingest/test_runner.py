"""The runner and its sources: schedule, back-off, status, sequences, cursors, clocks."""

import json
import socket
import threading
from itertools import pairwise

import pytest

from contract.clock import SystemClock
from contract.codec import ARROW_FROM_ROWS, ARROW_TYPE, MAX_ROWS
from contract.config import Config, HallSection, IngestSection
from contract.errors import CollectError, ConfigError
from contract.metrics import Metrics
from contract.streams import STREAMS
from contract.streams.gpu import GPU_EVENTS, GPU_SAMPLES
from contract.streams.self import COLLECTOR_STATUS
from contract.streams.topology import INVENTORY
from contract.testing import FakeClock, example_rows
from ingest.collector import COLLECTORS, CollectorConfig, HostConfig, Reading, Rows
from ingest.collector import collector as register
from ingest.runner import Runner, build_runner
from ingest.sender import Sender
from ingest.source import LONGEST_BACK_OFF_SECONDS, STATUS_SECONDS, Source, SourceMetrics, source_name
from ingest.testing import FakeCollector, FakeOutlet

HALL = HallSection(name="demo", synthetic=True)


def gpu(uuid="GPU-a", **values):
    return Rows(stream=GPU_SAMPLES, columns={"gpu_uuid": [uuid], **{k: [v] for k, v in values.items()}})


GOOD = Reading(rows=[gpu(temperature_celsius=40)])
BAD = CollectError("timeout", "no whole answer in time")


class Bench:
    """One source on a clock that is driven, and everything it touches."""

    def __init__(self, *answers, outlet=None, clock=None, polls=None, before=None, settings=None, **config):
        self.clock = clock or FakeClock()
        self.outlet = outlet or FakeOutlet()
        self.metrics = Metrics()
        self.stop = threading.Event()
        self.polls = polls
        self.times = []
        self._before = before
        self.collector = FakeCollector(*(answers or (GOOD,)), before=self._asked)
        self.config = settings or HostConfig(
            **{"collector": "fake", "host": "h1", "interval_seconds": 1, **config}
        )
        self.source = Source(
            self.config, self.collector, self.outlet, HALL, "epoch-1", self.clock, SourceMetrics(self.metrics)
        )

    def _asked(self):
        self.times.append(self.clock.monotonic())
        if self.polls is not None and len(self.times) >= self.polls:
            self.stop.set()
        if self._before is not None:
            self._before()

    def run(self):
        self.source.run(self.stop)
        return self

    def statuses(self):
        return self.outlet.rows(COLLECTOR_STATUS)

    def metric(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"hallwatch_{name}", {"collector": "fake", **labels})

    def sequences(self, stream):
        return [int(o.record.headers["ce_sequence"]) for o in self.outlet.records if o.topic == stream.topic]


def gaps(times):
    return [round(b - a, 6) for a, b in pairwise(times)]


def test_readings_are_on_a_fixed_grid_that_begins_within_the_first_second():
    bench = Bench(polls=5, interval_seconds=7).run()
    assert 0 <= bench.times[0] < 1
    assert gaps(bench.times) == [7, 7, 7, 7]


def test_the_place_on_the_grid_is_the_sources_own_and_stays():
    phases = {}
    for instance in "abcdefgh":
        phases[instance] = {Bench(polls=1, instance=instance).run().times[0] for _ in range(3)}
    assert all(len(times) == 1 for times in phases.values())
    assert len(set.union(*phases.values())) == 8


def test_a_source_of_the_hall_itself_begins_at_once():
    bench = Bench(Reading(), polls=2, settings=CollectorConfig(collector="fake", interval_seconds=7)).run()
    assert bench.times == [0, 7]


def test_a_slow_reading_leaves_out_the_ticks_it_overlaps_and_keeps_the_grid():
    slow = iter([0.2, 2.5, 0, 0])
    bench = Bench(polls=4)
    bench._before = lambda: bench.clock.advance(next(slow))
    bench.run()
    assert gaps(bench.times) == [1, 3, 1]
    assert bench.metric("collector_ticks_missed_total") == 2


def test_every_row_is_stamped_and_every_tick_is_an_event():
    bench = Bench(
        Reading(rows=[gpu(), Rows(stream=GPU_SAMPLES, columns={"gpu_uuid": ["b", "c"]})]), polls=2
    ).run()
    rows = bench.outlet.rows(GPU_SAMPLES, synthetic=True)
    assert [row["gpu_uuid"] for row in rows] == ["GPU-a", "b", "c"] * 2
    assert {row["host"] for row in rows} == {"h1"}
    assert len({row["ts"] for row in rows}) == 2
    assert bench.sequences(GPU_SAMPLES) == [0, 1, 2, 3]
    headers = bench.outlet.records[-2].record.headers
    assert (headers["ce_source"], headers["ce_epoch"]) == ("fake@h1/main", "epoch-1")


def test_rows_of_several_hosts_are_events_of_their_own_partitions():
    hosts = [f"node{n}" for n in range(6)]
    rows = Rows(stream=GPU_SAMPLES, columns={"host": hosts * 2, "gpu_uuid": [f"g{n}" for n in range(12)]})
    bench = Bench(Reading(rows=[rows]), polls=1).run()
    sent = [o for o in bench.outlet.records if o.topic == GPU_SAMPLES.topic]
    assert [(o.record.key, o.partition) for o in sent] == [(h, GPU_SAMPLES.partition_of(h)) for h in hosts]
    assert bench.sequences(GPU_SAMPLES) == list(range(6))
    assert len(bench.outlet.rows(GPU_SAMPLES)) == 12


def test_a_value_that_cannot_be_true_is_null_and_counted():
    bench = Bench(Reading(rows=[gpu(temperature_celsius=345, power_watts=70)]), polls=2).run()
    rows = bench.outlet.rows(GPU_SAMPLES)
    assert [(row["temperature_celsius"], row["power_watts"]) for row in rows] == [(None, 70)] * 2
    last = bench.statuses()[-1]
    assert last["values_rejected"] == 2
    assert json.loads(last["rejections"]) == {"temperature_celsius:out_of_range": 2}
    assert bench.metric("collector_values_rejected_total", reason="out_of_range") == 2


def test_what_a_device_said_badly_is_counted_by_reason():
    reading = Reading(rows=[gpu()], rejected={"bad_labels": 2}, skipped={"blank": 5})
    bench = Bench(reading, polls=3).run()
    last = bench.statuses()[-1]
    assert last["lines_rejected"] == 6
    assert json.loads(last["rejections"]) == {"bad_labels": 6, "blank": 15}
    assert bench.metric("collector_rejected_total", reason="bad_labels") == 6
    assert bench.metric("collector_skipped_total", reason="blank") == 15


def test_a_failing_device_is_asked_less_and_less_but_at_least_every_ten_seconds():
    bench = Bench(BAD, polls=12).run()
    found = gaps(bench.times)
    for gap, longest in zip(found, [1, 2, 4, 8, *[LONGEST_BACK_OFF_SECONDS] * 7], strict=True):
        assert longest / 2 <= gap <= longest
    assert len({round(gap, 3) for gap in found[4:]}) > 1
    assert bench.metric("collector_failures_total", reason="timeout") == 12


def test_a_device_that_is_read_once_an_hour_is_asked_again_within_seconds_too():
    bench = Bench(BAD, BAD, GOOD, polls=4, interval_seconds=3600).run()
    found = gaps(bench.times)
    assert all(gap <= LONGEST_BACK_OFF_SECONDS for gap in found[:2])
    assert (bench.times[3] - bench.times[0]) % 3600 < 1


def test_after_a_recovery_readings_are_on_the_grid_again():
    bench = Bench(GOOD, BAD, BAD, GOOD, polls=7).run()
    assert [round((t - bench.times[0]) % 1, 6) for t in bench.times[4:]] == [0, 0, 0]


def test_a_status_tells_the_start_the_first_failure_the_recovery_and_the_stop():
    bench = Bench(GOOD, BAD, BAD, GOOD, polls=5).run()
    states = [status["state"] for status in bench.statuses()]
    assert states == ["starting", "failing", "working", "stopping"]
    failing, working, stopping = bench.statuses()[1:]
    assert (failing["last_error_reason"], failing["last_error"]) == ("timeout", "no whole answer in time")
    assert (failing["polls"], failing["polls_failed"], failing["rows"]) == (2, 1, 1)
    assert (working["polls"], working["polls_failed"]) == (4, 2)
    assert json.loads(stopping["last_sequences"]) == {"gpu_samples": 2}
    assert bench.sequences(COLLECTOR_STATUS) == [0, 1, 2, 3]
    assert {status["source"] for status in bench.statuses()} == {"fake@h1/main"}
    assert {status["host"] for status in bench.statuses()} == {"h1"}


@pytest.mark.parametrize("interval", [1, 600])
def test_a_status_comes_every_ten_seconds_however_long_the_interval(interval):
    bench = Bench(polls=2 if interval > 60 else 602, interval_seconds=interval).run()
    statuses = bench.statuses()
    assert len(statuses) == pytest.approx(600 / STATUS_SECONDS + 2, abs=2)
    assert {status["state"] for status in statuses[1:-1]} == {"working"}


def test_rows_and_success_are_told():
    bench = Bench(Reading(rows=[gpu(), gpu("b")]), polls=3).run()
    last = bench.statuses()[-1]
    assert (last["rows"], last["polls"], last["polls_failed"], last["spool_depth"]) == (6, 3, 0, 0)
    assert last["last_success"] == bench.outlet.rows(GPU_SAMPLES)[-1]["ts"]
    assert last["last_error"] is None
    assert bench.metric("collector_rows_total") == 6


def test_a_defect_in_a_collector_is_a_failure_of_its_source_alone():
    bench = Bench(ZeroDivisionError("oops"), GOOD, polls=2).run()
    assert [status["state"] for status in bench.statuses()] == ["starting", "failing", "working", "stopping"]
    assert bench.statuses()[1]["last_error"] == "ZeroDivisionError: oops"
    assert bench.metric("collector_failures_total", reason="internal") == 1


@pytest.mark.parametrize(
    "columns", [{"nonsense": [1]}, {"gpu_uuid": [None]}, {"gpu_uuid": ["a"], "power_watts": ["hot"]}]
)
def test_rows_that_break_their_stream_are_a_failure_and_send_nothing(columns):
    bench = Bench(Reading(rows=[gpu(), Rows(stream=GPU_SAMPLES, columns=columns)]), GOOD, polls=2).run()
    assert bench.statuses()[1]["state"] == "failing"
    assert bench.sequences(GPU_SAMPLES) == [0]


def test_what_an_outlet_refuses_is_put_again_unchanged_before_anything_new():
    bench = Bench()
    source, outlet = bench.source, bench.outlet
    assert source.poll()
    outlet.refusals = ["full", "full"]  # the second refuses the status that tells of the first
    assert not source.poll()
    outlet.refusals = ["timeout"]
    assert not source.poll()
    assert source.poll()
    puts = [attempt for attempt in outlet.attempts if attempt[0].topic == GPU_SAMPLES.topic]
    assert len(puts) == 5
    assert puts[1] == puts[2] == puts[3]
    assert len(bench.times) == 3  # the device was not asked while its rows waited
    assert bench.sequences(GPU_SAMPLES) == [0, 1, 2]
    assert bench.metric("collector_put_failures_total", reason="full") == 2
    assert bench.metric("collector_failures_total", reason="full") is None


def test_a_status_that_could_not_be_sent_is_sent_before_the_next():
    bench = Bench(outlet=FakeOutlet("full"))
    bench.source.publish_status("starting")
    assert bench.statuses() == []
    bench.source.publish_status()
    assert [status["state"] for status in bench.statuses()] == ["starting", "starting"]
    assert bench.sequences(COLLECTOR_STATUS) == [0, 1]


def test_an_event_too_large_for_the_outlet_is_a_hole_that_readers_see():
    bench = Bench(outlet=FakeOutlet())
    bench.outlet.refusals = ["too_large"]
    assert not bench.source.poll()
    assert bench.source.poll()
    assert bench.sequences(GPU_SAMPLES) == [1]


def test_a_cursor_is_put_with_its_rows_only_when_it_changed():
    bench = Bench(outlet=FakeOutlet())
    assert bench.source.poll()
    assert bench.outlet.cursors == {}
    bench.collector.kept = b"one"
    bench.outlet.refusals = ["full"]
    assert not bench.source.poll()
    assert bench.outlet.cursors == {}
    assert bench.source.poll()
    assert bench.outlet.cursors == {"fake@h1/main": b"one"}


def test_a_new_process_takes_up_the_cursor():
    outlet = FakeOutlet()
    outlet.cursors["fake@h1/main"] = b"kept"
    assert Bench(outlet=outlet).collector.restored == b"kept"
    assert Bench(outlet=FakeOutlet()).collector.restored is None


def test_what_waits_at_the_stop_is_tried_once_more():
    outlet = FakeOutlet()
    bench = Bench(polls=1, outlet=outlet)
    bench._before = lambda: outlet.refusals.append("timeout")
    bench.run()
    assert bench.sequences(GPU_SAMPLES) == [0]
    assert bench.collector.closed


def test_small_corrections_of_the_clock_never_let_the_time_of_a_source_fall():
    bench = Bench(polls=None)
    for step in (0, 5, -3, 0, 1, 60):
        bench.clock._now_us += step * 1_000_000
        bench.source.poll()
    times = [row["ts"] for row in bench.outlet.rows(GPU_SAMPLES)]
    microseconds = [round((b - a).total_seconds() * 1e6) for a, b in pairwise(times)]
    assert microseconds == [5_000_000, 1, 1, 1, 58_000_000 - 3]
    assert bench.metric("collector_clock_steps_total") == 3


def test_a_clock_that_is_set_back_far_is_told_and_followed_and_small_corrections_are_not():
    bench = Bench(polls=None)
    for step in (0, -2, 3, -3_600, 1, 1, 3_600, -4, 60, -10):
        bench.clock.set(step)
        bench.source.poll()
        bench.source.publish_status()
    told = [status["last_error"] for status in bench.statuses()]
    assert told[:3] == [None] * 3
    assert "set back by 3600 s" in told[3]
    assert told[3:9] == [told[3]] * 6
    assert "set back by 10 s" in told[9]
    times = [row["ts"] for row in bench.outlet.rows(GPU_SAMPLES)]
    assert [round((b - a).total_seconds()) for a, b in pairwise(times)] == [
        0,
        1,
        -3_600,
        1,
        1,
        3_600,
        0,
        56,
        -10,
    ]
    assert {status["last_error_reason"] for status in bench.statuses()} == {None, "clock"}


def test_a_collector_that_does_not_come_back_is_told_by_the_watch():
    bench = Bench(timeout_seconds=2)
    bench.source.publish_status("starting")

    def hang():
        for _ in range(30):
            bench.clock.advance(1)
            bench.source.watch()

    bench._before = hang
    bench.source.poll()
    statuses = bench.statuses()
    assert [status["state"] for status in statuses] == [
        "starting",
        "failing",
        "failing",
        "failing",
        "working",
    ]
    assert statuses[1]["last_error_reason"] == "timeout"
    assert statuses[1]["last_error"] == "no answer for 10 s"


def test_many_rows_go_as_arrow_and_too_many_as_several_events():
    outlet = FakeOutlet()
    sender = Sender(outlet, "s", "e")
    for count in (ARROW_FROM_ROWS - 1, ARROW_FROM_ROWS, MAX_ROWS + 1):
        sender.queue(INVENTORY, example_rows(INVENTORY, count, hall="demo"))
    sender.put()
    types = [o.record.headers["content-type"] == ARROW_TYPE for o in outlet.records]
    assert types == [False, True, True, False]
    assert len(outlet.rows(INVENTORY)) == 2 * ARROW_FROM_ROWS + MAX_ROWS
    assert sender.sent == {"inventory": 3}
    assert not sender.waiting


def test_a_table_without_rows_is_no_event():
    outlet = FakeOutlet()
    sender = Sender(outlet, "s", "e")
    sender.queue(GPU_EVENTS, GPU_EVENTS.schema.empty_table())
    sender.put()
    assert outlet.attempts == []


def config(*tables, **hall):
    return Config(
        hall=HallSection(name="demo", synthetic=True, **hall), ingest=IngestSection(collectors=tables)
    )


DCGM = {"collector": "gpu-dcgm", "host": "h1", "url": "http://127.0.0.1:1/metrics"}


def test_the_configuration_says_which_sources_run(tmp_path):
    runner = build_runner(
        config(DCGM, DCGM | {"instance": "second"}, inventory=tmp_path / "hall.yaml"), FakeOutlet()
    )
    assert [source.name for source in runner.sources] == [
        "inventory@demo/main",
        "gpu-dcgm@h1/main",
        "gpu-dcgm@h1/second",
    ]


def test_a_map_with_a_table_of_its_own_is_read_once(tmp_path):
    table = {"collector": "inventory", "path": tmp_path / "other.yaml", "interval_seconds": 60}
    runner = build_runner(config(table, inventory=tmp_path / "hall.yaml"), FakeOutlet())
    assert [source.name for source in runner.sources] == ["inventory@demo/main"]


def test_a_wrong_or_repeated_table_is_named_by_its_number():
    with pytest.raises(
        ConfigError, match=r"\[\[ingest\.collectors\]\] number 2: gpu-dcgm@h1/main is there already"
    ):
        build_runner(config(DCGM, DCGM), FakeOutlet())
    with pytest.raises(ConfigError, match=r"\[\[ingest\.collectors\]\] number 1: there is no collector 'x'"):
        build_runner(config({"collector": "x"}), FakeOutlet())
    with pytest.raises(ConfigError, match="nothing to collect"):
        build_runner(config(), FakeOutlet())


def test_a_source_without_a_host_is_of_the_hall():
    assert source_name(CollectorConfig(collector="inventory"), HALL) == "inventory@demo/main"


def make_runner(*benches):
    outlet = FakeOutlet()
    sources = []
    metrics = Metrics()
    counters = SourceMetrics(metrics)
    clock = SystemClock()
    for number, collector in enumerate(benches):
        settings = HostConfig(collector="fake", host=f"h{number}", interval_seconds=0.02, timeout_seconds=1)
        sources.append(Source(settings, collector, outlet, HALL, "e", clock, counters))
    return Runner(sources, outlet, clock=clock, metrics=metrics), outlet


def test_once_reads_every_source_once_and_tells_whether_all_succeeded():
    runner, outlet = make_runner(FakeCollector(GOOD), FakeCollector(GOOD))
    assert runner.run_once()
    assert len(outlet.rows(GPU_SAMPLES)) == 2
    runner, outlet = make_runner(FakeCollector(GOOD), FakeCollector(BAD))
    assert not runner.run_once()
    assert len(outlet.rows(GPU_SAMPLES)) == 1
    assert sorted(status["state"] for status in outlet.rows(COLLECTOR_STATUS)) == [
        "failing",
        "stopping",
        "stopping",
    ]


def test_a_slow_device_delays_nobody_else():
    """The slow one is still being read when the others have been read fifty times."""
    enough, stop = threading.Event(), threading.Event()
    quick = [FakeCollector(GOOD) for _ in range(3)]

    def wait():
        enough.wait(20)

    slow = FakeCollector(GOOD, before=wait)
    for collector in quick:
        collector._before = lambda: enough.set() if all(len(c.asked) >= 50 for c in quick) else None
    runner, outlet = make_runner(slow, *quick)
    running = threading.Thread(target=runner.run, args=(stop,))
    running.start()
    assert enough.wait(20)
    asked = len(slow.asked)
    stop.set()
    running.join()
    assert asked == 1
    assert all(collector.closed for collector in (slow, *quick))
    last = {status["source"]: status["state"] for status in outlet.rows(COLLECTOR_STATUS)}
    assert set(last.values()) == {"stopping"}


def test_one_source_is_never_read_twice_at_a_time():
    inside, most, stop = [], [], threading.Event()

    def enter():
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.05)
        inside.pop()
        if len(most) >= 5:
            stop.set()

    runner, _ = make_runner(FakeCollector(GOOD, before=enter))
    runner.run(stop)
    assert set(most) == {1}


def test_a_thread_that_dies_ends_the_run_with_its_error():
    class Broken(FakeOutlet):
        def put(self, *_):
            raise RuntimeError("the outlet is broken")

    collector = FakeCollector(GOOD)
    settings = HostConfig(collector="fake", host="h", interval_seconds=1)
    metrics, outlet, clock = Metrics(), Broken(), FakeClock()
    source = Source(settings, collector, outlet, HALL, "e", clock, SourceMetrics(metrics))
    with pytest.raises(RuntimeError, match="the outlet is broken"):
        Runner([source], outlet, clock=clock, metrics=metrics).run(threading.Event())


def test_a_port_that_is_taken_is_an_error_of_the_configuration():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        runner = Runner([], FakeOutlet(), clock=FakeClock(), metrics=Metrics(), metrics_port=port)
        with pytest.raises(ConfigError, match="metrics_port") as raised:
            runner.run(threading.Event())
    assert raised.value.reason == "in_use"


def test_no_metric_of_the_runner_has_a_label_without_bound():
    bench = Bench(BAD, GOOD, polls=3).run()
    labels = {
        label
        for family in bench.metrics.registry.collect()
        for measured in family.samples
        for label in measured.labels
    }
    assert labels <= {"collector", "reason", "le"}


def test_every_stream_of_every_collector_is_declared():
    for registration in COLLECTORS.all().values():
        assert all(STREAMS[stream.name] is stream for stream in registration.streams)


@pytest.fixture
def taker():
    """A collector that takes away what it reads."""
    taken = []

    def build(_config, _context):
        return FakeCollector(GOOD, before=lambda: taken.append(1))

    register("taker", HostConfig, (GPU_SAMPLES,), consumes=True)(build)
    yield taken
    COLLECTORS.remove("taker")


def test_who_only_looks_takes_nothing_away(taker, caplog):
    config = Config(
        hall=HALL,
        ingest=IngestSection(
            collectors=(
                {"collector": "taker", "host": "h1"},
                {"collector": "inventory", "path": "/none.yaml"},
            )
        ),
    )
    looking = build_runner(config, FakeOutlet(), only_looking=True)
    assert [source.name for source in looking.sources] == ["inventory@demo/main"]
    assert "source_left_out" in caplog.text
    assert len(build_runner(config, FakeOutlet()).sources) == 2
    assert taker == []


def test_a_collector_that_cannot_be_built_is_named(tmp_path):
    table = {"collector": "fabric-mesh", "host": "h1", "key_file": str(tmp_path / "none")}
    with pytest.raises(ConfigError, match=r"fabric-mesh@h1/main: .*none: No such file"):
        build_runner(Config(hall=HALL, ingest=IngestSection(collectors=(table,))), FakeOutlet())
