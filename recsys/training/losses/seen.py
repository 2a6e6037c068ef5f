"""Masks of seen items, which are no wrong answers where they may not be recommended again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recsys.data.histories import PAD

NO_NEGATIVE = -1e30
"""The logit of an item that is no negative of a position: finite, because a softmax of nothing but
-inf is undefined."""


@dataclass(frozen=True, slots=True)
class SeenItems:
    """The items that were seen before each target of B sequences, without a copy for each target.

    >>> seen = SeenItems.up_to(torch.tensor([[5, 3, 4]]), 3)
    >>> seen.before(slice(None))
    tensor([[[5, 0, 0],
             [5, 3, 0],
             [5, 3, 4]]])
    >>> seen.at(torch.tensor([2, 0])).before(slice(None))
    tensor([[[5, 3, 4]],
    <BLANKLINE>
            [[5, 0, 0]]])
    """

    items: Tensor
    """Item tokens of the histories [S, N], oldest first."""
    history: Tensor
    """The number of the history that a sequence of targets follows [B]."""
    counts: Tensor
    """The number of its items that were seen before each target [B, L]."""

    @classmethod
    def up_to(cls, items: Tensor, steps: int) -> SeenItems:
        """The items [B, N] that were seen up to each of the last ``steps`` ≤ N of them."""
        batch, width = items.shape
        counts = torch.arange(width - steps + 1, width + 1, device=items.device)
        return cls(items, torch.arange(batch, device=items.device), counts.expand(batch, -1))

    def at(self, positions: Tensor) -> SeenItems:
        """Select M targets by their positions in [B · L]: sequences of length 1."""
        history = self.history[positions // self.counts.shape[1]]
        return SeenItems(self.items, history, self.counts.flatten()[positions, None])

    def before(self, rows: slice) -> Tensor:
        """The item tokens seen before each target of some sequences [b, L, N], PAD for none."""
        items = self.items.index_select(0, self.history[rows])[:, None]
        order = torch.arange(items.shape[-1], device=items.device)
        return torch.where(order < self.counts[rows][..., None], items, PAD)


def mask_negatives(logits: Tensor, items: Tensor, targets: Tensor, seen: Tensor | None) -> None:
    """Set logits to `NO_NEGATIVE` where an item is the target of a position or was seen before it.

    Few are, so that they are looked for and set one by one, without a mask of all logits.

    Args:
        logits: of the items [B, L, C], contiguous.
        items: item tokens [C].
        targets: item tokens [B, L].
        seen: item tokens [B, N], of which the first N - L + 1 + t precede target t. If None, seen
            items are negatives like any other item.

    >>> logits = torch.zeros(1, 2, 3)
    >>> mask_negatives(
    ...     logits, torch.tensor([7, 8, 9]), torch.tensor([[8, 9]]), torch.tensor([[7, 8]])
    ... )
    >>> (logits == NO_NEGATIVE).int()
    tensor([[[1, 1, 0],
             [1, 1, 1]]], dtype=torch.int32)
    """
    distinct, index = items.unique(return_inverse=True)
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    positions = (_places(distinct, wanted) < len(distinct)).nonzero().squeeze(1)
    position, column = (items == wanted[positions, None]).nonzero(as_tuple=True)
    flat[positions[position], column] = NO_NEGATIVE
    if seen is None:
        return
    # The first place of each item in a history: it is masked from there on.
    (batch, width), length = seen.shape, targets.shape[1]
    first = seen.new_full((batch, len(distinct) + 1), width)
    order = torch.arange(width, device=seen.device).expand(batch, -1)
    first.scatter_reduce_(1, _places(distinct, seen), order, "amin")
    first = first[:, index]
    row, column = (first < width).nonzero(as_tuple=True)
    before = torch.arange(width - length, width, device=seen.device) < first[row, column, None]
    logits[row, :, column] = logits[row, :, column].where(before, NO_NEGATIVE)


def _places(distinct: Tensor, tokens: Tensor) -> Tensor:
    """The place of each token among ascending ones; their number where it is not among them."""
    places = torch.searchsorted(distinct, tokens)
    found = distinct[places.clamp(max=len(distinct) - 1)] == tokens
    return places.masked_fill_(~found, len(distinct))
