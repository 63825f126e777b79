"""The chain of transitions: every edit, cut, gap and second history shows, and it says where."""

import stat
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa
import pytest

from alerts.chain import (
    GENESIS,
    Chain,
    SignedHead,
    Signer,
    canonical,
    fingerprint,
    load_public_key,
    verify_chain,
)
from alerts.evaluator import Evaluator
from alerts.testing import Feed, judge, margins, rule_text, rules_of
from contract.codec import encode_columns, parse_json
from contract.errors import StoreError
from contract.streams.alerts import ALERTS

RULES = rules_of(rule_text())

FINGERPRINT = "afbf5d0965d6fdd69d5a9e9eb5afdb6d"
"""SHA-256 of `hot`, a zero byte and `GPU-1`, its first half."""


@pytest.fixture(scope="module")
def signer(tmp_path_factory):
    return Signer(tmp_path_factory.mktemp("key"))


def history(pattern="x.x.x.x.", *, chain="c1", head=GENESIS):
    drafts = judge(Evaluator(RULES, "demo"), margins(Feed(), pattern))
    grown = Chain(chain, "demo", synthetic=True, index=0, head=head)
    return grown.extend(drafts, RULES.digest)


def rows_of(transitions):
    return [transition.row() | {"_epoch": transition.chain} for transition in transitions]


def flaws(rows, signer, heads=(), **options):
    return [(flaw.kind, flaw.index) for flaw in verify_chain(rows, signer.public_key, heads, **options)]


def test_a_history_as_it_was_written_has_no_flaw(signer) -> None:
    transitions = history()
    heads = [signer.sign(transition, 1_000_000) for transition in transitions]
    assert len(transitions) == 8
    assert flaws(rows_of(transitions), signer, heads) == []
    assert flaws(rows_of(transitions)[::-1], signer, heads) == []


@pytest.mark.parametrize("column", [c.name for c in ALERTS.columns if c.name not in ("hash", "amends")])
def test_a_change_of_any_column_shows(signer, column) -> None:
    rows = rows_of(history())
    old = rows[3].get(column)
    rows[3][column] = (
        "f" * 64
        if column.endswith("hash")
        else "another"
        if isinstance(old, str | None)
        else not old
        if isinstance(old, bool)
        else old + 1
    )
    found = flaws(rows, signer)
    assert ("edited", 3) in found or (column == "chain_index" and ("fork", 4) in found)


def test_a_changed_transition_that_was_hashed_anew_breaks_the_link(signer) -> None:
    transitions = history()
    rows = rows_of(transitions)
    forged = Chain("c1", "demo", synthetic=True, index=3, head=transitions[2].hash)
    draft = judge(Evaluator(RULES, "demo"), margins(Feed(), "x."))[1]
    rows[3] = forged.extend([draft], RULES.digest)[0].row() | {"_epoch": "c1"}
    assert flaws(rows, signer) == [("unlinked", 4)]


def test_a_tail_that_was_cut_shows_only_against_a_signed_head(signer) -> None:
    transitions = history()
    head = signer.sign(transitions[-1], 1_000_000)
    assert flaws(rows_of(transitions[:-2]), signer) == []
    assert flaws(rows_of(transitions[:-2]), signer, [head]) == [("cut", 7)]
    assert flaws([], signer, [head]) == [("cut", 7)]


def test_a_history_rewritten_as_a_whole_shows_against_a_signed_head(signer) -> None:
    head = signer.sign(history()[-1], 1_000_000)
    assert flaws(rows_of(history("x.x.x..x.")), signer, [head]) == [("edited", 7)]


def test_a_missing_middle_is_a_gap(signer) -> None:
    rows = rows_of(history())
    found = verify_chain(rows[:2] + rows[5:], signer.public_key)
    assert [(flaw.kind, flaw.index, flaw.message) for flaw in found] == [
        ("gap", 2, "transitions 2 to 4 are missing")
    ]


def test_a_row_twice_is_doubled_and_two_versions_are_a_fork(signer) -> None:
    rows = rows_of(history())
    assert flaws([*rows, rows[4]], signer) == [("doubled", 4)]
    other = rows_of(history("x.x.x..x."))
    assert ("fork", 6) in flaws([*rows, other[6]], signer)


def test_chains_that_follow_each_other_are_whole(signer) -> None:
    first = history()
    second = history(chain="c2", head=first[-1].hash)
    rows = rows_of(first) + rows_of(second)
    assert flaws(rows, signer) == []
    assert [(f.kind, f.chain) for f in verify_chain(rows_of(second), signer.public_key)] == [("gap", "c2")]


def test_two_chains_after_the_same_transition_are_a_fork(signer) -> None:
    first = history()
    second, third = (history(chain=name, head=first[-1].hash) for name in ("c2", "c3"))
    found = verify_chain(rows_of(first) + rows_of(second) + rows_of(third), signer.public_key)
    assert [(flaw.kind, flaw.chain) for flaw in found] == [("fork", "c3")]


def test_a_chain_that_leaves_another_in_its_middle_is_a_fork(signer) -> None:
    first = history()
    second = history(chain="c2", head=first[4].hash)
    found = verify_chain(rows_of(first) + rows_of(second), signer.public_key)
    assert [(flaw.kind, flaw.chain) for flaw in found] == [("fork", "c2")]


def test_a_pruned_history_is_verified_from_its_anchor(signer) -> None:
    transitions = history()
    rows = rows_of(transitions[4:])
    assert flaws(rows, signer) == [("gap", 0)]
    assert flaws(rows, signer, anchors={"c1": (4, transitions[3].hash)}) == []
    assert flaws(rows, signer, anchors={"c1": (4, "0" * 64)}) == [("unlinked", 4)]


def test_a_head_of_another_key_or_with_another_text_is_not_genuine(signer, tmp_path) -> None:
    transition = history()[-1]
    head = signer.sign(transition, 1_000_000)
    assert flaws(rows_of(history()), signer, [Signer(tmp_path).sign(transition, 1_000_000)]) == [
        ("bad_signature", 7)
    ]
    moved = SignedHead.parse(head.text.replace("/7/", "/6/"))
    assert flaws(rows_of(history()), signer, [moved]) == [("bad_signature", 6)]


def test_a_head_survives_its_text(signer) -> None:
    head = signer.sign(history()[-1], 1_000_000)
    assert SignedHead.parse(head.text) == head
    for text in ("", "a/b/c", "c1/x/y/z/s"):
        with pytest.raises(StoreError, match="not a signed head"):
            SignedHead.parse(text)


def test_what_the_lake_gives_back_verifies_as_what_was_written(signer) -> None:
    """Times come back as naive timestamps, absent columns as nulls."""
    found = []
    for transition in history():
        columns, _ = parse_json(encode_columns(ALERTS, {k: [v] for k, v in transition.row().items()}))
        row = ALERTS.table({name: [value] for name, value in columns.items()}).to_pylist()[0]
        assert isinstance(row["ts"], datetime)
        assert row["amends"] is None
        found.append(row | {"_epoch": "c1"})
    assert flaws(found, signer) == []
    aware = [row | {"ts": row["ts"].replace(tzinfo=UTC)} for row in found]
    assert flaws(aware, signer) == []


def test_the_canonical_form_is_stable() -> None:
    """A change here makes every stored history unverifiable."""
    row = {"ts": 1, "synthetic": False, "chain_index": 0, "rule": "r", "host": None, "hash": "x"}
    assert canonical(row) == b'{"chain_index":0,"rule":"r","synthetic":false,"ts":1}'
    assert canonical(row | {"ts": pa.scalar(1, pa.timestamp("us")).as_py()}) == canonical(row)
    assert fingerprint("hot", "GPU-1") == FINGERPRINT


def test_the_key_is_made_once_and_only_its_owner_reads_it(tmp_path) -> None:
    first = Signer(tmp_path)
    assert stat.S_IMODE((tmp_path / "chain.key").stat().st_mode) == 0o600
    head = Signer(tmp_path).sign(history()[-1], 1)
    assert head.is_genuine(first.public_key)
    assert head.is_genuine(load_public_key(tmp_path / "chain.pub"))
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    "text", ["", "not a key", "-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"]
)
def test_a_key_that_cannot_be_used_stops_the_engine(tmp_path, text) -> None:
    (tmp_path / "chain.key").write_text(text)
    (tmp_path / "chain.pub").write_text(text)
    with pytest.raises(StoreError):
        Signer(tmp_path)
    with pytest.raises(StoreError):
        load_public_key(tmp_path / "chain.pub")


def test_evidence_and_names_of_any_length_fit_the_stream() -> None:
    """What the codec would cut to null could not be verified in the lake."""
    feed = Feed()
    long = "x" * 60_000
    rule = rule_text(when="detail IS NOT NULL", on="gpu_events", entity=["host", "gpu_uuid", "detail"])
    values: dict[str, Any] = {"event": "xid", "evidence": "kernel_log", "gpu_uuid": "g", "detail": long}
    draft = judge(Evaluator(rules_of(rule), "demo"), [feed.row("gpu_events", 1, **values)])[0]
    (transition,) = Chain("c", "demo", synthetic=False, index=0, head=GENESIS).extend([draft], "d" * 64)
    row = transition.row()
    table, rejected = ALERTS.clean({name: [value] for name, value in row.items()})
    assert rejected == {}
    assert table.num_rows == 1
    assert len(orjson.loads(row["evidence"])["detail"]) == 1_000
