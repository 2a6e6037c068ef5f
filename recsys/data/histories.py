"""Item histories of different lengths, the input of every scorer, and the features they carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]

PAD = 0
"""The item token for "no item": padding, and items outside the catalogue."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTable:
    """The features of R entities in rows 1 to R. Row 0 (PAD) has no features."""

    categories: Int64s
    """Shape [R + 1, M]: the categories of each row, padded with 0. They are numbered from 1, those
    of all columns together."""
    shares: NDArray[np.float32]
    """Shape [R + 1, M]: the weight of each category, padded with 0. Those of a column sum to 1."""
    numbers: NDArray[np.float32]
    """Shape [R + 1, K]: numbers and text vectors, 0 where they are missing."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The features of N interactions or users, as rows of a table without duplicates.

    >>> stars = FeatureTable(np.zeros((3, 0), int), np.zeros((3, 0)), np.array([[0], [-1], [1]]))
    >>> rated = Features(stars, np.array([2, 2, 1]))
    >>> stars.numbers[rated[1:].rows].tolist()
    [[1], [-1]]
    """

    table: FeatureTable
    rows: Int64s
    """Shape [N]: rows of the table, 0 if nothing is known."""

    def __getitem__(self, index: slice | Int64s | Bools) -> Features:
        """Return the features of a subset."""
        return Features(self.table, self.rows[index])


@dataclass(frozen=True, slots=True)
class Histories:
    """The item histories of B users, concatenated, oldest item first.

    User b's history is ``items[offsets[b]:offsets[b + 1]]``.

    >>> histories = Histories.from_lists([[3, 1], [], [2, 2, 4]])
    >>> histories.items.tolist(), histories.offsets.tolist()
    ([3, 1, 2, 2, 4], [0, 2, 2, 5])
    >>> histories.latest(2).padded()
    array([[3, 1],
           [0, 0],
           [2, 4]], dtype=int32)
    """

    items: Int32s
    """Shape [N]: item tokens, each at least 1."""
    offsets: Int64s
    """Shape [B + 1]: where each history starts; the last entry is N."""
    times: Int64s | None = None
    """Shape [N]: the time of each interaction, on the scale of the log. None if unknown."""
    request_times: Int64s | None = None
    """Shape [B]: the time at which each user's next item is predicted. None if unknown."""
    interaction_features: Features | None = None
    """The features of the N interactions. None if the model reads none."""
    user_features: Features | None = None
    """The features of the B users. None if the model reads none."""

    @classmethod
    def from_lists(cls, lists: Sequence[Iterable[int]]) -> Histories:
        """Return one history per list of item tokens."""
        rows = [np.fromiter(row, dtype=np.int32) for row in lists]
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        items = np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)
        return cls(items, _offsets(lengths))

    @classmethod
    def from_spans(cls, items: Int32s, starts: Int64s, ends: Int64s) -> Histories:
        """Return the histories ``items[starts[b]:ends[b]]``, without PAD tokens."""
        return cls(items, np.array([0, len(items)])).spans(starts, ends)

    def spans(self, starts: Int64s, ends: Int64s) -> Histories:
        """Return ``items[starts[b]:ends[b]]`` without PAD tokens, as histories of any users."""
        indices, offsets = span_indices(starts, ends), _offsets(ends - starts)
        items = np.asarray(self.items)[indices]
        known = items != PAD
        if not known.all():
            items, indices = items[known], indices[known]
            offsets = np.concatenate([[0], np.cumsum(known)])[offsets]
        times = None if self.times is None else np.asarray(self.times)[indices]
        features = self.interaction_features
        features = None if features is None else features[indices]
        return Histories(items, offsets, times, interaction_features=features)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, users: slice) -> Histories:
        """Return the histories of consecutive users, without copying; for a step see `take`."""
        start, stop, step = users.indices(len(self))
        if step != 1:
            raise ValueError(f"a slice of histories must have step 1, not {step}")
        offsets = self.offsets[start : max(start, stop) + 1]
        span = slice(offsets[0], offsets[-1])
        features, user_features = self.interaction_features, self.user_features
        return Histories(
            self.items[span],
            offsets - offsets[0],
            None if self.times is None else self.times[span],
            None if self.request_times is None else self.request_times[users],
            None if features is None else features[span],
            None if user_features is None else user_features[users],
        )

    @property
    def lengths(self) -> Int64s:
        """Shape [B]: the number of items of each history."""
        return np.diff(self.offsets)

    @property
    def users(self) -> Int64s:
        """Shape [N]: the history, 0 to B - 1, that each entry of ``items`` belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def usual_gap(self) -> int | None:
        """The median time between two successive entries of a history; None if there are none."""
        if self.times is None:
            return None
        successive = np.diff(self.users) == 0
        gaps = np.diff(self.times)[successive]
        return int(np.median(gaps)) if len(gaps) else None

    def take(self, rows: Int64s) -> Histories:
        """Return the histories of the given rows, in their order."""
        user_features = self.user_features
        return replace(
            self.spans(self.offsets[rows], self.offsets[rows + 1]),
            request_times=None if self.request_times is None else self.request_times[rows],
            user_features=None if user_features is None else user_features[rows],
        )

    def latest(self, count: int) -> Histories:
        """Return the last ``count`` items of each history."""
        latest = self.spans(
            np.maximum(self.offsets[:-1], self.offsets[1:] - count), self.offsets[1:]
        )
        return replace(latest, request_times=self.request_times, user_features=self.user_features)

    def without_last(self) -> Histories:
        """Return the histories without their last items; each must have one."""
        earlier = self.spans(self.offsets[:-1], self.offsets[1:] - 1)
        return replace(earlier, request_times=self.request_times, user_features=self.user_features)

    def padded(self, width: int | None = None) -> Int32s:
        """Return item tokens [B, width], right-padded with PAD; width >= the longest history."""
        present = self._present(width)
        grid = np.full(present.shape, PAD, dtype=np.int32)
        grid[present] = self.items
        return grid

    def _present(self, width: int | None) -> Bools:
        """Return where a padded grid has items [B, width]."""
        width = int(self.lengths.max(initial=0)) if width is None else width
        return np.arange(width) < self.lengths[:, None]

    def padded_times(self, width: int | None = None) -> Int64s | None:
        """Return the times of the items, followed by the request time, or None if unknown.

        Shape [B, width + 1], right-padded with 0. Without request times, the time of the last item
        is repeated instead.

        >>> items, offsets = np.array([7, 8, 9], dtype=np.int32), np.array([0, 2, 3])
        >>> times, request_times = np.array([10, 11, 25]), np.array([14, 30])
        >>> Histories(items, offsets, times, request_times).padded_times()
        array([[10, 11, 14],
               [25, 30,  0]])
        """
        if self.times is None:
            return None
        lengths, users = self.lengths, np.arange(len(self))
        width = int(lengths.max(initial=0)) if width is None else width
        grid = np.zeros((len(self), width + 1), dtype=np.int64)
        grid[np.arange(width + 1) < lengths[:, None]] = self.times
        # An empty history reads index -1, the last of its row, which is 0 as it should be.
        grid[users, lengths] = (
            grid[users, lengths - 1] if self.request_times is None else self.request_times
        )
        return grid

    def padded_features(
        self, width: int | None = None
    ) -> tuple[Int64s, NDArray[np.float32], NDArray[np.float32]] | None:
        """Return the features of each interaction, followed by those of its user, or None.

        Categories [B, width, M], shares [B, width, M] and numbers [B, width, K] of `FeatureTable`,
        right-padded with 0.
        """
        present = self._present(width)
        tables = []
        if self.interaction_features is not None:
            rows = np.zeros(present.shape, dtype=np.int64)
            rows[present] = self.interaction_features.rows
            tables.append((self.interaction_features.table, rows))
        if self.user_features is not None:
            tables.append((self.user_features.table, present * self.user_features.rows[:, None]))
        if not tables:
            return None
        categories, shares, numbers = (
            np.concatenate([getattr(table, name)[rows] for table, rows in tables], axis=-1)
            for name in ("categories", "shares", "numbers")
        )
        return categories, shares, numbers


@dataclass(frozen=True, slots=True)
class Spans:
    """S parts of B histories; their items are copied, or read from a file, only by `take`.

    >>> spans = Spans.newest(Histories.from_lists([[3, 1], [], [2, 2, 4]]), 2)
    >>> spans.lengths.tolist(), spans.take(np.array([2])).items.tolist()
    ([2, 0, 2], [2, 4])
    """

    histories: Histories
    users: Int64s
    """Shape [S]: the history that each part belongs to."""
    starts: Int64s
    """Shape [S]: where each part starts among the items of all histories."""
    ends: Int64s
    """Shape [S]: where it ends (exclusive)."""

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
    def lengths(self) -> Int64s:
        """Shape [S]: the number of items of each part."""
        return self.ends - self.starts

    def at_least(self, count: int) -> Spans:
        """Return the parts with at least ``count`` items."""
        kept = np.flatnonzero(self.lengths >= count)
        return Spans(self.histories, self.users[kept], self.starts[kept], self.ends[kept])

    def take(self, rows: Int64s) -> Histories:
        """Return some of the parts, in the order of the rows."""
        parts = self.histories.spans(self.starts[rows], self.ends[rows])
        features = self.histories.user_features
        features = None if features is None else features[self.users[rows]]
        return replace(parts, user_features=features)


def _offsets(lengths: Int64s) -> Int64s:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def span_indices(starts: Int64s, ends: Int64s) -> Int64s:
    """Return the indices start, start + 1, … of each span, concatenated.

    >>> span_indices(np.array([4, 1]), np.array([6, 4])).tolist()
    [4, 5, 1, 2, 3]
    """
    offsets = _offsets(ends - starts)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
