"""A search through a log finds the lines that can matter, and counts the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingest.kernel.prefilter import FoundLines, all_lines, relevant_lines

XID, CARRIER = b"[1.0] NVRM: Xid (PCI:0000:b3:00): 79, x", b"systemd-networkd[7]: ib6: Lost carrier"
LOG = b"a\n" + XID + b"\n\nb\n" + CARRIER + b"\nc\n"


def test_lines_come_in_order_whichever_word_was_found_first() -> None:
    assert relevant_lines(LOG) == ([XID, CARRIER], 4, len(LOG))


def test_a_line_with_many_words_is_found_once() -> None:
    assert relevant_lines(b"NVRM: NVRM: mlx5_ link \n") == ([b"NVRM: NVRM: mlx5_ link "], 0, 24)


@pytest.mark.parametrize(("chunk", "others"), [(b"", 0), (b"\n", 1), (b"a\n\nb", 3), (b"a\nb\n", 2)])
def test_what_cannot_matter_is_only_counted(chunk: bytes, others: int) -> None:
    assert relevant_lines(chunk) == ([], others, len(chunk))


def test_a_last_line_without_an_end_is_whole() -> None:
    assert relevant_lines(b"a\n" + XID) == ([XID], 1, 2 + len(XID))


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize(
    ("search", "expected"),
    [(relevant_lines, ([XID, CARRIER], 4)), (all_lines, ([b"a", XID, b"", b"b", CARRIER, b"c"], 0))],
)
def test_pieces_of_a_chunk_have_all_lines_of_it_once(
    search: Callable[[bytes, int], FoundLines], expected: tuple[list[bytes], int], most: int
) -> None:
    rest, lines, others = LOG, [], 0
    while rest:
        found = search(rest, most)
        assert len(found.lines) <= most
        lines += found.lines
        others += found.others
        rest = rest[found.size_bytes :]
    assert (lines, others) == expected


@pytest.mark.parametrize(
    ("chunk", "lines"), [(b"", []), (b"\n", [b""]), (b"a", [b"a"]), (b"a\nb", [b"a", b"b"])]
)
def test_all_lines_are_taken_whatever_is_in_them(chunk: bytes, lines: list[bytes]) -> None:
    assert all_lines(chunk) == (lines, 0, len(chunk))
