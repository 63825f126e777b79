"""What a system owes after everything that was done to it: SQL over the lake, and the engine's history.

Nothing here trusts a process of the system: promises come from the cursors, expectations from the stamps, and the
engine's history from judging its journaled batches once more.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from alerts.chain import load_public_key, verify_chain
from alerts.engine import Engine, EngineOptions, signed_heads, verify_journal
from alerts.journal import FILE, Journal
from analytics.query import LakeConnection, connect
from contract.errors import HallwatchError
from contract.streams.alerts import ALERTS, NOTIFICATIONS
from contract.streams.gpu import GPU_EVENTS, GPU_SAMPLES
from contract.streams.self import COLLECTOR_STATUS
from tests.faults.nemesis.children import HALL, JUDGED, RULES
from tests.faults.nemesis.rig import Rig
from tests.faults.nemesis.stamp import GPUS, expected_transitions, gpu_name, has_event

NUMBERED = (GPU_SAMPLES, GPU_EVENTS, COLLECTOR_STATUS, ALERTS, NOTIFICATIONS)
"""Streams whose sources count without holes."""

_ROWS = f"""
WITH promised(host, numbers) AS (VALUES {{promised}}),
wanted AS (SELECT host, unnest(range(numbers)) AS number FROM promised),
found AS (
    SELECT host, energy_millijoules AS number, count(*) AS rows, count(DISTINCT gpu_uuid) AS gpus,
        bool_and(container = md5(concat_ws('/', {{seed}}, gpu_uuid, energy_millijoules))) AS genuine
    FROM gpu_samples GROUP BY ALL
),
places AS (
    SELECT DISTINCT host, energy_millijoules AS number, _partition, _offset FROM gpu_samples
),
steps AS (
    SELECT host, number, lag(number) OVER (PARTITION BY host ORDER BY _partition, _offset) AS before FROM places
)
SELECT 'lost' AS what, host, number FROM wanted ANTI JOIN (SELECT * FROM found WHERE gpus = {GPUS}) USING (host, number)
UNION ALL SELECT 'doubled', host, number FROM found WHERE rows > {GPUS}
UNION ALL SELECT 'reordered', host, number FROM steps WHERE number < before
UNION ALL SELECT 'phantom', host, number FROM found ANTI JOIN wanted USING (host, number)
UNION ALL SELECT 'phantom', host, number FROM found WHERE NOT genuine
ORDER BY ALL
"""

_EVENTS = """
WITH events AS (SELECT DISTINCT _source, _epoch, _seq, _partition, _offset FROM {stream}),
     epochs AS (SELECT _source, count(*) AS events, count(DISTINCT _seq) AS sequences, max(_seq) + 1 AS expected
                FROM events GROUP BY _source, _epoch)
SELECT CAST(sum(expected - sequences) AS INT), CAST(sum(events - sequences) AS INT) FROM epochs
"""

_DECIDED = """
SELECT entity, energy_millijoules, transition
FROM alerts LEFT JOIN gpu_samples ON gpu_uuid = entity AND gpu_samples.ts = evidence_ts
WHERE rule = 'hot'
"""


@dataclass(frozen=True, slots=True)
class Flaw:
    """One thing that is not as it must be."""

    kind: str
    """One of the columns of the table that a matrix of runs prints."""
    what: str


def drain(rig: Rig) -> None:
    """Let the system end: collectors first, then everything that they promised passes; raise StuckError."""
    for role in ("direct", "spool"):
        rig.stop(role)
    judged = {stream.topic for stream in JUDGED}

    def engine_is_done() -> bool:
        with closing(Journal(rig.disk("engine"), read_only=True)) as journal:
            read = {partition: place[1] for partition, place in journal.positions().items()}
        ends = {partition: end for partition, end in rig.bus_ends().items() if partition.topic in judged}
        return read.items() >= ends.items() and rig.unsettled() == 0

    rig.wait("the engine has judged, published and told everything", engine_is_done)
    rig.stop("engine")
    rig.wait("the sink has stored everything", lambda: rig.has_stored(rig.bus_ends()))
    rig.stop("sink")


def audit(rig: Rig) -> list[Flaw]:
    """Return everything that is wrong; the system is stopped."""
    flaws = [Flaw("died", death) for death in rig.deaths]
    with connect(rig.disk("lake"), versions={}) as lake:
        flaws += audit_rows(rig, lake)
        flaws += audit_events(rig, lake)
        flaws += audit_letters(rig, lake)
        flaws += audit_alerts(rig, lake)
        flaws += audit_notifications(rig, lake)
    return flaws + audit_replay(rig)


def audit_rows(rig: Rig, lake: LakeConnection) -> list[Flaw]:
    promised = rig.promised()
    values = ", ".join(f"('{host}', {count})" for host, count in promised.items())
    question = _ROWS.format(promised=values, seed=rig.site.seed)
    return [
        Flaw(what, f"{host} {number}{rig.during(host, number)}")
        for what, host, number in lake.sql(question).fetchall()
    ]


def audit_events(rig: Rig, lake: LakeConnection) -> list[Flaw]:
    """Check every source's own count, and that each drawn event of a GPU is there."""
    flaws = []
    for stream in NUMBERED:
        lost, doubled = lake.sql(_EVENTS.format(stream=stream.name)).fetchall()[0]
        flaws += [Flaw("lost", f"{lost} events of {stream.name}")] if lost else []
        flaws += [Flaw("doubled", f"{doubled} events of {stream.name}")] if doubled else []
    wanted = [
        (gpu, number)
        for host, count in rig.promised().items()
        for gpu in (gpu_name(host, index) for index in range(GPUS))
        for number in range(count)
        if has_event(rig.site.seed, gpu, number)
    ]
    found = lake.sql("SELECT gpu_uuid, occurrences - 1 FROM gpu_events").fetchall()
    return flaws + compare("event", wanted, found)


def audit_letters(rig: Rig, lake: LakeConnection) -> list[Flaw]:
    question = 'SELECT stream, "partition", "offset", reason FROM dead_letters'
    wanted = [("gpu_samples", *place, reason) for place, reason in rig.poisoned.items()]
    return compare("dead letter", wanted, lake.sql(question).fetchall())


def audit_alerts(rig: Rig, lake: LakeConnection) -> list[Flaw]:
    """The lake has the journal's transitions, in one unbroken chain, and they are what the stamps ask for."""
    folder = rig.disk("engine")
    rows = lake.arrow("SELECT * FROM alerts ORDER BY chain_index").to_pylist()
    with closing(Journal(folder, read_only=True)) as journal:
        journaled = [(t.index, t.hash) for t in journal.all_transitions()]
    flaws = compare("transition", journaled, [(row["chain_index"], row["hash"]) for row in rows])
    key = load_public_key(folder / "chain.pub")
    broken = [*verify_chain(rows, key, signed_heads(folder)), *verify_journal(folder, key)]
    flaws += [Flaw("history", str(flaw)) for flaw in broken]
    wanted = expected_transitions(rig.site.seed, rig.promised())
    return flaws + compare("verdict", wanted, lake.sql(_DECIDED).fetchall())


def audit_notifications(rig: Rig, lake: LakeConnection) -> list[Flaw]:
    """Everybody was told everything, under one key each, and that is recorded once."""
    keys = [
        f"{chain}/{index}/alertmanager"
        for chain, index in lake.sql("SELECT _epoch, chain_index FROM alerts").fetchall()
    ]
    recorded = lake.sql("SELECT idempotency_key FROM notifications WHERE outcome = 'delivered'").fetchall()
    told = {alert["annotations"]["idempotency_key"] for alert in rig.receiver.alerts}
    return compare("notification", keys, [key for (key,) in recorded]) + compare("call", keys, told)


def audit_replay(rig: Rig) -> list[Flaw]:
    """Judge every journaled batch again, from the first snapshot on: the history must be the same."""
    copy = rig.folder / "replayed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(rig.disk("engine"), copy)
    with closing(sqlite3.connect(copy / FILE)) as journal, journal:
        journal.execute("DELETE FROM snapshots WHERE number > (SELECT min(number) FROM snapshots)")
    try:
        Engine(EngineOptions(folder=copy, hall=HALL.name), rig.bus, RULES).close()
    except HallwatchError as error:
        return [Flaw("history", f"replayed: {error}")]
    return []


def compare(word: str, wanted: Iterable[Any], found: Iterable[Any]) -> list[Flaw]:
    """Return what is missing, there twice, or there without a reason."""
    wanted, counts = Counter(wanted), Counter(found)
    return [
        *(Flaw("lost", f"{word} {one}") for one in wanted - counts),
        *(Flaw("doubled", f"{word} {one}") for one, count in counts.items() if one in wanted and count > 1),
        *(Flaw("phantom", f"{word} {one}") for one in counts if one not in wanted),
    ]
