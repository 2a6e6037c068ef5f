"""From histories to tensors: batches of like-length sequences, under a token budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import PAD, Histories


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """What one training step reads."""

    items: Tensor
    """Input item tokens [B, L], int64, right-padded with PAD."""
    lengths: Tensor
    """Real tokens per row [B], int64."""
    targets: Tensor
    """The item that follows each input [B, L], int64; PAD where there is none."""


class TrainingBatches:
    """An epoch of training sequences; iterating again gives the next epoch's order.

    ``len`` is the number of batches of the epoch that comes next: it differs by a few from epoch to
    epoch, with the lengths that meet.

    Each user's newest ``max_sequence_length + 1`` items make one sequence: all but the last are
    inputs, all but the first targets. Sequences are shuffled, sorted by length within pools of
    ``pool_batches`` batches and cut so that rows × longest ≤ ``batch_tokens``: the token batching
    of Vaswani et al. 2017 (section 5.1), without a Python step per sample.

    Args:
        histories: training histories; those with fewer than two items are left out.
        seed: with the epoch number it decides the order.
    """

    def __init__(
        self,
        histories: Histories,
        max_sequence_length: int,
        batch_tokens: int,
        seed: int,
        pool_batches: int = 20,
    ) -> None:
        recent = histories.newest(max_sequence_length + 1)
        self._sequences = recent.take(np.flatnonzero(recent.lengths >= 2))
        self._batch_tokens = batch_tokens
        self._pool_tokens = pool_batches * batch_tokens
        self._seed = seed
        self.epoch = 0

    @property
    def num_sequences(self) -> int:
        """Sequences in an epoch."""
        return len(self._sequences)

    @property
    def num_tokens(self) -> int:
        """Real input tokens in an epoch."""
        return len(self._sequences.items) - len(self._sequences)

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The rows of each batch of an epoch."""
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(len(self._sequences))
        lengths = self._sequences.lengths[order] - 1
        pools = np.cumsum(lengths) // self._pool_tokens
        arranged = np.lexsort((-lengths, pools))
        order, lengths, pools = order[arranged], lengths[arranged], pools[arranged]
        batches = []
        start = 0
        while start < len(order):
            rows = max(1, self._batch_tokens // batch_width(int(lengths[start])))
            stop = min(start + rows, int(np.searchsorted(pools, pools[start], side="right")))
            batches.append(order[start:stop])
            start = stop
        return [batches[index] for index in rng.permutation(len(batches))]

    def __len__(self) -> int:
        return len(self.plan(self.epoch))

    def __iter__(self) -> Iterator[SequenceBatch]:
        batches = self.plan(self.epoch)
        self.epoch += 1
        for rows in batches:
            sequences = self._sequences.take(rows)
            width = batch_width(int(sequences.lengths.max()) - 1)
            grid = torch.from_numpy(sequences.padded(width + 1).astype(np.int64))
            yield SequenceBatch(
                items=grid[:, :-1] * (grid[:, 1:] != PAD),
                lengths=torch.from_numpy(sequences.lengths - 1),
                targets=grid[:, 1:],
            )


def batch_width(length: int) -> int:
    """The width that a batch is padded to: up by at most a sixteenth, so that few widths occur.

    oneDNN compiles and caches its kernels for each shape it meets: with all lengths from 20 to 200
    that took twice the memory and 15% more time.

    >>> [batch_width(length) for length in (7, 33, 65, 199, 200)]
    [7, 34, 68, 200, 200]
    """
    step = 1 << max(0, length.bit_length() - 5)
    return -(-length // step) * step
