"""Lists of best items that are not all alike: maximal marginal relevance, and caps on groups."""

from dataclasses import dataclass

import numpy as np

from recsys.data.histories import PAD, Bools, Float32s, Histories, Int32s, Int64s
from recsys.inference.ranking import no_items, top_k
from recsys.inference.scorer import ELEMENTS_PER_BATCH, Scorer, Seen, TopItems

_SMALLEST_POOL, _POOL_PER_ITEM, _GROWTH = 100, 10, 4
UNGROUPED = -1
"""The group of an item that no cap counts."""


Cap = tuple[Int64s, int]
"""The group of each item token [I + 1], or `UNGROUPED`; and how many of one a list may have."""


@dataclass(frozen=True, slots=True, eq=False)
class Diversity:
    """How lists are made diverse.

    The best item is followed, one by one, by the item of the pool, among those that the caps leave,
    with the largest

        (1 - weight) · relevance(i) - weight · max over the chosen items j of cos(e_i, e_j)

    (maximal marginal relevance: Carbonell & Goldstein 1998), of equal ones by the one that scores
    higher. The relevance is the score, scaled to 0 to 1 within the user's pool: the 10 k best
    items, at least 100, and four times as many while caps leave fewer than k.
    """

    weight: float = 0.0
    """0 (scores alone) to 1 (dissimilarity alone)."""
    directions: Float32s | None = None
    """Shape [I + 1, D]: the embeddings divided by their lengths; None if the weight is 0."""
    caps: tuple[Cap, ...] = ()


def diverse_top_k(
    scorer: Scorer, histories: Histories, k: int, seen: Seen, diversity: Diversity
) -> TopItems:
    """Choose k diverse items for each user, in the order of choice; see `top_k`."""
    items, values = no_items(len(histories), k)
    pool = min(scorer.num_items, max(_SMALLEST_POOL, _POOL_PER_ITEM * k))
    dim = 1 if diversity.directions is None else diversity.directions.shape[1]
    rows = np.arange(len(histories))
    while len(rows):
        short = np.zeros(len(rows), dtype=bool)
        size = max(1, ELEMENTS_PER_BATCH // (pool * dim))  # their embeddings are held at once
        for start in range(0, len(rows), size):
            users = rows[start : start + size]
            tokens, scores = top_k(scorer, histories.take(users), max(k, pool), seen)
            chosen, missing = _choose(tokens, scores, k, diversity)
            items[users] = np.where(missing, PAD, np.take_along_axis(tokens, chosen, 1))
            values[users] = np.where(missing, -np.inf, np.take_along_axis(scores, chosen, 1))
            short[start : start + size] = missing.any(axis=1) & (tokens[:, -1] != PAD)
        if pool == scorer.num_items:
            break
        rows, pool = rows[short], min(_GROWTH * pool, scorer.num_items)
    return items, values


def _choose(tokens: Int32s, scores: Float32s, k: int, diversity: Diversity) -> tuple[Int64s, Bools]:
    """Choose k places of each pool [B, N]; and whether none was left [B, k]."""
    users, weight = np.arange(len(tokens)), diversity.weight
    left = tokens != PAD
    gain = (1 - weight) * _relevance(scores, left)
    pool = None if diversity.directions is None else diversity.directions[tokens]
    groups = [(of_items[tokens], most) for of_items, most in diversity.caps]
    counts = [np.zeros(tokens.shape, dtype=np.int64) for _ in groups]
    nearest = np.zeros(tokens.shape, dtype=np.float32)
    chosen = np.zeros((len(tokens), k), dtype=np.int64)
    missing = np.zeros((len(tokens), k), dtype=bool)
    for position in range(k):
        merit = np.where(left, gain - weight * nearest, -np.inf)
        best = merit.argmax(axis=1)  # the first of equal ones
        chosen[:, position], missing[:, position] = best, np.isneginf(merit[users, best])
        left[users, best] = False
        for (group, most), count in zip(groups, counts, strict=True):
            own = group[users, best, None]
            count[:] += (group == own) & (own != UNGROUPED)
            left &= count < most
        if pool is not None:
            cosines = (pool @ pool[users, best, :, None])[..., 0]
            nearest = np.maximum(nearest, cosines) if position else cosines
    return chosen, missing


def _relevance(scores: Float32s, known: Bools) -> Float32s:
    """The scores [B, N], scaled to 0 to 1 between the lowest and the highest that is known."""
    low = np.where(known, scores, np.inf).min(axis=1, initial=np.inf, keepdims=True)
    high = np.where(known, scores, -np.inf).max(axis=1, initial=-np.inf, keepdims=True)
    scaled = np.ones_like(scores)
    np.divide(scores - low, high - low, out=scaled, where=known & (high > low))
    return scaled
