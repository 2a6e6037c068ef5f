"""PCTM: every item of the history votes by how often the candidate followed it.

From "sequential capacity probes" (RecSys 2026; github.com/spotify-research/
sequential-capacity-probes), where it matches trained Transformers on small logs.
"""

from __future__ import annotations

from dataclasses import dataclass

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
)
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True)
class PCTMSettings:
    """How PCTM counts and weights; the defaults are a compromise for logs it was not tuned on."""

    window: int = 10
    """W: the largest distance at which an item counts as following another."""
    distance_power: float = 0.5
    """A pair at distance d counts g(d) = d ** -distance_power."""
    prior: float = 1.0
    """tau / I: how often every item is assumed to have followed every other before counting. The
    larger, the more often a pair must occur to matter."""
    history_length: int = 50
    """L: how many items of a history vote, the newest first."""
    recent: int = 10
    """How many of the newest items form the recent part."""
    recent_decay: float = 0.7
    """Weight of each item of the recent part relative to the next newer one."""
    recent_mass: float = 0.8
    """Share of the votes for the recent part; older items share the rest evenly."""
    popularity: float = 0.0
    """lambda: weight of the log popularity; negative favours the long tail."""

    def __post_init__(self) -> None:
        if min(self.window, self.history_length, self.recent) < 1:
            raise ValueError("window, history_length and recent must be at least 1")
        if not (self.prior > 0 and self.recent_decay > 0 and 0 < self.recent_mass <= 1):
            raise ValueError("prior, recent_decay and recent_mass must be above 0, the last <= 1")


# Settings of the published results. The I of the prior is the number of items in the entire log, as
# in our reruns of the published code; the slightly smaller catalogue raises Sports by .00001.
ML_1M = PCTMSettings(
    window=20,
    distance_power=1.0,
    prior=150 / 3_706,
    history_length=200,
    recent=7,
    recent_decay=0.6,
    popularity=-0.4,
)
"""For MovieLens-1M."""
AMAZON_BEAUTY = PCTMSettings(
    prior=11_250 / 12_101, recent=50, recent_decay=0.6, recent_mass=1.0, popularity=-0.04
)
"""For Amazon Beauty: one geometric decay over the entire history."""
AMAZON_SPORTS = PCTMSettings(prior=15_000 / 18_357)
"""For Amazon Sports and Outdoors."""
PUBLISHED = {"ml-1m": ML_1M, "amazon-beauty": AMAZON_BEAUTY, "amazon-sports": AMAZON_SPORTS}
"""The settings of the published results, by named dataset."""
LAST_ITEM = PCTMSettings(window=1, history_length=1, recent=1, recent_mass=1.0)
"""What followed the last item directly: a Markov chain, best where orders are strict."""


@dataclass(frozen=True, slots=True, eq=False)
class PCTM(CountScorer):
    """Scores candidate a ``sum_j w(j) E[h_j, a] + lambda log p(a)``.

    h_1 is the newest history item, w sums to 1, p is the add-one popularity, and log_counts is
    ``E[b, a] = log(1 + C[b, a] / prior)`` with C the distance-weighted counts of a following b:
    the smoothed log P(a | b) without the terms that do not depend on a.
    An empty history is scored by popularity.
    """

    log_counts: csr_array
    """E, by item tokens [b, a]."""
    log_popularity: NDArray[np.float64]
    """log p, by item token [I + 1]."""
    settings: PCTMSettings

    @classmethod
    def fit(
        cls, histories: Histories, num_items: int, settings: PCTMSettings | None = None
    ) -> PCTM:
        """Count the successions of the training histories."""
        settings = settings or PCTMSettings()
        distances = np.arange(1, settings.window + 1, dtype=np.float64)
        log_counts = transitions(histories, num_items, distances**-settings.distance_power)
        log_counts.data = np.log1p(log_counts.data / settings.prior)
        counts = 1 + item_counts(histories, num_items)
        return cls(log_counts, np.log(counts / counts[1:].sum()), settings)

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.log_popularity) - 1

    def contributions(self, items: NDArray[np.int32], candidate: int) -> NDArray[np.float64]:
        """Return what each item of a history [L], oldest first, adds to a candidate's score [L]."""
        read = Histories.from_lists([items]).latest(self.settings.history_length)
        added = np.zeros(len(items))
        votes = self.log_counts[read.items, [candidate] * len(read.items)]
        added[len(items) - len(read.items) :] = self._weights(read) * votes
        return added

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C]."""
        read = histories.latest(self.settings.history_length)
        scores = summed_votes(read, self._weights(read), self.log_counts, candidates)
        popularity = item_values(self.log_popularity, candidates)
        scores += self.settings.popularity * popularity
        return by_popularity_if_empty(scores, read, popularity)

    def _weights(self, histories: Histories) -> NDArray[np.float64]:
        """Return the weight of each entry of the histories [N]; they sum to 1 over a history."""
        age, recent = ages(histories), self.settings.recent
        decayed = self.settings.recent_decay ** np.arange(recent)
        older = np.maximum(histories.lengths - recent, 0)
        share = np.divide(
            1 - self.settings.recent_mass, older, out=np.zeros(len(histories)), where=older > 0
        )
        weights = np.where(
            age < recent,
            self.settings.recent_mass * (decayed / decayed.sum())[np.minimum(age, recent - 1)],
            share[histories.users],
        )
        sums = np.bincount(histories.users, weights, minlength=len(histories))
        return weights / sums[histories.users]
