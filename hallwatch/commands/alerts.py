"""`hallwatch alerts` and `hallwatch verify-log`: what the engine found, and the proof that it was not changed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import orjson
from rich.table import Table

from analytics.query import connect
from contract.config import load_config
from hallwatch.commands.options import CONFIG
from hallwatch.terminal import open_console, shown

_COLOURS = {"critical": "bold red", "major": "red", "minor": "yellow", "info": "cyan"}


@click.command()
@CONFIG
@click.option("--history", is_flag=True, help="Every transition, newest first, instead of what fires now.")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Of the history.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="json: one object per line.",
)
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
        console.print("No alert was ever raised." if history else "Nothing fires.")
        return
    console.print(_table(rows, history=history))


def _table(rows: list[dict[str, Any]], *, history: bool) -> Table:
    heads = ("at (UTC)", "change", "severity", "rule", "entity", "summary")
    table = Table(*(head for head in heads if history or head != "change"))
    for row in rows:
        ended = f" ({row['end_reason']})" if row.get("end_reason") else ""
        severity = shown(row["severity"], _COLOURS[row["severity"]])
        change = (f"{row['transition']}{ended}",) if history else ()
        words = (shown(row[name]) for name in ("rule", "entity", "summary"))
        table.add_row(_clock(row["ts"]), *change, severity, *words)
    return table


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
    key = load_public_key(key_path or config.engine.path / "chain.pub")
    heads = signed_heads(config.engine.path)
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
        f"whole: {len(rows)} transitions in the lake, {len(heads)} signed heads"
        + (f", {waiting} of them newer than the lake" if waiting else "")
    )
