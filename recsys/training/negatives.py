"""Negatives: the few items that a step holds its targets against, where all would be too many.

They are drawn once for a step and shared by all of its positions, so that their logits are matrix
products; what a position must not be held against is left out there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.data.histories import PAD


@dataclass(frozen=True, slots=True)
class Negatives:
    """Items of one draw; an item may come several times."""

    items: Tensor
    """Item tokens [C], int64."""
    log_expected: Tensor | None
    """Log of how often each item is expected in a draw [C]: what sampled softmax takes off its
    logit, so that the draw stands for the whole catalogue. None: nothing is taken off."""


class UniformNegatives(nn.Module):
    """Every item is as likely.

    Args:
        num_items: size of the catalogue, I.
        count: items of a draw; from I on, a draw is the whole catalogue, every item once.
    """

    def __init__(self, num_items: int, count: int) -> None:
        super().__init__()
        self._num_items, self._count = num_items, count

    def forward(self, targets: Tensor) -> Negatives:
        """Draw for a step with targets [B, L]."""
        if self._count >= self._num_items:
            items = torch.arange(1, self._num_items + 1, device=targets.device)
            return Negatives(items, torch.zeros(len(items), device=targets.device))
        items = torch.randint(1, self._num_items + 1, (self._count,), device=targets.device)
        share = math.log(self._count / self._num_items)
        return Negatives(items, torch.full((self._count,), share, device=targets.device))


class PopularNegatives(nn.Module):
    """Items in proportion to their interactions.

    Args:
        interactions: of each item in training [I + 1], by item token; that of PAD does not count.
        count: items of a draw.
    """

    _up_to: Tensor
    _log_share: Tensor

    def __init__(self, interactions: Tensor, count: int) -> None:
        super().__init__()
        self._count = count
        shares = _shares(interactions)
        self.register_buffer("_up_to", shares.cumsum(0), persistent=False)
        self.register_buffer("_log_share", shares.log().float(), persistent=False)

    def forward(self, targets: Tensor) -> Negatives:
        """Draw for a step with targets [B, L]."""
        points = torch.rand(self._count, dtype=torch.float64, device=targets.device)
        items = torch.searchsorted(self._up_to, points * self._up_to[-1], right=True)
        return Negatives(items, self._log_share[items] + math.log(self._count))


class InBatchNegatives(nn.Module):
    """Targets of the step itself, drawn evenly from its positions: popular items come more often.

    Args:
        interactions: of each item in training [I + 1], by item token; that of PAD does not count.
        count: items of a draw.
    """

    _log_share: Tensor

    def __init__(self, interactions: Tensor, count: int) -> None:
        super().__init__()
        self._count = count
        self.register_buffer("_log_share", _shares(interactions).log().float(), persistent=False)

    def forward(self, targets: Tensor) -> Negatives:
        """Draw for a step with targets [B, L]."""
        pool = targets[targets != PAD]
        if not len(pool):  # one of several processes, with nothing to learn from in this step
            pool = self._log_share.argmax()[None]
        items = pool[torch.randint(len(pool), (self._count,), device=pool.device)]
        return Negatives(items, self._log_share[items] + math.log(self._count))


def _shares(interactions: Tensor) -> Tensor:
    """Of all interactions [I + 1], float64; 0 for PAD."""
    shares = interactions.to(torch.float64, copy=True)
    shares[PAD] = 0
    return shares / shares.sum()


def negative_mask(items: Tensor, targets: Tensor, had: Tensor | None) -> Tensor:
    """Which items a position is not held against: its own target, and what was had before it.

    Args:
        items: item tokens [C].
        targets: item tokens [B, L].
        had: item tokens [B, N]: before target t the first N - L + 1 + t are. None: what was had
            counts as wrong like any other item.

    Returns:
        bool [B, L, C].

    >>> negative_mask(torch.tensor([7, 8, 9]), torch.tensor([[8, 9]]), torch.tensor([[7, 8]])).int()
    tensor([[[1, 1, 0],
             [1, 1, 1]]], dtype=torch.int32)
    """
    out = items == targets[..., None]
    if had is None:
        return out
    # When each item was first had: one comparison then serves all positions.
    distinct, place = items.unique(return_inverse=True)
    column = torch.searchsorted(distinct, had)
    column.masked_fill_(distinct[column.clamp(max=len(distinct) - 1)] != had, len(distinct))
    (batch, width), length = had.shape, targets.shape[1]
    first = had.new_full((batch, len(distinct) + 1), width)
    order = torch.arange(width, device=had.device).expand(batch, -1)
    first.scatter_reduce_(1, column, order, "amin")
    position = torch.arange(width - length, width, device=had.device)
    return out.logical_or_(first[:, None, place] <= position[:, None])
