"""Ragged item histories: what every scorer reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recsys.data.features.table import Features, join_features

PAD = 0
"""The item token that stands for "no item": padding, and items outside the catalogue."""


@dataclass(frozen=True, slots=True)
class Histories:
    """The item histories of B users, laid end to end, oldest item first.

    User b's history is ``items[offsets[b]:offsets[b + 1]]``.

    >>> histories = Histories.from_lists([[3, 1], [], [2, 2, 4]])
    >>> histories.items.tolist(), histories.offsets.tolist()
    ([3, 1, 2, 2, 4], [0, 2, 2, 5])
    >>> histories.newest(2).padded()
    array([[3, 1],
           [0, 0],
           [2, 4]], dtype=int32)
    """

    items: NDArray[np.int32]
    """Item tokens [N], each at least 1."""
    offsets: NDArray[np.int64]
    """Where each history starts and the last one ends [B + 1]."""
    times: NDArray[np.int64] | None = None
    """When each item was had [N], on the scale of the log; None: not known."""
    request_times: NDArray[np.int64] | None = None
    """When each user's next item is asked for [B]; None: the scorer is not told."""
    interaction_features: Features | None = None
    """What is read of each interaction beside its item [N]; None: nothing."""
    user_features: Features | None = None
    """What is read of each user [B]; None: nothing."""

    @classmethod
    def from_lists(cls, lists: Sequence[Iterable[int]]) -> Histories:
        """One history per list of item tokens."""
        rows = [np.fromiter(row, dtype=np.int32) for row in lists]
        lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
        items = np.concatenate(rows) if rows else np.empty(0, dtype=np.int32)
        return cls(items, _offsets(lengths))

    @classmethod
    def from_spans(
        cls,
        items: NDArray[np.int32],
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        times: NDArray[np.int64] | None = None,
        asked: NDArray[np.int64] | None = None,
    ) -> Histories:
        """The histories ``items[starts[b]:ends[b]]``, copied end to end, without PAD tokens.

        ``times`` are those of the items, ``asked`` those of the histories.
        """
        whole = cls(items, np.array([0, len(items)]), times)
        return replace(whole.spans(starts, ends), request_times=asked)

    def spans(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Histories:
        """``items[starts[b]:ends[b]]`` with all that is known of them, without PAD tokens.

        What is known of users, and of when they ask, stays behind: spans may be of any.
        """
        places, offsets = span_indices(starts, ends), _offsets(ends - starts)
        items = np.asarray(self.items)[places]
        known = items != PAD
        if not known.all():
            items, places = items[known], places[known]
            offsets = np.concatenate([[0], np.cumsum(known)])[offsets]
        times = None if self.times is None else np.asarray(self.times)[places]
        features = self.interaction_features
        return Histories(
            items,
            offsets,
            times,
            interaction_features=None if features is None else features[places],
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, users: slice) -> Histories:
        """The histories of a run of users, sharing this one's memory; for a step see `take`."""
        start, stop, step = users.indices(len(self))
        if step != 1:
            raise ValueError(f"a run of users has step 1, not {step}")
        offsets = self.offsets[start : max(start, stop) + 1]
        run = slice(offsets[0], offsets[-1])
        features, people = self.interaction_features, self.user_features
        return Histories(
            self.items[run],
            offsets - offsets[0],
            None if self.times is None else self.times[run],
            None if self.request_times is None else self.request_times[users],
            None if features is None else features[run],
            None if people is None else people[users],
        )

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Items per history [B]."""
        return np.diff(self.offsets)

    @property
    def users(self) -> NDArray[np.int64]:
        """The row, 0 to B - 1, that each entry of ``items`` belongs to [N]."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def take(self, rows: NDArray[np.int64]) -> Histories:
        """The histories of the given rows, in their order."""
        people = self.user_features
        return replace(
            self.spans(self.offsets[rows], self.offsets[rows + 1]),
            request_times=None if self.request_times is None else self.request_times[rows],
            user_features=None if people is None else people[rows],
        )

    def newest(self, count: int) -> Histories:
        """The last ``count`` items of each history."""
        ends = self.offsets[1:]
        return self._between(np.maximum(self.offsets[:-1], ends - count), ends)

    def without_last(self) -> Histories:
        """Without the last item of each history, which must have one."""
        return self._between(self.offsets[:-1], self.offsets[1:] - 1)

    def _between(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Histories:
        """A part of each user's history, with what is known of the user."""
        parts = self.spans(starts, ends)
        return replace(parts, request_times=self.request_times, user_features=self.user_features)

    def padded(self, width: int | None = None) -> NDArray[np.int32]:
        """Item tokens [B, width], right-padded with PAD; width is at least the longest history."""
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if width is None else width
        grid = np.full((len(self), width), PAD, dtype=np.int32)
        grid[np.arange(width) < lengths[:, None]] = self.items
        return grid

    def padded_times(self, width: int | None = None) -> NDArray[np.int64] | None:
        """When each item was had and, behind the last one, when the next is asked for.

        [B, width + 1], right-padded with 0; where the scorer is not told the time of asking, that
        of the last item stands in its place. None if the times are not known.

        >>> items, offsets = np.array([7, 8, 9], dtype=np.int32), np.array([0, 2, 3])
        >>> times, asked = np.array([10, 11, 25]), np.array([14, 30])
        >>> Histories(items, offsets, times, asked).padded_times()
        array([[10, 11, 14],
               [25, 30,  0]])
        """
        if self.times is None:
            return None
        lengths, users = self.lengths, np.arange(len(self))
        width = int(lengths.max(initial=0)) if width is None else width
        grid = np.zeros((len(self), width + 1), dtype=np.int64)
        grid[np.arange(width + 1) < lengths[:, None]] = self.times
        # Before the first place of an empty history is the last of the row: 0, as it should be.
        grid[users, lengths] = (
            grid[users, lengths - 1] if self.request_times is None else self.request_times
        )
        return grid

    def padded_features(
        self, width: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]] | None:
        """What is read of each item's interaction and, behind that, of its user.

        Categories [B, width, M] and shares [B, width, M], numbers [B, width, K], as `FeatureTable`
        has them, right-padded with 0. None if nothing is read.
        """
        lengths = self.lengths
        width = int(lengths.max(initial=0)) if width is None else width
        present = np.arange(width) < lengths[:, None]
        parts = []
        if self.interaction_features is not None:
            rows = np.zeros(present.shape, dtype=np.int64)
            rows[present] = self.interaction_features.rows
            parts.append((self.interaction_features.table, rows))
        if self.user_features is not None:
            parts.append((self.user_features.table, present * self.user_features.rows[:, None]))
        return join_features(parts)


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def span_indices(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places start, start + 1, … of each span, end to end.

    >>> span_indices(np.array([4, 1]), np.array([6, 4])).tolist()
    [4, 5, 1, 2, 3]
    """
    offsets = _offsets(ends - starts)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], ends - starts)
