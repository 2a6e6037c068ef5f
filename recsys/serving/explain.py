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
from recsys.serving.removal import losses_by_removal

_LONGEST = 200
"""The items of a history that explain the score of a baseline, which reads all of them."""
_ALL = 2**31


def explain(
    bundle: ModelBundle, history: OneHistory, item: Any, *, at: RequestTime | None = None
) -> pl.DataFrame:
    """Explain the score of an item by what each purchase of a history adds to it.

    Target attention adds one term per purchase (the sum over its heads) to the dot product, and so
    does the count ensemble: these terms are the contributions. The dot product itself, of the
    history's last hidden state and the item, has no parts. Scores without any such parts, those of
    a dot product alone or of a baseline, are explained by removal: a contribution is what the score
    loses if that purchase is taken away.

    Args:
        bundle: any but one of a model that generates purchases.
        history: item ids, oldest first, or a log of one user, with the columns of all that the
            model reads; items outside the catalogue are skipped.
        item: the id of the item to explain.
        at: the time of the request; for the models that read it.

    Returns:
        One row per purchase that the model or the counts read (the latest ones), oldest first:
        position (index in the history), item_id, the item's name or title if the item table has
        them, contribution (signed), share (contribution over the sum of all absolute contributions;
        0 if all are 0) and rest (the same in each row): what no single purchase adds, such as the
        dot product. The contributions plus one rest add up to the item's score.

    Raises:
        InputError: the item, or every item of the history, is not in the catalogue; see
            `ModelBundle.read_history`.
    """
    user = bundle.read_history(history, at)
    candidate = known_tokens([item], bundle.vocabulary, "item", "catalogue")
    latest = slice(-_items_read(bundle), None)
    tokens, positions = user.histories.items[latest], user.positions[latest]
    if not len(tokens):
        raise InputError("history: none of its items is in the catalogue: nothing to explain by")
    recent = user.histories.latest(len(tokens))
    if has_parts(bundle):
        contributions, rest = _parts(bundle, recent, candidate)
    else:
        contributions, score = losses_by_removal(bundle.scorer, recent, candidate)
        rest = score - float(contributions.sum())
    size = np.abs(contributions).sum()
    return (
        bundle.item_table.select("item_id", *bundle.name_columns)[tokens - 1]
        .with_columns(
            pl.Series("contribution", contributions),
            pl.Series("share", contributions / size if size else contributions),
            pl.lit(rest, dtype=pl.Float32).alias("rest"),
        )
        .insert_column(0, pl.Series("position", positions))
    )


def has_parts(bundle: ModelBundle) -> bool:
    """Return whether scores are sums over purchases, up to a rest; else removal explains them."""
    if bundle.baseline is not None:
        return False
    return bundle.model.head.kv_source is not None or bundle.count_ensemble is not None


def _items_read(bundle: ModelBundle) -> int:
    """Return how many of the latest items of a history are explained."""
    if bundle.baseline is not None:
        return _LONGEST
    read = bundle.experiment.model.max_sequence_length
    if bundle.count_ensemble is None:
        return read
    longest = bundle.count_ensemble.items_read(read)
    return _ALL if longest is None else longest


def _parts(
    bundle: ModelBundle, history: Histories, candidate: NDArray[np.int32]
) -> tuple[NDArray[np.float32], float]:
    """Return what attention and counts add for each item of one history [L], and the rest."""
    read = bundle.experiment.model.max_sequence_length
    recent = history.latest(read)
    contributions = np.zeros(len(history.items), dtype=np.float32)
    parts = _attention_parts(bundle.model, recent, candidate)
    if parts is None:
        rest = float(ModelScorer(bundle.model, read).score(recent)[0, candidate])
    else:
        contributions[-len(recent.items) :], rest = parts
    if bundle.count_ensemble is not None:
        counts = bundle.count_ensemble.contributions(history.items, candidate.item())
        contributions += counts.astype(np.float32)
    return contributions, rest


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
