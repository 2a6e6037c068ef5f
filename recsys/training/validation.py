"""Exact ranks of the validation targets, taken by all processes together."""

from __future__ import annotations

import torch

from recsys.data.holdout import Holdout
from recsys.evaluation.tables.rank import RankTable, evaluate, rank_table
from recsys.inference.model_scorer import ModelScorer
from recsys.inference.ranking import Seen
from recsys.model.build import Model
from recsys.training import processes


def rank_together(
    model: Model, max_sequence_length: int, holdout: Holdout, seen: Seen
) -> RankTable:
    """Every process ranks the targets after its share of the histories; all get the whole table."""
    some, share = holdout.shard(processes.index(), processes.count())
    table = evaluate(ModelScorer(model, max_sequence_length), share, "valid", seen)
    if processes.count() == 1:
        return table
    ranks = torch.zeros(len(holdout.targets), dtype=torch.int64)
    ranks[some] = torch.from_numpy(table.ranks.copy())
    return rank_table(
        processes.all_reduce_sum(ranks).numpy(), holdout, "valid", model.num_items, seen
    )
