"""What everybody buys, and what the user bought: popularity, recency, frequency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch

from recsys.baselines.counts import (
    CountScorer,
    Floats,
    Tokens,
    ages,
    as_scores,
    item_counts,
    item_values,
    user_values,
    weighted_histories,
)
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset


@dataclass(frozen=True, slots=True, eq=False)
class Popularity(CountScorer):
    """Scores an item by how often it occurs in the training histories, for every user."""

    counts: Floats

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> Self:
        return cls(item_counts(histories, num_items))

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        if candidates is None:
            return np.tile(self.counts, (len(histories), 1))
        return item_values(self.counts, candidates)


def latest_histories(dataset: PreparedDataset, before: Part, share: float) -> Histories:
    """Return the newest share of all interactions before a part, as U histories.

    All interactions at the time at which that share begins are included.
    """
    starts = dataset.offsets[:-1]
    ends = starts + dataset.cuts[:, 0 if before == "valid" else 1]
    lengths = np.stack([ends - starts, dataset.offsets[1:] - ends], axis=1)
    known = np.repeat(np.tile([True, False], len(ends)), lengths.ravel())
    if not known.any():
        return dataset.histories(before)
    since = np.quantile(dataset.timestamps[known], 1 - share, method="higher")
    old = np.concatenate([[0], np.cumsum(dataset.timestamps < since)])
    return Histories.from_spans(dataset.items, starts + old[ends] - old[starts], ends)


def log_popularity(histories: Histories, num_items: int) -> Floats:
    """Return log p of each item [I + 1], its share of the interactions, with one more of each."""
    counts = 1 + item_counts(histories, num_items)
    logs: Floats = np.log(counts / counts[1:].sum())
    return logs


@dataclass(frozen=True, slots=True, eq=False)
class PersonalFrequency(Popularity):
    """Scores an item by how often it occurs in the user's own history, then by popularity.

    GP-TopFreq of "A next basket recommendation reality check" (Li et al., TOIS 2023), which few
    trained models beat where purchases repeat.
    """

    @property
    def popularity(self) -> Floats:
        """At most 1/2 [I + 1]: less than one purchase, even after rounding to float32."""
        scaled: Floats = self.counts / (2 * max(self.counts.max(), 1))
        return scaled

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        own = user_values(weighted_histories(histories, 1.0, self.num_items), candidates)
        return own + item_values(self.popularity, candidates)


@dataclass(frozen=True, slots=True, eq=False)
class RepeatLast(PersonalFrequency):
    """Ranks the user's own items by recency, then all other items by popularity.

    The oldest item of a history scores 1, the next one 2 and so on, popularity at most 1/2.
    """

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        position = (histories.lengths[histories.users] - ages(histories)).astype(np.float64)
        pairs = histories.users * (self.num_items + 1) + histories.items
        # Of an item bought repeatedly, the latest position counts: the first one from the end.
        latest = len(pairs) - 1 - np.unique(pairs[::-1], return_index=True)[1]
        once = np.zeros(len(pairs))
        once[latest] = position[latest]
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
