"""The best items, and the scores of candidates, of many users, as tables in raw ids."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.inference.diversity import Diversity, diverse_top_k
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Scorer, Seen
from recsys.serving.bundle import ModelBundle
from recsys.serving.candidates import UserItemPairs
from recsys.serving.histories import UserHistories


def recommend(
    bundle: ModelBundle,
    scorer: Scorer,
    queries: UserHistories,
    k: int,
    seen: Seen,
    diversity: Diversity | None = None,
) -> pl.DataFrame:
    """Return the k best items of each user: see `Recommender.recommend`.

    Args:
        bundle: the model, or the baseline.
        scorer: of `Stages`.
        queries: the histories, with the times that the model reads.
        k: items per user.
        seen: whether items of the histories are left out.
        diversity: how lists are made diverse; by scores alone if None.

    Raises:
        InputError: k is not between 1 and the size of the catalogue.
    """
    if diversity is None:
        tokens, scores = top_k(scorer, queries.histories, k, seen)
    else:
        tokens, scores = diverse_top_k(scorer, queries.histories, k, seen, diversity)
    rows, columns = np.nonzero(tokens != PAD)
    answer = _table(bundle, queries, rows, tokens[rows, columns], scores[rows, columns])
    return answer.insert_column(3, pl.Series("rank", columns + 1, dtype=pl.Int32))


def score(
    bundle: ModelBundle, scorer: Scorer, queries: UserHistories, pairs: UserItemPairs
) -> pl.DataFrame:
    """Return user_id, item_id, score and source of pairs, in their order.

    Args:
        bundle: the model, or the baseline.
        scorer: of `Stages`.
        queries: the histories, with the times that the model reads.
        pairs: users of the histories and their candidates.
    """
    scores = np.empty(len(pairs.items), dtype=np.float32)
    for batch in pairs.batches():
        found = scorer.score(queries.histories.take(batch.users), batch.candidates)
        scores[batch.pairs] = found.numpy()[batch.candidates != PAD]
    return _table(bundle, queries, pairs.users, pairs.items, scores)


def _table(
    bundle: ModelBundle,
    queries: UserHistories,
    rows: NDArray[np.int64],
    tokens: NDArray[np.int32],
    scores: NDArray[np.float32],
) -> pl.DataFrame:
    """Return one line per pair [N] of a user, given by row, and an item, with its source."""
    sources = np.where(queries.histories.lengths == 0, "popularity", "model")
    return pl.DataFrame(
        {
            "user_id": queries.user_ids.gather(rows),
            "item_id": bundle.vocabulary.decode(tokens),
            "score": scores,
            "source": pl.Series(sources, dtype=pl.String).gather(rows),
        }
    )
