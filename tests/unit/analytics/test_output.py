"""Answers as people and programs read them."""

import csv
import fcntl
import io
import os
import pty
import struct
import termios
import tracemalloc
from contextlib import suppress

import duckdb
import orjson
import pyarrow as pa
import pytest

from analytics.output import FORMATS, TABLE_ROWS, print_answer

ROWS = """
SELECT * FROM (VALUES
    ('a', 1, 1.5, TIMESTAMP '2026-06-01 00:00:00.25', true, NULL, '\\x00\\xFF'::BLOB),
    (NULL, NULL, NULL, NULL, NULL, 'x', NULL)
) AS t (text, whole, real, ts, flag, maybe, bytes)
"""


@pytest.fixture
def connection():
    with duckdb.connect() as connection:
        yield connection


def printed(connection, query, output_format):
    output = io.BytesIO()
    print_answer(connection.sql(query), output_format, output)
    assert not output.closed
    return output.getvalue()


def test_csv_has_a_header_and_leaves_null_empty(connection):
    rows = list(csv.reader(io.StringIO(printed(connection, ROWS, "csv").decode())))
    assert rows == [
        ["text", "whole", "real", "ts", "flag", "maybe", "bytes"],
        ["a", "1", "1.5", "2026-06-01T00:00:00.250000", "True", "", "00ff"],
        ["", "", "", "", "", "x", ""],
    ]


def test_json_is_one_object_per_line_with_null_as_null(connection):
    lines = [orjson.loads(line) for line in printed(connection, ROWS, "json").splitlines()]
    assert lines[0] == {
        "text": "a",
        "whole": 1,
        "real": 1.5,
        "ts": "2026-06-01T00:00:00.250000",
        "flag": True,
        "maybe": None,
        "bytes": "00ff",
    }
    assert lines[1] == dict.fromkeys(lines[0], None) | {"maybe": "x"}


def test_arrow_is_the_answer_as_it_is(connection):
    with pa.ipc.open_stream(printed(connection, ROWS, "arrow")) as reader:
        assert reader.read_all().equals(connection.sql(ROWS).to_arrow_table())


def test_a_table_shows_null_apart_from_nothing(connection):
    text = printed(connection, "SELECT NULL AS unknown, '' AS empty", "table").decode()
    assert text.count("NULL") == 1
    assert "1 row\n" in text


def test_a_long_table_is_cut_and_says_so(connection):
    text = printed(connection, f"FROM range({TABLE_ROWS + 5})", "table").decode()
    assert f"Only the first {TABLE_ROWS} rows" in text
    assert f" {TABLE_ROWS - 1}" in text
    assert f" {TABLE_ROWS} \n" not in text


def test_square_brackets_are_text_not_markup(connection):
    assert "[red]alarm[/red]" in printed(connection, "SELECT '[red]alarm[/red]' AS x", "table").decode()


def test_a_table_is_as_wide_as_its_terminal(connection):
    primary, secondary = pty.openpty()
    os.set_blocking(primary, False)
    with os.fdopen(secondary, "wb", buffering=0) as terminal:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        print_answer(connection.sql("SELECT repeat('x', 100) AS wide"), "table", terminal)
        shown = os.read(primary, 10_000).decode()
    os.close(primary)
    assert max(len(line) for line in shown.splitlines()) < 60


@pytest.mark.parametrize("output_format", FORMATS)
def test_no_answer_at_all_is_an_empty_answer(connection, output_format):
    printed(connection, "SELECT 1 AS x WHERE false", output_format)


def test_whole_sums_and_nested_values_are_json_too(connection):
    query = "SELECT sum(range) AS total, 2::HUGEINT ** 100 AS huge, [1, 2] AS items, {'a': NULL} AS part FROM range(4)"
    [line] = printed(connection, query, "json").splitlines()
    assert orjson.loads(line) == {"total": 6, "huge": 2.0**100, "items": [1, 2], "part": {"a": None}}


@pytest.mark.parametrize("output_format", ["csv", "json"])
def test_two_columns_of_one_name_are_both_there(connection, output_format):
    text = printed(connection, "SELECT 81 AS x, 82 AS x", output_format)
    assert b"81" in text
    assert b"82" in text


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_year_beyond_the_calendar_is_still_an_answer(connection, output_format):
    assert printed(connection, "SELECT make_timestamp(1152921504606846976) AS ts", output_format)


@pytest.mark.parametrize("output_format", ["csv", "json", "arrow"])
def test_a_large_answer_is_streamed(connection, output_format):
    answer = connection.sql("SELECT range AS x, range::VARCHAR AS y FROM range(60_000)")
    tracemalloc.start()
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - there is no path to speak of
        print_answer(answer, output_format, nowhere)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8_000_000


def on_a_terminal(connection, query, columns):
    """Return what a terminal of so many columns is given."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "wb") as output:
        print_answer(connection.sql(query), "table", output)
    shown = b""
    with suppress(OSError):  # how Linux says that a terminal's other end is closed
        while chunk := os.read(ours, 65_536):  # which gives some of it at a time
            shown += chunk
    os.close(ours)
    return shown.decode()


def test_more_columns_than_a_terminal_can_show_run_on_instead_of_vanishing(connection):
    columns = ", ".join(f"'value-{n}' AS column_{n}" for n in range(25))
    shown = on_a_terminal(connection, f"SELECT {columns}", 80)
    assert all(f"value-{n}" in shown and f"column_{n}" in shown for n in range(25))


def test_a_table_shows_nothing_that_a_terminal_would_obey(connection):
    shown = printed(connection, "SELECT chr(27) || '[2J' || chr(7) AS \"a\u001bb\"", "table").decode()
    assert "�[2J�" in shown
    assert not {"\x1b", "\x07"} & set(shown)


def test_a_text_without_end_is_cut_in_a_table(connection):
    assert len(printed(connection, "SELECT repeat('x', 1_000_000) AS x", "table")) < 50_000
