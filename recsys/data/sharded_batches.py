"""What one of several processes reads of the batches, and from where on."""

from __future__ import annotations

from collections.abc import Iterator

from recsys.data.batches import MaskedBatches, SequenceToSequenceBatches, TrainingBatches
from recsys.data.sequence_batch import SequenceBatch

Batches = TrainingBatches | MaskedBatches | SequenceToSequenceBatches


class ShardedBatches:
    """One process's share of each batch of the epochs from a place on, and how much is padding.

    Args:
        batches: whole, the same in every process.
        epoch: where to begin, from 0.
        skipped: batches of that epoch that are done already.
        process: which of the processes this one is, from 0.
        processes: how many there are.

    >>> from recsys.data.histories import Histories
    >>> whole = TrainingBatches(Histories.from_lists([[7, 8, 9], [4, 5]]), 5, 100, seed=0)
    >>> [[batch.items.tolist() for batch in ShardedBatches(whole, 0, 0, p, 2)] for p in (0, 1)]
    [[[[7, 8]]], [[[4, 0]]]]
    """

    def __init__(
        self,
        batches: Batches,
        epoch: int,
        skipped: int,
        process: int,
        processes: int,
    ) -> None:
        self._batches = batches
        self._batches.epoch = epoch
        self._skipped = skipped
        self._process = process
        self._processes = processes
        self._read = self._padded = 0

    @property
    def padding_share(self) -> float:
        """Of the input positions of the epoch, up to the batch that was read last."""
        return 1 - self._read / max(self._padded, 1)

    def __len__(self) -> int:
        return len(self._batches) - self._skipped

    def __iter__(self) -> Iterator[SequenceBatch]:
        skipped, self._skipped = self._skipped, 0
        self._read = self._padded = 0
        for number, batch in enumerate(self._batches):
            self._read += int(batch.lengths.sum())
            self._padded += batch.items.numel()
            if number >= skipped:
                yield batch.shard(self._process, self._processes)
