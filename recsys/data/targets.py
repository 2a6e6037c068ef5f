"""Which held-out interactions are targets, and where the history of each ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.config import ChosenTargets, GlobalTime, KnownHistory, Split, UserHoldout


@dataclass(frozen=True, slots=True)
class TargetPositions:
    """Q targets and their histories, as positions among the N interactions of a dataset."""

    users: NDArray[np.int64]
    """Shape [Q]: the user's row in the dataset."""
    targets: NDArray[np.int64]
    """Shape [Q], ascending: the position of each target."""
    starts: NDArray[np.int64]
    """Shape [Q]: the position of the user's first interaction, where the history starts."""
    ends: NDArray[np.int64]
    """Shape [Q]: where the history ends (exclusive), at most the target's position."""

    def __getitem__(self, rows: NDArray[np.bool_]) -> TargetPositions:
        """Return a subset of the targets."""
        return TargetPositions(
            self.users[rows], self.targets[rows], self.starts[rows], self.ends[rows]
        )


def target_policy(split: Split) -> tuple[ChosenTargets, KnownHistory]:
    """Return which interactions of a part are targets, and where their histories end."""
    if isinstance(split, GlobalTime):
        return split.targets, split.history
    return ("last", "advancing") if isinstance(split, UserHoldout) else ("every", "frozen")


def find_targets(
    timestamps: NDArray[np.int64],
    offsets: NDArray[np.int64],
    part: tuple[NDArray[np.int32], NDArray[np.int32]],
    chosen: ChosenTargets,
    history: KnownHistory,
) -> TargetPositions:
    """Find the targets of one part of a split, in the order of the dataset.

    Args:
        timestamps: shape [N]: the times of all interactions, ascending for each user.
        offsets: shape [U + 1]: where each user's interactions start; the last entry is N.
        part: the cut points at which the part starts and ends, two arrays [U].
        chosen: which of a user's interactions in the part are targets.
        history: where histories end.

    >>> times, offsets = np.array([1, 3, 5, 5, 2, 6]), np.array([0, 4, 6])
    >>> part = np.array([1, 1]), np.array([4, 2])
    >>> found = find_targets(times, offsets, part, "every", "advancing")
    >>> found.targets.tolist(), found.ends.tolist()
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
    history_ends = starts[users]
    if history == "advancing":
        history_ends = _ends_of_earlier(timestamps, offsets)[targets]
    return TargetPositions(users, targets, offsets[users], history_ends)


def _ends_of_earlier(
    timestamps: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where the user's interactions at earlier times end, for each interaction [N]."""
    first = np.ones(len(timestamps), dtype=np.bool_)  # the first interaction at its time
    first[1:] = timestamps[1:] != timestamps[:-1]
    first[offsets[:-1]] = True
    return np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
