"""How to count, and how much the counts weigh beside a trained model: validation says."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys.baselines.count_ensemble import CountEnsemble, RepeatCounts, beside
from recsys.baselines.pctm import PCTM, PUBLISHED, PCTMSettings
from recsys.config import CountEnsembleConfig, Experiment
from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.data.prepared import PreparedDataset
from recsys.evaluation.tables.rank import RankTable, rank_table
from recsys.inference.ranking import Seen, rank_targets
from recsys.inference.scorer import Scored, Scorer, user_batches
from recsys.serving.bundle import model_scorer
from recsys.training.refit import Fitted

logger = logging.getLogger(__name__)

WAYS = tuple(replace(way, popularity=0.0) for way in (PCTMSettings(), *PUBLISHED.values()))
"""Ways to count; without popularity, which the model knows by itself."""


class Choice(NamedTuple):
    """What validation chose."""

    way: PCTMSettings
    weight: float
    """0: the model is better without what followed what."""
    repeat_weight: float
    """0: ... without what the user had already."""
    ranks: RankTable
    """Of the validation targets, by the model and the counts together."""


def weigh_counts(
    config: CountEnsembleConfig, experiment: Experiment, dataset: PreparedDataset, fitted: Fitted
) -> tuple[CountEnsemble, RankTable]:
    """Counts to go with a trained model, of what it was trained on.

    Way and weight are chosen beside the model of the best epoch, before any refit.

    Returns:
        The counts and their weight; and the ranks of the validation targets with them.
    """
    model = fitted.model
    if "valid" in fitted.trained_on:  # the refit has seen the validation targets
        trained = dataset.histories("valid").items
        interactions = np.bincount(trained, minlength=dataset.num_items + 1)
        with torch.random.fork_rng(devices=[]):
            model = fitted.catalogue.new_model(experiment.model, interactions)
        model.load_state_dict(fitted.curve.best_weights)
        model.to(fitted.model.items.weight.device).eval()
    choice = choose_count_ensemble(
        model_scorer(model, experiment),
        dataset.histories("valid"),
        dataset.holdout("valid", experiment.evaluation.request_time),
        experiment.evaluation.seen,
        config.weights,
    )
    known = dataset.histories("test" if "valid" in fitted.trained_on else "valid")
    counts = PCTM.fit(known, dataset.num_items, choice.way)
    return CountEnsemble(counts, choice.weight, choice.repeat_weight), choice.ranks


def choose_count_ensemble(
    model: Scorer,
    histories: Histories,
    holdout: Holdout,
    seen: Seen,
    weights: Sequence[float],
    ways: Sequence[PCTMSettings] = WAYS,
) -> Choice:
    """The way to count and the weights with the best validation NDCG@10; the first of equal ones.

    Where what the user had may be ranked, it is weighed first, beside the model, then what followed
    what, beside both. Each time the model scores each history once, and is tried alone too.

    Args:
        model: trained on the histories and no more.
        histories: of the training part, to be counted.
        holdout: the validation targets.
        seen: whether items of the user's history are left out of the ranking.
        weights: to be tried, each above 0.
        ways: to count.
    """
    repeat_weight = 0.0
    if seen == "allow":
        own = RepeatCounts(model.num_items)
        _, repeat_weight, _ = _weigh([own], model, weights, holdout, seen)
        model = beside(model, [(own, repeat_weight)])
    counts = [PCTM.fit(histories, model.num_items, way) for way in ways]
    place, weight, ranks = _weigh(counts, model, weights, holdout, seen)
    return Choice(ways[place], weight, repeat_weight, ranks)


def _weigh(
    counts: Sequence[Scorer],
    model: Scorer,
    weights: Sequence[float],
    holdout: Holdout,
    seen: Seen,
) -> tuple[int, float, RankTable]:
    """Which of the counts is best beside the model, its weight or 0, and the ranks with it."""
    tried = [(0, 0.0), *((place, weight) for place in range(len(counts)) for weight in weights)]
    ranks = np.empty((len(tried), len(holdout.targets)), dtype=np.int64)
    for batch in user_batches(len(holdout.histories), model.num_items):
        places, some = holdout.slice_after(batch)
        known, targets, rows = some.histories, some.targets, some.history_rows
        sums = _sums(model.score(known).cpu(), [one.score(known) for one in counts], weights)
        for trial, scores in enumerate(sums):
            ranks[trial, places] = rank_targets(Scored(scores), known, targets, seen, rows=rows)
    tables = [rank_table(one, holdout, "valid", model.num_items, seen) for one in ranks]
    quality = [float(table.values("ndcg_at_10").mean()) for table in tables]
    best = int(np.argmax(quality))
    place, weight = tried[best]
    logger.info(
        "counted count_ensemble: %s, weight %g, validation NDCG@10 %.4f, %.4f without",
        *(type(counts[place]).__name__, weight, quality[best], quality[0]),
    )
    return place, weight, tables[best]


def _sums(scores: Tensor, counted: Sequence[Tensor], weights: Sequence[float]) -> Iterator[Tensor]:
    """The model alone, then with each of the counts at each weight."""
    yield scores
    for one in counted:
        for weight in weights:
            yield scores.add(one, alpha=weight)
