"""Parts of histories that are read when they are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True)
class Spans:
    """S parts of B histories; their items are copied when `take` returns some of them.

    Batches are planned from ``lengths``: an epoch over a memory-mapped log loads none of it first.

    >>> spans = Spans.newest(Histories.from_lists([[3, 1], [], [2, 2, 4]]), 2)
    >>> spans.lengths.tolist(), spans.take(np.array([2])).items.tolist()
    ([2, 0, 2], [2, 4])
    """

    histories: Histories
    """The B histories."""
    users: NDArray[np.int64]
    """Shape [S]: the history that each part belongs to."""
    starts: NDArray[np.int64]
    """Shape [S]: the first item of each part, among the items of all histories."""
    ends: NDArray[np.int64]
    """Shape [S]: the end of each part, which is not in it."""

    @classmethod
    def newest(cls, histories: Histories, count: int) -> Spans:
        """Return the last ``count`` items of each history."""
        ends = histories.offsets[1:]
        starts = np.maximum(histories.offsets[:-1], ends - count)
        return cls(histories, np.arange(len(histories)), starts, ends)

    @classmethod
    def overlapping(cls, histories: Histories, size: int) -> Spans:
        """Cut ``size`` items at a time from the end; each starts with the last item before it.

        >>> spans = Spans.overlapping(Histories.from_lists([[1, 2, 3, 4, 5, 6], [7], [8, 9]]), 3)
        >>> spans.take(np.arange(len(spans))).padded().tolist()
        [[1, 2, 0], [2, 3, 4], [4, 5, 6], [7, 0, 0], [8, 9, 0]]
        """
        steps = np.maximum(-(-(histories.lengths - 1) // (size - 1)), 1)
        users = np.repeat(np.arange(len(histories)), steps)
        left = np.cumsum(steps)[users] - np.arange(len(users)) - 1  # parts after this one
        ends = histories.offsets[users + 1] - left * (size - 1)
        return cls(histories, users, np.maximum(histories.offsets[users], ends - size), ends)

    def __len__(self) -> int:
        return len(self.users)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Shape [S]: the number of items of each part."""
        return self.ends - self.starts

    def at_least(self, count: int) -> Spans:
        """Return the parts with at least ``count`` items."""
        kept = np.flatnonzero(self.lengths >= count)
        return Spans(self.histories, self.users[kept], self.starts[kept], self.ends[kept])

    def take(self, rows: NDArray[np.int64]) -> Histories:
        """Return some of the parts, in the order of the rows."""
        parts = self.histories.spans(self.starts[rows], self.ends[rows])
        features = self.histories.user_features
        return replace(
            parts, user_features=None if features is None else features[self.users[rows]]
        )
