"""From devices over HTTP to the bus of one machine, with restarts between."""

import http.server
import json
import threading
from pathlib import Path

import pytest

from contract.bus.local import LocalBus
from contract.bus.protocols import TopicPartition
from contract.config import Config, HallSection, IngestSection
from contract.reader import read_batch
from contract.streams import STREAMS
from ingest.runner import Runner, build_runner
from ingest.spool import DirectOutlet, SpoolOutlet

pytestmark = pytest.mark.integration

UUID = "GPU-00000000-0000-0000-0000-000000000000"
MAP = f"""\
hall: demo
synthetic: true
rows:
- row: a
  racks:
  - {{rack: a01, hosts: [{{host: h1, gpus: [{{index: 0, uuid: {UUID}}}]}}, {{host: h2}}]}}
"""


class Exporter:
    """A dcgm-exporter of one GPU; `None` instead of a page is an error of the server."""

    def __init__(self) -> None:
        self.page: bytes | None = b""
        self.asked = 0
        exporter = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                exporter.asked += 1
                page = exporter.page
                self.send_response(500 if page is None else 200)
                self.send_header("Content-Length", str(len(page or b"")))
                self.end_headers()
                self.wfile.write(page or b"")

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def show(self, temperature: int, xid: int) -> None:
        labels = f'gpu="0",UUID="{UUID}",hostname="x"'
        self.page = (
            f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} {temperature}\nDCGM_FI_DEV_XID_ERRORS{{{labels}}} {xid}\n"
        ).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def exporter():
    made = Exporter()
    yield made
    made.close()


@pytest.fixture
def bus(tmp_path):
    made = LocalBus(tmp_path / "bus", fsync=False)
    made.ensure_topics(STREAMS.values())
    yield made
    made.close()


@pytest.fixture
def config(tmp_path: Path, exporter):
    (tmp_path / "hall.yaml").write_text(MAP)
    tables = [
        {"collector": "gpu-dcgm", "host": host, "url": exporter.url, "interval_seconds": 0.05}
        for host in ("h1", "h2")
    ]
    return Config(
        hall=HallSection(name="demo", synthetic=True, inventory=tmp_path / "hall.yaml"),
        ingest=IngestSection(collectors=tuple(tables)),
    )


def rows(bus, name):
    """Return everything a stream holds, in bus order, as its readers see it."""
    stream = STREAMS[name]
    consumer = bus.consumer("test")
    partitions = [TopicPartition(stream.topic, partition) for partition in range(stream.partitions)]
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    messages = []
    while part := consumer.poll(0.0):
        messages += part
    consumer.close()
    batch = read_batch(stream, messages, {}, synthetic=True)
    assert not batch.dead
    assert not batch.repeats
    return batch.table.to_pylist()


def run_until(runner: Runner, enough) -> None:
    """Run in a thread until `enough()`, then stop in good order."""
    stop = threading.Event()
    thread = threading.Thread(target=runner.run, args=(stop,))
    thread.start()
    try:
        for _ in range(600):
            if enough():
                break
            stop.wait(0.05)
        else:
            pytest.fail("not enough after half a minute")
    finally:
        stop.set()
        thread.join()


def test_devices_and_map_arrive_on_the_bus_and_a_restart_tells_no_event_again(config, bus, exporter):
    exporter.show(temperature=61, xid=79)
    for _ in range(2):
        before = len(rows(bus, "gpu_samples"))
        runner = build_runner(config, DirectOutlet(bus))
        run_until(
            runner,
            lambda before=before: len(rows(bus, "gpu_samples")) >= before + 6 and rows(bus, "inventory"),
        )
    samples = rows(bus, "gpu_samples")
    assert {
        (row["host"], row["gpu_uuid"], row["temperature_celsius"], row["last_xid"]) for row in samples
    } == {
        ("h1", UUID, 61, 79),
        ("h2", UUID, 61, 79),
    }
    assert sorted((row["host"], row["code"]) for row in rows(bus, "gpu_events")) == [("h1", 79), ("h2", 79)]
    assets = rows(bus, "inventory")
    assert [row["asset"] for row in assets] == ["demo", "a", "a01", "h1", UUID, "h2"]
    last = {(row["source"], row["epoch"]): row for row in rows(bus, "collector_status")}
    assert len(last) == 6
    assert {row["state"] for row in last.values()} == {"stopping"}
    told = sum(json.loads(row["last_sequences"]).get("gpu_samples", -1) + 1 for row in last.values())
    assert told == len(samples)


def test_a_device_that_fails_and_recovers_is_seen_to(config, bus, exporter):
    exporter.show(temperature=61, xid=0)

    def break_it():
        if exporter.asked >= 6:
            exporter.page = None
        return any(row["state"] == "failing" for row in rows(bus, "collector_status"))

    def mend_it():
        exporter.show(temperature=62, xid=0)
        return any(row["temperature_celsius"] == 62 for row in rows(bus, "gpu_samples"))

    steps = [break_it, mend_it]

    def enough():
        if steps and steps[0]():
            steps.pop(0)
        return not steps

    run_until(build_runner(config, DirectOutlet(bus)), enough)
    failing = [row for row in rows(bus, "collector_status") if row["state"] == "failing"]
    assert {row["last_error_reason"] for row in failing} == {"bad_status"}
    assert "status 500 where 200 belongs" in failing[0]["last_error"]


def test_through_a_spool_everything_arrives_too(config, bus, exporter, tmp_path):
    exporter.show(temperature=61, xid=13)
    outlet = SpoolOutlet(tmp_path / "spool", bus, fsync=False)
    runner = build_runner(config, outlet)
    assert runner.run_once()
    for _ in range(200):
        if outlet.depth() == 0:
            break
        threading.Event().wait(0.05)
    outlet.close()
    assert len(rows(bus, "gpu_samples")) == 2
    assert len(rows(bus, "gpu_events")) == 2
    assert len(rows(bus, "inventory")) == 6
