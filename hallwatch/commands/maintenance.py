"""`hallwatch maintenance`: announce work, where it is done and what it may do, so that nobody is woken by it."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson

from contract.bus import open_bus
from contract.clock import SYSTEM_CLOCK
from contract.config import load_config
from contract.errors import ConfigError
from contract.streams.topology import EFFECTS, SCOPES
from hallwatch.commands.options import CONFIG, format_option
from hallwatch.terminal import counted, open_console, say

_Command = TypeVar("_Command", bound=Callable[..., Any])
_LONGEST_US = 366 * 86_400 * 1_000_000


def _announcement(command: _Command) -> _Command:
    """Add the options that say what work is announced."""
    for option in (
        click.option(
            "--reason", required=True, help="Why, in a sentence: whoever looks at the hall reads it."
        ),
        click.option(
            "--for", "duration", required=True, help="How long, like 90m or 2h30m; it closes by itself."
        ),
        click.option(
            "--expect",
            "effects",
            multiple=True,
            required=True,
            help="What the work may do: `hallwatch maintenance effects` lists them. Several, or with commas.",
        ),
        click.option(
            "--scope",
            "scopes",
            multiple=True,
            required=True,
            help=f"Where: {', '.join(SCOPES[:-1])} as in rack=a01, or the name of anything on the map. Several.",
        ),
        click.option(
            "--by", "announced_by", help="Who announces it, where that is not the user of this machine."
        ),
        CONFIG,
    ):
        command = option(command)
    return command


@click.group()
def maintenance() -> None:
    """Announce work, and what it may do, so that it is not taken for a fault.

    \b
    hallwatch maintenance start --scope rack=a01 --expect reboot,link_down --for 2h --reason "firmware"
    hallwatch maintenance plan --at 2026-06-01T22:00 --scope cdu=cdu-3 --expect coolant_flow --for 4h --reason "pump"
    hallwatch maintenance end 3f2a9c01
    """  # noqa: D301 - the command line library wants the character itself


@maintenance.command()
@_announcement
def start(**options: Any) -> None:
    """Announce work that begins now."""
    _announce("started", SYSTEM_CLOCK.now_us(), **options)


@maintenance.command()
@click.option("--at", "at", required=True, help="When it begins, like 2026-06-01T22:00 (UTC) or with +02:00.")
@_announcement
def plan(at: str, **options: Any) -> None:
    """Announce work that begins later; it opens by itself."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError as error:
        raise click.BadParameter(f"{at!r} is no time like 2026-06-01T22:00", param_hint="--at") from error
    start_us = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)
    if start_us <= SYSTEM_CLOCK.now_us():
        raise click.BadParameter("that has passed; `start` announces work of now", param_hint="--at")
    _announce("planned", start_us, **options)


@maintenance.command()
@click.argument("window_id")
@click.option("--by", "announced_by", help="Who ends it, where that is not the user of this machine.")
@CONFIG
def end(window_id: str, announced_by: str | None, config_path: Path) -> None:
    """End work early, or call off what was planned. WINDOW_ID may be shortened."""
    from hallwatch.maintenance import announce, read_windows

    config, now_us = load_config(config_path), SYSTEM_CLOCK.now_us()
    with closing(open_bus(config.bus)) as bus:
        found = [one for one in read_windows(bus, config) if one.window_id.startswith(window_id)]
        if len(found) != 1:
            raise ConfigError(
                "unknown_name",
                f"{counted(len(found), 'window')} begin with {window_id!r}; `list --all` shows all",
            )
        state = found[0].state(now_us)
        if state in ("ended", "over"):
            raise ConfigError("invalid", f"{found[0].window_id} is {state} already")
        announce(bus, found[0].end(now_us, announced_by or _user()), config, now_us)
    click.echo(f"{found[0].window_id}: ended; it was {state}")


@maintenance.command("list")
@click.option("--all", "everything", is_flag=True, help="What is over or ended as well.")
@CONFIG
@format_option(("table", "json"), "json: one object per line.")
def list_windows(everything: bool, config_path: Path, output_format: str) -> None:
    """List the work that is announced and not over."""
    from hallwatch.maintenance import read_windows

    config, now_us = load_config(config_path), SYSTEM_CLOCK.now_us()
    with closing(open_bus(config.bus)) as bus:
        windows = read_windows(bus, config)
    rows = [
        {
            "window_id": one.window_id,
            "state": one.state(now_us),
            "start": _clock(one.start_us),
            "end": _clock(one.end_us),
            "scopes": [f"{scope.kind}={scope.name}" for scope in one.scopes],
            "effects": list(one.effects),
            "reason": one.reason,
            "announced_by": one.announced_by,
        }
        for one in windows
        if everything or one.state(now_us) in ("planned", "open")
    ]
    if output_format == "json":
        for row in rows:
            sys.stdout.buffer.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        return
    _print(rows)


@maintenance.command()
def effects() -> None:
    """List what work can be expected to do."""
    width = max(map(len, EFFECTS))
    for name, words in EFFECTS.items():
        click.echo(f"{name:<{width}}  {words}")


def _announce(
    action: Any,
    start_us: int,
    *,
    scopes: Sequence[str],
    effects: Sequence[str],
    duration: str,
    reason: str,
    announced_by: str | None,
    config_path: Path,
) -> None:
    from hallwatch.maintenance import Window, announce, check_scope, current_map, new_window_id
    from hallwatch.topology import MapSql

    expected = _effects(effects)
    length_us = _length(duration)
    config = load_config(config_path)
    hall_map = current_map(config)
    with closing(MapSql(hall_map)) as sql:
        where = list(dict.fromkeys(check_scope(scope, hall_map, sql) for scope in scopes))
    window = Window(
        window_id=new_window_id(),
        action=action,
        start_us=start_us,
        end_us=start_us + length_us,
        scopes=where,
        effects=expected,
        reason=reason,
        announced_by=announced_by or _user(),
    )
    with closing(open_bus(config.bus)) as bus:
        announce(bus, window, config, SYSTEM_CLOCK.now_us())
    click.echo(
        f"{window.window_id}: {', '.join(f'{s.kind}={s.name}' for s in where)} may {', '.join(expected)} "
        f"from {_clock(window.start_us)} to {_clock(window.end_us)} UTC"
    )


def _effects(given: Sequence[str]) -> list[str]:
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in EFFECTS]
    if unknown or not names:
        raise click.BadParameter(
            f"{', '.join(unknown) or 'nothing'}: there are {', '.join(EFFECTS)}", param_hint="--expect"
        )
    return list(dict.fromkeys(names))


def _length(text: str) -> int:
    from alerts.duration import parse_duration

    try:
        length_us = parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--for") from error
    if not 0 < length_us <= _LONGEST_US:
        raise click.BadParameter("longer than nothing and at most 366d", param_hint="--for")
    return length_us


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return None


def _clock(us: int) -> str:
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _print(rows: Sequence[dict[str, Any]]) -> None:
    console = open_console()
    if not rows:
        say(console, "No work is announced.")
        return
    for row in rows:
        say(
            console,
            f"{row['window_id']}  {row['state']:<7}  {row['start']} to {row['end']} UTC, by {row['announced_by'] or '?'}",
            "" if row["state"] == "open" else "dim",
        )
        say(console, f"{'':10}{', '.join(row['scopes'])} may {', '.join(row['effects'])}: {row['reason']}")
