"""Generated pages say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.streams import STREAMS
from hallwatch.commands.docs import PAGES, make_page

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_does_not_lag(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == make_page(name), "run `make docs`"


def test_every_stream_and_column_is_documented() -> None:
    page = make_page("streams.md")
    for stream in STREAMS.values():
        assert f"\n## {stream.name}\n" in page
        for column in stream.columns:
            assert f"| `{column.name}` |" in page
