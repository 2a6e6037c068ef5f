"""What count models share, and the simplest: what everybody buys, and what the user bought."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.data.histories import PAD, Histories
from recsys.data.prepared import Part, PreparedDataset
from recsys.inference.scorer import user_batches

Floats = NDArray[np.float64]
Tokens = NDArray[np.int32]

_LOOK_UP = 40
"""The time of a look-up, in times of an entry that a sparse product reads: measured 15 to 80."""
_LOOK_UPS_AT_ONCE = 1 << 18


class CountScorer:
    """Makes a `Scorer` of a count model, which adds `scores_of`."""

    __slots__ = ()
    counts: Floats
    """Occurrences by item token [I + 1]."""

    @property
    def popularity(self) -> Floats:
        """The scores of an empty history, by item token [I + 1]."""
        return self.counts

    @property
    def num_items(self) -> int:
        return len(self.popularity) - 1

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        """Score all items [B, I + 1] or candidates [B, C]; PAD and empty histories do not count."""
        raise NotImplementedError

    def score(self, histories: Histories, candidates: Tokens | None = None) -> torch.Tensor:
        """See `Scorer.score`; an empty history is scored by popularity."""
        scores = self.scores_of(histories, candidates)
        if (empty := histories.lengths == 0).any():
            popular = item_values(self.popularity, candidates)
            scores[empty] = np.broadcast_to(popular, scores.shape)[empty]
        return as_scores(scores, candidates)


def as_scores(scores: Floats, candidates: Tokens | None) -> torch.Tensor:
    """Return float32 scores, -inf for PAD; see `Scorer.score`."""
    exact = scores.astype(np.float32)
    exact[(slice(None), PAD) if candidates is None else candidates == PAD] = -math.inf
    return torch.from_numpy(exact)


def item_counts(histories: Histories, num_items: int) -> Floats:
    """Count the occurrences of each item [I + 1], by item token."""
    return np.bincount(histories.items, minlength=num_items + 1).astype(np.float64)


def transitions(histories: Histories, num_items: int, weights: Floats) -> csr_array:
    """Count how often a follows b within a history [b, a]: ``weights[d - 1]`` at distance d ≥ 1."""
    shape = (num_items + 1, num_items + 1)
    users, items = histories.users, histories.items
    total = csr_array(shape, dtype=np.float64)
    for distance, weight in enumerate(weights, start=1):
        same = users[distance:] == users[:-distance]
        pairs = (items[:-distance][same], items[distance:][same])
        total = total + csr_array((np.full(len(pairs[0]), weight), pairs), shape=shape)
    return total


def weighted_histories(histories: Histories, weights: Floats | float, num_items: int) -> csr_array:
    """Sum the weights [N] by user and item [B, I + 1]."""
    shape = (len(histories), num_items + 1)
    values = np.broadcast_to(weights, histories.items.shape)
    return csr_array((values, (histories.users, histories.items)), shape=shape)


def user_items(histories: Histories, num_items: int) -> csr_array:
    """Return 1 where a user has an item [B, I + 1]."""
    matrix = weighted_histories(histories, 1.0, num_items)
    matrix.data[:] = 1
    return matrix


def item_values(values: Floats, candidates: Tokens | None) -> Floats:
    """Return the value of each item [1, I + 1], or of each candidate [B, C]."""
    return values[None] if candidates is None else values[candidates]


def user_values(matrix: csr_array, candidates: Tokens | None) -> Floats:
    """Return a row of values per user, of all items [B, I + 1] or of the candidates [B, C]."""
    if candidates is None:
        return matrix.toarray()
    return entries_at(matrix, np.arange(len(candidates))[:, None], candidates)


def entries_at(matrix: csr_array, rows: NDArray[Any], columns: Tokens) -> Floats:
    """Look up entries by binary search within each row, where scipy reads entire rows; 0 if none.

    The rows have a shape that broadcasts with the columns; the matrix is sorted in place.
    """
    matrix.sort_indices()
    if not matrix.nnz:
        return np.zeros(np.broadcast_shapes(rows.shape, columns.shape))
    low, end, last = matrix.indptr[rows], matrix.indptr[rows + 1], matrix.nnz - 1
    high = end
    for _ in range(int(np.diff(matrix.indptr).max()).bit_length()):
        middle = (low + high) // 2
        after = (matrix.indices[np.minimum(middle, last)] < columns) & (middle < end)
        low, high = np.where(after, middle + 1, low), np.where(after, high, middle)
    nearest = np.minimum(low, last)
    stored = (matrix.indices[nearest] == columns) & (low < end)
    return np.where(stored, matrix.data[nearest], 0)


def summed_votes(
    read: Histories, weights: Floats, matrix: csr_array, candidates: Tokens | None = None
) -> Floats:
    """Sum the weighted rows of a matrix [I + 1, I + 1] over the N items of B histories.

    The sums are of all items [B, I + 1], or of candidates [B, C]: few are looked up one by one
    (11,635 pairs of 11,000 users took 1.7 s in place of 4.0 s).
    """
    num_items = matrix.shape[1] - 1
    if candidates is None:
        votes = weighted_histories(read, weights, num_items)
        return (votes @ matrix).toarray()

    def votes_of(users: slice) -> tuple[Histories, Floats]:
        return read[users], weights[read.offsets[users.start] : read.offsets[users.stop]]

    product = np.diff(matrix.indptr)[read.items].sum() + len(read) * num_items / 4
    if _LOOK_UP * len(read.items) * candidates.shape[1] > product:
        return pick_candidates(
            lambda users: summed_votes(*votes_of(users), matrix), candidates, num_items
        )
    sums = np.empty(candidates.shape)
    widest = int(read.lengths.max(initial=0)) * candidates.shape[1]
    step = max(1, _LOOK_UPS_AT_ONCE // max(widest, 1))
    for start in range(0, len(read), step):
        users = slice(start, min(start + step, len(read)))
        few, own = votes_of(users)
        entries = entries_at(matrix, few.items[:, None], candidates[users][few.users])
        by_user = (own, np.arange(len(few.items)), few.offsets)
        sums[users] = np.asarray(csr_array(by_user, shape=(len(few), len(few.items))) @ entries)
    return sums


def pick_candidates(
    scores_of: Callable[[slice], NDArray[Any]], candidates: Tokens | None, num_items: int
) -> Floats:
    """Return the scores of all items [B, I + 1]; or of candidates [B, C], a few users at a time."""
    if candidates is None:
        return scores_of(slice(None)).astype(np.float64, copy=False)
    picked = np.empty(candidates.shape)
    for users in user_batches(len(candidates), num_items):
        picked[users] = np.take_along_axis(scores_of(users), candidates[users], axis=1)
    return picked


# --- Popularity, recency, frequency ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Popularity(CountScorer):
    """Scores an item by how often it occurs in the training histories, for every user."""

    counts: Floats

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> Self:
        return cls(item_counts(histories, num_items))

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        return item_values(self.counts, candidates) + np.zeros((len(histories), 1))


def latest_histories(dataset: PreparedDataset, before: Part, share: float) -> Histories:
    """Return the newest share of all interactions before a part, ties included, as U histories."""
    starts, column = dataset.offsets[:-1], 0 if before == "valid" else 1
    ends = starts + dataset.cuts[:, column]
    known = np.arange(len(dataset.items)) < np.repeat(ends, np.diff(dataset.offsets))
    times = dataset.timestamps[known]
    since = np.quantile(times, 1 - share, method="higher") if len(times) else 0
    old = np.concatenate([[0], np.cumsum(dataset.timestamps < since)])
    return dataset.histories_between(starts + old[ends] - old[starts], ends)


def log_popularity(histories: Histories, num_items: int) -> Floats:
    """Return log p of each item [I + 1], its share of the interactions, with one more of each."""
    counts = 1 + item_counts(histories, num_items)
    return np.log(counts / counts[1:].sum())


@dataclass(frozen=True, slots=True, eq=False)
class PersonalFrequency(Popularity):
    """Scores an item by how often it occurs in the user's own history, then by popularity.

    Source: GP-TopFreq of "A next basket recommendation reality check" (Li et al., TOIS 2023).
    """

    @property
    def popularity(self) -> Floats:
        """At most 1/2 [I + 1]: less than one purchase, even after rounding to float32."""
        return self.counts / (2 * max(self.counts.max(), 1))

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        own = user_values(weighted_histories(histories, 1.0, self.num_items), candidates)
        return own + item_values(self.popularity, candidates)


@dataclass(frozen=True, slots=True, eq=False)
class RepeatLast(PersonalFrequency):
    """Scores the user's own items 1, 2, … from the oldest on; all others by popularity, ≤ 1/2."""

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        position = (histories.lengths[histories.users] - histories.ages).astype(np.float64)
        pairs = histories.users * (self.num_items + 1) + histories.items
        once = position * pl.Series(pairs).is_last_distinct().to_numpy()
        own = user_values(weighted_histories(histories, once, self.num_items), candidates)
        return np.maximum(own, item_values(self.popularity, candidates))


@dataclass(frozen=True, slots=True)
class RepeatCounts:
    """Scores a candidate log(1 + n), where n is how often the user's history has it."""

    num_items: int

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        own = user_values(weighted_histories(histories, 1.0, self.num_items), candidates)
        return np.log1p(own)

    def score(self, histories: Histories, candidates: Tokens | None = None) -> torch.Tensor:
        return as_scores(self.scores_of(histories, candidates), candidates)
