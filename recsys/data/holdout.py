"""The held-out part of a dataset: targets, and the histories they are predicted from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import Histories


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
