"""Sequential rules: the newest items vote for what followed them, nearer successions count more.

The rules are those of Ludewig and Jannach, "Evaluation of session-based recommendation algorithms"
(UMUAI 2018, section 3.1); the settings those of "sequential capacity probes" (RecSys 2026;
github.com/spotify-research/sequential-capacity-probes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.baselines.counts import (
    ages,
    give_scores,
    item_counts,
    transitions,
    user_items,
    weighted_histories,
)
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True)
class SequentialRulesSettings:
    """How rules are counted, pruned and weighed; the defaults are those published for Beauty."""

    window: int = 10
    """W: the largest distance at which an item counts as following another."""
    distance: Literal["reciprocal", "logarithmic"] = "logarithmic"
    """A pair at distance d counts g(d) = 1 / d, or 1 / log10(d + 1.7), which falls slowly."""
    best: int | None = 100
    """Only the so many strongest rules of each item are kept; None: all."""
    rarity: bool = False
    """Rules of an item weigh as much as its log inverse user frequency, from 0 for the item that
    most users have to 1 for the rarest."""
    history_length: int = 10
    """The newest so many items of a history vote."""
    history_power: float = 2.0
    """The j-th newest of them weighs v(j) = j ** -history_power."""

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
"""The settings of the published figures, by named dataset."""


@dataclass(frozen=True, slots=True, eq=False)
class SequentialRules:
    """Scores candidate a ``sum_j v(j) R[h_j, a]``, h_1 the newest history item. A `Scorer`.

    ``R[b, a] = sum_d g(d) N_d[b, a]``, where N_d counts how often a came d places after b. An empty
    history, for which nothing votes, is scored by popularity.
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

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.counts) - 1

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """See `Scorer.score`."""
        return give_scores(self._catalogue, self.num_items, histories, candidates)

    def _catalogue(self, histories: Histories) -> NDArray[np.float64]:
        read = histories.latest(self.settings.history_length)
        weights = (1.0 + ages(read).astype(np.float64)) ** -self.settings.history_power
        votes = weighted_histories(read, weights, self.num_items)
        scores: NDArray[np.float64] = (votes @ self.rules).toarray()
        scores[read.lengths == 0] = self.counts
        return scores


def _strongest(rules: csr_array, best: int) -> csr_array:
    """The largest entries of each row; of equal ones those of the smaller item tokens.

    So it is in the published code. It matters to a user or so: on MovieLens-1M, .1506 (.2579), the
    other way round gives .1505 (.2577).
    """
    rows = np.repeat(np.arange(rules.shape[0]), np.diff(rules.indptr))
    # In float32: sums that are equal but for their last bits shall be equal.
    strength = rules.data.astype(np.float32)
    order = np.lexsort((rules.indices, -strength, rows))  # rows stay where they are
    kept = order[np.arange(len(order)) - rules.indptr[rows] < best]
    return csr_array((rules.data[kept], (rows[kept], rules.indices[kept])), shape=rules.shape)


def _rarity(histories: Histories, num_items: int) -> NDArray[np.float64]:
    """log(users / users who have the item), scaled to 0 ... 1 over the items that occur [I + 1]."""
    users = np.bincount(user_items(histories, num_items).indices, minlength=num_items + 1)
    rarity = -np.log(np.maximum(users, 1))
    occurs = rarity[users > 0]
    low, high = occurs.min(initial=np.inf), occurs.max(initial=-np.inf)
    if not low < high:
        return np.ones(num_items + 1)
    scaled: NDArray[np.float64] = (rarity - low) / (high - low)
    return scaled
