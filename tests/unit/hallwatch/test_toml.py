"""A configuration that is written is read as what it was written from, whatever its texts hold."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.config import load_config
from hallwatch.toml import config_text

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
VALUES = st.recursive(
    TEXTS | NUMBERS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_every_value_comes_back_as_it_was(value: Any) -> None:
    text = config_text("For a test.", {"hall": {"name": value}}, [{"collector": value}])
    assert tomllib.loads(text) == {"hall": {"name": value}, "ingest": {"collectors": [{"collector": value}]}}


@pytest.mark.parametrize("name", ["𝄞😀", "a\x7fb", 'a "b" \\c', "tab\tline\n", "ä ü"])
def test_a_folder_of_any_name_can_be_written_into_a_configuration(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hallwatch.toml"
    path.write_text(
        config_text("For a test.", {"hall": {"name": "demo"}, "lake": {"path": name}}, []), encoding="utf-8"
    )
    assert load_config(path, {}).lake.path == tmp_path / name
