"""The tensors of one training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from recsys.data.histories import Histories


class FeatureTensors(NamedTuple):
    """The features of the inputs, as in `Histories.padded_features`."""

    categories: Tensor
    """Shape [B, L, M], int64."""
    shares: Tensor
    """Shape [B, L, M]."""
    numbers: Tensor
    """Shape [B, L, K]."""

    @classmethod
    def from_histories(cls, histories: Histories, width: int | None = None) -> Self | None:
        """Return the features of histories; None if the model reads none."""
        found = histories.padded_features(width)
        return None if found is None else cls(*map(torch.from_numpy, found))

    def rows(self, index: slice) -> FeatureTensors:
        """Return the features of a slice of the batch."""
        return FeatureTensors(*(values[index].contiguous() for values in self))

    def to(self, device: torch.device) -> FeatureTensors:
        """Copy the features to a device."""
        return FeatureTensors(*(_sent(values, device) for values in self))


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """The inputs and targets of one training step."""

    items: Tensor
    """Shape [B, L], int64: input item tokens, right-padded with PAD; masked items are PAD too."""
    lengths: Tensor
    """Shape [B], int64: inputs per row, without padding."""
    targets: Tensor
    """Shape [B, L] or [B, n], int64, padded with PAD: the item that follows each input, or the n
    items that follow the last input, or the masked items."""
    times: Tensor | None = None
    """Shape [B, L + 1], int64: the times of the inputs and of the last target, on the scale of the
    log. None if they are unknown or not used."""
    features: FeatureTensors | None = None
    """The features of the inputs, never of a last target. None if the model reads none."""

    def shard(self, process: int, processes: int) -> SequenceBatch:
        """Return every P-th row for one of P processes; the rows of a batch are sorted by length.

        A process without a row gets the first row without its targets.
        """
        has_rows = process < len(self.items)
        rows = slice(process, None, processes) if has_rows else slice(1)
        items, lengths = self.items[rows].contiguous(), self.lengths[rows].contiguous()
        targets = self.targets[rows].contiguous()
        if not has_rows:
            targets = torch.zeros_like(targets)
        times = None if self.times is None else self.times[rows].contiguous()
        features = None if self.features is None else self.features.rows(rows)
        return SequenceBatch(items, lengths, targets, times, features)

    def to(self, device: torch.device) -> SequenceBatch:
        """Copy the batch to a device."""
        return SequenceBatch(
            items=_sent(self.items, device),
            lengths=_sent(self.lengths, device),
            targets=_sent(self.targets, device),
            times=None if self.times is None else _sent(self.times, device),
            features=None if self.features is None else self.features.to(device),
        )


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for it.

    From memory that is not pinned, a GPU would copy only after the steps before, with the processor
    waiting for it instead of preparing the next step. torch keeps pinned memory for later batches.
    """
    if device.type == "cuda":
        values = values.contiguous().pin_memory()  # another form is copied once more, waiting
    return values.to(device, non_blocking=True)
