"""What the count models share: counting successions, weighting histories, scoring candidates."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.data.histories import PAD, Histories
from recsys.inference.scorer import user_batches


def item_counts(histories: Histories, num_items: int) -> NDArray[np.float64]:
    """Count the occurrences of each item [I + 1], by item token."""
    return np.bincount(histories.items, minlength=num_items + 1).astype(np.float64)


def transitions(histories: Histories, num_items: int, weights: NDArray[np.float64]) -> csr_array:
    """Count how often a follows b within a history, by item tokens [b, a].

    A pair at distance d (1: the next item) counts ``weights[d - 1]``, a more distant one nothing.
    """
    shape = (num_items + 1, num_items + 1)
    users, items = histories.users, histories.items
    total = csr_array(shape, dtype=np.float64)
    for distance, weight in enumerate(weights, start=1):
        same = users[distance:] == users[:-distance]
        pairs = (items[:-distance][same], items[distance:][same])
        total = total + csr_array((np.full(len(pairs[0]), weight), pairs), shape=shape)
    return total


def ages(histories: Histories) -> NDArray[np.int64]:
    """Count the items of the history that are newer than each entry [N]: 0 for the newest."""
    ends = np.repeat(histories.offsets[1:], histories.lengths)
    return ends - 1 - np.arange(len(histories.items))


def weighted_histories(
    histories: Histories, weights: NDArray[np.float64], num_items: int
) -> csr_array:
    """Sum the weights [N] by user and item [B, I + 1]."""
    shape = (len(histories), num_items + 1)
    return csr_array((weights, (histories.users, histories.items)), shape=shape)


def user_items(histories: Histories, num_items: int) -> csr_array:
    """Return ones where a user has an item at least once [B, I + 1]."""
    matrix = weighted_histories(histories, np.ones(len(histories.items)), num_items)
    matrix.data[:] = 1
    return matrix


class _CountsItems(Protocol):
    """A count model with item counts, as most have."""

    @property
    def counts(self) -> NDArray[np.float64]: ...


class _ScoresCatalogue(Protocol):
    """All that `CountScorer.score` needs to know of a count model."""

    @property
    def num_items(self) -> int: ...

    def scores_of(self, histories: Histories) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1]; those of column 0 (PAD) are not used."""
        ...


class CountScorer:
    """Mixin that makes a `Scorer` of a count model: ``scores_of`` is all that the model adds."""

    __slots__ = ()

    @property
    def num_items(self: _CountsItems) -> int:
        """Size of the catalogue, I."""
        return len(self.counts) - 1

    def score(
        self: _ScoresCatalogue, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """See `Scorer.score`.

        Candidates are picked batch by batch, so that few candidates take little memory.
        """

        def scores(batch: Histories) -> NDArray[np.float32]:
            table = self.scores_of(batch).astype(np.float32)
            table[:, PAD] = -math.inf
            return table

        if candidates is None:
            return torch.from_numpy(scores(histories))
        picked = np.empty(candidates.shape, dtype=np.float32)
        for users in user_batches(len(histories), self.num_items):
            picked[users] = np.take_along_axis(scores(histories[users]), candidates[users], axis=1)
        return torch.from_numpy(picked)
