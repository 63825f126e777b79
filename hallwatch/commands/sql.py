"""`hallwatch sql`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import duckdb

from analytics.query import connect
from hallwatch.commands.options import CONFIG

FORMATS = ("table", "csv", "json", "arrow")


@click.command()
@click.argument("query", required=False)
@CONFIG
@click.option(
    "--lake",
    "lake_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the lake, instead of a configuration.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
    help="json: an object per line; arrow: an IPC stream.",
)
def sql(query: str | None, config_path: Path, lake_path: Path | None, output_format: str) -> None:
    """Ask the lake a question in DuckDB's SQL; without QUERY, the question is read from standard input.

    \b
    hallwatch sql 'FROM fleet_now ORDER BY temperature_margin_celsius LIMIT 8'
    hallwatch sql 'FROM alerts'
    hallwatch sql 'SHOW TABLES'           which views there are
    hallwatch sql 'DESCRIBE gpu_samples'  and their columns

    A running system is not disturbed. Nothing can be written.
    """  # noqa: D301 - the command line library wants the character itself
    from analytics.output import print_answer
    from contract.config import load_config

    path = lake_path if lake_path is not None else load_config(config_path).lake.path
    with connect(path) as lake:
        try:
            print_answer(
                lake.sql(query if query is not None else sys.stdin.read()), output_format, sys.stdout.buffer
            )
        except duckdb.Error as error:
            raise click.ClickException(str(error)) from error
