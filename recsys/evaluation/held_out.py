"""All that is kept of a scorer's evaluation on one part of a split, beside lists of purchases."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from recsys.config import EvaluationConfig, RequestTime
from recsys.data.prepared import Part, PreparedDataset
from recsys.errors import InputError
from recsys.evaluation.candidates import Candidates
from recsys.evaluation.catalogue_figures import catalogue_figures
from recsys.evaluation.segments import with_segments
from recsys.evaluation.tables.rank import RankTable, rank_table
from recsys.evaluation.tables.top_k import TopKTable, list_length, top_k_table
from recsys.inference.ranking import rank_targets, top_k
from recsys.inference.scorer import Scored, Scorer, user_batches


class HeldOut(NamedTuple):
    """A scorer on the targets of one part."""

    ranks: RankTable
    """Of every target, with segments."""
    best: TopKTable
    """The best items of the whole catalogue after every history."""
    figures: dict[str, float]
    """Of these lists, by name; see `catalogue_figures`."""


def refuse_part(dataset: PreparedDataset, part: Part, request_time: RequestTime) -> None:
    """Before the work: is there something to evaluate on, and can it be?

    Raises:
        InputError: there is not; or several targets after one history are to be asked for at the
            time of each, where they make one list.
    """
    holdout = dataset.holdout(part)
    if not len(holdout.targets):
        raise InputError(
            f"{dataset.path}: {dataset.config.split} leaves no {part} targets to evaluate on "
            f"({holdout.dropped:,} outside the catalogue, {holdout.without_history:,} without a "
            "history)"
        )
    if request_time == "known" and len(holdout.histories) < len(holdout.targets):
        raise InputError(
            f"{dataset.path}: evaluation.request_time=known: {dataset.config.split} has several "
            f"{part} targets after one history, which are asked for at different times: hold out "
            "one, or let histories advance"
        )


def evaluate_held_out(
    scorer: Scorer,
    dataset: PreparedDataset,
    part: Part,
    config: EvaluationConfig,
    candidates: Candidates | None,
) -> HeldOut:
    """Rank the targets among the candidates (None: all items), and list the best items of all.

    Each history is scored once.
    """
    holdout, num_items = dataset.holdout(part, config.request_time), scorer.num_items
    sets = None if candidates is None else candidates.sets
    ranks = np.empty(len(holdout.targets), dtype=np.int64)
    shape = len(holdout.histories), list_length(max(config.cutoffs, default=1), num_items)
    items, values = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.float32)
    for batch in user_batches(len(holdout.histories), num_items):
        places, some = holdout.slice_after(batch)
        scored = Scored(scorer.score(some.histories))
        items[batch], values[batch] = top_k(scored, some.histories, shape[1], config.seen)
        ranks[places] = rank_targets(
            scored,
            some.histories,
            some.targets,
            config.seen,
            candidates=None if sets is None else sets[places],
            rows=some.history_rows,
        )
    table = rank_table(ranks, holdout, part, num_items, config.seen, candidates=candidates)
    best = top_k_table(items, values, holdout, part, num_items, config.seen)
    figures = catalogue_figures(best, dataset, config.cutoffs, config.request_time)
    return HeldOut(with_segments(table, dataset), best, figures)
