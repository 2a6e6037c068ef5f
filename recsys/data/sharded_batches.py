"""The shards of batches that one of several processes reads."""

from __future__ import annotations

from collections.abc import Iterator

from recsys.data.batches import PlainBatches, ReplayBatches, SequenceBatch

Batches = PlainBatches | ReplayBatches


class ShardedBatches:
    """One process's shard of each batch, from a given epoch on, and from the batch of a state.

    Args:
        batches: the full batches, the same in every process.
        epoch: the first epoch, from 0.
        process: the index of this process, from 0.
        processes: the number of processes.

    >>> from recsys.data.batches import TrainingBatches
    >>> from recsys.data.histories import Histories
    >>> full = TrainingBatches(Histories.from_lists([[7, 8, 9], [4, 5]]), 5, 100, seed=0)
    >>> [[batch.items.tolist() for batch in ShardedBatches(full, 0, p, 2)] for p in (0, 1)]
    [[[[7, 8]]], [[[4, 0]]]]
    """

    def __init__(self, batches: Batches, epoch: int, process: int, processes: int) -> None:
        self._batches = batches
        self._batches.epoch = epoch
        self._process = process
        self._processes = processes
        self._served = self._skipped = 0
        self._read = self._padded = 0

    @property
    def padding_share(self) -> float:
        """The padded share of the input positions in this epoch, up to the last batch read."""
        return 1 - self._read / max(self._padded, 1)

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of this epoch were served; Lightning saves it."""
        return {"batches": self._served}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Skip the batches that were served when the state was taken."""
        self._skipped = state["batches"]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[SequenceBatch]:
        skipped, self._skipped = self._skipped, 0
        self._read = self._padded = 0
        for number, batch in enumerate(self._batches, 1):
            self._read += int(batch.lengths.sum())
            self._padded += batch.items.numel()
            if number > skipped:
                self._served = number
                yield batch.shard(self._process, self._processes)
