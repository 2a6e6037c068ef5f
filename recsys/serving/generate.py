"""Generate the next purchases of users, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD
from recsys.errors import InputError
from recsys.inference.generator import SequenceGenerator
from recsys.inference.scorer import Seen
from recsys.model.generation import Strategy
from recsys.model.sequence_to_sequence import SequenceToSequence
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories
from recsys.serving.raw_values import known_tokens, whole_number


def generated_items(
    bundle: ModelBundle, candidates: Sequence[Any] | None
) -> NDArray[np.int32] | None:
    """Return the tokens of the items that may be generated; None if all may.

    Raises:
        InputError: there is no candidate, or one is not in the catalogue.
    """
    if candidates is None:
        return None
    if not len(candidates):
        raise InputError("candidates: name at least one item")
    return known_tokens(candidates, bundle.vocabulary, "candidate item", "catalogue")


def generate(
    bundle: ModelBundle,
    users: UserHistories,
    n: int,
    strategy: Strategy,
    *,
    seen: Seen,
    candidates: NDArray[np.int32] | None = None,
    repeats: bool = False,
) -> pl.DataFrame:
    """Generate the next n purchases of each user, in order.

    Args:
        bundle: a sequence-to-sequence model.
        users: the histories; users with empty ones get the most popular items.
        n: the number of purchases for each user.
        strategy: how they are chosen.
        seen: with "filter", no item of the user's history is generated.
        candidates: item tokens that may be generated; all if None.
        repeats: whether an item may be generated more than once.

    Returns:
        user_id, item_id, step (from 1), log_probability (of the entire list; null for popularity)
        and source ("model" or "popularity"), in the order of the users and of purchase. A user for
        whom too few items are left has fewer than n rows.

    Raises:
        InputError: the model has no decoder, or cannot generate that many.
    """
    n = whole_number("n", n)
    model = bundle.model
    if not isinstance(model, SequenceToSequence):
        raise InputError(
            f"{bundle.path}: a model of kind {bundle.experiment.model.kind} generates nothing; "
            "train one with model.kind=sequence_to_sequence"
        )
    generator = SequenceGenerator(model, bundle.experiment.model.max_sequence_length, strategy)
    rows = np.flatnonzero(users.histories.lengths)
    generated, log_probabilities = generator.generate(
        users.histories.take(rows), n, seen, candidates=candidates, repeats=repeats
    )
    lists = np.tile(_most_popular(bundle, n, candidates), (len(users.histories), 1))
    scores = np.full(len(lists), np.nan, dtype=np.float32)
    lists[rows], scores[rows] = generated, log_probabilities
    row, step = np.nonzero(lists != PAD)
    return pl.DataFrame(
        {
            "user_id": users.user_ids.gather(row),
            "item_id": bundle.vocabulary.decode(lists[row, step]),
            "step": pl.Series(step + 1, dtype=pl.Int32),
            "log_probability": pl.Series(scores[row]).fill_nan(None),
            "source": np.where(np.isnan(scores[row]), "popularity", "model"),
        }
    )


def _most_popular(
    bundle: ModelBundle, n: int, candidates: NDArray[np.int32] | None
) -> NDArray[np.int32]:
    """The n most popular item tokens, the best first; PAD fills the end if there are fewer."""
    allowed = np.arange(1, bundle.num_items + 1) if candidates is None else np.unique(candidates)
    order = np.argsort(-bundle.popularity[allowed - 1], kind="stable")[:n]
    best: NDArray[np.int32] = np.pad(allowed[order], (0, n - len(order))).astype(np.int32)
    return best
