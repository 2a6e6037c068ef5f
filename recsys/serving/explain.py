"""Explain a score by the purchases that drove it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import torch

from recsys.data.histories import PAD, Float32s, Histories, Int32s
from recsys.errors import InputError
from recsys.inference.model_scorer import ModelScorer, model_inputs
from recsys.inference.scorer import Scorer
from recsys.model.models import Model
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import UserHistories
from recsys.serving.raw_values import known_tokens

_LONGEST = 200
"""The items of a history that explain the score of a baseline, which reads all of them."""

_Parts = tuple[Float32s, Float32s]
"""What each item of a history adds to the score of each candidate [C, L], and the rests [C]."""


def explain_items(
    bundle: ModelBundle, user: UserHistories, items: Sequence[Any]
) -> list[pl.DataFrame]:
    """Explain the scores of items by what each purchase of one user adds to them.

    Target attention adds one term per purchase to the dot product, and so does the count ensemble.
    Scores of other models and of baselines are explained by removal: a contribution is what the
    score loses if that purchase is taken away.

    Returns:
        For each item one row per purchase that is read, oldest first: position (index in the
        history), item_id, the item's name or title if there is one, contribution (signed), share
        (of the sum of all absolute contributions) and rest (the same in each row): what no single
        purchase adds. The contributions plus one rest are the item's score.

    Raises:
        InputError: an item, or every item of the history, is unknown; there are several users.
    """
    if len(user.user_ids) != 1:
        raise InputError(f"history: of one user, not of {len(user.user_ids)}")
    candidates = known_tokens(items, bundle.vocabulary, "item", "catalogue")
    read = bundle.experiment.model.max_sequence_length
    if bundle.baseline is not None:
        read = _LONGEST
    elif bundle.count_ensemble is not None:
        read = bundle.count_ensemble.items_read(read)
    latest = slice(-read, None)
    tokens, positions = user.histories.items[latest], user.positions[latest]
    if not len(tokens):
        raise InputError("history: none of its items is in the catalogue: nothing to explain by")
    recent = user.histories.latest(len(tokens))
    if bundle.baseline is None:
        contributions, rests = _model_parts(bundle, recent, candidates)
    else:
        contributions, _ = _by_removal(bundle.scorer, recent, candidates)
        scores = bundle.scorer.score(user.histories, candidates[None])[0].cpu().numpy()
        rests = scores - contributions.sum(axis=1)  # older purchases too
    purchases = bundle.item_table.select("item_id", *bundle.name_columns)[tokens - 1]
    purchases = purchases.insert_column(0, pl.Series("position", positions))
    return [
        purchases.with_columns(
            pl.Series("contribution", parts),
            pl.Series("share", parts / (np.abs(parts).sum() or 1)),
            pl.lit(rest, dtype=pl.Float32).alias("rest"),
        )
        for parts, rest in zip(contributions, rests, strict=True)
    ]


def _model_parts(bundle: ModelBundle, history: Histories, candidates: Int32s) -> _Parts:
    read = bundle.experiment.model.max_sequence_length
    recent = history.latest(read)
    if bundle.model.head.explains:
        of_model, rests = _attention_parts(bundle.model, recent, candidates)
    else:
        of_model, rests = _by_removal(ModelScorer(bundle.model, read), recent, candidates)
    contributions = np.zeros((len(candidates), len(history.items)), dtype=np.float32)
    contributions[:, -len(recent.items) :] = of_model
    if bundle.count_ensemble is not None:
        counts = bundle.count_ensemble
        contributions += np.stack(
            [counts.contributions(history.items, candidate) for candidate in candidates.tolist()]
        ).astype(np.float32)
        rests = rests + counts.for_all(candidates).astype(np.float32)
    return contributions, rests


@torch.inference_mode()
def _attention_parts(model: Model, history: Histories, candidates: Int32s) -> _Parts:
    embeddings = model.items(torch.from_numpy(candidates).to(model.items.weight.device))
    inputs = model_inputs(model, history)
    states, lengths = model(inputs), inputs.lengths
    represented = model.head.represent_candidates(embeddings)
    contributions = model.head.contributions(states, represented, lengths)[0].T
    scores = model.head.score_last(model.head.select_last(states, lengths), represented)[0]
    return contributions.cpu().numpy(), (scores - contributions.sum(dim=1)).cpu().numpy()


@torch.inference_mode()
def _by_removal(scorer: Scorer, history: Histories, candidates: Int32s) -> _Parts:
    """Score items [C] again without each of the L purchases of one history in turn."""
    length = len(history.items)
    scores: Float32s = scorer.score(history, candidates[None])[0].cpu().numpy()
    if length == 1:  # models need one item
        return scores[:, None], np.zeros_like(scores)
    shorter = history.take(np.zeros(length, dtype=np.int64))
    items = shorter.items.copy()
    items[shorter.offsets[:-1] + np.arange(length)] = PAD
    shorter = replace(shorter, items=items).take(np.arange(length))  # leaves PAD out
    others = scorer.score(shorter, np.repeat(candidates[None], length, axis=0))
    losses = scores[:, None] - others.T.cpu().numpy()
    return losses, scores - losses.sum(axis=1)
