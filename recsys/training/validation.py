"""Exact ranks of the validation targets, taken by all processes together."""

from __future__ import annotations

import polars as pl
import torch

from recsys.data.holdout import Holdout
from recsys.evaluation.model_scorer import ModelScorer
from recsys.evaluation.rank_table import RankTable, evaluate
from recsys.evaluation.ranking import Seen
from recsys.model.recommender import Model
from recsys.training import processes


def rank_together(
    model: Model, max_sequence_length: int, holdout: Holdout, seen: Seen
) -> RankTable:
    """Every process ranks the targets after its share of the histories; all get the whole table."""
    first, last, share = holdout.share(processes.index(), processes.count())
    table = evaluate(ModelScorer(model, max_sequence_length), share, "valid", seen)
    if processes.count() == 1:
        return table
    ranks = torch.zeros(len(holdout.targets), dtype=torch.int64)
    ranks[first:last] = torch.from_numpy(table.ranks.copy())
    columns = {
        "user": holdout.users,
        "target": holdout.targets,
        "rank": processes.total(ranks).numpy(),
        "history_length": holdout.histories.lengths[holdout.rows],
    }
    return RankTable(pl.DataFrame(columns, schema=table.frame.schema), table.protocol)
