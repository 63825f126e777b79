"""`hallwatch alerts` and `hallwatch verify-log`: what the engine found, and the proof that it was not changed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console

from analytics.query import connect
from contract.config import load_config
from hallwatch.commands.options import CONFIG, format_option
from hallwatch.terminal import counted, open_console, say, shown

_COLOURS = {"critical": "bold red", "major": "red", "minor": "yellow", "info": "cyan"}


@click.command()
@CONFIG
@click.option("--history", is_flag=True, help="Every transition, newest first, instead of what fires now.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Of the history.")
@format_option(("table", "json"), "json: one object per line.")
def alerts(config_path: Path, history: bool, limit: int, output_format: str) -> None:
    """List the alerts that fire now; the engine may be running or not."""
    from alerts.engine import current_alerts

    found = current_alerts(load_config(config_path).engine.path, history=limit)
    rows = found.history if history else found.firing
    if output_format == "json":
        for row in rows:
            sys.stdout.buffer.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        return
    console = open_console()
    if not rows:
        say(console, "No alert was ever raised." if history else "Nothing fires.")
        return
    _print(console, rows, history=history)
    if not history:
        runbooks = dict.fromkeys(row["runbook"] for row in rows if row.get("runbook"))
        say(console, f"\nWhat to do: {', '.join(runbooks)}" if runbooks else "")


def _print(console: Console, rows: list[dict[str, Any]], *, history: bool) -> None:
    """Print a line for each row; the summary is last, so that a narrow terminal breaks nothing else."""
    heads = ("at (UTC)", "severity", "rule", *(("change",) if history else ()), "summary")
    lines = [heads, *(_cells(row, history=history) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    for row, cells in zip([None, *rows], lines, strict=True):
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        text = shown("  ".join([*padded, cells[-1]]))
        if row is not None:
            text.stylize(_COLOURS[row["severity"]], widths[0] + 2, widths[0] + 2 + widths[1])
        console.print(text, soft_wrap=True)


def _cells(row: dict[str, Any], *, history: bool) -> tuple[str, ...]:
    ended = f" ({row['end_reason']})" if row.get("end_reason") else ""
    change = (row["transition"] + ended,) if history else ()
    entity, summary = row["entity"], row["summary"]
    named = summary if entity in summary else f"{entity}: {summary}"
    return (_clock(row["ts"]), row["severity"], row["rule"], *change, named)


def _clock(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


@click.command("verify-log")
@CONFIG
@click.option(
    "--key",
    "key_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Public key to verify with; without it the one beside the journal. Keep a copy elsewhere.",
)
def verify_log(config_path: Path, key_path: Path | None) -> None:
    """Prove that the history of alerts is whole: in the journal, in the lake, and as the signed heads say.

    An edited, inserted or missing transition breaks the chain of hashes; a cut tail misses a signed head.
    Exit code 1 where anything is wrong.
    """
    from alerts.chain import load_public_key, verify_chain
    from alerts.engine import signed_heads, verify_journal

    config = load_config(config_path)
    heads = signed_heads(config.engine.path)
    key = load_public_key(key_path or config.engine.path / "chain.pub")
    with connect(config.lake.path) as lake:
        rows = lake.arrow("SELECT * FROM alerts ORDER BY chain_index").to_pylist()
    stored = {(row["_epoch"], row["chain_index"]) for row in rows}
    reached = [head for head in heads if (head.chain, head.index) in stored]
    flaws = [("journal", flaw) for flaw in verify_journal(config.engine.path, key)]
    flaws += [("lake", flaw) for flaw in verify_chain(rows, key, reached)]
    waiting = len(heads) - len(reached)
    for place, flaw in flaws:
        click.echo(f"{place}: {flaw.kind} at {flaw.chain}/{flaw.index}: {flaw.message}")
    if flaws:
        raise click.exceptions.Exit(1)
    click.echo(
        f"whole: {counted(len(rows), 'transition')} in the lake, {counted(len(heads), 'signed head')}"
        + (f", {waiting} of them newer than the lake" if waiting else "")
    )
