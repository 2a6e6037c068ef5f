"""Which held-out interactions are foretold, and what is known before each of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.config import ChosenTargets, GlobalTime, KnownHistory, Split, UserHoldout


@dataclass(frozen=True, slots=True)
class TargetPositions:
    """Q targets, and the history of each, as places among the N interactions of a dataset."""

    users: NDArray[np.int64]
    """The user's row in the dataset [Q]."""
    targets: NDArray[np.int64]
    """Ascending [Q]."""
    starts: NDArray[np.int64]
    """Of the user's interactions [Q]."""
    ends: NDArray[np.int64]
    """Of the history: it is ``starts`` to ``ends``, which is at most the target's place [Q]."""

    def __getitem__(self, rows: NDArray[np.bool_]) -> TargetPositions:
        """Some of the targets."""
        return TargetPositions(
            self.users[rows], self.targets[rows], self.starts[rows], self.ends[rows]
        )


def target_policy(split: Split) -> tuple[ChosenTargets, KnownHistory]:
    """Which interactions of a part are targets, and what is known before them."""
    if isinstance(split, GlobalTime):
        return split.targets, split.history
    return ("last", "advancing") if isinstance(split, UserHoldout) else ("every", "frozen")


def find_targets(
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    part: tuple[NDArray[np.int32], NDArray[np.int32]],
    chosen: ChosenTargets,
    known: KnownHistory,
) -> TargetPositions:
    """The targets of one part of a split, in the order of the dataset.

    Args:
        timestamps: of all interactions, those of each user ascending [N].
        offsets: where each user's interactions start and the last one's end [U + 1].
        part: the cut points that it lies between, two arrays [U].
        chosen: which of a user's interactions in it are targets.
        known: where histories end.

    >>> times, offsets = np.array([1, 3, 5, 5, 2, 6]), np.array([0, 4, 6])
    >>> part = np.array([1, 1]), np.array([4, 2])
    >>> places = find_targets(times, offsets, part, "every", "advancing")
    >>> places.targets.tolist(), places.ends.tolist()
    ([1, 2, 3, 5], [1, 2, 2, 5])
    >>> find_targets(times, offsets, part, "last", "frozen").ends.tolist()
    [1, 5]
    """
    starts, ends = (offsets[:-1] + cut for cut in part)
    if chosen == "first":
        ends = np.minimum(ends, starts + 1)
    firsts = np.maximum(starts, ends - 1) if chosen == "last" else starts
    users = np.repeat(np.arange(len(starts)), ends - firsts)
    before = np.concatenate([[0], np.cumsum(ends - firsts)])[:-1]
    targets = np.arange(len(users)) + (firsts - before)[users]
    histories = starts[users] if known == "frozen" else _earlier(timestamps, offsets)[targets]
    return TargetPositions(users, targets, offsets[users], histories)


def _earlier(timestamps: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the interactions end that the user had at earlier times than each interaction's [N]."""
    first = np.ones(len(timestamps), dtype=np.bool_)  # of those at its time
    first[1:] = timestamps[1:] != timestamps[:-1]
    first[offsets[:-1]] = True
    return np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
