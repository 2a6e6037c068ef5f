"""Exact ranks and best items over the whole catalogue, in bounded memory.

Users go through in batches: no [users x catalogue] tensor is ever held. Scores are compared in
float32 whatever the model was trained in: eight bits of mantissa tie the top of the list, and ties
flatter.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.errors import InputError
from recsys.evaluation.scorer import Scorer, user_batches

Seen = Literal["filter", "allow"]
"""filter: every item of the user's given history is left out of the ranking; allow: none is."""

Ties = Literal["against_target", "item_id"]
"""Who comes first among equal scores: everyone but the target, or the smaller item token (tokens
ascend with item ids)."""


@torch.inference_mode()
def rank_targets(
    scorer: Scorer,
    histories: Histories,
    targets: NDArray[np.int32],
    seen: Seen,
    ties: Ties = "against_target",
    candidates: Histories | None = None,
) -> NDArray[np.int64]:
    """The exact rank, 1 = best, of each user's target among all items of the catalogue.

    Under ``against_target`` the rank is the number of items that score at least as high as the
    target, itself included, so a constant scorer ranks every target last. A target that can never
    be recommended ranks behind everything, I + 1, and no metric credits it: one the scorer gives
    -inf, one outside its candidates, and under ``seen="filter"`` one the history already holds.

    Args:
        scorer: scores the catalogue of I items.
        histories: full histories of Q users before their targets.
        targets: item tokens [Q], 1 to I.
        seen: whether items of the history are ranked.
        ties: the order of equal scores.
        candidates: item tokens that each target is ranked among, its own with them, in any order;
            None: the whole catalogue.

    Returns:
        Ranks [Q], 1 to I + 1.

    Raises:
        ValueError: as many targets as histories are needed, inside the catalogue; or the scores
            break the promises of `Scorer`.
    """
    targets = np.asarray(targets)
    if targets.shape != (len(histories),):
        raise ValueError(f"{len(histories)} histories need as many targets, not {targets.shape}")
    outside = (targets < 1) | (targets > scorer.num_items)
    if outside.any():
        raise ValueError(
            f"targets are item tokens from 1 to {scorer.num_items}, not {targets[outside][0]}"
        )
    ranks = np.empty(len(targets), dtype=np.int64)
    for users in user_batches(len(targets), scorer.num_items):
        scores = _catalogue_scores(scorer, histories[users], seen)
        if candidates is not None:
            _leave_out_others(scores, candidates[users])
        target = torch.from_numpy(targets[users].astype(np.int64)).to(scores.device)[:, None]
        target_scores = scores.gather(1, target)
        if ties == "against_target":
            rank = (scores >= target_scores).sum(1)
        else:
            ahead = torch.arange(scores.shape[1], device=scores.device) < target
            rank = 1 + ((scores > target_scores) | ((scores == target_scores) & ahead)).sum(1)
        rank[target_scores[:, 0] == -math.inf] = scorer.num_items + 1
        ranks[users] = rank.cpu().numpy()
    return ranks


@torch.inference_mode()
def top_k(
    scorer: Scorer, histories: Histories, k: int, seen: Seen
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The k best items of each user, best first; equal scores by ascending item token.

    Returns:
        Item tokens [B, k] and their scores [B, k]. Where a user has fewer than k items to
        recommend, PAD with score -inf fills the end.

    Raises:
        InputError: k is not between 1 and the size of the catalogue.
    """
    if not 1 <= k <= scorer.num_items:
        raise InputError(f"k={k}: must be from 1 to {scorer.num_items}, the size of the catalogue")
    items = np.empty((len(histories), k), dtype=np.int32)
    values = np.empty((len(histories), k), dtype=np.float32)
    for users in user_batches(len(histories), scorer.num_items):
        scores = _catalogue_scores(scorer, histories[users], seen)
        # torch.topk leaves the order of equal scores open, so take only the k-th score from it,
        # and of the items that tie there, as many as have room, from the smallest token up.
        kth = scores.topk(k).values[:, -1:]
        above, level = scores > kth, scores == kth
        room = k - above.sum(1, keepdim=True)
        chosen = above | (level & (level.cumsum(1, dtype=torch.int32) <= room))
        tokens = chosen.nonzero()[:, 1].view(-1, k)
        best = scores.gather(1, tokens).sort(dim=1, descending=True, stable=True)
        tokens = tokens.gather(1, best.indices)
        tokens[best.values == -math.inf] = PAD
        items[users], values[users] = tokens.cpu().numpy(), best.values.cpu().numpy()
    return items, values


def _catalogue_scores(scorer: Scorer, histories: Histories, seen: Seen) -> torch.Tensor:
    """A copy of the scores [B, I + 1], checked, with -inf for PAD and for what is left out."""
    scores = scorer.score(histories)
    expected = (len(histories), scorer.num_items + 1)
    if tuple(scores.shape) != expected or scores.dtype != torch.float32:
        raise ValueError(
            f"{type(scorer).__name__}.score gave {tuple(scores.shape)} {scores.dtype}, "
            f"not {expected} torch.float32"
        )
    scores = scores.clone()
    scores[:, PAD] = -math.inf
    if scores.isnan().any():
        raise ValueError(f"{type(scorer).__name__}.score gave NaN")
    if seen == "filter":
        rows = torch.from_numpy(histories.users).to(scores.device)
        items = torch.from_numpy(histories.items.astype(np.int64)).to(scores.device)
        scores[rows, items] = -math.inf
    return scores


def _leave_out_others(scores: torch.Tensor, candidates: Histories) -> None:
    """-inf, in place, for all but the candidates.

    The whole catalogue was scored: dearer than it must be, but ragged sets need no padding, and a
    score is the same number under every protocol.
    """
    others = torch.ones(scores.shape, dtype=torch.bool)
    others[torch.from_numpy(candidates.users), torch.from_numpy(candidates.items).long()] = False
    scores[others.to(scores.device)] = -math.inf
