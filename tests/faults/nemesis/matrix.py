"""Which faults there are, and runs of them: seed by seed, bus by bus, each run on a system of its own."""

from __future__ import annotations

import pkgutil
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random

from tests.faults.nemesis import faults
from tests.faults.nemesis.audit import Flaw, audit, drain
from tests.faults.nemesis.disk import may_mount
from tests.faults.nemesis.fault import Fault
from tests.faults.nemesis.rig import Rig, StuckError, Times

KINDS = ("lost", "doubled", "reordered", "phantom", "history", "stuck", "died", "not_struck")
"""What can be found."""


@dataclass(slots=True)
class Run:
    """One system from start to end, and what was found."""

    seed: int
    bus: str
    seconds: float = 0.0
    readings: int = 0
    struck: list[tuple[str, float]] = field(default_factory=list)
    """Faults in order, and how long each took until all was well."""
    flaws: list[Flaw] = field(default_factory=list)

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Note what did not happen within the block as a flaw."""
        try:
            yield
        except StuckError as error:
            self.flaws.append(Flaw(error.kind, f"{what}: {error}"))

    def row(self) -> str:
        """Return the run's row of the table."""
        counts = Counter(flaw.kind for flaw in self.flaws)
        cells = [self.seed, self.bus, len(self.struck), self.readings, *(counts[kind] for kind in KINDS)]
        return "| " + " | ".join(map(str, cells)) + f" | {self.seconds:.0f} |"


HEAD = "\n".join(
    [
        "| seed | bus | faults | readings | " + " | ".join(KINDS) + " | seconds |",
        "|---:|---|" + "---:|" * (len(KINDS) + 3),
    ]
)


def all_faults() -> list[Fault]:
    """Return every fault, found by importing every file of the folder."""
    return [
        fault
        for module in pkgutil.iter_modules(faults.__path__, f"{faults.__name__}.")
        for fault in import_module(module.name).FAULTS
    ]


def faults_for(bus: str, only: Sequence[str], *, everywhere: bool = False) -> list[Fault]:
    """Return what applies to a bus on this machine, or anywhere; `only` are beginnings of names."""
    return [
        fault
        for fault in all_faults()
        if bus in fault.buses
        and (everywhere or may_mount() or not fault.mounts)
        and (not only or fault.name.startswith(tuple(only)))
    ]


def draw(seed: int, bus: str, found: Iterable[Fault], share: int) -> list[Fault]:
    """Return the faults of one run in their order; any `share` seeds that follow each other strike all."""
    mine = [fault for place, fault in enumerate(found) if (place + seed) % share == 0]
    Random(f"{seed}/{bus}").shuffle(mine)
    return mine


def strike_all(
    folder: Path,
    seed: int,
    bus: str,
    struck: Sequence[Fault],
    *,
    times: Times,
    mutation: str = "",
    tell: Callable[[str], None],
) -> Run:
    """Strike one system with faults, one after the other, and audit what is left; `tell` hears of every fault."""
    run = Run(seed, bus)
    begun = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    with ExitStack() as stack:
        with run.noting("the start"):
            rig = stack.enter_context(Rig(folder, seed=seed, bus=bus, times=times, mutation=mutation))
        if run.flaws:
            return run
        for fault in struck:
            began = time.monotonic()
            with run.noting(fault.name), rig.telling_where_it_is_stuck():
                rig.chapter(fault.name)
                # Its own dice: alone, too, it strikes where it struck among the others.
                fault.strike(rig, Random(f"{seed}/{bus}/{fault.name}"))
                rig.settle(fault.deadly)
                run.struck.append((fault.name, time.monotonic() - began))
                tell(f"{fault.name:<30} {run.struck[-1][1]:5.1f} s")
            if run.flaws:
                break
        with run.noting("the end"), rig.telling_where_it_is_stuck():
            rig.chapter("the end")
            drain(rig)
        run.flaws += audit(rig)
        run.readings = sum(rig.promised().values())
    run.seconds = time.monotonic() - begun
    return run
