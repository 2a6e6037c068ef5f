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
from recsys.inference.scorer import Scorer, user_batches

NEVER = np.iinfo(np.int32).max
"""Rank of a target that can never be recommended: no metric credits it, whatever its k."""

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
    rows: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """The exact rank, 1 = best, of each target among all items of the catalogue.

    Under ``against_target`` the rank is the number of items that score at least as high as the
    target, itself included, so a constant scorer ranks every target last. A target that can never
    be recommended has the rank `NEVER`, and no metric credits it: one the scorer gives
    -inf, one outside its candidates, and under ``seen="filter"`` one the history already holds.

    Args:
        scorer: scores the catalogue of I items.
        histories: full histories before the targets [H histories]; each is scored once.
        targets: item tokens [Q], 1 to I.
        seen: whether items of the history are ranked.
        ties: the order of equal scores.
        candidates: item tokens that each target is ranked among, its own with them, in any order;
            None: the whole catalogue.
        rows: which history comes before each target [Q], ascending; None: its own.

    Returns:
        Ranks [Q], 1 to I, or `NEVER`.

    Raises:
        ValueError: as many targets as histories are needed, inside the catalogue; or the scores
            break the promises of `Scorer`.
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
        for start in range(first, last, len(scores)):  # no more rows at once than were scored
            some = slice(start, min(last, start + len(scores)))
            own = rows[some] - batch.start
            alone = np.array_equal(own, np.arange(len(scores)))
            ranks[some] = _ranks(
                scores if alone else scores[torch.from_numpy(own).to(scores.device)],
                targets[some],
                histories.take(rows[some]),
                None if candidates is None else candidates[some],
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
    """See `rank_targets`; one row of scores, history and set of candidates for each target."""
    if candidates is not None:
        scores = _candidates_alone(scores, candidates)
    target = torch.from_numpy(targets.astype(np.int64)).to(scores.device)
    bar = scores.gather(1, target[:, None])[:, 0]
    if ties == "against_target":
        rank = _at_least(scores, bar)
    else:
        catalogue = torch.arange(scores.shape[1], device=scores.device)
        rank = 1 + _precedes(scores, catalogue, bar[:, None], target[:, None], ties).sum(1)
    # What is not ranked is taken off again: cheaper than a copy of the scores without it.
    rows, tokens = _not_ranked(histories, seen, scores)
    ahead = _precedes(scores[rows, tokens], tokens, bar[rows], target[rows], ties)
    rank -= torch.bincount(rows[ahead], minlength=len(rank))
    rank[bar == -math.inf] = NEVER
    rank[rows[tokens == target[rows]]] = NEVER
    ranks: NDArray[np.int64] = rank.cpu().numpy()
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
        scores = _checked_scores(scorer, histories[users])
        # The scores are the scorer's: what is left out is put back below, for to copy them all
        # takes half as long as to make them.
        left_out = _not_ranked(histories[users], seen, scores)
        as_they_were = scores[left_out]
        scores[left_out] = -math.inf
        best, tokens, tied = _best(scores, k)
        if tied.any():
            tokens[tied] = _smallest_of_ties(scores[tied], best[tied, -1:], k)
        tokens = tokens.sort(dim=1).values  # and in which order equal scores stand
        best, order = scores.gather(1, tokens).sort(dim=1, descending=True, stable=True)
        tokens = tokens.gather(1, order).masked_fill_(best == -math.inf, PAD)
        items[users], values[users] = tokens.cpu().numpy(), best.cpu().numpy()
        scores[left_out] = as_they_were
    return items, values


def _best(
    scores: torch.Tensor, k: int, block: int = 512
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.topk`, of wide rows by way of their blocks.

    No item outside the k blocks of the largest maxima scores higher than the k-th best in them, and
    maxima are found at the speed of memory.

    Returns:
        The k best scores of each row and their tokens; and for which rows others are as good as the
        last of them: `torch.topk` leaves open which of those it takes.
    """
    blocks = scores.shape[1] // block
    if blocks < 4 * k:
        best = scores.topk(k)
        return best.values, best.indices, _at_least(scores, best.values[:, -1]) > k
    whole = blocks * block
    maxima = scores[:, :whole].unflatten(1, (blocks, block)).amax(2)
    fullest = maxima.topk(k).indices
    within = torch.arange(block, device=scores.device)
    rest = torch.arange(whole, scores.shape[1], device=scores.device).expand(len(scores), -1)
    tokens = torch.cat([(fullest[..., None] * block + within).flatten(1), rest], dim=1)
    found = scores.gather(1, tokens)
    best = found.topk(k)
    # Unless more than k blocks hold as good a score as the last, all such are among the tokens.
    last = best.values[:, -1:]
    tied = ((maxima >= last).sum(1) > k) | ((found >= last).sum(1) > k)
    return best.values, tokens.gather(1, best.indices), tied


def _precedes(
    scores: torch.Tensor, tokens: torch.Tensor, bar: torch.Tensor, target: torch.Tensor, ties: Ties
) -> torch.Tensor:
    """Which items stand before the target or, where ties are against it, are the target.

    Args:
        scores: of the items.
        tokens: the items.
        bar: score of the target that each is held against.
        target: its token.
        ties: the order of equal scores.

    Returns:
        As all of them broadcast.
    """
    if ties == "against_target":
        return scores >= bar
    return (scores > bar) | ((scores == bar) & (tokens < target))


def _smallest_of_ties(scores: torch.Tensor, kth: torch.Tensor, k: int) -> torch.Tensor:
    """The k best items of each row [B, k]: those above the k-th score, then the smallest tokens."""
    above, level = scores > kth, scores == kth
    room = k - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1, dtype=torch.int32) <= room))
    return chosen.nonzero()[:, 1].view(-1, k)


def _at_least(scores: torch.Tensor, bar: torch.Tensor) -> torch.Tensor:
    """How many scores of each row are at least its bar [B].

    On a CPU by numpy, which compares and counts ten times as fast as torch compares and sums.
    """
    if scores.device.type == "cpu":
        return torch.from_numpy(np.count_nonzero(scores.numpy() >= bar.numpy()[:, None], axis=1))
    return (scores >= bar[:, None]).sum(1)


def _not_ranked(
    histories: Histories, seen: Seen, scores: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and tokens of what is left out: PAD, and where they are filtered, seen items once."""
    rows, tokens = np.arange(len(histories)), np.zeros(len(histories), dtype=np.int64)
    if seen == "filter":
        width = scores.shape[1]
        pairs = np.unique(histories.users * width + histories.items)
        rows, tokens = np.append(rows, pairs // width), np.append(tokens, pairs % width)
    return torch.from_numpy(rows).to(scores.device), torch.from_numpy(tokens).to(scores.device)


def _checked_scores(scorer: Scorer, histories: Histories) -> torch.Tensor:
    """The scores [B, I + 1], as the scorer promised them."""
    scores = scorer.score(histories)
    expected = (len(histories), scorer.num_items + 1)
    if tuple(scores.shape) != expected or scores.dtype != torch.float32:
        raise ValueError(
            f"{type(scorer).__name__}.score gave {tuple(scores.shape)} {scores.dtype}, "
            f"not {expected} torch.float32"
        )
    if scores.amax().isnan():  # the largest of numbers among which one is NaN
        raise ValueError(f"{type(scorer).__name__}.score gave NaN")
    return scores


def _candidates_alone(scores: torch.Tensor, candidates: Histories) -> torch.Tensor:
    """The scores, -inf for all but the candidates.

    The whole catalogue was scored: dearer than it must be, but ragged sets need no padding, and a
    score is the same number under every protocol.
    """
    rows, tokens = torch.from_numpy(candidates.users), torch.from_numpy(candidates.items).long()
    ranked = torch.zeros(scores.shape, dtype=torch.bool)
    ranked[rows, tokens] = True
    return scores.where(ranked.to(scores.device), -math.inf)
