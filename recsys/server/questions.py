"""What is asked of a model, for many users at a time: the same answers as one by one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.data.histories import PAD, Features, Histories
from recsys.errors import InputError
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Seen
from recsys.server.answers import (
    Contribution,
    Explanation,
    RecommendedItem,
    SimilarItem,
    SimilarItems,
)
from recsys.server.requests import Id
from recsys.server.served_model import ServedModel
from recsys.serving.explain import explain
from recsys.serving.inputs import UserHistories
from recsys.serving.pairs import UserItemPairs
from recsys.serving.similar import most_similar


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """A user and the items to score for this user."""

    user: UserHistories
    """Of one user."""
    tokens: NDArray[np.int32]
    """Shape [C]: item tokens, none PAD."""


def recommend(
    model: ServedModel,
    k: int,
    seen: Seen,
    allowed: NDArray[np.bool_] | None,
    users: Sequence[UserHistories],
) -> list[list[RecommendedItem]]:
    """Return the k best items of each user [B], best first.

    Args:
        model: the model.
        k: the number of items; fewer if filtering leaves fewer.
        seen: whether items of the history are filtered.
        allowed: whether each item token may be recommended [I + 1]; all if None.
        users: each of one user, of the same `kind_of_history`.

    Raises:
        InputError: k is larger than the catalogue, or than the number of retrieved items.
    """
    if model.retrieve is not None and k > model.retrieve:
        raise InputError(f"k={k}: must be at most {model.retrieve}, the items that are ranked")
    tokens, scores = top_k(model.scorer(seen, allowed), join(users), k, seen)
    return [
        [
            RecommendedItem(model.items.id(token), score, rank)
            for rank, (token, score) in enumerate(zip(row, values, strict=True), 1)
            if token != PAD
        ]
        for row, values in zip(tokens.tolist(), scores.tolist(), strict=True)
    ]


def score(model: ServedModel, asked: Sequence[Candidates]) -> list[list[float]]:
    """Return the scores [C] of the candidates of each user [B]; the users have one kind."""
    histories = join([one.user for one in asked])
    if len(asked) == 1:
        return [model.exact.score(histories, asked[0].tokens[None])[0].tolist()]
    counts = [len(one.tokens) for one in asked]
    pairs = UserItemPairs(
        np.repeat(np.arange(len(asked)), counts), np.concatenate([one.tokens for one in asked])
    )
    scores = np.empty(len(pairs.items), dtype=np.float32)
    for batch in pairs.batches():
        found = model.exact.score(histories.take(batch.users), batch.candidates)
        scores[batch.pairs] = found.numpy()[batch.candidates != PAD]
    return [part.tolist() for part in np.split(scores, np.cumsum(counts)[:-1])]


def similar(model: ServedModel, item: Id, k: int) -> SimilarItems:
    """Return the items with the most similar embeddings.

    Raises:
        InputError: the item is not in the catalogue; the model has no embeddings.
    """
    found, cosines = most_similar(model.directions, model.items.token(item), k)
    return SimilarItems.model_construct(
        items=[
            SimilarItem(model.items.id(token), cosine, rank)
            for rank, (token, cosine) in enumerate(
                zip(found.tolist(), cosines.tolist(), strict=True), 1
            )
        ]
    )


def explanation(model: ServedModel, user: UserHistories, item: Id) -> Explanation:
    """Return the parts of the score of an item, the largest contribution first.

    Raises:
        InputError: the item is not in the catalogue; see `explain`.
    """
    model.items.token(item)
    parts = explain(model.bundle, user, item)
    best = parts.sort("contribution", descending=True, maintain_order=True)
    rest = float(parts["rest"][0])
    wanted = best.select("position", "item_id", "contribution", "share").to_dicts()
    return Explanation(
        item_id=item,
        score=float(parts["contribution"].sum()) + rest,
        rest=rest,
        purchases=[Contribution(**row) for row in wanted],
        skipped=int(user.skipped[0]),
        assumed_gap=user.assumed_gap,
    )


def kind_of_history(user: UserHistories) -> Hashable:
    """Return what histories must have in common to be joined."""
    given = user.histories
    features, own = given.interaction_features, given.user_features
    return (
        given.times is None,
        given.request_times is None,
        None if features is None else id(features.table),
        None if own is None else id(own.table),
    )


def join(users: Sequence[UserHistories]) -> Histories:
    """Return the histories of several users [B], who have the same `kind_of_history`."""
    if len(users) == 1:
        return users[0].histories
    parts = [user.histories for user in users]
    return Histories(
        np.concatenate([part.items for part in parts]),
        np.cumsum([0, *(len(part.items) for part in parts)], dtype=np.int64),
        _concatenate([part.times for part in parts]),
        _concatenate([part.request_times for part in parts]),
        interaction_features=_join_features([part.interaction_features for part in parts]),
        user_features=_join_features([part.user_features for part in parts]),
    )


def _concatenate(parts: Sequence[NDArray[np.int64] | None]) -> NDArray[np.int64] | None:
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None


def _join_features(parts: Sequence[Features | None]) -> Features | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    return Features(given[0].table, np.concatenate([part.rows for part in given]))
