"""The next purchases of users, written one after the other."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.errors import InputError
from recsys.inference.generator import SequenceGenerator
from recsys.inference.ranking import Seen
from recsys.model.generation import Strategy
from recsys.serving.bundle import ModelBundle
from recsys.serving.inputs import UserHistories


def generate(
    bundle: ModelBundle,
    asked: UserHistories,
    n: int,
    strategy: Strategy,
    *,
    seen: Seen,
    candidates: NDArray[np.int32] | None = None,
    repeats: bool = False,
) -> pl.DataFrame:
    """The next n purchases of each user, in order.

    Args:
        bundle: a sequence-to-sequence model.
        asked: the histories; empty ones are answered with the most popular items.
        n: purchases for each user.
        strategy: how they are chosen.
        seen: filter: nothing of a history is written; allow: anything may be.
        candidates: item tokens that may be written; None: the whole catalogue.
        repeats: an item may be written more than once.

    Returns:
        user_id, item_id, step (from 1), log_probability (of the whole list; null for popularity)
        and source ("model" or "popularity"), in the order of the users and of purchase. Fewer than
        n lines for a user for whom no item is left.

    Raises:
        InputError: the model has no decoder, or was not made to write so many.
    """
    model = bundle.model.as_generative()
    if model is None:
        raise InputError(
            f"{bundle.path}: a model of kind {bundle.experiment.model.kind} generates nothing; "
            "train one with model.kind=sequence_to_sequence"
        )
    generator = SequenceGenerator(model, bundle.experiment.model.max_sequence_length, strategy)
    rows = np.flatnonzero(asked.histories.lengths)
    written, log_probabilities = generator.generate(
        asked.histories.take(rows), n, seen, candidates=candidates, repeats=repeats
    )
    lists = np.tile(_most_popular(bundle, n, candidates), (len(asked.histories), 1))
    scores = np.full(len(lists), np.nan, dtype=np.float32)
    lists[rows], scores[rows] = written, log_probabilities
    users, steps = np.nonzero(lists != PAD)
    return pl.DataFrame(
        {
            "user_id": asked.user_ids.gather(users),
            "item_id": bundle.vocabulary.decode(lists[users, steps]),
            "step": pl.Series(steps + 1, dtype=pl.Int32),
            "log_probability": pl.Series(scores[users]).fill_nan(None),
            "source": np.where(np.isnan(scores[users]), "popularity", "model"),
        }
    )


def _most_popular(
    bundle: ModelBundle, n: int, candidates: NDArray[np.int32] | None
) -> NDArray[np.int32]:
    """The n most popular item tokens, the best first, PAD behind if there are fewer."""
    allowed = np.arange(1, bundle.num_items + 1) if candidates is None else np.unique(candidates)
    order = np.argsort(-bundle.popularity[allowed - 1], kind="stable")[:n]
    best: NDArray[np.int32] = np.pad(allowed[order], (0, n - len(order))).astype(np.int32)
    return best
