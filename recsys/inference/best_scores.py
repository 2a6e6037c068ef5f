"""The best scores of each user: of all scores, or of a part of the catalogue at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.inference.scorer import CatalogueBlock

_GROUP = 64
"""Neighbouring items of which only the best score is compared at first."""


def finds_few(k: int, num_items: int) -> bool:
    """Return whether the k best items are in few of the groups of neighbours."""
    return 8 * k * _GROUP <= num_items


def best_of_blocks(
    blocks: Iterable[CatalogueBlock], k: int, num_rows: int, excluded: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Find the k best items of each of B users, best first; equal scores by ascending item token.

    A score is read while it is in the cache of the processor, and then dropped, unless it is in one
    of the groups of neighbours whose best score is among the k best of such scores so far. No item
    of another group is among the k best items.

    Args:
        blocks: the catalogue, columns ascending. Scores are overwritten.
        k: the number of items.
        num_rows: B.
        excluded: the rows and the item tokens of scores that do not count, tokens ascending.

    Returns:
        Scores [B, k] and item tokens [B, k]. Where fewer than k items score more than -inf, the
        end scores -inf, and its tokens mean nothing. A score that is not a number comes first.
    """
    rows, tokens = excluded
    best = torch.full((num_rows, k), -torch.inf, device=rows.device)
    kept: list[tuple[Tensor, Tensor, Tensor]] = []
    for columns, scores in blocks:
        limits = torch.tensor([columns.start, columns.stop], device=tokens.device)
        first, last = torch.searchsorted(tokens, limits).tolist()
        scores[rows[first:last], tokens[first:last] - columns.start] = -torch.inf
        missing = -scores.shape[1] % _GROUP  # none, but at the end: `pad` copies all of it
        padded = F.pad(scores, (0, missing), value=-torch.inf) if missing else scores
        groups = padded.unflatten(1, (-1, _GROUP))
        highest = groups.amax(2)
        best = torch.cat([best, highest], dim=1).topk(k).values
        # Not "at least the k-th": NaN is kept, and groups of -inf are not.
        wanted = ~(highest < best[:, -1:]) & (highest != -torch.inf)
        row, group = wanted.nonzero(as_tuple=True)
        kept.append((row, columns.start + group * _GROUP, groups[row, group]))
    row, start, found = (torch.cat(parts) for parts in zip(*kept, strict=True))
    still = ~(found.amax(1) < best[row, -1])
    row, start, found = row[still], start[still], found[still]
    order = row.sort(stable=True).indices  # the groups of a row keep their order, by token
    row, start, found = row[order], start[order], found[order]
    counts = torch.bincount(row, minlength=num_rows)
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    width = max(int(counts.max()), -(-k // _GROUP))
    scores_kept = found.new_full((num_rows, width, _GROUP), -torch.inf)
    scores_kept[row, place] = found
    starts = start.new_zeros(num_rows, width)
    starts[row, place] = start
    chosen, index = scores_kept.flatten(1).sort(dim=1, descending=True, stable=True)
    index = index[:, :k]
    return chosen[:, :k], starts.gather(1, index // _GROUP) + index % _GROUP


def best_of_rows(
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
        return best.values, best.indices, at_least(scores, best.values[:, -1]) > k
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


def smallest_of_ties(scores: torch.Tensor, kth: torch.Tensor, k: int) -> torch.Tensor:
    """The k best items of each row [B, k]: those above the k-th score, then the smallest tokens."""
    above, level = scores > kth, scores == kth
    room = k - above.sum(1, keepdim=True)
    chosen = above | (level & (level.cumsum(1, dtype=torch.int32) <= room))
    return chosen.nonzero()[:, 1].view(-1, k)


def at_least(scores: torch.Tensor, thresholds: torch.Tensor) -> torch.Tensor:
    """The number of scores of each row that are at least its threshold [B].

    On a CPU numpy counts them: it takes a tenth of the time of torch's comparison and sum.
    """
    if scores.device.type == "cpu":
        above = scores.numpy() >= thresholds.numpy()[:, None]
        return torch.from_numpy(np.count_nonzero(above, axis=1))
    return (scores >= thresholds[:, None]).sum(1)
