"""`make faults`: strike the whole system with every fault, seed by seed, and audit what is left.

SEEDS=1-10 names the seeds, ONLY=kill_sink,poison the beginnings of faults' names. The same seed strikes the same
faults in the same order at the same steps. Exit code 1: something was lost, doubled, reordered, invented, stuck or
died, or a fault struck nobody; with HALLWATCH_NO_SKIP=1 also: this machine cannot strike some of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from tests.faults.nemesis.disk import OWN_MOUNTS, may_mount, remove_disks_below  # noqa: E402
from tests.faults.nemesis.fault import Fault  # noqa: E402
from tests.faults.nemesis.matrix import HEAD, Run, draw, faults_for, strike_all  # noqa: E402
from tests.faults.nemesis.mutations import MUTATIONS  # noqa: E402
from tests.faults.nemesis.rig import FULL, QUICK  # noqa: E402

BUSES = ("kafka", "local")
"""The slower first: what is begun last should not be what takes longest."""
SHOWN_FLAWS = 20


def main() -> None:
    """Run the matrix; in a mount namespace of its own where the machine gives one."""
    options = parse()
    if not may_mount():
        go_where_mounts_are_ours()
    tell_left_out(options)
    plans = [
        (seed, bus, draw(seed, bus, faults_for(bus, options.only), options.share))
        for bus in options.bus
        for seed in options.seeds
    ]
    if options.list:
        for seed, bus, faults in plans:
            click.echo("\n  ".join([f"seed {seed} on {bus}:", *(fault.name for fault in faults)]))
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nemesis-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        place = Path(options.keep or folder)
        try:
            runs = list(pool.map(lambda plan: run_one(place, options, *plan), plans))
        except KeyboardInterrupt:
            # The pool would wait for its runs; what they started ends with this process.
            remove_disks_below(Path(folder))
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(130)
        finally:
            # A run that failed leaves its disks mounted, and a mounted folder cannot be removed.
            remove_disks_below(Path(folder))
    click.echo("\n".join([HEAD, *(run.row() for run in runs)]))
    click.echo(f"{sum(len(run.struck) for run in runs)} strikes in {time.monotonic() - began:.0f} s")
    sys.exit(any(run.flaws for run in runs))


def run_one(place: Path, options: argparse.Namespace, seed: int, bus: str, faults: Sequence[Fault]) -> Run:
    """Make one run, and tell about it as it goes."""
    name = f"{bus}-{seed}"
    click.echo(f"{name}: {len(faults)} faults")
    run = strike_all(
        place / name,
        seed,
        bus,
        faults,
        times=FULL if options.full else QUICK,
        mutation=options.mutation,
        tell=lambda line: click.echo(f"{name}: {line}"),
    )
    for flaw in run.flaws[:SHOWN_FLAWS]:
        click.echo(f"{name}: {flaw.kind}: {flaw.what}"[:600])
    if len(run.flaws) > SHOWN_FLAWS:
        click.echo(f"{name}: ... and {len(run.flaws) - SHOWN_FLAWS} more")
    if run.flaws:
        click.echo(f"{name}: what its processes said: {keep_logs(place / name, options.mutation)}")
    return run


def keep_logs(folder: Path, mutation: str) -> Path:
    """Save the logs of a run from the end of its folder: a rare finding may not come again."""
    kept = CHECKOUT / "build" / "nemesis" / "-".join(filter(None, [folder.name, mutation]))
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for log in (*folder.glob("*.log"), *folder.glob("broker/broker.log")):
        shutil.copy(log, kept)
    return kept


def go_where_mounts_are_ours() -> None:
    """Start again in a mount namespace of its own, unless the machine refuses one."""
    unshare = ["unshare", "--map-root-user", "--mount"]
    try:
        allowed = subprocess.run([*unshare, "mount"], capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    if allowed:
        os.environ[OWN_MOUNTS] = "1"
        os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])  # noqa: S606 - no shell is wanted


def tell_left_out(options: argparse.Namespace) -> None:
    """Say which faults this machine cannot strike; end where none may be left out."""
    faults = [fault for bus in options.bus for fault in faults_for(bus, options.only, everywhere=True)]
    if not faults:
        sys.exit("no such fault")
    left_out = sorted({fault.name for fault in faults if fault.mounts and not may_mount()})
    if left_out:
        click.echo(f"no mount namespace here, left out: {', '.join(left_out)}", err=True)
        if os.environ.get("HALLWATCH_NO_SKIP") == "1":
            sys.exit("a failure, because HALLWATCH_NO_SKIP=1 lets nothing be left out")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=seeds, default=[1], help="as 7 or 1-10")
    parser.add_argument(
        "--only", type=words, default=[], help="beginnings of faults' names, with commas between"
    )
    parser.add_argument("--bus", type=buses, default=list(BUSES), help="with commas between")
    parser.add_argument("--share", type=int, default=1, help="spread all faults over so many seeds")
    parser.add_argument(
        "--jobs", type=int, default=1, help="so many runs at once: they wait most of the time"
    )
    parser.add_argument("--full", action="store_true", help="outages as long as real ones")
    parser.add_argument("--mutation", default="", choices=MUTATIONS, help="take a guard away")
    parser.add_argument("--keep", help="leave what the runs made in this folder")
    parser.add_argument("--list", action="store_true", help="only say what would be struck")
    return parser.parse_args(arguments)


def seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    found = list(range(int(first), int(last or first) + 1))
    if not found:
        raise argparse.ArgumentTypeError(f"no seeds in {text}")
    return found


def buses(text: str) -> list[str]:
    if unknown := set(words(text)) - set(BUSES):
        raise argparse.ArgumentTypeError(f"no such bus: {', '.join(sorted(unknown))}")
    return words(text)


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


if __name__ == "__main__":
    main()
