"""What followed what: PCTM and sequential rules, Markov chains too; every item of a history votes.

The rules are those of Ludewig and Jannach (UMUAI 2018, section 3.1); PCTM and the published
settings those of github.com/spotify-research/sequential-capacity-probes (RecSys 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from scipy.sparse import csr_array

from recsys.baselines.counts import (
    CountScorer,
    Floats,
    RepeatCounts,
    Tokens,
    item_counts,
    item_values,
    latest_histories,
    log_popularity,
    summed_votes,
    transitions,
    user_items,
)
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset


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
    repeats: float = 0.0
    """Weight of log(1 + n), where n is how often the user's history has the candidate."""


# The I of the prior is the number of items in the entire log, as in our reruns of the published
# code; the slightly smaller catalogue raises Sports by .00001.
PUBLISHED_PCTM = {
    "ml-1m": PCTMSettings(
        window=20,
        distance_power=1.0,
        prior=150 / 3_706,
        history_length=200,
        recent=7,
        recent_decay=0.6,
        popularity=-0.4,
    ),
    "amazon-beauty": PCTMSettings(  # one geometric decay over the entire history
        prior=11_250 / 12_101, recent=50, recent_decay=0.6, recent_mass=1.0, popularity=-0.04
    ),
    "amazon-sports": PCTMSettings(prior=15_000 / 18_357),
}
"""The settings of the published results, by named dataset."""
LAST_ITEM = PCTMSettings(window=1, history_length=1, recent=1, recent_mass=1.0)
"""What followed the last item directly: a Markov chain, best where orders are strict."""


@dataclass(frozen=True, slots=True, eq=False)
class PCTM(CountScorer):
    """Scores candidate a ``sum_j w(j) E[h_j, a] + lambda log p(a) + rho log(1 + n(a))``.

    h_1 is the newest history item, w sums to 1, p is the add-one popularity, n(a) counts a in the
    history, and log_counts is ``E[b, a] = log(1 + C[b, a] / prior)`` with C the distance-weighted
    counts of a following b: log P(a | b), smoothed, without what does not depend on a.
    """

    log_counts: csr_array
    """E, by item tokens [b, a]."""
    log_popularity: Floats
    """log p, by item token [I + 1]."""
    settings: PCTMSettings

    @classmethod
    def fit(
        cls,
        histories: Histories,
        num_items: int,
        settings: PCTMSettings,
        newest: Histories | None = None,
    ) -> PCTM:
        """Count the successions of the training histories; popularity in the newest, if given."""
        distances = np.arange(1, settings.window + 1, dtype=np.float64)
        log_counts = transitions(histories, num_items, distances**-settings.distance_power)
        log_counts.data = np.log1p(log_counts.data / settings.prior)
        popular = log_popularity(histories if newest is None else newest, num_items)
        return cls(log_counts, popular, settings)

    @property
    def popularity(self) -> Floats:
        return self.log_popularity

    def contributions(self, items: Tokens, candidate: int) -> Floats:
        """Return what each vote of a history [L], oldest first, adds to a candidate's score [L]."""
        read = Histories.from_lists([items]).latest(self.settings.history_length)
        added = np.zeros(len(items))
        votes = self.log_counts[read.items, [candidate] * len(read.items)]
        added[len(items) - len(read.items) :] = self._weights(read) * votes
        return added

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        read = histories.latest(self.settings.history_length)
        scores = summed_votes(read, self._weights(read), self.log_counts, candidates)
        scores += self.settings.popularity * item_values(self.log_popularity, candidates)
        if self.settings.repeats:
            repeats = RepeatCounts(self.num_items).scores_of(histories, candidates)
            scores += self.settings.repeats * repeats
        return scores

    def _weights(self, histories: Histories) -> Floats:
        """Return the weight of each entry of the histories [N]; they sum to 1 over a history."""
        age, recent = histories.ages, self.settings.recent
        decayed = self.settings.recent_decay ** np.arange(recent)
        older = np.maximum(histories.lengths - recent, 0)
        rest = np.divide(
            1 - self.settings.recent_mass, older, out=np.zeros(len(histories)), where=older > 0
        )
        weights = np.where(
            age < recent,
            self.settings.recent_mass * (decayed / decayed.sum())[np.minimum(age, recent - 1)],
            rest[histories.users],
        )
        sums = np.bincount(histories.users, weights, minlength=len(histories))
        return weights / sums[histories.users]


def counted(dataset: PreparedDataset, before: Part, way: PCTMSettings, newest: float) -> PCTM:
    """Count all interactions before a part of the split, popularity in a newest share of them."""
    recent = latest_histories(dataset, before, newest)
    return PCTM.fit(dataset.histories(before), dataset.num_items, way, recent)


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


MARKOV_CHAIN = SequentialRulesSettings(1, "reciprocal", best=None, history_length=1)
"""How often an item directly followed the history's last one."""
PUBLISHED_RULES = {
    "ml-1m": SequentialRulesSettings(distance="reciprocal", best=200, rarity=True),
    "amazon-beauty": SequentialRulesSettings(),
    "amazon-sports": SequentialRulesSettings(
        window=30, best=None, history_length=20, history_power=1.0
    ),
}


@dataclass(frozen=True, slots=True, eq=False)
class SequentialRules(CountScorer):
    """Scores candidate a ``sum_j v(j) R[h_j, a]``, h_1 the newest history item.

    ``R[b, a] = sum_d g(d) N_d[b, a]``, where N_d counts how often a came d places after b.
    """

    rules: csr_array
    """R, by item tokens [b, a]."""
    counts: Floats
    settings: SequentialRulesSettings

    @classmethod
    def fit(
        cls, histories: Histories, num_items: int, settings: SequentialRulesSettings
    ) -> SequentialRules:
        """Count the successions of the training histories."""
        distances = np.arange(1, settings.window + 1, dtype=np.float64)
        logarithmic = settings.distance == "logarithmic"
        weights = 1 / (np.log10(distances + 1.7) if logarithmic else distances)
        rules = transitions(histories, num_items, weights)
        if settings.rarity:
            rules.data *= np.repeat(_rarity(histories, num_items), np.diff(rules.indptr))
        if settings.best is not None:
            rules = _strongest(rules, settings.best)
        return cls(rules, item_counts(histories, num_items), settings)

    def scores_of(self, histories: Histories, candidates: Tokens | None = None) -> Floats:
        read = histories.latest(self.settings.history_length)
        weights = (1.0 + read.ages.astype(np.float64)) ** -self.settings.history_power
        return summed_votes(read, weights, self.rules, candidates)


def _strongest(rules: csr_array, best: int) -> csr_array:
    """Return the largest entries of each row; ties go to the smaller item tokens, as published."""
    rules.sort_indices()
    # In float32, so that sums that differ in their last bits only are equal.
    weakness = pl.Series("weakness", -rules.data.astype(np.float32))
    rows = np.repeat(np.arange(rules.shape[0]), np.diff(rules.indptr))
    places = pl.DataFrame([pl.Series("row", rows), weakness])
    rank = places.select(pl.col("weakness").rank("ordinal").over("row")).to_series()
    kept = rank.to_numpy() <= best
    return csr_array((rules.data[kept], (rows[kept], rules.indices[kept])), shape=rules.shape)


def _rarity(histories: Histories, num_items: int) -> Floats:
    """Return log(users / users of the item), scaled to 0 ... 1 over items that occur [I + 1]."""
    users = np.bincount(user_items(histories, num_items).indices, minlength=num_items + 1)
    rarity = -np.log(np.maximum(users, 1))
    occurs = rarity[users > 0]
    low, high = occurs.min(initial=np.inf), occurs.max(initial=-np.inf)
    if not low < high:
        return np.ones(num_items + 1)
    return (rarity - low) / (high - low)
