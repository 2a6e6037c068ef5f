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
from recsys.inference.scorer import RankingScorer, Scorer, user_batches

NEVER = np.iinfo(np.int32).max
"""The rank of a target that can never be recommended: no metric credits it, whatever its k."""

Seen = Literal["filter", "allow"]
"""Whether the items of a user's history are excluded from the ranking (filter) or not (allow)."""

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
        rank = _at_least(scores, target_score)
    else:
        catalogue = torch.arange(scores.shape[1], device=scores.device)
        rank = 1 + _precedes(scores, catalogue, target_score[:, None], target[:, None], ties).sum(1)
    # Subtract excluded items afterwards: faster than a copy of the scores without them.
    rows, tokens = _excluded(histories, seen, scores)
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
    items = np.empty((len(histories), k), dtype=np.int32)
    values = np.empty((len(histories), k), dtype=np.float32)
    for users in user_batches(len(histories), scorer.num_items):
        scores = _checked_scores(scorer, histories[users])
        # The scores are the scorer's: restore the excluded ones below, since copying all of them
        # takes half as long as computing them.
        excluded = _excluded(histories[users], seen, scores)
        original = scores[excluded]
        scores[excluded] = -math.inf
        best, tokens, tied = _best(scores, k)
        if tied.any():
            tokens[tied] = _smallest_of_ties(scores[tied], best[tied, -1:], k)
        tokens = tokens.sort(dim=1).values  # so that equal scores are in their order
        best, order = scores.gather(1, tokens).sort(dim=1, descending=True, stable=True)
        tokens = tokens.gather(1, order).masked_fill_(best == -math.inf, PAD)
        items[users], values[users] = tokens.cpu().numpy(), best.cpu().numpy()
        scores[excluded] = original
    return items, values


def _best(
    scores: torch.Tensor, k: int, block: int = 512
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.topk`, which splits wide rows into blocks.

    No item outside the k blocks with the largest maxima scores higher than the k-th best in them,
    and finding maxima is limited by the speed of memory only.

    Returns:
        The k best scores of each row and their tokens; and the rows where other scores equal the
        last of them, since `torch.topk` does not define which of those it returns.
    """
    blocks = scores.shape[1] // block
    if blocks < 4 * k:
        best = scores.topk(k)
        return best.values, best.indices, _at_least(scores, best.values[:, -1]) > k
    covered = blocks * block
    maxima = scores[:, :covered].unflatten(1, (blocks, block)).amax(2)
    fullest = maxima.topk(k).indices
    within = torch.arange(block, device=scores.device)
    rest = torch.arange(covered, scores.shape[1], device=scores.device).expand(len(scores), -1)
    tokens = torch.cat([(fullest[..., None] * block + within).flatten(1), rest], dim=1)
    found = scores.gather(1, tokens)
    best = found.topk(k)
    # Unless more than k blocks hold a score equal to the last, all of these are among the tokens.
    last = best.values[:, -1:]
    tied = ((maxima >= last).sum(1) > k) | ((found >= last).sum(1) > k)
    return best.values, tokens.gather(1, best.indices), tied


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


def _smallest_of_ties(scores: torch.Tensor, kth: torch.Tensor, k: int) -> torch.Tensor:
    """The k best items of each row [B, k]: those above the k-th score, then the smallest tokens."""
    above, level = scores > kth, scores == kth
    room = k - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1, dtype=torch.int32) <= room))
    return chosen.nonzero()[:, 1].view(-1, k)


def _at_least(scores: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """The number of scores of each row that are at least its threshold [B].

    On a CPU numpy counts them: it takes a tenth of the time of torch's comparison and sum.
    """
    if scores.device.type == "cpu":
        above = scores.numpy() >= thresholds.numpy()[:, None]
        return torch.from_numpy(np.count_nonzero(above, axis=1))
    return (scores >= thresholds[:, None]).sum(1)


def _excluded(
    histories: Histories, seen: Seen, scores: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows and tokens of excluded items: PAD and, if filtered, each seen item once."""
    rows, tokens = np.arange(len(histories)), np.zeros(len(histories), dtype=np.int64)
    if seen == "filter":
        width = scores.shape[1]
        pairs = np.unique(histories.users * width + histories.items)
        rows, tokens = np.append(rows, pairs // width), np.append(tokens, pairs % width)
    return torch.from_numpy(rows).to(scores.device), torch.from_numpy(tokens).to(scores.device)


def _checked_scores(scorer: Scorer, histories: Histories) -> torch.Tensor:
    """The scores [B, I + 1], checked against the protocol `Scorer`."""
    scores = scorer.score(histories)
    expected = (len(histories), scorer.num_items + 1)
    if tuple(scores.shape) != expected or scores.dtype != torch.float32:
        raise ValueError(
            f"{type(scorer).__name__}.score gave {tuple(scores.shape)} {scores.dtype}, "
            f"not {expected} torch.float32"
        )
    if scores.amax().isnan():  # the largest of numbers among which one is NaN
        raise NotANumberError(f"{type(scorer).__name__}.score gave NaN: did its training diverge?")
    return scores


def _only_candidates(scores: torch.Tensor, candidates: Histories) -> torch.Tensor:
    """The scores, -inf except for the candidates.

    The entire catalogue was scored: more than necessary, but ragged sets need no padding, and a
    score is the same number under every protocol.
    """
    rows, tokens = torch.from_numpy(candidates.users), torch.from_numpy(candidates.items).long()
    ranked = torch.zeros(scores.shape, dtype=torch.bool)
    ranked[rows, tokens] = True
    return scores.where(ranked.to(scores.device), -math.inf)
