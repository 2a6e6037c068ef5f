"""Which purchases drove a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD
from recsys.errors import InputError
from recsys.model.heads import TargetAttentionHead, last_states
from recsys.model.recommender import SequenceRecommender
from recsys.scoring.bundle import ModelBundle
from recsys.scoring.inputs import id_series, known_tokens


def explain(bundle: ModelBundle, history: Sequence[Any], item: Any) -> pl.DataFrame:
    """What each purchase of a history adds to the score of an item.

    Target attention adds to the dot product one term per purchase (the sum over its heads): these
    terms are the contributions. The dot product itself, of the whole history's hidden state and the
    item, has no parts.

    Args:
        bundle: a model with the target-attention head.
        history: item ids, oldest first; those outside the catalogue are skipped.
        item: the id of the item to explain.

    Returns:
        One row per purchase that the model reads (the newest ones, as many as it was trained
        with), oldest first: position (index in the history), item_id, the item's name or title if
        the item table has them, contribution (signed), share (contribution over the sum of all
        absolute contributions; 0 if all are 0) and dot_product (the same in each row). The sum of
        the contributions plus dot_product is the item's score.

    Raises:
        InputError: the model has the dot-product head, or reads times; the item is not in the
            catalogue; no item of the history is.
    """
    model, vocabulary = bundle.model, bundle.vocabulary
    head = model.head
    if not isinstance(model, SequenceRecommender) or not isinstance(head, TargetAttentionHead):
        raise InputError(
            f"{bundle.path}: only the scores of target attention have parts to explain, not those "
            f"of {bundle.experiment.model.family}"
        )
    bundle.refuse_mere_ids()
    candidate = torch.from_numpy(known_tokens([item], vocabulary, "item", "catalogue"))
    tokens = vocabulary.encode(id_series(history, "history"))
    positions = np.flatnonzero(tokens != PAD)[-bundle.experiment.model.max_sequence_length :]
    if not len(positions):
        raise InputError("history: none of its items is in the catalogue: nothing to explain by")
    tokens = tokens[positions]
    contributions, dot_product = _parts(model, head, torch.from_numpy(tokens), candidate)
    size = np.abs(contributions).sum()
    return (
        bundle.item_table.select("item_id", *bundle.name_columns)[tokens - 1]
        .with_columns(
            pl.Series("contribution", contributions),
            pl.Series("share", contributions / size if size else contributions),
            pl.lit(dot_product, dtype=pl.Float32).alias("dot_product"),
        )
        .insert_column(0, pl.Series("position", positions))
    )


@torch.inference_mode()
def _parts(
    model: SequenceRecommender, head: TargetAttentionHead, items: Tensor, candidate: Tensor
) -> tuple[NDArray[np.float32], float]:
    """Contributions [L] of the items [L], and the dot product, for a candidate [1]."""
    device = model.items.weight.device
    lengths = torch.tensor([len(items)], device=device)
    embedding = model.items(candidate.to(device))
    history = model(items[None].to(device), lengths)
    contributions = head.contributions(history, head.candidate_side(embedding), lengths)
    dot_product = last_states(history[0], lengths) @ embedding.T
    return contributions[0, :, 0].cpu().numpy(), float(dot_product)
