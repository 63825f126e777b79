"""`hallwatch sql`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import duckdb

from analytics.output import FORMATS
from analytics.query import connect
from hallwatch.commands.options import CONFIG, format_option


@click.command()
@click.argument("query", required=False)
@CONFIG
@click.option(
    "--lake",
    "lake_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the lake, instead of a configuration.",
)
@format_option(FORMATS, "json: an object per line; arrow: an IPC stream.")
def sql(query: str | None, config_path: Path, lake_path: Path | None, output_format: str) -> None:
    """Ask the lake a question in DuckDB's SQL; without QUERY, the question is read from standard input.

    \b
    hallwatch sql 'SHOW TABLES'           which views there are
    hallwatch sql 'DESCRIBE fleet_now'    and their columns
    hallwatch sql 'SELECT rule, host, entity FROM alerts'
    hallwatch sql "SELECT source, state, last_error FROM collector_status
                   QUALIFY row_number() OVER (PARTITION BY source ORDER BY ts DESC) = 1"

    A running system is not disturbed. Nothing can be written.
    """  # noqa: D301 - the command line library wants the character itself
    from analytics.output import print_answer
    from contract.config import load_config

    if output_format == "arrow" and sys.stdout.isatty():
        raise click.UsageError("an Arrow stream is binary: send it to a file or a program")
    path = lake_path if lake_path is not None else load_config(config_path).lake.path
    question = _read_question(query)
    with connect(path) as lake:
        try:
            print_answer(lake.sql(question), output_format, sys.stdout.buffer)
        except duckdb.Error as error:
            raise click.ClickException(str(error)) from error
        except (OverflowError, ValueError) as error:
            raise click.ClickException(
                f"a value cannot be shown as {output_format}: {error}; cast it to VARCHAR"
            ) from error


def _read_question(query: str | None) -> str:
    if query is None and sys.stdin.isatty():
        click.echo("A question, then Ctrl-D:", err=True)
    content = sys.stdin.buffer.read() if query is None else os.fsencode(query)
    try:
        question = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.UsageError("the question is not UTF-8") from error
    if not question.strip():
        raise click.UsageError("there is no question: give it as an argument or on standard input")
    return question
