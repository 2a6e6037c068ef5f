"""What is held out of a dataset: targets, and the histories that they are to be foretold from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True)
class Holdout:
    """The Q targets of one part of the split, each with the history it is to be foretold from.

    A user with several targets has as many rows, which share a history where the same is known.
    """

    users: NDArray[np.int64]
    """The user's row in the dataset [Q], ascending."""
    targets: NDArray[np.int32]
    """Item tokens [Q], each at least 1."""
    places: NDArray[np.int64]
    """Where the targets are among the interactions of the dataset [Q], ascending."""
    rows: NDArray[np.int64]
    """Which of the histories comes before each target [Q], ascending."""
    histories: Histories
    """What is known before targets [H histories, H <= Q], items outside the catalogue left out:
    everything before that part, or everything earlier than the target, as the split says."""
    dropped: int
    """Targets outside the catalogue: not among the Q, but counted."""
    without_history: int = 0
    """Targets inside the catalogue before which nothing is known: not among the Q, but counted."""

    def after(self, histories: slice) -> tuple[slice, Holdout]:
        """The targets that follow a run of the histories: where they are among the Q, and alone."""
        start, stop, _ = histories.indices(len(self.histories))
        first, last = (int(row) for row in np.searchsorted(self.rows, [start, stop]))
        some = slice(first, last)
        alone = replace(
            self,
            users=self.users[some],
            targets=self.targets[some],
            places=self.places[some],
            rows=self.rows[some] - start,
            histories=self.histories[start:stop],
        )
        return some, alone

    def share(self, part: int, parts: int) -> tuple[slice, Holdout]:
        """`after` one of several runs of about as many histories."""
        size = len(self.histories)
        return self.after(slice(size * part // parts, size * (part + 1) // parts))


@dataclass(frozen=True, slots=True)
class NextPurchases:
    """What Q users bought in one part of the split, each with the history before it."""

    users: NDArray[np.int64]
    """The user's row in the dataset [Q], ascending: those with a history and at least one known
    target."""
    histories: Histories
    """Of Q users: everything before that part, items outside the catalogue left out."""
    targets: Histories
    """Of Q users: the items of that part, oldest first, those outside the catalogue left out."""
    dropped: int
    """Targets outside the catalogue: not among the targets, but counted."""
    without_history: int = 0
    """Targets inside the catalogue of users without a history: likewise."""
