"""The Prometheus text format as device exporters really print it: bytes to samples, bad lines apart.

Takes time linear in the page and never fails for what one line holds. Accepted beyond the format: spaces after
commas, trailing spaces, bytes that are not UTF-8. Format: Prometheus documentation, "Exposition formats".
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from contract.errors import CollectError


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """How much of a page is read; the rest is counted."""

    max_bytes: int = 16_777_216
    max_line_length: int = 65_536
    max_labels: int = 64
    max_lines: int = 100_000


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The labels of a series; within one reader, equal labels are one object."""

    values: Mapping[str, str]


class Sample(NamedTuple):
    """One line: a value of a series. Of a family whose values are texts, `value` is NaN."""

    family: str
    labels: Labels
    value: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """A page, read."""

    samples: list[Sample] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    """Lines that are no sample: line_too_long, bad_name, bad_labels, duplicate_label, too_many_labels, no_value,
    bad_value, truncated_line, too_many_lines."""


class _BadLine(Exception):
    """One line is no sample; `args[0]` is the reason."""


# Possessive quantifiers: what they took they never give back, so that no line takes more than linear time.
_LINE = re.compile(r"[^\n]++")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*+")
_LABEL = re.compile(
    r'\s*+([a-zA-Z_:][a-zA-Z0-9_:]*+)\s*+=\s*+"([^"\\]*+(?:\\.[^"\\]*+)*+)"\s*+(?:(,)\s*+|(?=\}))'
)
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n"}
_MOST_CACHED = 8_192
_LONGEST_CACHED = 2_048
_LONGEST_NUMBER = 64


class PageReader:
    """Reads pages of one exporter; remembers labels from page to page, since only the values change.

    The values of `texts` families may be any text.
    """

    def __init__(self, limits: PageLimits | None = None, texts: frozenset[str] = frozenset()) -> None:
        self._limits = limits if limits is not None else PageLimits()
        self._texts = texts
        self._names: set[str] = set()
        self._by_text: dict[str, Labels] = {}
        self._by_content: dict[frozenset[tuple[str, str]], Labels] = {}

    def read(self, page: bytes, *, whole: bool = True) -> Exposition:
        """Return the samples of a page in its order.

        A page that may not be `whole` and does not end with a newline loses its last line: the end of the value
        may be missing. Raises CollectError(too_large) for a page above the limit.
        """
        if len(page) > self._limits.max_bytes:
            raise CollectError(
                "too_large", f"a page of {len(page)} bytes, at most {self._limits.max_bytes} are read"
            )
        if len(self._by_content) > _MOST_CACHED or len(self._names) > _MOST_CACHED:
            self._names, self._by_text, self._by_content = set(), {}, {}
        exposition = Exposition()
        text = page.decode("utf-8", "replace")
        for number, match in enumerate(_LINE.finditer(text)):
            if number == self._limits.max_lines:
                exposition.rejected["too_many_lines"] += 1 + text.count("\n", match.end(), len(text) - 1)
                break
            line = match.group()
            if line.startswith("#"):
                continue
            try:
                if match.end() == len(text) and not whole and not line.isspace():
                    raise _BadLine("truncated_line")
                sample = self._read_line(line)
            except _BadLine as bad:
                exposition.rejected[bad.args[0]] += 1
            else:
                if sample is not None:
                    exposition.samples.append(sample)
        return exposition

    def _read_line(self, line: str) -> Sample | None:
        if len(line) > self._limits.max_line_length:
            raise _BadLine("line_too_long")
        opening = line.find("{")
        if opening < 0:
            name, _, rest = line.strip().replace("\t", " ").partition(" ")
            if not name or name.startswith("#"):
                return None
            labels = self._labels("}")
        else:
            name = line[:opening].strip()
            if name.startswith("#"):
                return None
            closing = line.rfind("}") + 1
            labels = self._labels(line[opening + 1 : closing])
            rest = line[closing:]
        self._check_name(name)
        return self._sample(name, labels, rest.strip())

    def _check_name(self, name: str) -> None:
        if name not in self._names:
            if not _NAME.fullmatch(name):
                raise _BadLine("bad_name")
            self._names.add(name)

    def _sample(self, name: str, labels: Labels, rest: str) -> Sample:
        if not rest:
            raise _BadLine("no_value")
        if name in self._texts:
            return Sample(name, labels, math.nan, rest)
        text, *timestamp = rest.split(None, 1)
        value = _number(text)
        if value is None or (timestamp and _number(timestamp[0]) is None):
            raise _BadLine("bad_value")
        return Sample(name, labels, value, text)

    def _labels(self, text: str) -> Labels:
        """Return the labels of `text`, which ends with the closing brace."""
        labels = self._by_text.get(text)
        if labels is None:
            labels = self.intern(_parse_labels(text, self._limits.max_labels))
            if len(self._by_text) < _MOST_CACHED and len(text) <= _LONGEST_CACHED:
                self._by_text[text] = labels
        return labels

    def intern(self, values: Mapping[str, str]) -> Labels:
        """Return the one object that stands for these labels."""
        content = frozenset(values.items())
        labels = self._by_content.get(content)
        if labels is None:
            labels = self._by_content[content] = Labels(values)
        return labels


def distinct(samples: Iterable[Sample]) -> tuple[list[Sample], Counter[str]]:
    """Keep one sample per series; of a series with several values keep none, for nobody knows whose they are.

    Returns the samples, and how many were dropped: repeated_series, duplicate_series.
    """
    first: dict[tuple[str, Labels], Sample] = {}
    torn: dict[tuple[str, Labels], int] = {}
    dropped: Counter[str] = Counter()
    for sample in samples:
        series = sample[:2]
        known = first.setdefault(series, sample)
        if known is sample:
            continue
        if known.value == sample.value or known.text == sample.text:
            dropped["repeated_series"] += 1
        else:
            torn[series] = torn.get(series, 1) + 1
    for series, count in torn.items():
        dropped["duplicate_series"] += count
        del first[series]
    return list(first.values()), dropped


def _parse_labels(text: str, most: int) -> dict[str, str]:
    values: dict[str, str] = {}
    at = len(text) - len(text.lstrip())
    while not text.startswith("}", at):
        match = _LABEL.match(text, at)
        if match is None:
            raise _BadLine("bad_labels")
        name, value = match.group(1), match.group(2)
        if "\\" in value:
            value = _ESCAPE.sub(lambda m: _ESCAPED.get(m.group(1), m.group(1)), value)
        if values.setdefault(name, value) != value:
            raise _BadLine("duplicate_label")
        if len(values) > most:
            raise _BadLine("too_many_labels")
        at = match.end()
    if at + 1 != len(text):
        raise _BadLine("bad_labels")
    return values


def _number(text: str) -> float | None:
    """Return a whole number exactly, any other as a float, and None for what is no number."""
    if len(text) > _LONGEST_NUMBER or not text.isascii() or "_" in text:
        return None
    if text.lstrip("-").isdigit() and len(text) < 20:
        return int(text) if text.rfind("-") < 1 else None
    try:
        return float(text)
    except ValueError:
        return None
