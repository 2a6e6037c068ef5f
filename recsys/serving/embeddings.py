"""The vectors of items and of histories, as frames and as files."""

from __future__ import annotations

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.inference.model_scorer import evaluating, model_inputs
from recsys.inference.scorer import FEWEST_USERS, batches_of_similar_length
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories

_TOKENS = 1 << 13


@torch.inference_mode()
def item_embeddings(bundle: ModelBundle) -> pl.DataFrame:
    """Return item_id and embedding, an array of D float32, of the I items of a model.

    Features of the items are part of the embeddings.

    Raises:
        InputError: the bundle holds a baseline, which has no embeddings.
    """
    table = bundle.model.items.table()[1:].float().cpu().numpy()
    return bundle.item_table.select("item_id").with_columns(_vectors(table))


@torch.inference_mode()
def history_embeddings(bundle: ModelBundle, queries: UserHistories) -> pl.DataFrame:
    """Return user_id and embedding, an array of float32, of B histories.

    The embedding of a history is what the head compares with a candidate: the last hidden state.
    With the head ``dot_product`` the score of an item is the dot product of the two
    embeddings; with target attention that is the score without the part of attention.

    The embedding is null where no item of the history is in the catalogue.

    Raises:
        InputError: the bundle holds a baseline, which has no embeddings.
    """
    model = bundle.model
    recent = queries.histories.latest(bundle.experiment.model.max_sequence_length)
    known = np.flatnonzero(recent.lengths)
    found: NDArray[np.float32] | None = None
    with evaluating(model):
        for batch in batches_of_similar_length(recent.lengths[known], _TOKENS, 8 * FEWEST_USERS):
            rows = known[batch]
            last = model.encode_last(model_inputs(model, recent.take(rows)))[0]
            if found is None:
                found = np.zeros((len(recent), last.shape[1]), dtype=np.float32)
            found[rows] = last.float().cpu().numpy()
    if found is None:
        found = np.zeros((len(recent), model.items.embedding_dim), dtype=np.float32)
    vectors = pl.when(pl.Series(recent.lengths > 0)).then(_vectors(found)).alias("embedding")
    return pl.DataFrame({"user_id": queries.user_ids}).with_columns(vectors)


def _vectors(rows: NDArray[np.float32]) -> pl.Series:
    return pl.Series("embedding", rows, dtype=pl.Array(pl.Float32, rows.shape[1]))
