"""Negative samplers: the items that a step compares its targets with if all would be too many.

Negatives are drawn once per step and shared by all of its positions, so that their logits are
matrix products; `recsys.training.losses.mask_negatives` masks them where they are no negatives.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.data.histories import PAD


@dataclass(frozen=True, slots=True)
class Negatives:
    """The items of one draw; an item may occur several times."""

    items: Tensor
    """Item tokens [C], int64."""
    log_expected: Tensor | None
    """Log of the expected count of each item in a draw [C], which sampled softmax subtracts from
    its logit so that the draw represents the full catalogue. If None, nothing is subtracted."""


class UniformNegatives(nn.Module):
    """Draws all items with equal probability.

    Args:
        num_items: size of the catalogue, I.
        count: size of a draw; if it is I or more, a draw is the full catalogue, every item once.
    """

    def __init__(self, num_items: int, count: int) -> None:
        super().__init__()
        self._num_items, self._count = num_items, count

    def forward(self, targets: Tensor) -> Negatives:
        """Draw negatives for a step with targets [B, L]."""
        if self._count >= self._num_items:
            items = torch.arange(1, self._num_items + 1, device=targets.device)
            return Negatives(items, torch.zeros(len(items), device=targets.device))
        items = torch.randint(1, self._num_items + 1, (self._count,), device=targets.device)
        share = math.log(self._count / self._num_items)
        return Negatives(items, torch.full((self._count,), share, device=targets.device))


class PopularNegatives(nn.Module):
    """Draws items in proportion to their interactions.

    Args:
        interactions: of each item in training [I + 1], by item token; that of PAD is ignored.
        count: size of a draw.
    """

    _cumulative: Tensor
    _log_share: Tensor

    def __init__(self, interactions: Tensor, count: int) -> None:
        super().__init__()
        self._count = count
        shares = _shares(interactions)
        self.register_buffer("_cumulative", shares.cumsum(0), persistent=False)
        self.register_buffer("_log_share", shares.log().float(), persistent=False)

    def forward(self, targets: Tensor) -> Negatives:
        """Draw negatives for a step with targets [B, L]."""
        points = torch.rand(self._count, dtype=torch.float64, device=targets.device)
        items = torch.searchsorted(self._cumulative, points * self._cumulative[-1], right=True)
        return Negatives(items, self._log_share[items] + math.log(self._count))


class InBatchNegatives(nn.Module):
    """Draws from the targets of the step, uniformly over its positions, so by popularity.

    Args:
        interactions: of each item in training [I + 1], by item token; that of PAD is ignored.
        count: size of a draw.
    """

    _log_share: Tensor

    def __init__(self, interactions: Tensor, count: int) -> None:
        super().__init__()
        self._count = count
        self.register_buffer("_log_share", _shares(interactions).log().float(), persistent=False)

    def forward(self, targets: Tensor) -> Negatives:
        """Draw negatives for a step with targets [B, L]."""
        pool = targets[targets != PAD]
        if not len(pool):  # one of several processes, which has no targets in this step
            pool = self._log_share.argmax()[None]
        items = pool[torch.randint(len(pool), (self._count,), device=pool.device)]
        return Negatives(items, self._log_share[items] + math.log(self._count))


def _shares(interactions: Tensor) -> Tensor:
    """Return the share of each item in all interactions [I + 1], float64; 0 for PAD."""
    shares = interactions.to(torch.float64, copy=True)
    shares[PAD] = 0
    return shares / shares.sum()
