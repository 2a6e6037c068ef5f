"""All that is kept of a scorer's evaluation on one part of a split, beside lists of purchases."""

from __future__ import annotations

from typing import NamedTuple

from recsys.config import EvaluationConfig
from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.candidates import Candidates
from recsys.evaluation.catalogue_figures import catalogue_figures
from recsys.evaluation.rank_table import RankTable, evaluate
from recsys.evaluation.scorer import Scorer
from recsys.evaluation.segments import with_segments
from recsys.evaluation.top_k_table import TopKTable, list_best


class HeldOut(NamedTuple):
    """A scorer on the targets of one part."""

    ranks: RankTable
    """Of every target, with segments."""
    best: TopKTable
    """The best items of the whole catalogue after every history."""
    figures: dict[str, float]
    """Of these lists, by name; see `catalogue_figures`."""


def refuse_empty(dataset: PreparedDataset, part: Part) -> None:
    """Before the work: is there something to evaluate on?

    Raises:
        InputError: there is not; the message says why.
    """
    holdout = dataset.holdout(part)
    if not len(holdout.targets):
        raise InputError(
            f"{dataset.path}: {dataset.config.split} leaves no {part} targets to evaluate on "
            f"({holdout.dropped:,} outside the catalogue, {holdout.without_history:,} without a "
            "history)"
        )


def evaluate_held_out(
    scorer: Scorer,
    dataset: PreparedDataset,
    part: Part,
    config: EvaluationConfig,
    candidates: Candidates | None,
) -> HeldOut:
    """Rank the targets among the candidates (None: all items), and list the best items of all."""
    holdout = dataset.holdout(part, config.request_time)
    ranks = evaluate(scorer, holdout, part, config.seen, candidates=candidates)
    best = list_best(scorer, holdout, part, config.seen, max(config.cutoffs, default=1))
    figures = catalogue_figures(best, dataset, config.cutoffs, config.request_time)
    return HeldOut(with_segments(ranks, dataset), best, figures)
