"""Training batches: sequences of similar length, under a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from recsys.data.histories import PAD, Bools, Histories, Int64s, Spans
from recsys.errors import InputError

Windows = Literal["newest", "all"]
"""The targets of an epoch: those among the newest items of each history, or all of them."""

_POOL_BATCHES = 50
"""Batches in a pool of sequences that are sorted by length. With 20, 6 to 7% of the positions were
padding on MovieLens-1M, Beauty and Sports, with 50 3 to 4%."""


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
        arrays = histories.padded_features(width)
        return None if arrays is None else cls(*map(torch.from_numpy, arrays))

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
        if process < len(self.items):
            return self._each(lambda values: values[process::processes].contiguous())
        first = self._each(lambda values: values[:1].contiguous())
        return replace(first, targets=torch.zeros_like(first.targets))

    def to(self, device: torch.device) -> SequenceBatch:
        """Copy the batch to a device."""
        return self._each(lambda values: _sent(values, device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> SequenceBatch:
        return SequenceBatch(
            change(self.items),
            change(self.lengths),
            change(self.targets),
            None if self.times is None else change(self.times),
            None if self.features is None else FeatureTensors(*map(change, self.features)),
        )


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for it: from memory that is not pinned, a GPU would wait."""
    if device.type == "cuda":
        values = values.contiguous().pin_memory()  # another form is copied once more, waiting
    return values.to(device, non_blocking=True)


@dataclass(eq=False)
class TrainingBatches:
    """An epoch of training sequences; iterating again gives the next epoch's order.

    ``len`` is the number of batches of the next epoch, which differs slightly between epochs.

    Each user's newest ``max_sequence_length + 1`` items are one sequence: all but the last are
    inputs, all but the first are targets. With ``windows="all"``, older items form more sequences,
    each ending with the first item of the next one: every item except a user's first is a target
    once. Sequences are shuffled, sorted by length within pools of batches and cut so that
    rows × longest ≤ ``batch_tokens``: the token batching of Vaswani et al. 2017 (section 5.1).

    >>> histories = Histories.from_lists([[7, 8, 9]])
    >>> (batch,) = TrainingBatches(histories, 5, 100, seed=0)
    >>> batch.items, batch.targets
    (tensor([[7, 8]]), tensor([[8, 9]]))
    >>> (batch,) = TrainingBatches(histories, 5, 100, seed=0, mask_probability=1e-9)
    >>> batch.items, batch.targets
    (tensor([[7, 8, 0]]), tensor([[9]]))
    """

    histories: Histories
    """Those with fewer than two items are excluded."""
    max_sequence_length: int
    """The maximum number of inputs per sequence."""
    batch_tokens: int
    """The maximum number of input positions per batch, padding included."""
    seed: int
    """Seed of the order and the masks, together with the epoch number."""
    windows: Windows = "newest"
    epochs_per_pass: int = 1
    """The number of epochs that divide the batches of a pass over all sequences."""
    mask_probability: float | None = None
    """The probability of masking an item. Masked items are PAD in the inputs, and alone are the
    targets, from the left; of each sequence at least one is masked."""
    epoch: int = field(default=0, init=False)
    """The number of the next epoch."""
    _planned: tuple[int, list[Int64s]] | None = field(default=None, init=False)

    @cached_property
    def _sequences(self) -> Spans:
        cut = Spans.newest if self.windows == "newest" else Spans.overlapping
        return cut(self.histories, self.max_sequence_length + 1).at_least(2)

    @property
    def num_tokens(self) -> int:
        """Number of inputs in an epoch, without padding, on average."""
        lengths = self._sequences.lengths - (self.mask_probability is None)
        return int(lengths.sum()) // self.epochs_per_pass

    def plan(self, epoch: int) -> list[Int64s]:
        """Return the rows of each batch of an epoch."""
        number, part = divmod(epoch, self.epochs_per_pass)
        if self._planned is None or self._planned[0] != number:
            rng = np.random.default_rng([self.seed, number])
            lengths, longest = self._sequences.lengths - 1, self.max_sequence_length
            self._planned = number, _plan(lengths, longest, self.batch_tokens, rng)
        _, batches = self._planned
        if len(batches) < self.epochs_per_pass > 1:
            raise InputError(
                f"training.epochs_per_pass={self.epochs_per_pass}: a pass over the log has "
                f"{len(batches)} batches"
            )
        return batches[part :: self.epochs_per_pass]

    def __len__(self) -> int:
        return len(self.plan(self.epoch))

    def __iter__(self) -> Iterator[SequenceBatch]:
        batches = self.plan(self.epoch)
        rng = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        for rows in batches:
            sequences = self._sequences.take(rows)
            width = batch_width(int(sequences.lengths.max()) - 1, self.max_sequence_length)
            grid = torch.from_numpy(sequences.padded(width + 1).astype(np.int64))
            if self.mask_probability is not None:
                lengths = torch.from_numpy(sequences.lengths)
                yield _masked(grid, lengths, self.mask_probability, rng)
                continue
            times = sequences.padded_times(width + 1)
            yield SequenceBatch(
                items=grid[:, :-1] * (grid[:, 1:] != PAD),
                lengths=torch.from_numpy(sequences.lengths - 1),
                targets=grid[:, 1:],
                times=None if times is None else torch.from_numpy(times[:, :-1]),
                features=FeatureTensors.from_histories(sequences.without_last(), width),
            )


def _masked(
    items: Tensor, lengths: Tensor, probability: float, rng: np.random.Generator
) -> SequenceBatch:
    """Mask items [B, L] at random."""
    masked = torch.from_numpy(rng.random(items.shape) < probability)
    masked &= items != PAD
    masked[torch.arange(len(items)), lengths - 1] |= ~masked.any(dim=1)
    order = masked.int().argsort(dim=1, descending=True, stable=True)
    targets = (items * masked).gather(1, order)[:, : int(masked.sum(1).max())]
    return SequenceBatch(items * ~masked, lengths, targets)


@dataclass(eq=False)
class SequenceToSequenceBatches:
    """An epoch of histories cut in two: the newest items before a cut, and the first after it.

    Every epoch cuts each history at new random positions, one per ``max_sequence_length`` items, so
    that an epoch reads about as many items as the histories have. Batching and iteration work as in
    `TrainingBatches`, but ``batch_tokens`` counts inputs and targets.
    """

    histories: Histories
    max_sequence_length: int
    max_targets: int
    batch_tokens: int
    seed: int
    epoch: int = field(default=0, init=False)

    @property
    def num_tokens(self) -> int:
        """Number of inputs and targets in the next epoch; it differs slightly between epochs."""
        inputs, targets = self._cut(np.random.default_rng([self.seed, self.epoch]))
        return int(inputs.lengths.sum() + targets.lengths.sum())

    def __len__(self) -> int:
        batches, _, _ = self._plan_epoch()
        return len(batches)

    def __iter__(self) -> Iterator[SequenceBatch]:
        batches, all_inputs, all_targets = self._plan_epoch()
        self.epoch += 1
        for rows in batches:
            inputs, targets = all_inputs.take(rows), all_targets.take(rows)
            width = batch_width(int(inputs.lengths.max()), self.max_sequence_length)
            yield SequenceBatch(
                items=torch.from_numpy(inputs.padded(width).astype(np.int64)),
                lengths=torch.from_numpy(inputs.lengths),
                targets=torch.from_numpy(targets.padded().astype(np.int64)),
            )

    def _plan_epoch(self) -> tuple[list[Int64s], Spans, Spans]:
        """Return the rows of each batch, and the inputs and targets that they index."""
        rng = np.random.default_rng([self.seed, self.epoch])
        inputs, targets = self._cut(rng)
        width, longest = int(targets.lengths.max(initial=0)), self.max_sequence_length
        return _plan(inputs.lengths, longest, self.batch_tokens, rng, width), inputs, targets

    def _cut(self, rng: np.random.Generator) -> tuple[Spans, Spans]:
        histories, longest = self.histories, self.max_sequence_length
        cuts_per_history = -(-np.maximum(histories.lengths - 1, 0) // longest)
        users = np.repeat(np.arange(len(histories)), cuts_per_history)
        starts, ends = histories.offsets[users], histories.offsets[users + 1]
        cuts = rng.integers(starts + 1, ends)
        oldest = np.maximum(starts, cuts - longest)
        last = np.minimum(ends, cuts + self.max_targets)
        return Spans(histories, users, oldest, cuts), Spans(histories, users, cuts, last)


PlainBatches = TrainingBatches | SequenceToSequenceBatches


class ReplayBatches:
    """Epochs of all histories with new interactions and of a sample of the others, drawn per pass.

    Args:
        build: makes the batches of the histories of an epoch.
        histories: the training histories.
        is_new: whether each history has new interactions.
        share: the share of the others in an epoch, below 1; there may be fewer.
        seed: seed of the samples, together with the number of the pass.
        epochs_per_pass: the number of epochs that divide a pass.
    """

    def __init__(
        self,
        build: Callable[[Histories], PlainBatches],
        histories: Histories,
        is_new: Bools,
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


Batches = PlainBatches | ReplayBatches


class ShardedBatches:
    """One process's shard of each batch, from a given epoch on, and from the batch of a state.

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
        self.num_tokens = batches.num_tokens
        """Number of tokens of an epoch in all processes, without padding."""

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


def histories_after(histories: Histories, time: int | None) -> Bools:
    """Return which of B histories have an interaction later than a time; all if it is None."""
    if time is None or histories.times is None:
        return np.ones(len(histories), dtype=np.bool_)
    later = histories.users[histories.times > time]
    return np.bincount(later, minlength=len(histories)) > 0


def _plan(
    lengths: Int64s, longest: int, batch_tokens: int, rng: np.random.Generator, extra: int = 0
) -> list[Int64s]:
    """Shuffle rows into batches of similar length; each row has ``extra`` tokens more."""
    order = rng.permutation(len(lengths))
    lengths = lengths[order]
    pools = np.cumsum(lengths + extra) // (_POOL_BATCHES * batch_tokens)
    arranged = np.lexsort((-lengths, pools))
    order, lengths, pools = order[arranged], lengths[arranged], pools[arranged]
    batches = []
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // (batch_width(int(lengths[start]), longest) + extra))
        stop = min(start + rows, int(np.searchsorted(pools, pools[start], side="right")))
        batches.append(order[start:stop])
        start = stop
    return [batches[index] for index in rng.permutation(len(batches))]


def batch_width(length: int, longest: int, scale: int | None = None) -> int:
    """Round a batch's length up by at most a sixteenth (of ``scale``), to no more than ``longest``.

    oneDNN compiles and caches its kernels for each shape: with all lengths from 20 to 200 this took
    twice the memory and 15% more time.

    >>> [batch_width(length, 199) for length in (7, 33, 65, 198, 199)]
    [7, 34, 68, 199, 199]
    """
    step = 1 << max(0, (length if scale is None else scale).bit_length() - 5)
    return min(-(-length // step) * step, longest)
