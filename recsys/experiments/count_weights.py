"""The count ensemble of a trained model: validation chooses how to count and the weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.popularity import RepeatCounts
from recsys.baselines.transitions import LAST_ITEM, PCTM, PUBLISHED_PCTM, PCTMSettings
from recsys.config import CountEnsembleConfig, Experiment
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.held_out import HeldOutParts
from recsys.evaluation.tables import RankTable, evaluate, rank_table
from recsys.inference.ranking import rank_targets
from recsys.inference.scorer import Blend, Scored, Scorer, Seen, user_batches
from recsys.serving.bundle import model_scorer
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

GRID = tuple(
    replace(way, popularity=0.0) for way in (PCTMSettings(), *PUBLISHED_PCTM.values(), LAST_ITEM)
)
"""Settings to try; without popularity, which the model learns by itself."""


class Weighed(NamedTuple):
    """A trained model with its counts."""

    count_ensemble: CountEnsemble
    """Counts of the parts that the model was trained on."""
    validated: Scorer
    """The model of the best epoch with counts of the training part."""
    ranks: RankTable
    """Its ranks of the validation targets."""


class Choice(NamedTuple):
    """The count ensemble that validation chose."""

    settings: PCTMSettings
    weight: float
    """Weight of the transition counts; 0 if the model ranks better without them."""
    repeat_weight: float
    """Weight of the repeat counts; 0 if the model ranks better without them."""
    ranks: RankTable
    """Ranks of the validation targets by the sum of the model and the counts."""


def fit_count_ensemble(
    config: CountEnsembleConfig,
    experiment: Experiment,
    dataset: PreparedDataset,
    held_out: HeldOutParts,
    fitted: Fitted,
) -> Weighed:
    """Fit the count ensemble of a trained model on the data that the model was trained on.

    Its settings and weights are chosen with the model of the best epoch, before any refit.

    """
    valid, weighing = held_out.valid, held_out.weighed_on
    model = model_scorer(fitted.validated_model(experiment, dataset), experiment)
    histories = dataset.histories("valid")
    seen = experiment.evaluation.seen
    choice = choose_count_ensemble(model, histories, weighing, seen, config.weights)

    def counted(part: Histories) -> CountEnsemble:
        counts = PCTM.fit(part, dataset.num_items, choice.settings)
        return CountEnsemble(counts, choice.weight, choice.repeat_weight)

    before = after = counted(histories)
    if "valid" in fitted.trained_on:
        after = counted(dataset.histories("test"))
    validated = before.added_to(model)
    ranks = choice.ranks if weighing is valid else evaluate(validated, valid, "valid", seen)
    return Weighed(after, validated, ranks)


def choose_count_ensemble(
    model: Scorer,
    histories: Histories,
    holdout: Holdout,
    seen: Seen,
    weights: Sequence[float],
    grid: Sequence[PCTMSettings] = GRID,
) -> Choice:
    """Return the settings and weights with the best validation NDCG@10; ties go to the first.

    If seen items are ranked, the repeat counts are weighted first, then the transition counts on
    top of them. In each step the model scores each history once, and weight 0 is tried too.

    Args:
        model: a scorer trained on these histories only.
        histories: the histories of the training part, which are counted.
        holdout: the validation targets.
        seen: whether the items of the user's history are ranked.
        weights: the weights to try, each above 0.
        grid: the settings to try.
    """
    repeat_weight = 0.0
    if seen == "allow":
        repeats = RepeatCounts(model.num_items)
        _, repeat_weight, _ = _best_weight([repeats], model, weights, holdout, seen)
        model = Blend.of([(model, 1.0), (repeats, repeat_weight)])
    counts = [PCTM.fit(histories, model.num_items, settings) for settings in grid]
    index, weight, ranks = _best_weight(counts, model, weights, holdout, seen)
    return Choice(grid[index], weight, repeat_weight, ranks)


def _best_weight(
    counts: Sequence[Scorer],
    model: Scorer,
    weights: Sequence[float],
    holdout: Holdout,
    seen: Seen,
) -> tuple[int, float, RankTable]:
    """Return the index of the best counts, their weight (or 0), and the ranks of the sum."""
    tried = [(0, 0.0), *((index, weight) for index in range(len(counts)) for weight in weights)]
    ranks = np.empty((len(tried), len(holdout.targets)), dtype=np.int64)
    for batch in user_batches(len(holdout.histories), model.num_items):
        chosen, some = holdout.slice_after(batch)
        known, targets, rows = some.histories, some.targets, some.history_rows
        sums = _sums(
            model.score(known).cpu(), [counted.score(known) for counted in counts], weights
        )
        for trial, scores in enumerate(sums):
            ranks[trial, chosen] = rank_targets(Scored(scores), known, targets, seen, rows=rows)
    tables = [rank_table(row, holdout, "valid", model.num_items, seen) for row in ranks]
    quality = [float(table.values("ndcg_at_10").mean()) for table in tables]
    best = int(np.argmax(quality))
    index, weight = tried[best]
    logger.debug(
        "count ensemble: %s, weight %g, validation NDCG@10 %.4f, %.4f without",
        *(type(counts[index]).__name__, weight, quality[best], quality[0]),
    )
    return index, weight, tables[best]


def _sums(scores: Tensor, counts: Sequence[Tensor], weights: Sequence[float]) -> Iterator[Tensor]:
    """Yield the model's scores, then their sums with each of the counts at each weight."""
    yield scores
    for counted in counts:
        for weight in weights:
            yield scores.add(counted, alpha=weight)
