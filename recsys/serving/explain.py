"""Explain a score by the purchases that drove it."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.model_scorer import ModelScorer, read_histories
from recsys.model.attention import last_states
from recsys.model.protocols import Model
from recsys.serving.bundle import ModelBundle
from recsys.serving.ids import RequestTime, known_tokens
from recsys.serving.inputs import OneHistory


def explain(
    bundle: ModelBundle, history: OneHistory, item: Any, *, at: RequestTime | None = None
) -> pl.DataFrame:
    """Explain the score of an item by what each purchase of a history adds to it.

    Target attention adds one term per purchase (the sum over its heads) to the dot product, and so
    does the count ensemble: these terms are the contributions. The dot product itself, of the
    history's last hidden state and the item, has no parts.

    Args:
        bundle: a model with the target-attention head, or with a count ensemble.
        history: item ids, oldest first, or a log of one user, with the columns of all that the
            model reads; items outside the catalogue are skipped.
        item: the id of the item to explain.
        at: the time of the request; for the models that read it.

    Returns:
        One row per purchase that the model or the counts read (the latest ones), oldest first:
        position (index in the history), item_id, the item's name or title if the item table has
        them, contribution (signed), share (contribution over the sum of all absolute contributions;
        0 if all are 0) and dot_product (the same in each row; without target attention, the
        model's entire score). The contributions plus one dot_product add up to the item's score.

    Raises:
        InputError: the model has neither target attention nor a count ensemble; the item, or every
            item of the history, is not in the catalogue; see `ModelBundle.read_history`.
    """
    model, count_ensemble, vocabulary = bundle.model, bundle.count_ensemble, bundle.vocabulary
    if model.head.kv_source is None and count_ensemble is None:
        raise InputError(
            f"{bundle.path}: only the scores of target attention and of a count ensemble have "
            f"parts to explain, not those of {bundle.experiment.family}"
        )
    user = bundle.read_history(history, at)
    candidate = known_tokens([item], vocabulary, "item", "catalogue")
    read = bundle.experiment.model.max_sequence_length
    longest = read if count_ensemble is None else count_ensemble.items_read(read)
    latest = slice(0 if longest is None else -longest, None)
    tokens, positions = user.histories.items[latest], user.positions[latest]
    if not len(tokens):
        raise InputError("history: none of its items is in the catalogue: nothing to explain by")
    recent = user.histories.latest(read)
    contributions = np.zeros(len(tokens), dtype=np.float32)
    parts = _attention_parts(model, recent, candidate)
    if parts is None:
        rest = float(ModelScorer(model, read).score(recent, candidate[None])[0, 0])
    else:
        contributions[-len(recent.items) :], rest = parts
    if count_ensemble is not None:
        contributions += count_ensemble.contributions(tokens, candidate.item()).astype(np.float32)
    size = np.abs(contributions).sum()
    return (
        bundle.item_table.select("item_id", *bundle.name_columns)[tokens - 1]
        .with_columns(
            pl.Series("contribution", contributions),
            pl.Series("share", contributions / size if size else contributions),
            pl.lit(rest, dtype=pl.Float32).alias("dot_product"),
        )
        .insert_column(0, pl.Series("position", positions))
    )


@torch.inference_mode()
def _attention_parts(
    model: Model, history: Histories, candidate: NDArray[np.int32]
) -> tuple[NDArray[np.float32], float] | None:
    """What attention adds for each item of one history [L], and the dot product.

    If None, the head has no attention.
    """
    embedding = model.items(torch.from_numpy(candidate).to(model.items.weight.device))
    states, lengths = read_histories(model, history)
    attention = model.head.attention(states, model.head.represent_candidates(embedding), lengths)
    if attention is None:
        return None
    dot_product = float(last_states(states[0], lengths) @ embedding.T)
    return attention.contributions[0, :, 0].cpu().numpy(), dot_product
