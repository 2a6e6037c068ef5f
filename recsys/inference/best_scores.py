"""The best scores of each user: of all scores, or of a part of the catalogue at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.inference.scorer import GROUP, CatalogueBlock


def finds_few(k: int, num_items: int) -> bool:
    """Return whether the groups of neighbours with the k best items are few of all.

    With 70,000 items the 100 best took twice as long by groups as all at once.
    """
    return 64 * k * GROUP <= num_items


class Groups(NamedTuple):
    """Groups of neighbouring items, those of a user by ascending token."""

    rows: Tensor
    """Whose scores they are [N]."""
    starts: Tensor
    """The token of the first item [N]."""
    scores: Tensor
    """[N, 64]."""

    def best(self, k: int) -> Self:
        """Return the k groups of each user whose best scores are highest; of equals the first.

        They hold the k best items: an item of another group comes after the best one of each.
        """
        order = self.scores.amax(1).sort(descending=True, stable=True).indices
        order = order[self.rows[order].sort(stable=True).indices]
        kept = order[places(self.rows[order]) < k].sort().values
        return type(self)(*(part[kept] for part in self))


def best_of_blocks(
    blocks: Iterable[CatalogueBlock], k: int, num_rows: int, excluded: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Find the k best items of each of B users, best first; equal scores by ascending item token.

    A score is read while it is in the cache of the processor, and then dropped, unless it is in one
    of the groups of neighbours whose best score is among the k best of such scores so far. No item
    of another group is among the k best items.

    Args:
        blocks: the catalogue, columns ascending, at least one. Scores are overwritten.
        k: the number of items.
        num_rows: B.
        excluded: the rows and the item tokens of scores that do not count, tokens ascending.

    Returns:
        Scores [B, k] and item tokens [B, k]. Where fewer than k items score more than -inf, the
        end scores -inf, and its tokens mean nothing. At a score that is not a number the search
        ends, and it comes first.
    """
    rows, tokens = excluded
    best = torch.full((num_rows, k), -torch.inf)
    kept: list[Groups] = []
    count = 0
    for columns, scores in blocks:
        rows, tokens, best = (part.to(scores.device) for part in (rows, tokens, best))
        scores[within((rows, tokens), columns.start, columns.stop)] = -torch.inf
        missing = -scores.shape[1] % GROUP  # none, but at the end: `pad` copies all of it
        padded = F.pad(scores, (0, missing), value=-torch.inf) if missing else scores
        groups = padded.unflatten(1, (-1, GROUP))
        highest = groups.amax(2)
        best = torch.cat([best, highest], dim=1).topk(k).values
        # Not "at least the k-th": NaN is kept, and groups of -inf are not.
        wanted = ~(highest < best[:, -1:]) & (highest != -torch.inf)
        row, group = wanted.nonzero(as_tuple=True)
        kept.append(Groups(row, columns.start + group * GROUP, groups[row, group]))
        count += len(row)
        if best[:, 0].isnan().any():
            break
        if count > 8 * k * num_rows:  # many scores are equal, or they ascend
            kept = [joined(kept).best(k)]
            count = len(kept[0].rows)
    return _best_items(joined(kept).best(k), k, num_rows)


def _best_items(groups: Groups, k: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the k best scores of each of B users and their tokens; see `best_of_blocks`."""
    order = groups.rows.sort(stable=True).indices
    row, start, found = (part[order] for part in groups)
    place = places(row)
    scores = found.new_full((num_rows, k, GROUP), -torch.inf)
    scores[row, place] = found
    starts = start.new_zeros(num_rows, k)
    starts[row, place] = start
    chosen, index = scores.flatten(1).sort(dim=1, descending=True, stable=True)
    index = index[:, :k]
    return chosen[:, :k], starts.gather(1, index // GROUP) + index % GROUP


def within(excluded: tuple[Tensor, Tensor], start: int, stop: int) -> tuple[Tensor, Tensor]:
    """Return the rows, and the columns in a block, of what is excluded of its item tokens."""
    rows, tokens = excluded
    limits = torch.tensor([start, stop], device=tokens.device)
    first, last = torch.searchsorted(tokens, limits).tolist()
    return rows[first:last], tokens[first:last] - start


def joined(kept: Sequence[Groups]) -> Groups:
    """Join the groups of several blocks."""
    return Groups(*(torch.cat(parts) for parts in zip(*kept, strict=True)))


def places(rows: Tensor) -> Tensor:
    """The place of each entry among those of its row; rows ascend.

    >>> places(torch.tensor([0, 0, 2, 2, 2])).tolist()
    [0, 1, 0, 1, 2]
    """
    counts = torch.bincount(rows)
    return torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]


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
