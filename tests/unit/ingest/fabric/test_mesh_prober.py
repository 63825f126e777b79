"""A prober of many paths: its rows hold up no probe, and its paths have no window of a responder in common."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from typing_extensions import override

from ingest.fabric.mesh_ledger import ClosedWindow, PathLedger
from ingest.fabric.mesh_packet import PROBE, End, Keys, Packet, ReplayWindow, decode
from ingest.fabric.mesh_paths import Endpoint, Path
from ingest.fabric.mesh_prober import Prober, ProbeSettings, Route

KEYS = Keys([b"k" * 32])
LOOPBACK = "127.0.0.1"
SETTINGS = ProbeSettings(
    source_ports=1,
    first_source_port=0,
    packet_bytes=64,
    interval_seconds=60,
    late_after_seconds=1,
    lost_after_seconds=3,
    recent_seconds=60,
)


def routes(count: int) -> list[Route]:
    here = Endpoint(host="h0", nic="n", address=LOOPBACK)
    return [
        Route(Path(here, Endpoint(host=f"h{number}", nic="n", address=LOOPBACK), "other"), 7_797)
        for number in range(1, count + 1)
    ]


class Outbox:
    """A socket that keeps what is sent."""

    address, port = LOOPBACK, 42_000

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def send(self, content: bytes, *_: object) -> None:
        self.contents.append(content)


def probes_of(prober: Prober, rounds: int) -> list[Packet]:
    """Return what a prober sends in so many rounds over all of its paths."""
    outbox = Outbox()
    prober._sockets[LOOPBACK] = [outbox]  # type: ignore[list-item]
    for _ in range(rounds):
        for at in range(len(prober.routes)):
            prober._send(at)
    marks = End(LOOPBACK, outbox.port).mark + End(LOOPBACK, 7_797).mark
    packets = [decode(content, KEYS, marks, PROBE) for content in outbox.contents]
    return [packet for packet in packets if isinstance(packet, Packet)]


def test_a_probe_that_is_overtaken_by_those_of_many_paths_is_no_replay() -> None:
    first, *others = probes_of(Prober(routes(200), KEYS, SETTINGS), rounds=7)
    assert len(others) == 200 * 7 - 1 > ReplayWindow.WIDTH
    windows: defaultdict[bytes, ReplayWindow] = defaultdict(ReplayWindow)
    assert all(windows[packet.session].is_new(packet.sequence) for packet in [*others, first])
    assert len(windows) == 200
    assert not windows[first.session].is_new(first.sequence)


def test_probes_are_not_held_up_while_rows_are_made() -> None:
    prober = Prober(routes(2), KEYS, SETTINGS)

    class Waiting(PathLedger):
        """A ledger whose row waits for a probe to leave."""

        @override
        def row(self, closed: ClosedWindow) -> dict[str, Any]:
            assert prober._lock.acquire(timeout=5)
            prober._lock.release()
            return super().row(closed)

    prober._ledgers = [Waiting(timeout_seconds=1, give_up_seconds=3, recent_seconds=60) for _ in range(2)]
    assert [row["sent"] for row in prober.rows()[0]] == [0, 0]
