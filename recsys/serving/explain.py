"""Which purchases drove a score."""

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
from recsys.model.build import Model
from recsys.model.next_item import NextItemModel
from recsys.model.target_attention import TargetAttentionHead
from recsys.serving.bundle import ModelBundle
from recsys.serving.ids import RequestTime, known_tokens
from recsys.serving.inputs import OneHistory


def explain(
    bundle: ModelBundle, history: OneHistory, item: Any, *, at: RequestTime | None = None
) -> pl.DataFrame:
    """What each purchase of a history adds to the score of an item.

    Target attention adds to the dot product one term per purchase (the sum over its heads), and so
    does the count ensemble: these terms are the contributions. The dot product itself, of the whole
    history's hidden state and the item, has no parts.

    Args:
        bundle: a model with the target-attention head, or with a count ensemble.
        history: item ids, oldest first, or a log of one user, with the columns of all that the
            model reads; items outside the catalogue are skipped.
        item: the id of the item to explain.
        at: when the recommendation is asked for; for the models that read it.

    Returns:
        One row per purchase that the model or the counts read (the newest ones), oldest first:
        position (index in the history), item_id, the item's name or title if the item table has
        them, contribution (signed), share (contribution over the sum of all absolute contributions;
        0 if all are 0) and dot_product (the same in each row; of a model without target attention,
        its whole score). The sum of the contributions plus dot_product is the item's score.

    Raises:
        InputError: the model has neither; the item is not in the catalogue; no item of the history
            is; see `ModelBundle.read_history`.
    """
    model, count_ensemble, vocabulary = bundle.model, bundle.count_ensemble, bundle.vocabulary
    head = _target_attention(model)
    if head is None and count_ensemble is None:
        raise InputError(
            f"{bundle.path}: only the scores of target attention and of a count ensemble have "
            f"parts to explain, not those of {bundle.experiment.family}"
        )
    asked = bundle.read_history(history, at)
    candidate = known_tokens([item], vocabulary, "item", "catalogue")
    read = bundle.experiment.model.max_sequence_length
    longest = read if count_ensemble is None else count_ensemble.items_read(read)
    newest = slice(0 if longest is None else -longest, None)
    tokens, positions = asked.histories.items[newest], asked.positions[newest]
    if not len(tokens):
        raise InputError("history: none of its items is in the catalogue: nothing to explain by")
    recent = asked.histories.newest(read)
    contributions = np.zeros(len(tokens), dtype=np.float32)
    if head is not None:
        contributions[-len(recent.items) :], rest = _parts(model, head, recent, candidate)
    else:
        rest = float(ModelScorer(model, read).score(recent)[0, candidate])
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


def _target_attention(model: Model) -> TargetAttentionHead | None:
    """The head that gives each purchase a part of the score."""
    head = model.head
    if isinstance(model, NextItemModel) and isinstance(head, TargetAttentionHead):
        return head
    return None


@torch.inference_mode()
def _parts(
    model: Model,
    head: TargetAttentionHead,
    histories: Histories,
    candidate: NDArray[np.int32],
) -> tuple[NDArray[np.float32], float]:
    """Target attention's contributions [L] of the items of one history [L], and the dot product."""
    embedding = model.items(torch.from_numpy(candidate).to(model.items.weight.device))
    history, lengths = read_histories(model, histories)
    dot_product = float(last_states(history[0], lengths) @ embedding.T)
    contributions = head.contributions(history, head.represent_candidates(embedding), lengths)
    return contributions[0, :, 0].cpu().numpy(), dot_product
