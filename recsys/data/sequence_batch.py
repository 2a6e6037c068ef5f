"""What one training step reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from recsys.data.histories import Histories


class FeatureTensors(NamedTuple):
    """Features of the inputs, as `Histories.padded_features` has them."""

    categories: Tensor
    """[B, L, M], int64."""
    shares: Tensor
    """[B, L, M]."""
    numbers: Tensor
    """[B, L, K]."""

    @classmethod
    def from_histories(cls, histories: Histories, width: int | None = None) -> Self | None:
        """Those of histories; None if nothing is read of them."""
        found = histories.padded_features(width)
        return None if found is None else cls(*map(torch.from_numpy, found))

    def rows(self, some: slice) -> FeatureTensors:
        """Of some rows of the batch."""
        return FeatureTensors(*(values[some] for values in self))

    def to(self, device: torch.device) -> FeatureTensors:
        """On a device."""
        return FeatureTensors(*(values.to(device, non_blocking=True) for values in self))


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """What one training step reads."""

    items: Tensor
    """Input item tokens [B, L], int64, right-padded with PAD; PAD too where an item is hidden."""
    lengths: Tensor
    """Real tokens per row [B], int64."""
    targets: Tensor
    """What is to be foretold, int64, PAD where there is nothing: the item that follows each input
    [B, L], the items that follow the last input, or the hidden items [B, n]."""
    times: Tensor | None = None
    """When the inputs and, behind them, the last target were had, int64 [B, L + 1], on the scale of
    the log; None: not known, or of no use."""
    features: FeatureTensors | None = None
    """Of the inputs, never of a last target; None: nothing is read of them but the items."""

    def shard(self, process: int, processes: int) -> SequenceBatch:
        """The rows of one of several processes; who gets none has one without targets.

        Every P-th row of P processes: the rows of a batch come by length.
        """
        some = process < len(self.items)
        rows = slice(process, None, processes) if some else slice(1)
        targets = self.targets[rows] if some else torch.zeros_like(self.targets[rows])
        times = None if self.times is None else self.times[rows]
        features = None if self.features is None else self.features.rows(rows)
        return SequenceBatch(self.items[rows], self.lengths[rows], targets, times, features)

    def to(self, device: torch.device) -> SequenceBatch:
        """The batch on a device."""
        return SequenceBatch(
            items=self.items.to(device, non_blocking=True),
            lengths=self.lengths.to(device, non_blocking=True),
            targets=self.targets.to(device, non_blocking=True),
            times=None if self.times is None else self.times.to(device, non_blocking=True),
            features=None if self.features is None else self.features.to(device),
        )
