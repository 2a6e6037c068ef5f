"""The scores of candidates, as a table in raw ids."""

from __future__ import annotations

import numpy as np
import polars as pl

from recsys.data.histories import PAD
from recsys.serving.bundle import ModelBundle
from recsys.serving.fallback import answer_table, scorer_of
from recsys.serving.inputs import UserHistories
from recsys.serving.pairs import UserItemPairs


def score(bundle: ModelBundle, queries: UserHistories, pairs: UserItemPairs) -> pl.DataFrame:
    """Return user_id, item_id, score and source of pairs, in their order.

    Args:
        bundle: the model, or the baseline.
        queries: the histories, with the times that the model reads.
        pairs: users of the histories and their candidates.
    """
    scorer = scorer_of(bundle)
    scores = np.empty(len(pairs.items), dtype=np.float32)
    for batch in pairs.batches():
        found = scorer.score(queries.histories.take(batch.users), batch.candidates)
        scores[batch.pairs] = found.numpy()[batch.candidates != PAD]
    return answer_table(queries, pairs.users, bundle.vocabulary.decode(pairs.items), scores)
