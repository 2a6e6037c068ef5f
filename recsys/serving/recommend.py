"""The best items of many users, as a table in raw ids."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.errors import InputError
from recsys.inference.diversity import Diversity, diverse_top_k
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Seen
from recsys.serving.bundle import ModelBundle
from recsys.serving.bundle_index import BundleIndex
from recsys.serving.fallback import answer_table, scorer_of, seen_policy
from recsys.serving.ids import whole_number
from recsys.serving.inputs import UserHistories


def recommend(
    bundle: ModelBundle,
    queries: UserHistories,
    k: int,
    seen: Seen | None,
    *,
    retrieve: int | None = None,
    allowed: NDArray[np.bool_] | None = None,
    diversity: Diversity | None = None,
    index: BundleIndex | None = None,
) -> pl.DataFrame:
    """Return the k best items of each user: see `Recommender.recommend`.

    Args:
        bundle: the model, or the baseline.
        queries: the histories, with the times that the model reads.
        k: items per user.
        seen: as in training if None.
        retrieve: how many items target attention ranks; all if None.
        allowed: whether each item token may be recommended [I + 1]; if None, all may.
        diversity: how lists are made diverse; by scores alone if None.
        index: finds the best items; all are scored if None.

    Raises:
        InputError: see `Recommender.recommend`.
    """
    seen = seen_policy(bundle, seen)
    k = whole_number("k", k)
    if retrieve is not None and whole_number("retrieve", retrieve) < k:
        raise InputError(f"retrieve={retrieve}: must be at least k={k}, the items to recommend")
    scorer = scorer_of(bundle, seen, retrieve, allowed, index)
    if diversity is None:
        tokens, scores = top_k(scorer, queries.histories, k, seen)
    else:
        tokens, scores = diverse_top_k(scorer, queries.histories, k, seen, diversity)
    rows, columns = np.nonzero(tokens != PAD)
    items = bundle.vocabulary.decode(tokens[rows, columns])
    answer = answer_table(queries, rows, items, scores[rows, columns])
    return answer.insert_column(3, pl.Series("rank", columns + 1, dtype=pl.Int32))
