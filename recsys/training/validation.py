"""The validation of a training: the ranks of the targets, found by all processes together."""

from __future__ import annotations

from collections.abc import Callable

import torch

from recsys.config import Experiment
from recsys.data.holdout import Holdout
from recsys.evaluation.tables import RankTable, evaluate, rank_table
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.scorer import ReportingScorer, Scorer, Seen
from recsys.model.protocols import Model
from recsys.training import processes


def histories_here(validation: Holdout | None) -> int:
    """Return the number of histories that this process scores, at least 1."""
    ranked = 0 if validation is None else len(validation.histories)
    return max(1, ranked // processes.count())


def validation_of(
    experiment: Experiment,
    model: Model,
    validation: Holdout | None,
    report: Callable[[int], object],
) -> Callable[[], RankTable] | None:
    """Return what ranks the validation targets under the current weights; None without targets.

    Args:
        experiment: the settings of the model and of the evaluation.
        model: the model, with the weights in training.
        validation: the targets.
        report: called with the number of histories that this process has scored.
    """
    if validation is None:
        return None
    length, seen = experiment.model.max_sequence_length, experiment.evaluation.seen
    scorer = ReportingScorer(ModelScorer(model, length), report)
    return lambda: _rank_together(scorer, validation, seen)


def _rank_together(scorer: Scorer, validation: Holdout, seen: Seen) -> RankTable:
    """Rank a share of the validation targets in each process, and return all ranks in each."""
    positions, share = validation.shard(processes.index(), processes.count())
    table = evaluate(scorer, share, "valid", seen)
    if processes.count() == 1:
        return table
    ranks = torch.zeros(len(validation.targets), dtype=torch.int64)
    ranks[positions] = torch.from_numpy(table.ranks.copy())
    total = processes.all_reduce_sum(ranks).numpy()
    return rank_table(total, validation, "valid", scorer.num_items, seen)
