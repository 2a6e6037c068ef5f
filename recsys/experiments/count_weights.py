"""The count ensemble of a trained model: validation chooses how to count and the weights."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.counts import Popularity, RepeatCounts, latest_histories, log_popularity
from recsys.baselines.transitions import LAST_ITEM, PCTM, PUBLISHED_PCTM, PCTMSettings, counted
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
