"""Item histories of different lengths, the input of every scorer, and the features they carry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Bools = NDArray[np.bool_]
Float32s = NDArray[np.float32]

PAD = 0
"""The item token for "no item": padding, and items outside the catalogue."""


class FeatureTable(NamedTuple):
    """The features of R entities in rows 1 to R. Row 0 (PAD) has no features."""

    categories: Int64s
    """Shape [R + 1, M], numbered from 1 in all columns together, padded with 0."""
    shares: Float32s
    """Shape [R + 1, M]: the weight of each category. Those of a column sum to 1."""
    numbers: Float32s
    """Shape [R + 1, K], 0 where they are missing."""


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """The features of N interactions, as rows of a table without duplicates."""

    table: FeatureTable
    rows: Int64s
    """Shape [N]: rows of the table, 0 if nothing is known."""

    def __getitem__(self, index: slice | Int64s | Bools) -> Features:
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
    features: tuple[Features, ...] = ()
    """Those of the N interactions, and of their users, that the model reads."""

    @classmethod
    def from_lists(cls, lists: Sequence[Iterable[int]]) -> Histories:
        """Return one history per list of item tokens."""
        rows = [np.fromiter(row, dtype=np.int32) for row in lists]
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        items = np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)
        return cls(items, _offsets(lengths))

    def spans(self, starts: Int64s, ends: Int64s) -> Histories:
        """Return the histories ``items[starts[b]:ends[b]]``, without PAD and request times."""
        indices, offsets = span_indices(starts, ends), _offsets(ends - starts)
        items = np.asarray(self.items)[indices]
        known = items != PAD
        if not known.all():
            items, indices = items[known], indices[known]
            offsets = np.concatenate([[0], np.cumsum(known)])[offsets]
        return Histories(
            items,
            offsets,
            None if self.times is None else np.asarray(self.times)[indices],
            features=tuple(features[indices] for features in self.features),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, users: slice) -> Histories:
        """Return the histories of some users, without PAD."""
        return self.take(np.arange(*users.indices(len(self))))

    @property
    def lengths(self) -> Int64s:
        """Shape [B]: the number of items of each history."""
        return np.diff(self.offsets)

    @property
    def users(self) -> Int64s:
        """Shape [N]: the history, 0 to B - 1, that each entry of ``items`` belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def ages(self) -> Int64s:
        """Shape [N]: how many items of its history are newer than each entry; 0 for the newest."""
        return np.repeat(self.offsets[1:], self.lengths) - 1 - np.arange(len(self.items))

    @property
    def usual_gap(self) -> int | None:
        """The median time between two successive entries of a history; None if there are none."""
        if self.times is None:
            return None
        gaps = np.diff(self.times)[np.diff(self.users) == 0]
        return int(np.median(gaps)) if len(gaps) else None

    def take(self, rows: Int64s) -> Histories:
        """Return the histories of the given rows, in their order."""
        taken = self.spans(self.offsets[rows], self.offsets[rows + 1])
        times = self.request_times
        return taken if times is None else replace(taken, request_times=times[rows])

    def latest(self, count: int) -> Histories:
        """Return the last ``count`` items of each history."""
        starts = np.maximum(self.offsets[:-1], self.offsets[1:] - count)
        return replace(self.spans(starts, self.offsets[1:]), request_times=self.request_times)

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
        """Return the times of the items and the request time [B, width + 1], right-padded with 0.

        Without request times, the time of the last item is repeated. None if times are unknown.
        """
        if self.times is None:
            return None
        present, rows, lengths = self._present(width), np.arange(len(self)), self.lengths
        grid = np.zeros((len(self), present.shape[1] + 1), dtype=np.int64)
        grid[:, :-1][present] = self.times
        # An empty history reads index -1, the last of its row, which is 0 as it should be.
        grid[rows, lengths] = (
            grid[rows, lengths - 1] if self.request_times is None else self.request_times
        )
        return grid

    def padded_features(self, width: int | None = None) -> tuple[NDArray[Any], ...]:
        """Return the features of each interaction, as in `FeatureTable`, if there are any.

        Categories and shares [B, width, M] and numbers [B, width, K], right-padded with 0.
        """
        present, grids = self._present(width), []
        for features in self.features:
            rows = np.zeros(present.shape, dtype=np.int64)
            rows[present] = features.rows
            grids.append([values[rows] for values in features.table])
        return tuple(np.concatenate(values, axis=-1) for values in zip(*grids, strict=True))


def _offsets(lengths: Int64s) -> Int64s:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def span_indices(starts: Int64s, ends: Int64s) -> Int64s:
    """Return the indices start, start + 1, … of each span, concatenated."""
    offsets = _offsets(ends - starts)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
