"""Masks of seen items, which are no wrong answers where they may not be recommended again."""

from __future__ import annotations

import torch
from torch import Tensor


def expand_seen(seen: Tensor, steps: int) -> Tensor:
    """Return the items seen up to each of the last ``steps`` positions; PAD fills the rest.

    Args:
        seen: item tokens [B, N], oldest first.
        steps: how many positions, at most N.

    Returns:
        Item tokens [B, steps, N].

    >>> expand_seen(torch.tensor([[5, 3, 4]]), 3)
    tensor([[[5, 0, 0],
             [5, 3, 0],
             [5, 3, 4]]])
    >>> expand_seen(torch.tensor([[5, 3, 4]]), 2)
    tensor([[[5, 3, 0],
             [5, 3, 4]]])
    """
    return seen[:, None, :].expand(-1, steps, -1).tril(seen.shape[1] - steps)


def negative_mask(items: Tensor, targets: Tensor, seen: Tensor | None) -> Tensor:
    """Return which items are no negatives at a position: its target and the items seen before it.

    Args:
        items: item tokens [C].
        targets: item tokens [B, L].
        seen: item tokens [B, N], of which the first N - L + 1 + t precede target t. If None, seen
            items are negatives like any other item.

    Returns:
        bool [B, L, C].

    >>> negative_mask(torch.tensor([7, 8, 9]), torch.tensor([[8, 9]]), torch.tensor([[7, 8]])).int()
    tensor([[[1, 1, 0],
             [1, 1, 1]]], dtype=torch.int32)
    """
    mask = items == targets[..., None]
    if seen is None:
        return mask
    # The first occurrence of each item: one comparison then serves all positions.
    distinct, index = items.unique(return_inverse=True)
    column = torch.searchsorted(distinct, seen)
    column.masked_fill_(distinct[column.clamp(max=len(distinct) - 1)] != seen, len(distinct))
    (batch, width), length = seen.shape, targets.shape[1]
    first = seen.new_full((batch, len(distinct) + 1), width)
    order = torch.arange(width, device=seen.device).expand(batch, -1)
    first.scatter_reduce_(1, column, order, "amin")
    position = torch.arange(width - length, width, device=seen.device)
    return mask.logical_or_(first[:, None, index] <= position[:, None])
