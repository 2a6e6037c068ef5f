"""The count ensemble: the scores of a trained model plus counts, weighed on validation.

A Transformer trained on tens of thousands of users does not retain what counts know: how often one
item followed another; how often the user bought each item; what everybody bought of late.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from recsys.baselines.counts import (
    Floats,
    Popularity,
    RepeatCounts,
    Tokens,
    item_counts,
    latest_histories,
    log_popularity,
)
from recsys.baselines.saved import finite, opened, read_counts, save_counts
from recsys.baselines.transitions import LAST_ITEM, PCTM, PUBLISHED_PCTM, PCTMSettings, counted
from recsys.data.histories import Histories
from recsys.data.prepared import PreparedDataset
from recsys.data.splits import Holdout
from recsys.evaluation.tables import RankTable, rank_table
from recsys.inference.ranking import rank_targets
from recsys.inference.scorer import Blend, Scored, Scorer, Seen, user_batches

GRID = tuple(
    replace(way, popularity=0.0) for way in (PCTMSettings(), *PUBLISHED_PCTM.values(), LAST_ITEM)
)
"""Settings to try; without popularity, which the model learns by itself."""
RECENT = (0.1, 0.02)
"""Shares of the interactions to try as the newest ones, whose popularity no model learns: it reads
histories from every time alike."""
_FACTORS = (1.0, 0.25, 0.5, 2.0, 4.0)
"""Multiples of the weight of some counts that are tried once the others are weighed."""
_HEADER = "recsys.count_ensemble"
_WEIGHTS = ("weight", "repeat_weight", "recent_weight", "recent_share")


@dataclass(frozen=True, slots=True, eq=False)
class CountEnsemble:
    """Counts and their weights, to be added to the scores of a trained model."""

    counts: PCTM
    """The transition counts, with the popularity in the newest share of the interactions."""
    weight: float
    repeat_weight: float = 0.0
    """Weight of log(1 + n), where n is how often the user's history has the candidate."""
    recent_weight: float = 0.0
    """Weight of log p, where p is the candidate's share of the newest interactions."""
    recent_share: float = 1.0
    """The share of all interactions that are the newest ones."""

    def added_to(self, model: Scorer) -> Scorer:
        """Return a scorer of the model's scores plus the weighted counts."""
        terms: list[tuple[Scorer, float]] = [
            (model, 1.0),
            (RepeatCounts(model.num_items), self.repeat_weight),
            (self.counts, self.weight),
            (Popularity(self.counts.log_popularity), self.recent_weight),
        ]
        return Blend.of(terms)

    def with_new_items(
        self, num_items: int, histories: Histories, newest: Histories
    ) -> CountEnsemble:
        """Return the ensemble for a larger catalogue, whose first items are the known ones.

        Pairs with a new item are counted in the histories, new items in the newest of them; pairs
        of known items keep their counts.
        """
        counts, known = self.counts, self.counts.num_items
        matrix = counts.log_counts.copy()
        matrix.resize((num_items + 1, num_items + 1))  # type: ignore[arg-type]
        pairs = PCTM.fit(histories, num_items, counts.settings).log_counts.tocoo()
        added = (pairs.row > known) | (pairs.col > known)
        new = (pairs.data[added], (pairs.row[added], pairs.col[added]))
        times = item_counts(newest, num_items)[known + 1 :]
        rare = counts.log_popularity.min() + np.log1p(times)
        counts = replace(
            counts,
            log_counts=matrix + csr_array(new, shape=pairs.shape),
            log_popularity=np.append(counts.log_popularity, rare),
        )
        return replace(self, counts=counts)

    def contributions(self, items: Tokens, candidate: int) -> Floats:
        same = items == candidate
        repeated = same * (math.log1p(same.sum()) / max(same.sum(), 1))
        followed = self.counts.contributions(items, candidate)
        return self.weight * followed + self.repeat_weight * repeated

    def for_all(self, candidates: Tokens) -> Floats:
        """Return what is added to the scores of candidates [C] whatever the history."""
        return self.recent_weight * self.counts.log_popularity[candidates]

    def items_read(self, model: int) -> int:
        """Return how many of the newest items influence the sum with a model that reads so many."""
        longest = max(model, self.counts.settings.history_length)
        return sys.maxsize if self.repeat_weight else longest

    def save(self, path: str | os.PathLike[str]) -> None:
        weights = {name: getattr(self, name) for name in _WEIGHTS}
        save_counts(self.counts, path, _HEADER, weights=weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str], num_items: int) -> CountEnsemble:
        """Read a file that `save` wrote for a catalogue of this size, or raise InputError."""
        with opened(path, _HEADER, "a count ensemble") as (tensors, facts):
            counts = read_counts(PCTM, tensors, facts, num_items)
            weights = np.array([facts["weights"][name] for name in _WEIGHTS], dtype=np.float64)
            return cls(counts, *finite("weights", weights).tolist())


def choose_count_ensemble(
    model: Scorer,
    dataset: PreparedDataset,
    holdout: Holdout,
    seen: Seen,
    weights: Sequence[float],
    grid: Sequence[PCTMSettings] = GRID,
    recent: Sequence[float] = RECENT,
) -> tuple[CountEnsemble, RankTable]:
    """Return the counts with the best validation NDCG@10, and the ranks of their sum with a model.

    Ties go to the first settings and weights; a weight is 0 where the model is better without.
    If seen items are ranked, the repeat counts are weighted first; then the transition counts on
    top of them, then recent popularity, then the sum of all counts against the model, and at last
    each of them once more. In each step the model scores each history once, and weight 0 is tried
    too. The model is one of the training part only, which is counted.
    """
    histories, num_items = dataset.histories("valid"), model.num_items
    terms: list[tuple[Scorer, float]] = [(model, 1.0)]

    def weigh(tried: Sequence[Scorer], weights: Sequence[float] = weights) -> tuple[int, RankTable]:
        """Add the best of some counts, at the best weight, to the terms; return its index."""
        index, weight, ranks = _best_weight(tried, Blend.of(terms), weights, holdout, seen)
        terms.append((tried[index], weight))
        return index, ranks

    if seen == "allow":
        weigh([RepeatCounts(num_items)])
    else:
        terms.append((RepeatCounts(num_items), 0.0))
    way, _ = weigh([PCTM.fit(histories, num_items, settings) for settings in grid])
    newest = [latest_histories(dataset, "valid", share) for share in recent]
    share, ranks = weigh([Popularity(log_popularity(some, num_items)) for some in newest])
    if any(weight for _, weight in terms[1:]):
        # Where the model is the weakest part, all counts need more weight; and each was weighed
        # before the next ones were there.
        added, terms = terms[1:], terms[:1]
        _, ranks = weigh([Blend.of(added)], sorted({1.0, *weights}))
        (_, scale) = terms.pop()
        terms += [(scorer, scale * weight) for scorer, weight in added]
        for _ in added:
            scorer, weight = terms.pop(1)
            if weight:
                _, ranks = weigh([scorer], [factor * weight for factor in _FACTORS])
            else:
                terms.append((scorer, 0.0))
    repeats, followed, popular = (weight for _, weight in terms[1:])
    counts = counted(dataset, "valid", grid[way], recent[share])
    return CountEnsemble(counts, followed, repeats, popular, recent[share]), ranks


def _best_weight(
    counts: Sequence[Scorer], model: Scorer, weights: Sequence[float], holdout: Holdout, seen: Seen
) -> tuple[int, float, RankTable]:
    """Return the index of the best counts, their weight (or 0), and the ranks of the sum."""
    tried = [(0, 0.0), *((index, weight) for index in range(len(counts)) for weight in weights)]
    ranks = np.empty((len(tried), len(holdout.targets)), dtype=np.int64)
    for batch in user_batches(len(holdout.histories), model.num_items):
        chosen, sliced = holdout.after(np.r_[batch])
        known, targets, rows = sliced.histories, sliced.targets, sliced.history_rows
        scores, added = model.score(known).cpu(), [scorer.score(known) for scorer in counts]
        for trial, (index, weight) in enumerate(tried):
            summed = Scored(scores.add(added[index], alpha=weight) if trial else scores)
            ranks[trial, chosen] = rank_targets(summed, known, targets, seen, rows=rows)
    tables = [rank_table(row, holdout, "valid", model.num_items, seen) for row in ranks]
    quality = [float(table.values("ndcg_at_10").mean()) for table in tables]
    best = int(np.argmax(quality))
    return *tried[best], tables[best]
