"""The items whose embeddings are most similar."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor
from torch.nn.functional import normalize

from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.raw_values import known_tokens, whole_number


@torch.inference_mode()
def similar_items(bundle: ModelBundle, directions: Tensor, item: Any, k: int) -> pl.DataFrame:
    """Find the k items whose embeddings have the largest cosine with that of an item.

    Args:
        bundle: the model.
        directions: its `item_directions`.
        item: the item's id; it is not among the found ones.
        k: the number of items; fewer if the catalogue has no more.

    Returns:
        item_id, the item's name or title if the item table has them, similarity (the cosine) and
        rank (from 1), the most similar first; equal ones in the order of the catalogue.

    Raises:
        InputError: the item is not in the catalogue; k is below 1; the bundle holds
            a baseline, which has no embeddings.
    """
    if whole_number("k", k) < 1:
        raise InputError(f"k={k}: must be at least 1")
    token = int(known_tokens([item], bundle.vocabulary, "item", "catalogue").item())
    cosines = (directions @ directions[token - 1]).cpu().numpy()
    cosines[token - 1] = -np.inf
    best = np.argsort(-cosines, kind="stable")[: min(k, len(cosines) - 1)]
    return bundle.item_table.select("item_id", *bundle.name_columns)[best].with_columns(
        pl.Series("similarity", cosines[best]),
        pl.Series("rank", np.arange(1, len(best) + 1), dtype=pl.Int32),
    )


@torch.inference_mode()
def item_directions(bundle: ModelBundle) -> Tensor:
    """Return the embeddings of all items, scaled to length 1, [I, D].

    Raises:
        InputError: the bundle holds a baseline, which has no embeddings.
    """
    return normalize(bundle.model.items.table()[1:].float(), dim=1)
