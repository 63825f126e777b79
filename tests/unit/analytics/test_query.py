"""What a reader of the lake may rely on: views for every stream, one version at a time, nothing but reading."""

import threading

import duckdb
import pytest

from analytics import query as query_module
from analytics.query import connect
from analytics.testing import SinkRig
from contract.errors import StoreError
from contract.stream import LAKE_COLUMNS
from contract.streams import STREAMS


@pytest.fixture
def rig(tmp_path):
    return SinkRig(tmp_path)


@pytest.fixture
def fed(rig):
    rig.send(0, power_watts=123.456, temperature_celsius=55.0)
    rig.drain(rig.sink())
    return rig


def feed(rig, sequence):
    rig.send(sequence)
    rig.drain(rig.sink(), steps=1)


def test_every_stream_is_a_view_with_all_its_columns_before_there_is_a_row(tmp_path):
    (tmp_path / "lake").mkdir()
    with connect(tmp_path / "lake") as lake:
        for stream in STREAMS.values():
            found = lake.arrow(f'FROM "{stream.name}"')
            expected = [*(c.name for c in (*stream.columns, *LAKE_COLUMNS)), "_date"]
            assert (found.column_names, found.num_rows) == (expected, 0)


def test_a_view_has_the_same_types_with_and_without_rows(fed):
    with connect(fed.path) as lake:
        full = lake.sql("FROM gpu_samples").types
    (fed.path / "none").mkdir()
    with connect(fed.path / "none") as lake:
        assert lake.sql("FROM gpu_samples").types == full


def test_numbers_are_in_their_declared_units(fed):
    with connect(fed.path) as lake:
        found = lake.sql(
            "SELECT DISTINCT power_watts, temperature_celsius, typeof(power_watts) FROM gpu_samples"
        )
        assert found.fetchall() == [(123.456, 55.0, "DOUBLE")]


def test_times_are_naive_utc(fed):
    with connect(fed.path) as lake:
        [(ts, text, kind)] = lake.sql(
            "SELECT min(ts), min(ts)::VARCHAR, any_value(typeof(ts)) FROM gpu_samples"
        ).fetchall()
    assert (ts.isoformat(), text, kind) == ("2026-06-01T00:00:00", "2026-06-01 00:00:00", "TIMESTAMP")


def test_what_was_committed_shows_when_the_views_are_old_enough(fed):
    with connect(fed.path, max_age_seconds=2.0, clock=fed.clock) as lake:
        feed(fed, 1)
        assert lake.sql("SELECT count(*) FROM gpu_samples").fetchall() == [(8,)]
        fed.clock.advance(2)
        assert lake.sql("SELECT count(*) FROM gpu_samples").fetchall() == [(16,)]


def test_a_table_that_appears_later_shows(rig):
    rig.path.mkdir()
    with connect(rig.path, max_age_seconds=0) as lake:
        feed(rig, 0)
        assert lake.sql("SELECT count(*) FROM gpu_samples").fetchall() == [(8,)]


def test_nothing_is_opened_where_no_version_moved(fed, monkeypatch):
    with connect(fed.path, max_age_seconds=0) as lake:
        monkeypatch.setattr(query_module, "_create_view", lambda *_: 1 / 0)
        monkeypatch.setattr(query_module, "DeltaTable", lambda *_, **__: 1 / 0)
        assert lake.sql("SELECT count(*) FROM gpu_samples").fetchall() == [(8,)]


def test_a_view_that_could_not_be_renewed_is_renewed_by_the_next_question(fed, monkeypatch):
    with connect(fed.path, max_age_seconds=0) as lake:
        feed(fed, 1)
        monkeypatch.setattr(query_module, "stream_view", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lake.arrow("FROM gpu_samples")
        monkeypatch.undo()
        assert lake.arrow("FROM gpu_samples").num_rows == 16


def test_a_pinned_version_stays(fed):
    feed(fed, 1)
    with connect(fed.path) as lake:
        newest = lake.versions
    assert newest["gpu_samples"] == 2
    with connect(fed.path, versions={"gpu_samples": 1}) as lake:
        feed(fed, 2)
        assert lake.sql("SELECT count(*) FROM gpu_samples").fetchall() == [(8,)]
        assert lake.versions["gpu_samples"] == 1
    with connect(fed.path, versions={}) as lake:
        feed(fed, 3)
        assert lake.sql("SELECT count(*) FROM gpu_samples").fetchall() == [(24,)]


def test_a_query_that_runs_while_files_are_replaced_sees_one_version(fed):
    with connect(fed.path, max_age_seconds=0) as lake:
        running = lake.sql("SELECT count(*), count(DISTINCT _seq) FROM gpu_samples")
        feed(fed, 1)
        lake.renew()
        assert running.fetchall() in [[(8, 1)], [(16, 2)]]


def test_threads_share_a_connection(fed):
    found = []
    with connect(fed.path, max_age_seconds=0) as lake:

        def ask():
            found.extend(lake.sql("SELECT count(*) FROM gpu_samples").fetchall())

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [(8,)] * 8


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{lake}/x.parquet'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{lake}/x.parquet'",
        "explain (analyze) COPY (SELECT 1) TO '{lake}/x.parquet'",
        "/* hello */ EXPLAIN /* there */ ANALYZE COPY (SELECT 1) TO '{lake}/x.parquet'",
        "EXPLAIN -- a comment\n ANALYZE COPY (SELECT 1) TO '{lake}/x.parquet'",
        "PREPARE p AS COPY (SELECT 1) TO '{lake}/x.parquet'",
        "EXPORT DATABASE '{lake}/x'",
        "ATTACH '{lake}/x.db'",
        "CREATE TABLE x AS SELECT 1",
        "CREATE OR REPLACE VIEW gpu_samples AS SELECT 1",
        "DROP VIEW gpu_samples",
        "DELETE FROM gpu_samples",
        "SET threads = 8",
        "PRAGMA database_list",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT 1; COPY (SELECT 1) TO '{lake}/x.parquet'",
        "",
    ],
)
def test_anything_but_a_question_is_refused(fed, statement):
    before = sorted(fed.path.rglob("*"))
    with connect(fed.path) as lake, pytest.raises(StoreError):
        lake.sql(statement.format(lake=fed.path))
    assert sorted(fed.path.rglob("*")) == before


@pytest.mark.parametrize(
    "question",
    [
        "FROM gpu_samples",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "DESCRIBE gpu_samples",
        "SHOW TABLES",
        "SUMMARIZE gpu_samples",
        "EXPLAIN SELECT * FROM gpu_samples",
        "EXPLAIN ANALYZE SELECT count(*) FROM gpu_samples",
        "VALUES (1)",
        "SELECT 1;",
    ],
)
def test_every_kind_of_question_is_answered(fed, question):
    with connect(fed.path) as lake:
        assert lake.arrow(question).num_rows > 0


@pytest.mark.parametrize("table", ["read_text('/etc/passwd')", "read_csv('{up}/x.csv')", "glob('/etc/*')"])
def test_files_outside_the_lake_cannot_be_read(fed, table):
    (fed.path.parent / "x.csv").write_text("a\n1\n")
    with connect(fed.path) as lake, pytest.raises(duckdb.Error, match="disabled by configuration"):
        lake.arrow(f"FROM {table.format(up=fed.path.parent)}")


def test_values_are_bound_not_pasted(fed):
    with connect(fed.path) as lake:
        found = lake.sql("SELECT count(*) FROM gpu_samples WHERE host = $host", {"host": "h1"})
        assert found.fetchall() == [(8,)]


def test_a_lake_that_is_not_there_says_so(tmp_path):
    with pytest.raises(StoreError, match="there is no lake at"):
        connect(tmp_path / "nowhere")


def test_a_path_with_a_quote_is_only_a_path(tmp_path):
    rig = SinkRig(tmp_path / "it's here")
    rig.send(0)
    rig.drain(rig.sink())
    assert rig.rows("SELECT count(*) FROM gpu_samples") == [(8,)]
