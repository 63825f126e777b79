"""`hallwatch demo` and `hallwatch up`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from analytics.output import print_answer
from analytics.query import connect
from contract.clock import SystemClock
from contract.config import Config, load_config
from contract.streams import STREAMS
from hallwatch.alertwatch import Found, watch_alerts
from hallwatch.commands.options import stop_on_signals
from hallwatch.demo import PARTS, PROBE, WHAT, DemoHall, Verdict, judge, watch
from hallwatch.freshfolder import fresh_folder
from hallwatch.processes import Parts
from hallwatch.terminal import called, open_console, say, shown

FOLDER = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-hall"),
    show_default=True,
    help="Where everything is written.",
)
HOSTS = click.option(
    "--hosts", type=click.IntRange(min=5, max=64), default=8, show_default=True, help="Of 8 GPUs each."
)
SEED = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="The same seed is the same hall and faults.",
)

QUESTION = """\
SELECT strftime(ts, '%H:%M:%S') AS time, hottest_celsius, round(flow_liters_per_minute, 1) AS loop_liters_per_minute,
       ports_down, port_errors, trust
FROM host_timeline WHERE host = '{host}' ORDER BY ts"""
"""Of a host: GPU temperature, coolant, fabric and trust on one timeline."""

HOTTEST = "SELECT host, max(temperature_celsius) FROM fleet_now GROUP BY host"


@click.command()
@FOLDER
@HOSTS
@SEED
def demo(folder: Path, hosts: int, seed: int) -> None:
    """Run a whole hall on this machine for a minute and a half.

    A simulated hall shows itself as a real one does: exporter pages, system logs, sysfs, Redfish, attestation
    reports, answers to probes. Collectors read all of it; the sink writes the lake; the engine raises alerts. Nine
    faults and eight decoys are injected. Exit code 1 if a fault was missed or a decoy raised anything.
    """
    console, clock = open_console(), SystemClock()
    with fresh_folder(folder):
        hall = DemoHall(folder, hosts=hosts, seed=seed, quiet=False, clock=clock)
        say(console, f"A hall of {hosts} hosts with 8 GPUs each in {folder}/")
        try:
            config = hall.start()
            with watch_alerts(config, clock) as alerts, console.status("watching the hall"):
                found = watch(hall, alerts, clock, lambda line: say(console, line))
                labels = hall.labels()
                hall.parts.stop(PROBE, "collect", "engine")
                found += alerts.poll()
            hall.stop()
        finally:
            hall.parts.stop()
        verdict = judge(labels, found)
        _report(console, verdict, config, hall.config_path)
    if not verdict.passed:
        raise click.exceptions.Exit(1)


@click.command()
@FOLDER
@HOSTS
@SEED
@click.option(
    "--config",
    "config_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run the parts of a real hall instead: this file's collectors, sink and engine.",
)
@click.option("--quiet", is_flag=True, help="Inject no faults into the simulated hall.")
def up(folder: Path, hosts: int, seed: int, config_path: Path | None, quiet: bool) -> None:
    """Keep a hall running until Ctrl-C: simulated, or real with --config."""
    console, clock, stop = open_console(), SystemClock(), stop_on_signals()
    with ExitStack() as stack:
        if config_path is None:
            stack.enter_context(fresh_folder(folder))
            hall = DemoHall(folder, hosts=hosts, seed=seed, quiet=quiet, clock=clock)
            config_path, parts = hall.config_path, hall.parts
        else:
            hall, parts = None, Parts(config_path.parent / "logs", clock)
        stack.callback(_end, console, parts)
        config = hall.start() if hall is not None else _start(parts, config_path)
        say(
            console,
            f"Running. From another terminal: {called()} sql --config {config_path} '{HOTTEST}'",
        )
        say(console, "Ctrl-C ends it.")
        with watch_alerts(config, clock) as alerts:
            while not clock.wait(stop, 0.5):
                parts.check()
                for alert in alerts.poll_all():
                    say(console, _line(alert))


def _end(console: Console, parts: Parts) -> None:
    say(console, "Ending: collectors, engine, sink.")
    parts.stop("collect", "engine", "sink")
    parts.stop()


def _start(parts: Parts, config_path: Path) -> Config:
    config = load_config(config_path)
    for part in PARTS:
        parts.start(part, part, "--config", str(config_path))
    return config


def _line(alert: Found) -> str:
    at = datetime.fromtimestamp(alert.at_us / 1e6, UTC).strftime("%H:%M:%S")
    return (
        f"{at} UTC  {'ALERT' if alert.fires else 'ended'}  {alert.severity:8}  {alert.rule}: {alert.summary}"
    )


def _report(console: Console, verdict: Verdict, config: Config, config_path: Path) -> None:
    """Print what was injected against what was raised, what lies in the lake, and where to go on."""
    console.print(_verdict_table(verdict))
    for alert in verdict.false_alerts:
        say(console, f"FALSE ALERT {alert.rule} {alert.entity}: {alert.summary}", "red")
    missed = sum(found is None for _, found in verdict.faults)
    say(
        console,
        f"{len(verdict.faults) - missed} of {len(verdict.faults)} faults raised, "
        f"{len(verdict.false_alerts)} false alerts on {len(verdict.decoys)} decoys and everything else.",
        "bold green" if verdict.passed else "bold red",
    )
    with connect(config.lake.path) as lake:
        ((rows,),) = lake.sql("SELECT sum(rows)::BIGINT FROM lake_tables").fetchall()
        say(
            console,
            f"\n{rows:,} rows of {len(STREAMS)} streams lie in {config_path.parent / 'lake'}/ as Delta tables. Asked:\n",
        )
        question = QUESTION.format(host=_most_telling(verdict))
        say(console, question)
        print_answer(lake.sql(question), "table", sys.stdout.buffer)
    command = called()
    say(
        console,
        f"\nTry next:\n"
        f"  {command} sql --config {config_path} 'SELECT rule, host, entity FROM alerts'\n"
        f"  {command} alerts --config {config_path}\n"
        f"  {command} verify-log --config {config_path}\n"
        f"  make up          the same hall, until Ctrl-C",
    )


def _most_telling(verdict: Verdict) -> str:
    """Return the host whose timeline is worth a look: the one that lost its trust."""
    hosts = {label["name"]: str(label["host"]) for label, _ in verdict.faults}
    return hosts.get("debug-guest") or next(iter(hosts.values()))


def _verdict_table(verdict: Verdict) -> Table:
    table = Table("injected", "on", "raised", "after", box=SIMPLE_HEAD, pad_edge=False)
    for label, found in verdict.faults:
        delay = f"{(found.told_us - label['shown_us']) / 1e6:.1f} s" if found else "-"
        rule = shown(found.rule) if found else shown("MISSED", "red")
        table.add_row(WHAT[label["name"]], shown(_short(label["entity"])), rule, delay)
    for label in verdict.decoys:
        raised = [alert.rule for alert in verdict.false_alerts if label["host"] in (alert.host, alert.entity)]
        table.add_row(
            f"decoy: {WHAT[label['name']]}", _short(label["entity"]), ", ".join(raised) or "nothing", ""
        )
    return table


def _short(entity: str) -> str:
    """Return enough of a UUID to tell GPUs apart."""
    return entity[:12] + "…" if entity.startswith("GPU-") else entity
