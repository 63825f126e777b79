"""`hallwatch twin`: the devices of a hall that does not exist."""

from __future__ import annotations

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
    "--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("twin-hall"), show_default=True
)
@click.option(
    "--hosts", type=click.IntRange(min=1, max=512), default=8, show_default=True, help="Hosts of 8 GPUs."
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="The same seed is the same hall and faults."
)
@click.option("--quiet", is_flag=True, help="Inject nothing.")
@click.option("--base-port", type=int, default=0, help="First port of the exporters; 0 = any free ports.")
@click.option(
    "--naming",
    type=click.Choice(["4.5", "4.6"]),
    default="4.5",
    show_default=True,
    help="Metric names of which DCGM release.",
)
def run(folder: Path, hosts: int, seed: int, quiet: bool, base_port: int, naming: str) -> None:
    """Serve one dcgm-exporter page per host on loopback until Ctrl-C.

    Writes inventory.yaml (the hall's map), endpoints.json (where the pages are) and labels.json (what was
    injected, the truth to score against) into the folder.
    """
    from twin.plan import draw_plan
    from twin.run import run_twin
    from twin.scenario import Scenario, draw_demo_scenario

    set_up_logging()
    folder.mkdir(parents=True, exist_ok=True)
    scenario = (
        Scenario(injections=()) if quiet else draw_demo_scenario(draw_plan(hosts=hosts, seed=seed), seed)
    )
    run_twin(
        folder,
        hosts=hosts,
        seed=seed,
        scenario=scenario,
        clock=SystemClock(),
        stop=stop_on_signals(),
        base_port=base_port,
        naming="4.6" if naming == "4.6" else "4.5",
    )
