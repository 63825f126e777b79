"""`make bench`: measure everything, print the table, write docs/benchmarks.md and build/bench.json."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from bench import BenchRow

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("scrape", "bus", "kernel", "attest", "mesh", "collectors", "sizes", "sink", "freshness", "engine")
"""Modules beside this one; each has `measure() -> list[BenchRow]`."""

HEAD = """# Benchmarks

Written by `make bench`. Each figure stands beside a baseline measured in the same run over the same data; ratios
hold from machine to machine, absolute times do not. What each line measures is in the docstring of its module
under `tests/bench/`.
"""


def table(rows: Sequence[BenchRow]) -> str:
    """Return the figures as a Markdown table."""
    lines = ["| figure | value | unit | baseline | goal | holds |", "|---|---:|---|---:|---|---|"]
    for row in rows:
        baseline = "" if row.baseline is None else f"{row.baseline:,.4g}"
        lines.append(
            f"| {row.name} | {row.value:,.4g} | {row.unit} | {baseline} | {row.goal} | {'yes' if row.holds else 'NO'} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the suites that were asked for; only a whole run writes the documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="Only these suites.")
    chosen = parser.parse_args().suites or SUITES
    rows: list[BenchRow] = []
    for suite in chosen:
        print(f"measuring: {suite}", file=sys.stderr, flush=True)
        measure: Callable[[], list[BenchRow]] = import_module(suite).measure
        rows += measure()
    machine = f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}"
    load = f"load {os.getloadavg()[0]:.1f}"
    print(table(rows) + f"\n\n{machine}, {load}")
    if list(chosen) == list(SUITES):
        (ROOT / "build").mkdir(exist_ok=True)
        (ROOT / "build" / "bench.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
        (ROOT / "docs" / "benchmarks.md").write_text(f"{HEAD}\n{table(rows)}\n\nMeasured on {machine}.\n")
    if not all(row.holds for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
