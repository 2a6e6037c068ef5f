"""Exact ranks and best items in the entire catalogue, in bounded memory.

Users are processed in batches: no [users x catalogue] tensor is ever held. Scores are compared in
float32 whatever the precision of training: with eight bits of mantissa the top of the list ties,
and ties inflate the metrics.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.errors import InputError
from recsys.inference.best_scores import (
    at_least,
    best_of_rows,
    finds_few,
    smallest_of_ties,
)
from recsys.inference.scorer import (
    FEWEST_USERS,
    RankingScorer,
    Scorer,
    SearchingScorer,
    Seen,
    user_batches,
    users_per_batch,
)

NEVER = np.iinfo(np.int32).max
"""The rank of a target that can never be recommended: no metric credits it, whatever its k."""

Ties = Literal["against_target", "item_id"]
"""The order of equal scores: the target after all others, or ascending item tokens (which ascend
with item ids)."""


class NotANumberError(InputError):
    """A score is not a number."""


@torch.inference_mode()
def rank_targets(
    scorer: Scorer,
    histories: Histories,
    targets: NDArray[np.int32],
    seen: Seen,
    ties: Ties = "against_target",
    candidates: Histories | None = None,
    rows: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Compute the exact rank, 1 = best, of each target among all items of the catalogue.

    With ``ties="against_target"`` the rank is the number of items that score at least as high as
    the target, itself included, so a constant scorer ranks every target last. A target that can
    never be recommended has the rank `NEVER`, which no metric credits: one with a score of -inf,
    one outside its candidates, and with ``seen="filter"`` one that is in the history.

    Args:
        scorer: scores the catalogue of I items.
        histories: H complete histories before the targets; each is scored once.
        targets: item tokens [Q], 1 to I.
        seen: whether items of the history are excluded.
        ties: the order of equal scores.
        candidates: the item tokens that each target is ranked among, the target included, in any
            order; if None, the entire catalogue.
        rows: the row of each target's history [Q], ascending; if None, H = Q and it is its own.

    Returns:
        Ranks [Q], 1 to I, or `NEVER`.

    Raises:
        ValueError: the number of targets is not that of the rows, or one is not in the catalogue;
            or the scores violate the protocol `Scorer`.
    """
    targets = np.asarray(targets)
    rows = np.arange(len(histories)) if rows is None else rows
    if targets.shape != rows.shape:
        raise ValueError(f"{len(rows)} histories need as many targets, not {targets.shape}")
    outside = (targets < 1) | (targets > scorer.num_items)
    if outside.any():
        raise ValueError(
            f"targets are item tokens from 1 to {scorer.num_items}, not {targets[outside][0]}"
        )
    ranks = np.empty(len(targets), dtype=np.int64)
    for batch in user_batches(len(histories), scorer.num_items):
        scores = _checked_scores(scorer, histories[batch])
        first, last = np.searchsorted(rows, [batch.start, batch.stop])
        for start in range(first, last, len(scores)):  # no more rows at a time than were scored
            chunk = slice(start, min(last, start + len(scores)))
            own = rows[chunk] - batch.start
            one_each = np.array_equal(own, np.arange(len(scores)))
            ranks[chunk] = _ranks(
                scores if one_each else scores[torch.from_numpy(own).to(scores.device)],
                targets[chunk],
                histories.take(rows[chunk]),
                None if candidates is None else candidates[chunk],
                seen,
                ties,
            )
    return ranks


def _ranks(
    scores: torch.Tensor,
    targets: NDArray[np.int32],
    histories: Histories,
    candidates: Histories | None,
    seen: Seen,
    ties: Ties,
) -> NDArray[np.int64]:
    """See `rank_targets`; each target has its row of scores, of histories and of candidates."""
    if candidates is not None:
        scores = _only_candidates(scores, candidates)
    target = torch.from_numpy(targets.astype(np.int64)).to(scores.device)
    target_score = scores.gather(1, target[:, None])[:, 0]
    if ties == "against_target":
        rank = at_least(scores, target_score)
    else:
        catalogue = torch.arange(scores.shape[1], device=scores.device)
        rank = 1 + _precedes(scores, catalogue, target_score[:, None], target[:, None], ties).sum(1)
    # Subtract excluded items afterwards: faster than a copy of the scores without them.
    rows, tokens = _excluded(histories, seen, scores.shape[1], scores.device)
    ahead = _precedes(scores[rows, tokens], tokens, target_score[rows], target[rows], ties)
    rank -= torch.bincount(rows[ahead], minlength=len(rank))
    rank[target_score == -math.inf] = NEVER
    rank[rows[tokens == target[rows]]] = NEVER
    ranks: NDArray[np.int64] = rank.cpu().numpy()
    return ranks


@torch.inference_mode()
def top_k(
    scorer: Scorer, histories: Histories, k: int, seen: Seen
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Find the k best items of each user, best first; equal scores by ascending item token.

    Returns:
        Item tokens [B, k] and their scores [B, k]. Where a user has fewer than k items to
        recommend, PAD with score -inf fills the end.

    Raises:
        InputError: k is not between 1 and the size of the catalogue.
    """
    if not 1 <= k <= scorer.num_items:
        raise InputError(f"k={k}: must be from 1 to {scorer.num_items}, the size of the catalogue")
    if isinstance(scorer, RankingScorer):
        return scorer.top_k(histories, k, seen)
    is_large = users_per_batch(scorer.num_items) == FEWEST_USERS
    if is_large and isinstance(scorer, SearchingScorer) and finds_few(k, scorer.num_items):
        return _searched(scorer, histories, k, seen)
    items = np.empty((len(histories), k), dtype=np.int32)
    values = np.empty((len(histories), k), dtype=np.float32)
    for users in user_batches(len(histories), scorer.num_items):
        scores = _checked_scores(scorer, histories[users])
        # The scores are the scorer's: restore the excluded ones below, since copying all of them
        # takes half as long as computing them.
        excluded = _excluded(histories[users], seen, scores.shape[1], scores.device)
        original = scores[excluded]
        scores[excluded] = -math.inf
        best, tokens, tied = best_of_rows(scores, k)
        if tied.any():
            tokens[tied] = smallest_of_ties(scores[tied], best[tied, -1:], k)
        tokens = tokens.sort(dim=1).values  # so that equal scores are in their order
        best, order = scores.gather(1, tokens).sort(dim=1, descending=True, stable=True)
        tokens = tokens.gather(1, order).masked_fill_(best == -math.inf, PAD)
        items[users], values[users] = tokens.cpu().numpy(), best.cpu().numpy()
        scores[excluded] = original
    return items, values


def _searched(
    scorer: SearchingScorer, histories: Histories, k: int, seen: Seen
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """See `top_k`; the scores of all items are never held at once."""
    items = np.empty((len(histories), k), dtype=np.int32)
    values = np.empty((len(histories), k), dtype=np.float32)
    for rows, search in scorer.searches(histories):
        left_out = _excluded(histories.take(rows), seen, scorer.num_items + 1)
        by_token = left_out[1].argsort()
        excluded = left_out[0][by_token], left_out[1][by_token]
        best, tokens = search(k, excluded)
        _check_numbers(scorer, best)
        tokens = tokens.masked_fill_(best == -math.inf, PAD)
        items[rows], values[rows] = tokens.cpu().numpy(), best.cpu().numpy()
    return items, values


def _precedes(
    scores: torch.Tensor,
    tokens: torch.Tensor,
    target_score: torch.Tensor,
    target: torch.Tensor,
    ties: Ties,
) -> torch.Tensor:
    """Whether items rank before the target; if ties are against it, the target itself does too.

    Args:
        scores: the scores of the items.
        tokens: the item tokens.
        target_score: the score of the target that each item is compared to.
        target: its token.
        ties: the order of equal scores.

    Returns:
        bool, of the shape that all of them broadcast to.
    """
    if ties == "against_target":
        return scores >= target_score
    return (scores > target_score) | ((scores == target_score) & (tokens < target))


def _excluded(
    histories: Histories, seen: Seen, width: int, device: torch.device | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and tokens of excluded items: PAD and, if filtered, each seen item once.

    Args:
        histories: those whose items are excluded.
        seen: whether they are.
        width: the number of item tokens, PAD included.
        device: of the answer.
    """
    rows, tokens = np.arange(len(histories)), np.zeros(len(histories), dtype=np.int64)
    if seen == "filter":
        pairs = np.unique(histories.users * width + histories.items)
        rows, tokens = np.append(rows, pairs // width), np.append(tokens, pairs % width)
    return torch.from_numpy(rows).to(device), torch.from_numpy(tokens).to(device)


def _checked_scores(scorer: Scorer, histories: Histories) -> torch.Tensor:
    """The scores [B, I + 1], checked against the protocol `Scorer`."""
    scores = scorer.score(histories)
    expected = (len(histories), scorer.num_items + 1)
    if tuple(scores.shape) != expected or scores.dtype != torch.float32:
        raise ValueError(
            f"{type(scorer).__name__}.score gave {tuple(scores.shape)} {scores.dtype}, "
            f"not {expected} torch.float32"
        )
    _check_numbers(scorer, scores)
    return scores


def _check_numbers(scorer: Scorer, scores: torch.Tensor) -> None:
    if scores.amax().isnan():  # the largest of numbers among which one is NaN
        raise NotANumberError(f"{type(scorer).__name__}.score gave NaN: did its training diverge?")


def _only_candidates(scores: torch.Tensor, candidates: Histories) -> torch.Tensor:
    """The scores, -inf except for the candidates.

    The entire catalogue was scored: more than necessary, but ragged sets need no padding, and a
    score is the same number under every protocol.
    """
    rows, tokens = torch.from_numpy(candidates.users), torch.from_numpy(candidates.items).long()
    ranked = torch.zeros(scores.shape, dtype=torch.bool)
    ranked[rows, tokens] = True
    return scores.where(ranked.to(scores.device), -math.inf)
