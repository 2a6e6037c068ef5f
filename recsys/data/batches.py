"""From histories to tensors: batches of like-length sequences, under a token budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories
from recsys.data.sequence_batch import FeatureTensors, SequenceBatch

Windows = Literal["newest", "all"]
"""Which targets an epoch has: those among the newest items of each history, or every one."""

_POOL_BATCHES = 50
"""Sequences are sorted by length within pools of so many batches: with 20, 6 to 7% of the positions
were padding on MovieLens-1M, Beauty and Sports, with 50 it is 3 to 4%."""


class TrainingBatches:
    """An epoch of training sequences; iterating again gives the next epoch's order.

    ``len`` is the number of batches of the epoch that comes next: it differs by a few from epoch to
    epoch, with the lengths that meet.

    Each user's newest ``max_sequence_length + 1`` items make one sequence: all but the last are
    inputs, all but the first targets. With ``windows="all"`` what is older makes more of them, each
    ending with the item that the next one begins with: every item but a user's first is a target
    once. Sequences are shuffled, sorted by length within pools of some batches and cut so that
    rows × longest ≤ ``batch_tokens``: the token batching of Vaswani et al. 2017 (section 5.1),
    without a Python step per sample.

    Features are those of the inputs: what is known of a sequence's last target is not in a batch.

    Args:
        histories: training histories; those with fewer than two items are left out.
        seed: with the epoch number it decides the order.
        windows: which items of a history are targets.
    """

    def __init__(
        self,
        histories: Histories,
        max_sequence_length: int,
        batch_tokens: int,
        seed: int,
        windows: Windows = "newest",
    ) -> None:
        size = max_sequence_length + 1
        cut = histories.newest(size) if windows == "newest" else _overlapping(histories, size)
        self._sequences = cut.take(np.flatnonzero(cut.lengths >= 2))
        self._batch_tokens = batch_tokens
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
        return _plan(self._sequences.lengths - 1, self._batch_tokens, rng)

    def __len__(self) -> int:
        return len(self.plan(self.epoch))

    def __iter__(self) -> Iterator[SequenceBatch]:
        batches = self.plan(self.epoch)
        self.epoch += 1
        for rows in batches:
            sequences = self._sequences.take(rows)
            width = batch_width(int(sequences.lengths.max()) - 1)
            grid = torch.from_numpy(sequences.padded(width + 1).astype(np.int64))
            times = sequences.padded_times(width + 1)
            yield SequenceBatch(
                items=grid[:, :-1] * (grid[:, 1:] != PAD),
                lengths=torch.from_numpy(sequences.lengths - 1),
                targets=grid[:, 1:],
                times=None if times is None else torch.from_numpy(times[:, :-1]),
                features=FeatureTensors.from_histories(sequences.without_last(), width),
            )


class MaskedBatches:
    """An epoch of training sequences with some items hidden, others in every epoch.

    Items are PAD where they are hidden; targets are the hidden ones, from the left. Of a sequence
    of which chance hides nothing, the last item is hidden.

    Args:
        sequences: the whole sequences, in their batches; each is an item longer than there.
        probability: that an item is hidden.
        seed: with the epoch number it decides which.

    >>> sequences = TrainingBatches(Histories.from_lists([[7, 8, 9]]), 5, 100, seed=0)
    >>> (batch,) = MaskedBatches(sequences, probability=1e-9, seed=0)
    >>> batch.items, batch.targets
    (tensor([[7, 8, 0]]), tensor([[9]]))
    """

    def __init__(self, sequences: TrainingBatches, probability: float, seed: int) -> None:
        self._sequences = sequences
        self._probability = probability
        self._seed = seed

    @property
    def epoch(self) -> int:
        """The one that comes next, from 0."""
        return self._sequences.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._sequences.epoch = epoch

    @property
    def num_sequences(self) -> int:
        """Sequences in an epoch."""
        return self._sequences.num_sequences

    @property
    def num_tokens(self) -> int:
        """Items in an epoch, hidden ones too."""
        return self._sequences.num_tokens + self._sequences.num_sequences

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[SequenceBatch]:
        rng = np.random.default_rng([self._seed, self._sequences.epoch])
        for batch in self._sequences:
            whole = torch.cat([batch.items[:, :1], batch.targets], dim=1)
            hidden = torch.from_numpy(rng.random(whole.shape) < self._probability)
            hidden &= whole != PAD
            rows = torch.arange(len(whole))
            hidden[rows, batch.lengths] |= ~hidden.any(dim=1)
            places = hidden.int().argsort(dim=1, descending=True, stable=True)
            targets = (whole * hidden).gather(1, places)[:, : int(hidden.sum(1).max())]
            yield SequenceBatch(whole * ~hidden, batch.lengths + 1, targets)


class SequenceToSequenceBatches:
    """An epoch of histories cut in two: what was bought, and what was bought after that.

    Every epoch cuts each history anew at random places, once for each ``max_sequence_length`` items
    of it, so that an epoch reads about as many items as there are. Batching and iteration are those
    of `TrainingBatches`.

    Args:
        histories: training histories; those with fewer than two items are left out.
        max_sequence_length: the newest so many items before a cut are inputs.
        max_targets: the first so many items after a cut are targets.
        batch_tokens: inputs and targets per batch, padding included.
        seed: with the epoch number it decides cuts and order.
    """

    def __init__(
        self,
        histories: Histories,
        max_sequence_length: int,
        max_targets: int,
        batch_tokens: int,
        seed: int,
    ) -> None:
        self._histories = histories.take(np.flatnonzero(histories.lengths >= 2))
        self._max_sequence_length = max_sequence_length
        self._max_targets = max_targets
        self._batch_tokens = batch_tokens
        self._seed = seed
        self.epoch = 0

    @property
    def num_sequences(self) -> int:
        """Cuts in an epoch."""
        return int(self._cuts_per_history().sum())

    @property
    def num_tokens(self) -> int:
        """Real inputs and targets of the epoch that comes next; others differ a little."""
        inputs, targets = self._cut(np.random.default_rng([self._seed, self.epoch]))
        return len(inputs.items) + len(targets.items)

    def __len__(self) -> int:
        return len(self._epoch(self.epoch)[0])

    def __iter__(self) -> Iterator[SequenceBatch]:
        batches, all_inputs, all_targets = self._epoch(self.epoch)
        self.epoch += 1
        for rows in batches:
            inputs, targets = all_inputs.take(rows), all_targets.take(rows)
            width = batch_width(int(inputs.lengths.max()))
            yield SequenceBatch(
                items=torch.from_numpy(inputs.padded(width).astype(np.int64)),
                lengths=torch.from_numpy(inputs.lengths),
                targets=torch.from_numpy(targets.padded().astype(np.int64)),
            )

    def _epoch(self, epoch: int) -> tuple[list[NDArray[np.int64]], Histories, Histories]:
        """The rows of each batch, and the inputs and targets that they are rows of."""
        rng = np.random.default_rng([self._seed, epoch])
        inputs, targets = self._cut(rng)
        beside = int(targets.lengths.max(initial=0))
        return _plan(inputs.lengths, self._batch_tokens, rng, beside), inputs, targets

    def _cut(self, rng: np.random.Generator) -> tuple[Histories, Histories]:
        users = np.repeat(np.arange(len(self._histories)), self._cuts_per_history())
        starts, ends = self._histories.offsets[users], self._histories.offsets[users + 1]
        cuts = rng.integers(starts + 1, ends)
        oldest = np.maximum(starts, cuts - self._max_sequence_length)
        last = np.minimum(ends, cuts + self._max_targets)
        items = self._histories.items
        return Histories.from_spans(items, oldest, cuts), Histories.from_spans(items, cuts, last)

    def _cuts_per_history(self) -> NDArray[np.int64]:
        return -(-(self._histories.lengths - 1) // self._max_sequence_length)


def _overlapping(histories: Histories, size: int) -> Histories:
    """Windows of ``size`` items from the end, each beginning with the last item of the one before.

    >>> _overlapping(Histories.from_lists([[1, 2, 3, 4, 5, 6], [7], [8, 9]]), 3).padded().tolist()
    [[1, 2, 0], [2, 3, 4], [4, 5, 6], [7, 0, 0], [8, 9, 0]]
    """
    steps = np.maximum(-(-(histories.lengths - 1) // (size - 1)), 1)
    users = np.repeat(np.arange(len(histories)), steps)
    left = np.cumsum(steps)[users] - np.arange(len(users)) - 1  # windows after this one
    starts, ends = histories.offsets[users], histories.offsets[users + 1] - left * (size - 1)
    windows = histories.spans(np.maximum(starts, ends - size), ends)
    people = histories.user_features
    return windows if people is None else replace(windows, user_features=people[users])


def _plan(
    lengths: NDArray[np.int64], batch_tokens: int, rng: np.random.Generator, beside: int = 0
) -> list[NDArray[np.int64]]:
    """Shuffled rows in batches of like length; ``beside``: tokens that each row has besides."""
    order = rng.permutation(len(lengths))
    lengths = lengths[order]
    pools = np.cumsum(lengths + beside) // (_POOL_BATCHES * batch_tokens)
    arranged = np.lexsort((-lengths, pools))
    order, lengths, pools = order[arranged], lengths[arranged], pools[arranged]
    batches = []
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // (batch_width(int(lengths[start])) + beside))
        stop = min(start + rows, int(np.searchsorted(pools, pools[start], side="right")))
        batches.append(order[start:stop])
        start = stop
    return [batches[index] for index in rng.permutation(len(batches))]


def batch_width(length: int, scale: int | None = None) -> int:
    """The width that a batch is padded to: up by at most a sixteenth, so that few widths occur.

    oneDNN compiles and caches its kernels for each shape it meets: with all lengths from 20 to 200
    that took twice the memory and 15% more time.

    Args:
        length: at least so much.
        scale: up by at most a sixteenth of this in place of the length.

    >>> [batch_width(length) for length in (7, 33, 65, 199, 200)]
    [7, 34, 68, 200, 200]
    """
    step = 1 << max(0, (length if scale is None else scale).bit_length() - 5)
    return -(-length // step) * step
