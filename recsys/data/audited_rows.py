"""The interactions that an audit reads, block by block, so that memory does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.data.targets import TargetPositions
from recsys.data.user_blocks import user_blocks

BLOCK = 1 << 20
"""The number of interactions of a block; a user with more has a block of its own."""

EXACT = 10_000_000
"""The number of values up to which distinct ones are counted exactly."""

_SMALLEST = 1 << 16
"""The number of smallest hashes that an estimate is made from: its standard error is 0.4%."""


@dataclass(frozen=True)
class AuditedBlock:
    """All n interactions of consecutive users."""

    start: int
    """The position of the first interaction in the dataset."""
    lengths: NDArray[np.int64]
    """Shape [u]: the number of interactions of each user."""
    cuts: NDArray[np.int64]
    """Shape [u, 2]: how many of them are before the validation and before the test part."""
    items: NDArray[np.int32]
    """Shape [n]: item tokens."""
    times: NDArray[np.int64]
    """Shape [n], ascending for each user."""
    targets: TargetPositions
    """The test targets of the users, with positions in the dataset."""

    @cached_property
    def users(self) -> NDArray[np.int64]:
        """Shape [n]: the user of each interaction, 0 for the first user of the block."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def parts(self) -> NDArray[np.int8]:
        """Shape [n]: 0 to 2 for training, validation and test."""
        ends = np.column_stack([self.cuts, self.lengths])
        parts = np.tile(np.arange(3, dtype=np.int8), len(ends))
        return np.repeat(parts, np.diff(ends, prepend=0).ravel())

    @cached_property
    def pairs(self) -> NDArray[np.int64]:
        """Shape [n]: a number that identifies each pair of user and item token."""
        width = int(self.items.max(initial=0)) + 1
        pairs: NDArray[np.int64] = self.users * width + self.items
        return pairs


@dataclass(frozen=True)
class AuditedRows:
    """The N interactions of a dataset, with facts that several findings need."""

    dataset: PreparedDataset

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """The number of interactions in training, validation and test."""
        ends = self.dataset.cuts.sum(axis=0, dtype=np.int64)
        train, valid, test = np.diff(ends, prepend=0).tolist()
        return train, valid, test

    @cached_property
    def chosen(self) -> TargetPositions:
        """The test targets of the split."""
        return self.dataset.target_positions("test")

    @cached_property
    def targets(self) -> TargetPositions:
        """The test targets inside the catalogue."""
        return self.chosen[self.dataset.items[self.chosen.targets] != PAD]

    def blocks(self) -> Iterator[AuditedBlock]:
        """Yield all interactions, user by user, about `BLOCK` at a time."""
        offsets, data, targets = self.dataset.offsets, self.dataset, self.targets
        for low, high in user_blocks(offsets, BLOCK):
            start, end = int(offsets[low]), int(offsets[high])
            first, last = np.searchsorted(targets.targets, (start, end))
            span = slice(first, last)
            yield AuditedBlock(
                start=start,
                lengths=np.diff(offsets[low : high + 1]),
                cuts=np.asarray(data.cuts[low:high, :2]),
                items=np.asarray(data.items[start:end]),
                times=np.asarray(data.timestamps[start:end]),
                targets=TargetPositions(
                    targets.users[span],
                    targets.targets[span],
                    targets.starts[span],
                    targets.ends[span],
                ),
            )


def count_distinct(values: NDArray[np.int64]) -> tuple[int, bool]:
    """Count distinct values; return the number and whether it is exact.

    More than `EXACT` values are hashed, and their number follows from the largest of the smallest
    hashes: Bar-Yossef et al. 2002, "Counting distinct elements in a data stream", algorithm 1. That
    is exact too if there are few distinct values.
    """
    if len(values) <= EXACT:
        return pl.Series(np.asarray(values)).n_unique(), True
    smallest = pl.Series(dtype=pl.UInt64)
    for start in range(0, len(values), BLOCK):
        hashes = pl.Series(_mixed(values[start : start + BLOCK])).unique()
        smallest = pl.concat([smallest, hashes]).unique().bottom_k(_SMALLEST)
    if len(smallest) < _SMALLEST:
        return len(smallest), True
    return round((_SMALLEST - 1) / (smallest.to_numpy().max() / 2**64)), False


def _mixed(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return one-to-one hashes: the finaliser of splitmix64 (Steele et al. 2014)."""
    mixed = np.asarray(values).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
