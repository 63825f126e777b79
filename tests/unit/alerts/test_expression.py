"""Conditions: what may be asked of a row, and what is refused before it runs."""

import pyarrow as pa
import pytest

from alerts.expression import ExpressionError, checker, sandbox
from alerts.projection import UNKNOWN, Projection
from contract.streams import STREAMS
from contract.testing import example_rows

GPU = STREAMS["gpu_samples"]


@pytest.mark.parametrize(
    "text",
    [
        "temperature_margin_celsius <= 0",
        "gpu_samples.power_watts > 600 AND utilization_percent < 5",
        "clock_event_reasons & 8 <> 0",
        "model LIKE '%H100%' OR model IN ('A', 'B')",
        "ts > _received + INTERVAL 5 SECONDS",
        "coalesce(row_remap_failed, 0) = 1",
        "CASE WHEN power_watts > 3 THEN true END",
        "date_part('hour', ts) BETWEEN 1 AND 3",
        "regexp_matches(hpc_job, '^train') -- a comment",
        "true",
    ],
)
def test_a_pure_question_about_one_row_is_accepted(text) -> None:
    assert checker().check(GPU, text).text == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(SELECT max(ts) FROM gpu_samples) > ts", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("power_watts > ALL (SELECT 1)", "subquery"),
        ("sum(power_watts) > 1", "no function of one row"),
        ("count(*) > 1", "no function of one row"),
        ("sum(power_watts) OVER () > 1", "window"),
        ("row_number() OVER () = 1", "window"),
        ("power_watts", "gives DOUBLE"),
        ("NULL", "condition gives true or false"),
        ("watts > 1", "no column 'watts'"),
        ("gpu_events.power_watts > 1", "only gpu_samples"),
        ("rowid = 1", "no column 'rowid'"),
        ("gpu_uuid > 3", "Cannot compare"),
        ("power_watts >", "syntax error"),
        ("", "condition gives"),
        ("true, false", "condition gives"),
        ("true), (false", "one expression"),
        ("true) FROM gpu_events WHERE (true", "one expression"),
        ("true; DROP TABLE gpu_samples", "not an expression"),
        ("random() > 0.5", "more than the row"),
        ("now() > ts", "more than the row"),
        ("age(ts) > INTERVAL 1 DAY", "more than the row"),
        ("current_setting('threads') = '1'", "more than the row"),
        ("getvariable('x') = 1", "more than the row"),
        ("nextval('a') = 1", "more than the row"),
        ("error('x')", "more than the row"),
        ("read_text('passwd') IS NULL", "no function of one row"),
        ("length(repeat(model, 1000000000)) > 3", "any size"),
        ("format('{:1000000000}', model) = ''", "any size"),
        ("unnest([true])", "no function of one row"),
        ("list_transform([1], lambda x: x + 1) IS NULL", "lambda"),
        ("$1", "parameter"),
        ("#1", "position"),
        ("COLUMNS(*) > 1", "not allowed"),
        ("true " + "AND true " * 600, "longer than"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text, why) -> None:
    with pytest.raises(ExpressionError, match=why):
        checker().check(GPU, text)


@pytest.mark.parametrize(
    "text",
    [
        "TRY_CAST(model AS DOUBLE) > 80",
        "TRY_CAST(model AS DOUBLE) BETWEEN 80 AND 90 OR TRY_CAST(model AS DOUBLE) > 80",
        "power(temperature_celsius, 0.5) > 80",
        "greatest(temperature_celsius, TRY_CAST(model AS DOUBLE)) > 80",
        "80 < exp(power_watts) - exp(power_watts)",
        "power_watts / pcie_replays > 80",
        "TRY_CAST(model AS DOUBLE) NOT IN (1, 2)",
        "temperature_margin_celsius < 0",
    ],
)
def test_nan_and_null_are_unknown_and_never_true(text) -> None:
    """In SQL NaN is above every number; here it is a value that nobody knows."""
    rows = example_rows(GPU, 1, model="nan", temperature_celsius=-4.0, power_watts=1000.0, pcie_replays=0)
    projection = Projection(GPU, [checker().check(GPU, text)])
    codes = projection.evaluate(rows, pa.array([0], pa.timestamp("us"))).codes[text]
    assert codes.tolist() == [UNKNOWN]


@pytest.mark.parametrize(
    "statement",
    [
        "SET threads = 4",
        "SET enable_external_access = true",
        "SELECT * FROM read_csv('pyproject.toml')",
        "COPY (SELECT 1) TO 'x.csv'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "SELECT * FROM secret",
    ],
)
def test_the_database_that_runs_conditions_reaches_nothing_outside(statement) -> None:
    secret = pa.table({"x": [1]})
    assert secret.num_rows == 1
    with pytest.raises(Exception, match=r"(?i)cannot|disabled|does not exist|permission"):
        sandbox().execute(statement).fetchall()
