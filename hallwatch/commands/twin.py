"""`hallwatch twin`: the devices of a hall that does not exist."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from contract.clock import SystemClock
from contract.log import set_up_logging
from hallwatch.commands.options import stop_on_signals


@click.group()
def twin() -> None:
    """Simulate the devices of a hall: they can be scraped, and faults happen to them."""


@twin.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("twin-hall"),
    show_default=True,
    help="Where its files are written.",
)
@click.option(
    "--hosts", type=click.IntRange(min=1, max=512), default=8, show_default=True, help="Hosts of 8 GPUs."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="The same seed is the same hall and faults.",
)
@click.option("--quiet", is_flag=True, help="Inject nothing; a hall of fewer than 5 hosts needs it.")
@click.option("--hold", is_flag=True, help="Inject nothing until there is a file `begin` in the folder.")
@click.option(
    "--base-port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default=True,
    help="Port of the first host's page, those of other hosts and of coolant units follow; 0 = any free ports.",
)
@click.option(
    "--naming",
    type=click.Choice(["4.5", "4.6"]),
    default="4.5",
    show_default=True,
    help="Metric names of which DCGM release.",
)
def run(folder: Path, hosts: int, seed: int, quiet: bool, hold: bool, base_port: int, naming: str) -> None:
    """Be a hall until Ctrl-C; in the first minute, inject nine faults and eight things that only look like one.

    On the loopback it serves a dcgm-exporter page per host and a Redfish service per coolant unit. Into the folder it
    writes inventory.yaml (the hall's map), endpoints.json (where all the rest is), syslog/ (a log per host), hosts/
    (what the kernel of each shows in /proc and /sys), evidence/ and roots/ (what secure processors sign, and with
    what that is checked) and labels.json (what was injected, the truth to score against). The hall's name is demo,
    and it is synthetic.
    """
    from twin.plan import draw_plan
    from twin.run import run_twin
    from twin.scenario import Scenario, draw_demo_scenario

    set_up_logging()
    plan = draw_plan(hosts=hosts, seed=seed)
    last_port = base_port + hosts + len({host.cdu for host in plan.hosts}) - 1
    if last_port > 65_535:
        raise click.UsageError(
            f"{hosts} hosts and their coolant units need ports {base_port} to {last_port}: too high"
        )
    try:
        scenario = Scenario(injections=()) if quiet else draw_demo_scenario(plan, seed)
    except ValueError as error:
        raise click.UsageError(f"{error}; say --quiet to inject nothing") from error
    folder.mkdir(parents=True, exist_ok=True)
    if sys.stderr.isatty():
        click.echo(
            f"{hosts} hosts; their addresses are in {folder}/endpoints.json. Ctrl-C ends it.", err=True
        )
    run_twin(
        folder,
        plan,
        scenario=scenario,
        clock=SystemClock(),
        stop=stop_on_signals(),
        base_port=base_port,
        naming="4.6" if naming == "4.6" else "4.5",
        hold=hold,
    )
