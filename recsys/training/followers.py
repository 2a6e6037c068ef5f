"""Soft labels: a share of each label goes to what followed the same items anywhere in the log.

In a sparse log the target of a position is one of many items that might have come next, and the
counts of the log know some of the others. Labels that are mixed with them are those of a smoothed
n-gram model: Xie et al. 2017, "Data noising as smoothing in neural network language models",
https://arxiv.org/abs/1703.02573, who draw one label; with many the gradient has less noise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from recsys.data.histories import PAD, Histories

_LABELS = 16
"""Drawn for each target of a step: 8 and 32 differ by .0006 NDCG@10, 1 is .0045 worse."""
_READ, _DECAY = 10, 0.7
"""The newest items of a history that labels follow, each with a share of that of the next newer."""
_WINDOW, _POWER = 10, -0.5
"""How many places later an item still follows another, and the power of that distance by which it
is drawn."""


class Followers(nn.Module):
    """Where in the training histories each item is followed by others.

    ``share`` is that of each label for the items drawn; ``allow_seen`` says whether these may be
    items that the history has.
    """

    items: Tensor
    """Of all histories, one after the other [N]."""
    later: Tensor
    """The number of items that follow each of them in its history [N], at most `_WINDOW`."""
    places: Tensor
    """The places in ``items`` that others follow, by item."""
    starts: Tensor
    """Where those of each item token begin in ``places`` [I + 2]."""

    def __init__(
        self, histories: Histories, num_items: int, share: float, *, allow_seen: bool
    ) -> None:
        super().__init__()
        self.share = share
        self._allow_seen = allow_seen
        items, later = histories.items, np.minimum(histories.ages, _WINDOW)
        order = np.argsort(items, kind="stable")
        places = order[later[order] > 0]
        starts = np.searchsorted(items[places], np.arange(num_items + 2))
        arrays = {"items": items, "later": later, "places": places, "starts": starts}
        for name, array in arrays.items():
            self.register_buffer(name, torch.from_numpy(array), persistent=False)

    def soften(
        self, items: Tensor, positions: Tensor, targets: Tensor, gradient: Tensor, rows: slice
    ) -> None:
        """Give drawn labels their share in the gradient [b, l, C] of rows of a cross-entropy.

        See `draw`; positions and targets are those of all rows, and the columns are item tokens.
        """
        labels = self.draw(items, positions[rows], targets[rows]).flatten(0, 1)
        matrix, index = gradient.flatten(0, 1), torch.arange(len(labels), device=items.device)
        matrix[index, targets[rows].flatten()] += self.share
        weight = matrix.new_tensor(-self.share / _LABELS)
        matrix.index_put_((index[:, None], labels), weight, accumulate=True)
        gradient[..., PAD] = 0  # where PAD is the target, to the last bit

    def draw(self, items: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        """Draw the labels [b, l, K] of targets [b, l]; the target itself where there is no other.

        ``items`` are those of the histories [B, L], and ``positions`` [b, l] the places among them
        of the newest item before each target.
        """
        length = items.shape[1]
        rows, newest = positions[..., None] // length, positions[..., None] % length
        size = 3, *targets.shape, _LABELS
        for_age, for_place, for_distance = torch.rand(size, device=items.device)
        read = (newest + 1).clamp(max=_READ)
        age = (-for_age * (1 - _DECAY**read)).log1p().div(math.log(_DECAY)).long()
        followed = items[rows, newest - age.minimum(read - 1)]
        first, end = self.starts[followed], self.starts[followed + 1]
        chosen = (first + (for_place * (end - first)).long()).minimum(end - 1).clamp(min=0)
        place = self.places[chosen]
        powers = torch.arange(1, _WINDOW + 1, device=items.device).pow(_POWER).cumsum(0)
        later = self.later[place]
        distance = 1 + torch.searchsorted(powers, for_distance * powers[later - 1])
        drawn = self.items[place + distance.minimum(later)].long()
        is_other = (end > first) & (targets != PAD)[..., None]
        if not self._allow_seen:
            is_read = torch.arange(length, device=items.device) <= newest
            history = torch.where(is_read, items[rows[..., 0]], PAD).int()
            is_other &= ~(history[..., None] == drawn.int()[..., None, :]).any(-2)
        return torch.where(is_other, drawn, targets[..., None])
