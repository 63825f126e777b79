"""What lies in the lake: whole steps, sorted and encoded by kind, in tables that any Delta reader opens."""

import dataclasses
import math
import os
from datetime import date
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from analytics.lake import Lake, Progress, app_id
from analytics.parquet import FRESH, STEADY, encoding_of, to_lake, to_steps, write_file
from analytics.query import connect
from analytics.views import FileGroup, stream_view
from contract.errors import CommitRefused, StoreError
from contract.stream import LAKE_COLUMNS, Stream, gauge, text
from contract.streams import STREAMS
from contract.streams.gpu import GPU_SAMPLES
from contract.testing import example_rows, tables

LOG = "0" * 32
DAY_US = 86_400_000_000
BEGIN_US = 1_780_272_000_000_000


def with_origin(rows, received_us=BEGIN_US):
    """Add the LAKE_COLUMNS, as the sink does."""
    count = rows.num_rows
    values = {
        "_log": [LOG] * count,
        "_partition": [3] * count,
        "_offset": list(range(count)),
        "_source": ["test@h/0"] * count,
        "_epoch": ["e"] * count,
        "_seq": list(range(count)),
        "_received": [received_us] * count,
        "_principal": [None] * count,
    }
    columns = [
        pa.array(values[c.name], pa.int64() if c.name == "_received" else c.type) for c in LAKE_COLUMNS
    ]
    arrays = [*rows.columns, *(a.cast(c.type) for a, c in zip(columns, LAKE_COLUMNS, strict=True))]
    return pa.Table.from_arrays(arrays, names=[*rows.column_names, *(c.name for c in LAKE_COLUMNS)])


@pytest.fixture
def table(tmp_path):
    return Lake(tmp_path / "lake").create(GPU_SAMPLES, LOG, dict.fromkeys(range(24), 0))


@pytest.mark.parametrize(
    ("value", "resolution", "steps"),
    [(0.29, 0.01, 29), (123.456, 0.001, 123_456), (0.1234565, 1e-6, 123_456), (-19.6, 1, -20), (2.5, 1, 2)],
)
def test_a_value_becomes_the_nearest_whole_step(value, resolution, steps):
    column = gauge("x", "float64", "", valid=(-1000, 1000), resolution=resolution)
    assert to_steps(column, pa.array([value])).to_pylist() == [steps]


@given(st.integers(-(10**6), 10**6), st.sampled_from([1, 0.5, 0.1, 0.01, 0.001, 1e-6]))
def test_a_value_on_a_step_comes_back_as_it_was(steps, resolution):
    per_unit = round(1 / resolution)
    column = gauge("x", "float64", "", valid=(-(10**7), 10**7), resolution=resolution)
    assert to_steps(column, pa.array([steps / per_unit])).to_pylist() == [steps]


def test_every_column_with_a_resolution_has_bounds_that_its_steps_can_hold():
    gauges = [c for stream in STREAMS.values() for c in stream.columns if c.steps_per_unit is not None]
    assert gauges
    for column in gauges:
        low, high = column.bounds()
        extremes = pa.array([low, high], column.type)
        assert to_steps(column, extremes).to_pylist() == [
            round(v * (column.steps_per_unit or 1)) for v in (low, high)
        ]


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@settings(max_examples=10, phases=[Phase.generate])
@given(data=st.data())
def test_what_is_read_is_what_was_written(stream, data, tmp_path_factory):
    """Every row comes back, each number within half a step of what it was."""
    rows = data.draw(tables(stream).filter(lambda t: t.num_rows))
    folder = tmp_path_factory.mktemp("table")
    file = write_file(folder, stream, to_lake(stream, with_origin(rows), FRESH), date(2026, 6, 1), FRESH)
    group = FileGroup(frozenset(stream.lake_schema.names), (str(folder / file.path),))
    with duckdb.connect() as connection:
        found = connection.sql(f"FROM ({stream_view(stream, [group])}) ORDER BY _offset").to_arrow_table()
    for column in stream.columns:
        before, after = rows.column(column.name), found.column(column.name)
        if column.steps_per_unit is None:
            assert after.cast(column.type).equals(before)
        else:
            assert pc.is_null(after).to_pylist() == pc.is_null(before).to_pylist()
            limit = 0.5000001 / column.steps_per_unit
            for old, new in zip(before.to_pylist(), after.to_pylist(), strict=True):
                assert old is None or math.isclose(old, new, abs_tol=limit, rel_tol=1e-6)


@pytest.mark.parametrize("layout", [FRESH, STEADY], ids=["fresh", "steady"])
def test_rows_are_sorted_by_the_layout(layout):
    rows = example_rows(GPU_SAMPLES, 50, host=["b", "a", "c", "a", "b"] * 10, gpu_uuid=["y", "x"] * 25)
    stored = to_lake(GPU_SAMPLES, with_origin(rows), layout)
    by = layout.order(GPU_SAMPLES)
    keys = list(zip(*(stored.column(name).to_pylist() for name in by), strict=True))
    assert keys == sorted(keys)
    assert sorted(stored.column("_offset").to_pylist()) == list(range(50))


@pytest.mark.parametrize(
    ("column", "fresh", "steady"),
    [
        ("ts", "BYTE_STREAM_SPLIT", "BYTE_STREAM_SPLIT"),
        ("energy_millijoules", "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"),
        ("temperature_celsius", "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"),
        ("power_watts", "BYTE_STREAM_SPLIT", "BYTE_STREAM_SPLIT"),
        ("nvlink_tx_bytes_per_second", "BYTE_STREAM_SPLIT", "BYTE_STREAM_SPLIT"),
        ("sm_clock_mhz", "BYTE_STREAM_SPLIT", "DICTIONARY"),
        ("gpu_uuid", "DELTA_BYTE_ARRAY", "DICTIONARY"),
        ("model", "DICTIONARY", "DICTIONARY"),
        ("synthetic", "PLAIN", "PLAIN"),
    ],
)
def test_the_encoding_follows_from_the_kind_of_a_column(column, fresh, steady):
    declared = GPU_SAMPLES.by_name[column]
    assert encoding_of(GPU_SAMPLES, declared, FRESH) == fresh
    assert encoding_of(GPU_SAMPLES, declared, STEADY) == steady


def test_a_file_has_the_encodings_that_were_chosen(table):
    [file] = table.write(with_origin(example_rows(GPU_SAMPLES, 100, power_watts=1.5, model="m")))
    group = pq.read_metadata(table.path / file.path).row_group(0)
    found = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert "BYTE_STREAM_SPLIT" in found["power_watts"].encodings
    assert "DELTA_BYTE_ARRAY" in found["gpu_uuid"].encodings
    assert "RLE_DICTIONARY" in found["model"].encodings
    assert found["power_watts"].compression == "ZSTD"
    assert found["power_watts"].physical_type == "INT32"


def test_other_delta_readers_see_rows_names_and_notes(table):
    rows = with_origin(example_rows(GPU_SAMPLES, 3, power_watts=1.5))
    table.commit(LOG, {3: Progress(0, 3)}, table.write(rows), note="a note")
    delta = DeltaTable(table.path)
    assert delta.to_pyarrow_table(columns=["power_watts", "_offset"]).to_pydict() == {
        "power_watts": [1500] * 3,
        "_offset": [0, 1, 2],
    }
    assert delta.metadata().name == "gpu_samples"
    assert delta.metadata().partition_columns == ["_date"]
    assert delta.history(1)[0]["hallwatch"] == "a note"
    assert delta.transaction_version(app_id(LOG, 3)) == 3
    assert delta.transaction_version(app_id(LOG, 4)) == 0


def test_files_carry_the_extremes_that_readers_prune_by(table):
    rows = with_origin(example_rows(GPU_SAMPLES, 3, host=["b", "a", "c"]))
    table.commit(LOG, {3: Progress(0, 3)}, table.write(rows))
    stats = pa.table(DeltaTable(table.path).get_add_actions(flatten=True)).to_pylist()[0]
    assert (stats["num_records"], stats["min.host"], stats["max.host"]) == (3, "a", "c")
    assert stats["max._received"].isoformat() == "2026-06-01T00:00:00"
    assert stats["min.ts"].isoformat() == "2026-06-01T00:00:00"
    assert stats["max.ts"].isoformat() == "2026-06-01T00:00:02"


def test_rows_of_two_days_become_two_files(table):
    rows = [with_origin(example_rows(GPU_SAMPLES, 2), BEGIN_US + day * DAY_US) for day in (0, 1)]
    files = table.write(pa.concat_tables(rows))
    assert [(file.day, file.rows) for file in files] == [("2026-06-01", 2), ("2026-06-02", 2)]


def test_a_commit_from_another_start_is_refused_and_leaves_no_file(table):
    files = table.write(with_origin(example_rows(GPU_SAMPLES, 3)))
    with pytest.raises(CommitRefused, match="offset 0 is stored, this writer began at 7"):
        table.commit(LOG, {3: Progress(7, 9)}, files)
    assert not (table.path / files[0].path).exists()


def reopened(lake, stream=GPU_SAMPLES):
    """Open a table as another process would."""
    table = lake.table(stream)
    assert table is not None
    return table


def test_commits_of_other_partitions_pass_each_other(table):
    other = reopened(Lake(table.path.parent))
    for partition, writer, start in ((1, table, 0), (2, other, 0), (1, table, 5), (2, other, 5)):
        writer.commit(LOG, {partition: Progress(start, start + 5)}, [])
    table.refresh()
    assert [table.offset(LOG, p) for p in (1, 2, 3)] == [10, 10, 0]


def test_many_commits_make_checkpoints_that_are_read_back(table):
    for n in range(25):
        table.commit(LOG, {1: Progress(n, n + 1)}, table.write(with_origin(example_rows(GPU_SAMPLES, 1))))
    assert len(list(Path(table.path, "_delta_log").glob("*.checkpoint*"))) == 2
    again = reopened(Lake(table.path.parent))
    assert again.offset(LOG, 1) == 25
    assert len(again.files()) == 25


SMALL = Stream(
    name="gpu_samples",
    family="gpu",
    version=1,
    key="host",
    partitions=1,
    interval=None,
    rows_per_second=1,
    doc="An older version.",
    columns=[c for c in GPU_SAMPLES.columns if c.required],
)


def test_a_column_that_was_added_later_is_null_in_older_files(tmp_path):
    lake = Lake(tmp_path / "lake")
    old = lake.create(SMALL, LOG, {3: 0})
    old.commit(LOG, {3: Progress(0, 2)}, old.write(with_origin(example_rows(SMALL, 2))))
    new = reopened(lake)
    rows = with_origin(example_rows(GPU_SAMPLES, 2, power_watts=7.5, model="m"))
    new.commit(LOG, {3: Progress(2, 4)}, new.write(rows))
    with connect(lake.path) as connection:
        found = connection.sql("SELECT _offset, power_watts, model FROM gpu_samples ORDER BY power_watts, 1")
        assert found.fetchall() == [(0, 7.5, "m"), (1, 7.5, "m"), (0, None, None), (1, None, None)]
        assert [str(t) for t in found.types] == ["BIGINT", "DOUBLE", "VARCHAR"]


def test_a_column_that_changed_its_type_is_refused(tmp_path):
    lake = Lake(tmp_path / "lake")
    lake.create(SMALL, LOG, {0: 0})
    columns = [text("ts", "") if c.name == "ts" else c for c in SMALL.columns]
    with pytest.raises(StoreError, match="ts is"):
        lake.table(dataclasses.replace(SMALL, columns=columns))


def test_a_table_whose_maker_died_is_no_table_and_is_made_anew(tmp_path):
    (tmp_path / "lake" / GPU_SAMPLES.name / "_delta_log").mkdir(parents=True)
    lake = Lake(tmp_path / "lake")
    assert lake.table(GPU_SAMPLES) is None
    assert connect(tmp_path / "lake").sql("SELECT count(*) FROM gpu_samples").fetchall() == [(0,)]
    assert lake.create(GPU_SAMPLES, LOG, dict.fromkeys(range(24), 0)).version == 0
    opened = lake.table(GPU_SAMPLES)
    assert opened is not None
    assert opened.version == 0


def test_rows_whose_log_is_gone_are_not_taken_for_a_new_table(table):
    (table.path / "part-0.parquet").touch()
    for entry in (table.path / "_delta_log").glob("*.json"):
        entry.unlink()
    with pytest.raises(StoreError, match="no log that says which"):
        Lake(table.path.parent).table(GPU_SAMPLES)


def test_a_table_that_is_torn_says_so(table):
    Path(table.path, "_delta_log", f"{0:020}.json").write_text("{torn")
    with pytest.raises(StoreError, match="cannot be opened"):
        Lake(table.path.parent).table(GPU_SAMPLES)


def test_old_log_entries_go_when_a_checkpoint_covers_them(table):
    for n in range(12):
        table.commit(LOG, {1: Progress(n, n + 1)}, [])
    log = Path(table.path, "_delta_log")
    for entry in log.glob("*.json"):
        os.utime(entry, (0, 0))
    table.clean_log()
    assert f"{0:020}.json" not in {path.name for path in log.iterdir()}
    assert f"{12:020}.json" in {path.name for path in log.iterdir()}
    assert reopened(Lake(table.path.parent)).offset(LOG, 1) == 12
