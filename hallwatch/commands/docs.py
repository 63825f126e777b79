"""`hallwatch docs`: write the generated pages."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click

PAGES = {
    "streams.md": "contract.docs:streams_page",
    "collectors.md": "ingest.registry:collectors_page",
    "rules.md": "alerts.docs:rules_page",
    "notifiers.md": "alerts.docs:notifiers_page",
}
"""Page -> the function that makes its text."""


def make_page(name: str) -> str:
    """Return the text that a generated page should have."""
    module, _, attribute = PAGES[name].partition(":")
    page: Callable[[], str] = getattr(import_module(module), attribute)
    return page()


@click.command()
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("docs"), show_default=True
)
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a page lags behind the code.")
def docs(folder: Path, check: bool) -> None:
    """Write the generated pages of docs/ again."""
    lagging = []
    for name in PAGES:
        path, text = folder / name, make_page(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            lagging.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
        click.echo(f"{path}: {'lags' if check and name in lagging else 'up to date'}")
    if check and lagging:
        raise click.exceptions.Exit(1)
