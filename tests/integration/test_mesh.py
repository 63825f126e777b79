"""Probers and responders over loopback: what is measured, what is refused, and what ends neither."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.clock import SystemClock
from contract.config import HallSection
from contract.errors import CollectError, ConfigError
from contract.streams.fabric import FABRIC_PROBES
from ingest.collector import Context, Reading
from ingest.fabric.mesh import MeshCollector, MeshConfig, MeshNic
from ingest.fabric.mesh_packet import (
    ANSWER,
    LEAST_BYTES,
    PROBE,
    End,
    Keys,
    Packet,
    decode,
    encode,
)
from ingest.fabric.responder import Responder, ResponderCollector, ResponderConfig
from ingest.testing import rows_of

pytestmark = pytest.mark.integration

LOOPBACK = "127.0.0.1"
KEY = bytes(range(32))
KEYS = Keys([KEY])
PATIENCE_SECONDS = 20


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.bind((LOOPBACK, 0))
        port: int = one.getsockname()[1]
        return port


def context() -> Context:
    return Context(hall=HallSection(name="test"), clock=SystemClock())


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_text(KEY.hex())
    return tmp_path / "key"


@pytest.fixture
def responder(key_file: Path) -> Iterator[ResponderCollector]:
    config = ResponderConfig(
        collector="fabric-responder",
        host="h2",
        key_file=key_file,
        nics=(MeshNic(nic="n0", address=LOOPBACK),),
        port=free_port(),
    )
    collector = ResponderCollector(config, context())
    collector.collect(0)
    yield collector
    collector.close()


def prober(key_file: Path, port: int, **values: Any) -> MeshCollector:
    settings: dict[str, Any] = {
        "collector": "fabric-mesh",
        "host": "h1",
        "key_file": key_file,
        "nics": ({"nic": "n0", "address": LOOPBACK, "rail": 1, "leaf": "a"},),
        "targets": ({"host": "h2", "nic": "n0", "address": LOOPBACK, "rail": 1, "leaf": "b"},),
        "port": port,
        "probe_interval_seconds": 0.005,
        "interval_seconds": 0.4,
    }
    return MeshCollector(MeshConfig(**settings | values), context())


def row_of(reading: Reading) -> dict[str, Any]:
    """Return the one row of a reading as the runner would send it, without its nulls."""
    [rows] = reading.rows
    [row] = rows_of(Reading(rows=[replace(rows, columns={**rows.columns, "host": ["h"]})]), FABRIC_PROBES)
    return row


def until(collector: MeshCollector, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Collect until a row is as wanted."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        row = row_of(collector.collect(0))
        if holds(row):
            return row
        time.sleep(0.1)
    raise AssertionError(f"never, the last was {row}")


class Stranger:
    """Somebody with a socket, who sends what he likes to a responder."""

    def __init__(self, target: End) -> None:
        self.target = target
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((LOOPBACK, 0))
        self.socket.settimeout(PATIENCE_SECONDS)
        self.good = 100
        self.marks = End(*self.socket.getsockname()).mark + target.mark

    def probe(
        self, sequence: int = 0, *, keys: Keys = KEYS, size: int = LEAST_BYTES, age_seconds: float = 0
    ) -> bytes:
        packet = Packet(PROBE, b"stranger", sequence, time.time_ns() - round(age_seconds * 1e9))
        return encode(packet, keys, self.marks, size)

    def ask(self, content: bytes) -> bytes:
        """Send, and return the next answer."""
        self.socket.sendto(content, self.target)
        return self.socket.recv(65_535)

    def is_ignored(self, content: bytes) -> bool:
        """Send, then a good probe; return whether the first answer is to that one."""
        self.good += 1
        self.socket.sendto(content, self.target)
        answer = self.ask(self.probe(self.good))
        marks = self.target.mark + End(*self.socket.getsockname()).mark
        found = decode(answer, KEYS, marks, ANSWER)
        return isinstance(found, Packet) and found.sequence == self.good


@pytest.fixture
def stranger(responder: ResponderCollector) -> Iterator[Stranger]:
    one = Stranger(End(LOOPBACK, responder._config.port))
    yield one
    one.socket.close()


def dropped(responder: ResponderCollector) -> Counter[str]:
    return Counter(responder.collect(0).rejected)


def test_a_path_is_measured_and_the_delay_of_hosts_is_apart(
    key_file: Path, responder: ResponderCollector
) -> None:
    probes = prober(key_file, responder._config.port)
    try:
        row = until(probes, lambda row: row["answered"] >= 30)
    finally:
        probes.close()
    assert row["path"] == "h1/n0>h2/n0"
    assert (row["path_class"], row["limit_us"], row["protocol"]) == ("same_rail", 150, "udp")
    assert row["rtt_count"] == row["answered"]
    assert (row["lost"], row["duplicates"], row["unsent"]) == (0, 0, 0)
    assert min(row["rtt_p50_us"], row["responder_delay_us"], row["prober_delay_us"]) > 0
    assert len(row["source_ports"].split(",")) == 16
    delay = row_of(responder.collect(1_000_000))
    assert (delay["path"], delay["latency_kind"]) == ("h2/n0", "host_delay")
    assert delay["rtt_count"] == delay["answered"] >= 30


def test_an_authentic_probe_gets_one_answer_of_its_own_size(
    stranger: Stranger, responder: ResponderCollector
) -> None:
    for sequence, size in enumerate((LEAST_BYTES, 500, 1_400)):
        answer = stranger.ask(stranger.probe(sequence, size=size))
        assert len(answer) == size
        marks = stranger.target.mark + End(*stranger.socket.getsockname()).mark
        found = decode(answer, KEYS, marks, ANSWER)
        assert isinstance(found, Packet)
        assert (found.sequence, found.session) == (sequence, b"stranger")
        assert found.received_ns <= found.answered_ns
    assert dropped(responder) == {}


def test_of_probes_in_jumbo_frames_only_the_first_is_cut(
    stranger: Stranger, responder: ResponderCollector
) -> None:
    stranger.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        stranger.ask(stranger.probe(0, size=8_972))
    stranger.socket.settimeout(5)
    assert len(stranger.ask(stranger.probe(1, size=8_972))) == 8_972
    assert dropped(responder) == {"spoofed": 1}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda _: b"", "malformed"),
        (lambda _: b"x" * 2_000, "malformed"),
        (lambda s: s.probe()[:-1], "malformed"),
        (lambda s: s.probe(keys=Keys([b"another key of a hall"])), "spoofed"),
        (lambda s: s.probe(size=100)[:99], "spoofed"),
        (lambda s: s.probe(age_seconds=61), "stale"),
        (lambda s: s.probe(age_seconds=-61), "stale"),
    ],
    ids=["empty", "noise", "cut", "other-key", "cut-padding", "old", "of-the-future"],
)
def test_what_is_no_good_probe_gets_no_answer_and_is_counted(
    stranger: Stranger, responder: ResponderCollector, make: Callable[[Stranger], bytes], reason: str
) -> None:
    assert stranger.is_ignored(make(stranger))
    assert dropped(responder) == {reason: 1}


def test_a_captured_probe_is_worth_nothing_a_second_time_nor_from_elsewhere(
    stranger: Stranger, responder: ResponderCollector
) -> None:
    captured = stranger.probe(3)
    assert stranger.ask(captured)
    assert stranger.is_ignored(captured)
    thief = Stranger(stranger.target)
    try:
        thief.good = 200
        assert thief.is_ignored(stranger.probe(4))
    finally:
        thief.socket.close()
    assert dropped(responder) == {"replayed": 1, "spoofed": 1}


def test_a_responder_that_may_not_send_goes_on_and_counts(
    stranger: Stranger, responder: ResponderCollector
) -> None:
    [desk] = responder._responder._desks
    inner = desk.socket

    class Filtered:
        """A socket whose way out is closed by a filter."""

        address, port, fileno, receive, close = (
            inner.address,
            inner.port,
            inner.fileno,
            inner.receive,
            inner.close,
        )

        def send(self, *_: object) -> None:
            raise PermissionError(1, "Operation not permitted")

    desk.socket = Filtered()  # type: ignore[assignment]
    stranger.socket.sendto(stranger.probe(0), stranger.target)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not desk._tally.unsent and time.monotonic() < deadline:
        time.sleep(0.01)
    desk.socket = inner
    assert stranger.ask(stranger.probe(1))
    while not desk._delays_ns and time.monotonic() < deadline:
        time.sleep(0.01)
    row = row_of(responder.collect(0))
    assert (row["answered"], row["unsent"]) == (1, 1)


def test_a_requester_that_is_gone_when_its_answer_comes_ends_nothing(responder: ResponderCollector) -> None:
    for _ in range(3):
        gone = Stranger(End(LOOPBACK, responder._config.port))
        gone.socket.sendto(gone.probe(), gone.target)
        gone.socket.close()
    still = Stranger(End(LOOPBACK, responder._config.port))
    try:
        assert still.ask(still.probe(1))
    finally:
        still.socket.close()


def test_without_a_responder_every_probe_is_lost_and_none_is_answered(key_file: Path) -> None:
    probes = prober(key_file, free_port(), late_after_seconds=0.1, lost_after_seconds=0.2)
    try:
        row = until(probes, lambda row: row["recent_lost"] >= 50)
    finally:
        probes.close()
    assert row["sent"] == row["lost"]
    assert (row["rtt_count"], row["dead_port_count"]) == (0, 0)


def test_an_answer_that_nobody_with_the_key_sent_is_refused(key_file: Path) -> None:
    impostor = Responder(
        [End(LOOPBACK, port := free_port())], Keys([b"not the key of this hall"]), max_age_seconds=60
    )
    liar = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    liar.bind((LOOPBACK, port))
    liar.settimeout(5)
    probes = prober(key_file, port, late_after_seconds=0.1, lost_after_seconds=0.2)
    try:
        probes._prober.open()
        content, sender = liar.recvfrom(65_535)
        here, there = End(LOOPBACK, port).mark, End(*sender).mark
        assert decode(content, impostor._keys, there + here, PROBE) == "spoofed"
        liar.sendto(content, sender)
        liar.sendto(encode(Packet(ANSWER, bytes(8), 0, 0, 1, 2), impostor._keys, here + there), sender)
        deadline, refused = time.monotonic() + PATIENCE_SECONDS, Counter[str]()
        while refused.total() < 2 and time.monotonic() < deadline:
            refused += Counter(probes.collect(0).rejected)
            time.sleep(0.05)
    finally:
        probes.close()
        liar.close()
    assert refused == {"malformed": 1, "spoofed": 1}


def test_an_address_that_is_not_here_fails_the_reading_and_is_tried_again(key_file: Path) -> None:
    elsewhere = (MeshNic(nic="n0", address="192.0.2.1"),)
    probes = prober(key_file, free_port(), nics=elsewhere)
    answers = ResponderCollector(
        ResponderConfig(collector="fabric-responder", host="h1", key_file=key_file, nics=elsewhere), context()
    )
    for collector in (probes, answers):
        for _ in range(2):
            with pytest.raises(CollectError) as failed:
                collector.collect(0)
            assert failed.value.reason == "unreachable"
        collector.close()


def failure_of(collector: MeshCollector | ResponderCollector) -> str:
    """Collect until a reading fails; return what it says."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            collector.collect(0)
        except CollectError as error:
            return str(error)
        time.sleep(0.05)
    raise AssertionError("no reading failed")


def test_a_prober_that_ended_by_a_defect_fails_one_reading_and_begins_anew(
    key_file: Path, responder: ResponderCollector
) -> None:
    probes = prober(key_file, responder._config.port)
    try:
        until(probes, lambda row: row["answered"] >= 5)
        probes._prober._targets = []
        assert "IndexError" in failure_of(probes)
        assert until(probes, lambda row: row["answered"] >= 5)["lost"] == 0
    finally:
        probes.close()


def test_a_responder_that_ended_by_a_defect_fails_one_reading_and_begins_anew(
    stranger: Stranger, responder: ResponderCollector
) -> None:
    [desk] = responder._responder._desks
    desk._windows = None  # type: ignore[assignment]
    stranger.socket.sendto(stranger.probe(0), stranger.target)
    assert "AttributeError" in failure_of(responder)
    responder.collect(0)
    assert stranger.ask(stranger.probe(1))


def test_a_port_that_another_responder_has_fails_the_reading(
    responder: ResponderCollector,
) -> None:
    second = ResponderCollector(responder._config, context())
    with pytest.raises(CollectError, match="in use"):
        second.collect(0)
    second.close()


def test_a_prober_without_any_path_says_what_to_write(key_file: Path) -> None:
    with pytest.raises(ConfigError, match="targets"):
        prober(key_file, 1, targets=())
