"""Sequential rules: the newest items vote for what followed them, weighted by closeness.

The rules are those of Ludewig and Jannach, "Evaluation of session-based recommendation algorithms"
(UMUAI 2018, section 3.1); the settings are those of "sequential capacity probes" (RecSys 2026;
github.com/spotify-research/sequential-capacity-probes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.baselines.counts import (
    CountScorer,
    ages,
    by_popularity_if_empty,
    item_counts,
    item_values,
    summed_votes,
    transitions,
    user_items,
)
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True)
class SequentialRulesSettings:
    """How rules are counted, pruned and weighted; the defaults are those published for Beauty."""

    window: int = 10
    """W: the largest distance at which an item counts as following another."""
    distance: Literal["reciprocal", "logarithmic"] = "logarithmic"
    """A pair at distance d counts g(d) = 1 / d, or 1 / log10(d + 1.7), which decreases slowly."""
    best: int | None = 100
    """Number of rules per item, the strongest ones. If None, all."""
    rarity: bool = False
    """Whether the rules of an item are weighted by its log inverse user frequency, scaled to 0 for
    the item that most users have and 1 for the rarest."""
    history_length: int = 10
    """How many items of a history vote, the newest first."""
    history_power: float = 2.0
    """The j-th newest item has the weight v(j) = j ** -history_power."""

    def __post_init__(self) -> None:
        if min(self.window, self.history_length) < 1 or (self.best is not None and self.best < 1):
            raise ValueError("window, best and history_length must be at least 1")


PUBLISHED = {
    "ml-1m": SequentialRulesSettings(distance="reciprocal", best=200, rarity=True),
    "amazon-beauty": SequentialRulesSettings(),
    "amazon-sports": SequentialRulesSettings(
        window=30, best=None, history_length=20, history_power=1.0
    ),
}
"""The settings of the published results, by named dataset."""


@dataclass(frozen=True, slots=True, eq=False)
class SequentialRules(CountScorer):
    """Scores candidate a ``sum_j v(j) R[h_j, a]``, h_1 the newest history item.

    ``R[b, a] = sum_d g(d) N_d[b, a]``, where N_d counts how often a came d places after b. An empty
    history is scored by popularity.
    """

    rules: csr_array
    """R, by item tokens [b, a]."""
    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""
    settings: SequentialRulesSettings

    @classmethod
    def fit(
        cls,
        histories: Histories,
        num_items: int,
        settings: SequentialRulesSettings | None = None,
    ) -> SequentialRules:
        """Count the successions of the training histories."""
        settings = settings or SequentialRulesSettings()
        distances = np.arange(1, settings.window + 1, dtype=np.float64)
        logarithmic = settings.distance == "logarithmic"
        weights = 1 / (np.log10(distances + 1.7) if logarithmic else distances)
        rules = transitions(histories, num_items, weights)
        if settings.rarity:
            rules.data *= np.repeat(_rarity(histories, num_items), np.diff(rules.indptr))
        if settings.best is not None:
            rules = _strongest(rules, settings.best)
        return cls(rules, item_counts(histories, num_items), settings)

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C]."""
        read = histories.latest(self.settings.history_length)
        weights = (1.0 + ages(read).astype(np.float64)) ** -self.settings.history_power
        scores = summed_votes(read, weights, self.rules, candidates)
        return by_popularity_if_empty(scores, read, item_values(self.counts, candidates))


def _strongest(rules: csr_array, best: int) -> csr_array:
    """Return the largest entries of each row; ties go to the smaller item tokens.

    The published code breaks ties in the same way. It matters to about one user: on MovieLens-1M,
    .1506 (.2579); the opposite order gives .1505 (.2577).
    """
    rules.sort_indices()
    # In float32, so that sums that differ in their last bits only are equal.
    weakness = -rules.data.astype(np.float32)
    kept = np.ones(rules.nnz, dtype=np.bool_)
    for row in np.flatnonzero(np.diff(rules.indptr) > best):
        span = slice(rules.indptr[row], rules.indptr[row + 1])
        last = np.partition(weakness[span], best - 1)[best - 1]
        stronger, tied = weakness[span] < last, weakness[span] == last
        kept[span] = stronger | (tied & (np.cumsum(tied) <= best - np.count_nonzero(stronger)))
    ends = np.concatenate([[0], np.cumsum(kept)])[rules.indptr]
    return csr_array((rules.data[kept], rules.indices[kept], ends), shape=rules.shape)


def _rarity(histories: Histories, num_items: int) -> NDArray[np.float64]:
    """Return log(users / users of the item), scaled to 0 ... 1 over items that occur [I + 1]."""
    users = np.bincount(user_items(histories, num_items).indices, minlength=num_items + 1)
    rarity = -np.log(np.maximum(users, 1))
    occurs = rarity[users > 0]
    low, high = occurs.min(initial=np.inf), occurs.max(initial=-np.inf)
    if not low < high:
        return np.ones(num_items + 1)
    scaled: NDArray[np.float64] = (rarity - low) / (high - low)
    return scaled
