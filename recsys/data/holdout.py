"""The held-out part of a dataset: which interactions are targets, and what precedes each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recsys.config import ChosenTargets, GlobalTime, KnownHistory, Split, UserHoldout
from recsys.data.histories import Histories


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


@dataclass(frozen=True, slots=True)
class Holdout:
    """The Q targets of one part of the split, each with the history it is predicted from.

    Each row is one target. Targets of a user that have the same history share it.
    """

    users: NDArray[np.int64]
    """Shape [Q], ascending: the user's row in the dataset."""
    targets: NDArray[np.int32]
    """Shape [Q]: item tokens, each at least 1."""
    positions: NDArray[np.int64]
    """Shape [Q], ascending: the position of each target among the dataset's interactions."""
    history_rows: NDArray[np.int64]
    """Shape [Q], ascending: the row in ``histories`` of each target's history."""
    histories: Histories
    """The H <= Q histories before the targets, without items outside the catalogue: everything
    before that part, or everything earlier than the target, as the split defines it."""
    dropped: int
    """Number of targets outside the catalogue, which are not among the Q."""
    without_history: int = 0
    """Number of targets inside the catalogue without a history, which are not among the Q."""

    def slice_after(self, histories: slice) -> tuple[slice, Holdout]:
        """Return the targets that follow a slice of the histories.

        Returns:
            Their slice of the Q targets, and a holdout of these targets only.
        """
        start, stop, _ = histories.indices(len(self.histories))
        first, last = (int(row) for row in np.searchsorted(self.history_rows, [start, stop]))
        chosen = slice(first, last)
        holdout = replace(
            self,
            users=self.users[chosen],
            targets=self.targets[chosen],
            positions=self.positions[chosen],
            history_rows=self.history_rows[chosen] - start,
            histories=self.histories[start:stop],
        )
        return chosen, holdout

    def shard(self, index: int, count: int) -> tuple[slice, Holdout]:
        """Return `slice_after` of one of ``count`` slices with about equally many histories."""
        size = len(self.histories)
        return self.slice_after(slice(size * index // count, size * (index + 1) // count))

    def sample(self, count: int, seed: int) -> Holdout:
        """Return the targets of a random sample of at most ``count`` histories.

        The larger of two samples of one seed contains the smaller: both can be compared on it.
        """
        if len(self.histories) <= count:
            return self
        rng = np.random.default_rng(seed)
        rows = np.sort(rng.permutation(len(self.histories))[:count])
        kept = np.isin(self.history_rows, rows)
        return replace(
            self,
            users=self.users[kept],
            targets=self.targets[kept],
            positions=self.positions[kept],
            history_rows=np.searchsorted(rows, self.history_rows[kept]),
            histories=self.histories.take(rows),
        )


@dataclass(frozen=True, slots=True)
class NextPurchases:
    """The purchases of Q users in one part of the split, each with the history before it."""

    users: NDArray[np.int64]
    """Shape [Q], ascending: the dataset rows of the users with a history and at least one target
    inside the catalogue."""
    histories: Histories
    """The Q histories before that part, without items outside the catalogue."""
    targets: Histories
    """The Q users' items in that part, oldest first, without items outside the catalogue."""
    dropped: int
    """Number of targets outside the catalogue, which are not among ``targets``."""
    without_history: int = 0
    """Number of catalogue targets of users without a history, which are not among ``targets``."""
