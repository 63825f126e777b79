"""Histograms are merged in SQL over any rows, and the percentiles of the whole are within their error."""

import numpy as np
import pytest

from analytics.query import connect
from analytics.testing import SinkRig
from contract.histogram import Histogram, error_ratio, merge
from contract.streams.fabric import FABRIC_PROBES
from contract.streams.self import DEAD_LETTERS

RATIOS = (0.5, 0.99, 0.999)
WINDOWS, VALUES = 60, 500
MERGED = "histogram_merged('fabric_probes', {by}, rtt_idx, rtt_cnt, rtt_schema)"


def latencies(rng, count):
    """Return a plausible mixture: most near 9 us, one in a hundred somewhere up to a millisecond."""
    values = rng.lognormal(np.log(9_000), 0.1, count)
    slow = rng.random(count) < 0.01
    values[slow] += rng.pareto(1.7, slow.sum()) * 15_000
    return values.astype(np.int64)


def send(rig, sequence, histograms, **values):
    rows = [histogram.columns("rtt") for histogram in histograms]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    rig.send(sequence, stream=FABRIC_PROBES, rows=len(rows), **columns, **values)


@pytest.fixture
def rig(tmp_path):
    return SinkRig(tmp_path, streams=(FABRIC_PROBES, DEAD_LETTERS))


@pytest.fixture
def windows(rig):
    rng = np.random.default_rng(5)
    values = [latencies(rng, VALUES) for _ in range(WINDOWS)]
    for at, part in enumerate(values):
        send(rig, at, [Histogram.of(part)], nic="even" if at % 2 == 0 else "odd")
    rig.drain(rig.sink())
    return values


def within(values):
    exact = np.quantile(np.concatenate(values), RATIOS, method="inverted_cdf")
    return pytest.approx(exact, rel=error_ratio() + 1e-6)


def test_percentiles_after_merging_all_windows_are_within_their_error(rig, windows):
    asked = ", ".join(f"histogram_percentile(rtt_idx, rtt_cnt, rtt_schema, {ratio})" for ratio in RATIOS)
    [found] = rig.rows(f"SELECT {asked} FROM fabric_probes")
    assert found == within(windows)
    [(count, *table)] = rig.rows(f"SELECT count, p50_ns, p99_ns, p999_ns FROM {MERGED.format(by='1')}")
    assert count == WINDOWS * VALUES
    assert table == within(windows)


def test_each_group_is_merged_by_itself_and_rows_can_be_chosen_before(rig, windows):
    grouped = (
        "SELECT nic, histogram_percentile(rtt_idx, rtt_cnt, rtt_schema, 0.99) FROM fabric_probes GROUP BY nic"
    )
    chosen = f"WITH fabric_probes AS (FROM main.fabric_probes WHERE nic = 'odd') SELECT grouping, p99_ns FROM {MERGED.format(by='nic')}"
    odd = within(windows[1::2]).expected[1]
    assert dict(rig.rows(grouped))["odd"] == pytest.approx(odd, rel=error_ratio() + 1e-6)
    assert rig.rows(chosen) == [("odd", pytest.approx(odd, rel=error_ratio() + 1e-6))]


def test_sql_and_the_library_merge_to_the_same_buckets(rig, windows):
    whole = merge(Histogram.of(part) for part in windows)
    [(idx, cnt)] = rig.rows(f"SELECT idx, cnt FROM {MERGED.format(by='1')}")
    assert (tuple(idx), tuple(cnt)) == (whole.idx, whole.cnt)


def test_a_window_without_any_answer_changes_no_percentile_and_no_window_has_none(rig):
    send(rig, 0, [Histogram(), Histogram.of([1_000])], nic="a")
    send(rig, 1, [Histogram()], nic="b")
    rig.send(2, stream=FABRIC_PROBES, rows=1, nic="c")
    rig.drain(rig.sink())
    found = rig.rows(
        "SELECT nic, histogram_percentile(rtt_idx, rtt_cnt, rtt_schema, 0.5) FROM fabric_probes GROUP BY nic ORDER BY nic"
    )
    assert found == [("a", pytest.approx(1_000, rel=error_ratio())), ("b", None), ("c", None)]


def test_windows_of_two_schemas_merge_in_the_coarser(rig):
    fine, coarse = Histogram.of([900, 1_000, 5_000], 5), Histogram.of([7_000, 9_000], 3)
    send(rig, 0, [fine, coarse])
    rig.drain(rig.sink())
    whole = merge([fine, coarse])
    [(schema, idx, cnt)] = rig.rows(f"SELECT schema, idx, cnt FROM {MERGED.format(by='1')}")
    assert (schema, tuple(idx), tuple(cnt)) == (3, whole.idx, whole.cnt)
    [(median,)] = rig.rows(
        "SELECT histogram_percentile(rtt_idx, rtt_cnt, rtt_schema, 0.5) FROM fabric_probes"
    )
    assert median == pytest.approx(5_000, rel=error_ratio(3))


def test_classic_buckets_come_out_of_the_same_histogram(rig):
    send(rig, 0, [Histogram.of([512, 2_048]), Histogram.of([2_048, 8_192])])
    rig.drain(rig.sink())
    asked = ", ".join(
        f"histogram_count_below(rtt_idx, rtt_cnt, rtt_schema, {ns})" for ns in (256, 512, 2_048, 10_000)
    )
    assert rig.rows(f"SELECT {asked} FROM fabric_probes") == [(0, 1, 3, 4)]


def test_the_functions_are_there_in_a_lake_without_any_row(tmp_path):
    (tmp_path / "lake").mkdir()
    with connect(tmp_path / "lake") as lake:
        assert lake.sql(f"FROM {MERGED.format(by='host')}").fetchall() == []
