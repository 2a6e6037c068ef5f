"""A mixture of new and old histories: what a training that starts from a trained model reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from recsys.data.batches import MaskedBatches, SequenceToSequenceBatches, TrainingBatches
from recsys.data.histories import Histories
from recsys.data.sequence_batch import SequenceBatch

PlainBatches = TrainingBatches | MaskedBatches | SequenceToSequenceBatches


class ReplayBatches:
    """Epochs of all histories with new interactions and of a random sample of the others.

    Each pass draws another sample. Iteration works as in `TrainingBatches`.

    Args:
        build: makes the batches of the histories of an epoch.
        histories: the training histories.
        is_new: whether each history has new interactions.
        share: the share of the histories of an epoch that have none, below 1; there may be fewer.
        seed: seed of the samples, together with the number of the pass.
        epochs_per_pass: the number of epochs that divide a pass.

    >>> histories = Histories.from_lists([[1, 2], [3, 4], [5, 6], [7, 8]])
    >>> is_new = np.array([False, True, False, False])
    >>> batches = ReplayBatches(
    ...     lambda some: TrainingBatches(some, 5, 100, seed=0), histories, is_new, 0.5, seed=0
    ... )
    >>> [sorted(batch.items[:, 0].tolist()) for _ in range(3) for batch in batches]
    [[3, 7], [3, 5], [3, 7]]
    """

    def __init__(
        self,
        build: Callable[[Histories], PlainBatches],
        histories: Histories,
        is_new: NDArray[np.bool_],
        share: float,
        seed: int,
        epochs_per_pass: int = 1,
    ) -> None:
        self._build = build
        self._histories = histories
        trained = histories.lengths >= 2
        self._new = np.flatnonzero(is_new & trained)
        self._old = np.flatnonzero(~is_new & trained)
        wanted = round(len(self._new) * share / (1 - share))
        self.replayed = min(wanted, len(self._old))
        """The number of histories of an epoch that have no new interaction."""
        self._seed = seed
        self._epochs_per_pass = epochs_per_pass
        self._drawn: tuple[int, PlainBatches] | None = None
        self.epoch = 0

    @property
    def num_sequences(self) -> int:
        """Number of sequences in an epoch, on average."""
        return self._batches().num_sequences

    @property
    def num_tokens(self) -> int:
        """Number of inputs in the next epoch, without padding."""
        return self._batches().num_tokens

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[SequenceBatch]:
        batches = self._batches()
        self.epoch += 1
        yield from batches

    def _batches(self) -> PlainBatches:
        """Return the batches of the next epoch."""
        number = self.epoch // self._epochs_per_pass
        if self._drawn is None or self._drawn[0] != number:
            rng = np.random.default_rng([self._seed, number])
            old = rng.choice(self._old, self.replayed, replace=False)
            rows = np.sort(np.concatenate([self._new, old]))
            self._drawn = number, self._build(self._histories.take(rows))
        _, batches = self._drawn
        batches.epoch = self.epoch
        return batches


def histories_after(histories: Histories, time: int | None) -> NDArray[np.bool_]:
    """Return which of B histories have an interaction later than a time; all if it is None.

    >>> items, offsets = np.array([7, 8, 9], dtype=np.int32), np.array([0, 2, 2, 3])
    >>> histories_after(Histories(items, offsets, np.array([10, 20, 15])), 15).tolist()
    [True, False, False]
    """
    if time is None or histories.times is None:
        return np.ones(len(histories), dtype=np.bool_)
    later = histories.users[histories.times > time]
    return np.bincount(later, minlength=len(histories)) > 0
