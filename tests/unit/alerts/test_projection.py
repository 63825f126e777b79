"""All conditions of a stream in one statement, and what a throwing one costs its neighbours: nothing."""

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from alerts.expression import checker
from alerts.projection import CHUNK_ROWS, FALSE, TRUE, UNKNOWN, Projection
from contract.streams import STREAMS
from contract.testing import example_rows

GPU = STREAMS["gpu_samples"]
HOT, COLD = "temperature_celsius > 80", "temperature_celsius < 20"
THROWS = "CAST(model AS INTEGER) > 3"


def evaluate(projection, rows):
    return projection.evaluate(rows, pa.array([0] * rows.num_rows, pa.timestamp("us")))


def projection(*texts):
    return Projection(GPU, [checker().check(GPU, text) for text in texts])


def test_each_row_is_true_false_or_unknown() -> None:
    rows = example_rows(GPU, 3, temperature_celsius=[90.0, 50.0, None])
    found = evaluate(projection(HOT, COLD), rows)
    assert found.codes[HOT].tolist() == [TRUE, FALSE, UNKNOWN]
    assert found.codes[COLD].tolist() == [FALSE, FALSE, UNKNOWN]
    assert not found.failed


def test_a_condition_that_throws_is_unknown_on_that_row_only_and_named() -> None:
    rows = example_rows(GPU, 3, temperature_celsius=[90.0, 50.0, 90.0], model=["1", "H100", "7"])
    one = projection(HOT, THROWS, COLD)
    for _ in range(2):
        found = evaluate(one, rows)
        assert found.codes[THROWS].tolist() == [FALSE, UNKNOWN, TRUE]
        assert found.codes[HOT].tolist() == [TRUE, FALSE, TRUE]
        assert "Could not convert" in found.failed[THROWS]


def test_a_condition_that_throws_no_longer_joins_the_others_again() -> None:
    one = projection(HOT, THROWS)
    evaluate(one, example_rows(GPU, 1, model="H100"))
    assert not evaluate(one, example_rows(GPU, 1, model="9")).failed
    one.rejoin(THROWS)
    found = evaluate(one, example_rows(GPU, 1, model="9", temperature_celsius=90.0))
    assert (found.codes[THROWS].tolist(), found.codes[HOT].tolist()) == ([TRUE], [TRUE])


def test_a_condition_that_throws_everywhere_costs_a_bounded_number_of_tries() -> None:
    """TRY goes row by row where one throws; past a few chunks the rest is unknown."""
    count = 8 * CHUNK_ROWS
    models = ["H100" if at % CHUNK_ROWS == 0 else "9" for at in range(count)]
    found = evaluate(
        projection(HOT, THROWS), example_rows(GPU, count, model=models, temperature_celsius=90.0)
    )
    codes = found.codes[THROWS]
    assert np.count_nonzero(codes == TRUE) == 4 * (CHUNK_ROWS - 1)
    assert np.count_nonzero(codes == UNKNOWN) == count - 4 * (CHUNK_ROWS - 1)
    assert (found.codes[HOT] == TRUE).all()


def test_a_database_that_broke_is_replaced(monkeypatch) -> None:
    one = projection(HOT)
    rows = example_rows(GPU, 1, temperature_celsius=90.0)
    broken = one._connection

    class Broken:
        def execute(self, *_):
            raise duckdb.FatalException("database has been invalidated")

    monkeypatch.setattr(one, "_connection", Broken())
    assert evaluate(one, rows).codes[HOT].tolist() == [TRUE]
    assert one._connection is not broken


@pytest.mark.parametrize("count", [0, 1, 5_000])
def test_any_number_of_rows_is_answered(count) -> None:
    found = evaluate(projection(HOT), example_rows(GPU, count, temperature_celsius=[90.0] * count))
    assert found.codes[HOT].tolist() == [TRUE] * count


def test_a_stream_without_conditions_needs_no_database() -> None:
    assert evaluate(projection(), example_rows(GPU, 2)).codes == {}
