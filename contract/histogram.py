"""Latency as sparse base-2 exponential histograms: a few dozen numbers that merge without loss.

Bucket i of schema s holds what is above 2^((i - 1) / 2^s) and at most 2^(i / 2^s), as in a native histogram of
Prometheus (its documentation, "Native histograms", with indexes from the upper bound). At schema 5 a bucket's bounds
are 2.19 % apart, so the value told for it is at most 1.08 % wrong. Values are integer nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = 5
MAX_SCHEMA = 8
MAX_NANOSECONDS = 2**62
MAX_BUCKETS = 4_096
"""More than any histogram of schema 5 can have: 62 powers of two of 32 buckets each."""

FIELDS = ("count", "sum", "min", "max", "schema", "idx", "cnt")
"""What a histogram consists of, as the columns are called after its name and `_`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Values that were counted; `idx` ascends and `cnt` holds how many are in the bucket of each index."""

    schema: int = SCHEMA
    count: int = 0
    sum: int = 0
    min: int | None = None
    max: int | None = None
    idx: tuple[int, ...] = ()
    cnt: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Sequence[int] | npt.NDArray[np.int64], schema: int = SCHEMA) -> Histogram:
        """Count values, integer nanoseconds; what is below 1 counts as 1."""
        array = np.clip(np.asarray(values, np.int64), 1, MAX_NANOSECONDS)
        if not array.size:
            return cls(schema=schema)
        indexes, counts = np.unique(np.ceil(np.log2(array) * 2**schema).astype(np.int64), return_counts=True)
        return cls(
            schema=schema,
            count=int(array.size),
            sum=sum(array.tolist()) if array.max() > 2**62 // array.size else int(array.sum()),
            min=int(array.min()),
            max=int(array.max()),
            idx=tuple(indexes.tolist()),
            cnt=tuple(counts.tolist()),
        )

    @property
    def mean(self) -> float | None:
        """The exact mean, nanoseconds."""
        return self.sum / self.count if self.count else None

    def percentile(self, ratio: float) -> float | None:
        """Return the value, nanoseconds, that a share `ratio` of the values does not exceed; None where there are none.

        At most `error_ratio` beside the exact one.
        """
        rank, seen = max(1, math.ceil(ratio * self.count)), 0
        for index, count in zip(self.idx, self.cnt, strict=True):
            seen += count
            if seen >= rank:
                return self._within(middle_of(index, self.schema))
        return None

    def _within(self, value: float) -> float:
        low, high = self.min, self.max
        return value if low is None or high is None else min(max(value, low), high)

    def downscaled(self, schema: int) -> Histogram:
        """Return the same values in wider buckets, exactly as if they had been counted so."""
        if schema == self.schema:
            return self
        if schema > self.schema:
            raise ValueError(f"schema {self.schema} cannot become the finer {schema}")
        step = 2 ** (self.schema - schema)
        buckets = _added((-(-index // step), count) for index, count in self.buckets())
        return _assembled(buckets, schema, self.count, self.sum, self.min, self.max)

    def buckets(self) -> Iterator[tuple[int, int]]:
        """Yield (index, count), ascending."""
        return zip(self.idx, self.cnt, strict=True)

    def columns(self, name: str) -> dict[str, Any]:
        """Return the values of the columns that a stream declares by `histogram(name, ...)`."""
        return {
            f"{name}_count": self.count,
            f"{name}_sum": self.sum,
            f"{name}_min": self.min,
            f"{name}_max": self.max,
            f"{name}_schema": self.schema,
            f"{name}_idx": list(self.idx),
            f"{name}_cnt": list(self.cnt),
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any], name: str) -> Histogram | None:
        """Read those columns of one row back; None where they are null or not there."""
        parts: dict[str, Any] = {field: row.get(f"{name}_{field}") for field in FIELDS}
        if parts["idx"] is None:
            return None
        return cls(**parts | {"idx": tuple(parts["idx"]), "cnt": tuple(parts["cnt"])})


class Recorder:
    """Counts values one by one; as cheap as two dictionary look-ups."""

    __slots__ = ("_counts", "_max", "_min", "_scale", "_sum", "schema")

    def __init__(self, schema: int = SCHEMA) -> None:
        self.schema = schema
        self._scale = 2**schema
        self._counts: dict[int, int] = {}
        self._sum = self._max = 0
        self._min = MAX_NANOSECONDS

    def record(self, nanoseconds: int) -> None:
        """Count one value; what is below 1 counts as 1."""
        value = (
            nanoseconds if 1 <= nanoseconds <= MAX_NANOSECONDS else min(max(nanoseconds, 1), MAX_NANOSECONDS)
        )
        index = math.ceil(math.log2(value) * self._scale)
        self._counts[index] = self._counts.get(index, 0) + 1
        self._sum += value
        if value < self._min:  # noqa: PLR1730 - called for every probe: a third of what min() takes
            self._min = value
        if value > self._max:  # noqa: PLR1730
            self._max = value

    def histogram(self) -> Histogram:
        """Return what was counted so far."""
        count = sum(self._counts.values())
        extremes = (self._min, self._max) if count else (None, None)
        return _assembled(self._counts, self.schema, count, self._sum, *extremes)


def merge(histograms: Iterable[Histogram]) -> Histogram:
    """Return the histogram of all their values together, in the coarsest of their schemas."""
    parts = list(histograms)
    filled = [part for part in parts if part.count]
    if not filled:
        return Histogram(schema=min((part.schema for part in parts), default=SCHEMA))
    schema = min(part.schema for part in filled)
    buckets = _added(bucket for part in filled for bucket in part.downscaled(schema).buckets())
    return _assembled(
        buckets,
        schema,
        sum(part.count for part in filled),
        sum(part.sum for part in filled),
        min(part.min for part in filled if part.min is not None),
        max(part.max for part in filled if part.max is not None),
    )


def middle_of(index: int, schema: int = SCHEMA) -> float:
    """Return the value whose relative distance to both bounds of a bucket is the same: their harmonic mean."""
    return 2 * math.exp2(index / 2**schema) / (math.exp2(1 / 2**schema) + 1)


def error_ratio(schema: int = SCHEMA) -> float:
    """Return how far, at most, a percentile is from the exact one, as a share of it."""
    ratio = math.exp2(1 / 2**schema)
    return (ratio - 1) / (ratio + 1)


def _added(buckets: Iterable[tuple[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for index, count in buckets:
        total[index] = total.get(index, 0) + count
    return total


def _assembled(
    buckets: Mapping[int, int], schema: int, count: int, total: int, low: int | None, high: int | None
) -> Histogram:
    idx = tuple(sorted(buckets))
    cnt = tuple(buckets[index] for index in idx)
    return Histogram(schema=schema, count=count, sum=total, min=low, max=high, idx=idx, cnt=cnt)


Mask = npt.NDArray[np.bool_]


def check_histograms(parts: Mapping[str, pa.Array | pa.ChunkedArray]) -> tuple[Mask, Mask]:
    """Say which rows of the columns of one histogram are none: (broken, and of these those that are null throughout).

    A good one has as many indexes as counts, indexes that ascend, counts above zero that add up to its count, and
    extremes and a sum that can be true of it; without any value, neither buckets nor extremes.
    """
    known = {field: np.asarray(pc.is_valid(part)) for field, part in parts.items()}
    blank = ~np.logical_or.reduce(list(known.values()))
    count, total, low, high = (
        np.asarray(parts[field].fill_null(0)) for field in ("count", "sum", "min", "max")
    )
    idx, cnt = _one_chunk(parts["idx"]), _one_chunk(parts["cnt"])
    lengths = pc.list_value_length(idx).fill_null(0).to_numpy()
    good = known["count"] & known["sum"] & known["schema"] & known["idx"] & known["cnt"]
    good &= lengths == pc.list_value_length(cnt).fill_null(0).to_numpy()
    good &= _ascends(idx) & (_positive_sum(cnt) == count) & (known["min"] == (count > 0))
    good &= known["max"] == (count > 0)
    # In floating point: a sum that no row can have must not overflow into one that it can.
    good &= (
        (low <= high)
        & (total >= count * low.astype(float) * 0.999)
        & (total <= count * high.astype(float) * 1.001)
    )
    return ~good, blank


def _one_chunk(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def parents_of(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Return to which list each value of `lists.flatten()` belongs.

    Arrow's own `list_parent_indices` also counts the values that a null list may own, which `flatten` leaves out.
    """
    return np.repeat(np.arange(len(lists)), pc.list_value_length(lists).fill_null(0).to_numpy())


def _ascends(lists: pa.Array) -> Mask:
    """Say of each list whether its numbers ascend."""
    parents = parents_of(lists)
    falls = (np.diff(lists.flatten().to_numpy()) <= 0) & (np.diff(parents) == 0)
    good = np.ones(len(lists), np.bool_)
    good[parents[1:][falls]] = False
    return good


def _positive_sum(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Return the sum of each list, -1 where a number of it is not above zero."""
    parents, flat = parents_of(lists), lists.flatten().to_numpy()
    sums = np.zeros(len(lists), np.int64)
    np.add.at(sums, parents, flat.astype(np.int64))
    sums[parents[flat <= 0]] = -1
    return sums
