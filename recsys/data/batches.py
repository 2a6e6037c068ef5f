"""Training batches: sequences of similar length, under a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys.data.histories import PAD, Bools, Histories, Int32s, Int64s
from recsys.errors import InputError

_POOL_BATCHES = 50
"""Batches in a pool of sequences that are sorted by length: 3 to 4% of the positions are padding on
three logs, with 20 6 to 7%."""


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """The inputs and targets of one training step."""

    items: Tensor
    """Shape [B, L], int64: input item tokens, right-padded with PAD; masked items are PAD too."""
    lengths: Tensor
    """Shape [B], int64: inputs per row."""
    targets: Tensor
    """Shape [B, L] or [B, n], int64, padded with PAD: the item that follows each input, or the n
    items that follow the last input, or the masked items."""
    times: Tensor | None = None
    """Shape [B, L + 1], int64: the times of the inputs and of the last target, on the scale of the
    log. None if they are unknown or not used."""
    features: tuple[Tensor, ...] = ()
    """`Histories.padded_features` of the inputs, never of a last target."""

    def shard(self, process: int, processes: int) -> SequenceBatch:
        """Return every P-th row for one of P processes; one without a row gets no targets."""
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
            tuple(map(change, self.features)),
        )


def _sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device without waiting for it: from memory that is not pinned, a GPU would wait."""
    if device.type == "cuda":
        values = values.contiguous().pin_memory()  # another form is copied once more, waiting
    return values.to(device, non_blocking=True)


class Replay(NamedTuple):
    """The histories of a warm start: all with new interactions, and a sample of the others."""

    is_new: Bools
    """Whether each history has new interactions."""
    share: float
    """The share of the others in an epoch, below 1; there may be fewer."""

    def draw(self, lengths: Int64s, rng: np.random.Generator) -> Int64s:
        """Draw the rows of a pass over histories of these lengths, ascending."""
        new, old = (np.flatnonzero(rows & (lengths >= 2)) for rows in (self.is_new, ~self.is_new))
        replayed = min(round(len(new) * self.share / (1 - self.share)), len(old))
        return np.sort(np.concatenate([new, rng.choice(old, replayed, replace=False)]))


class _Pass(NamedTuple):
    """The S sequences of a pass over the histories, as positions among all items."""

    number: int
    starts: Int64s
    cuts: Int64s
    """Where the targets begin that follow the inputs; for next items, that of the last input."""
    ends: Int64s
    batches: list[Int64s]
    """The sequences of each batch."""


@dataclass(eq=False)
class TrainingBatches:
    """An epoch of training sequences; iterating again gives the next epoch's order.

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
    batch_tokens: int
    """The maximum number of input positions per batch, padding included."""
    seed: int
    """Seed of the order, the masks and the cuts, together with the epoch number."""
    windows: Literal["newest", "all"] = "newest"
    """The targets of an epoch: those among the newest items of each history, or all of them."""
    epochs_per_pass: int = 1
    """The number of epochs that divide the batches of a pass over all sequences."""
    mask_probability: float | None = None
    """The probability of masking an item. Masked items are PAD in the inputs, and alone are the
    targets, from the left; of each sequence at least one is masked."""
    max_targets: int | None = None
    """If given, each pass cuts each history in two at new random positions, one per
    ``max_sequence_length`` items: the newest items before a cut are inputs, and so many after it
    are targets, which ``batch_tokens`` counts too."""
    replay: Replay | None = None
    shard: tuple[int, int] = field(default=(0, 1), init=False)
    """Which of how many processes this is; see `SequenceBatch.shard`."""
    epoch: int = field(default=0, init=False)
    """The number of the next epoch."""
    _planned: _Pass | None = field(default=None, init=False)
    _served: int = field(default=0, init=False)
    _skipped: int = field(default=0, init=False)

    @property
    def num_tokens(self) -> int:
        """Number of inputs in the next epoch, and targets after a cut, without padding."""
        planned = self._pass(self.epoch // self.epochs_per_pass)
        by_position = self.mask_probability is None and self.max_targets is None
        ends = planned.cuts if by_position else planned.ends
        return -(-int((ends - planned.starts).sum()) // self.epochs_per_pass)

    def plan(self, epoch: int) -> list[Int64s]:
        """Return the sequences of each batch of an epoch."""
        number, part = divmod(epoch, self.epochs_per_pass)
        batches = self._pass(number).batches
        if len(batches) < self.epochs_per_pass > 1:
            raise InputError(
                f"training.epochs_per_pass={self.epochs_per_pass}: a pass over the log has "
                f"{len(batches)} batches"
            )
        return batches[part :: self.epochs_per_pass]

    def _pass(self, number: int) -> _Pass:
        if self._planned is None or self._planned.number != number:
            lengths, rng = self.histories.lengths, np.random.default_rng([self.seed, number])
            users, replay = np.arange(len(lengths)), self.replay
            if replay is not None:
                users = replay.draw(lengths, np.random.default_rng([self.seed, number]))
            starts, cuts, ends = self._sequences(users, lengths[users], rng)
            targets = 0 if self.max_targets is None else int((ends - cuts).max(initial=0))
            length, tokens = self.max_sequence_length, self.batch_tokens
            batches = _plan(cuts - starts, length, tokens, rng, targets)
            self._planned = _Pass(number, starts, cuts, ends, batches)
        return self._planned

    def _sequences(
        self, users: Int64s, lengths: Int64s, rng: np.random.Generator
    ) -> tuple[Int64s, Int64s, Int64s]:
        """Return the starts, cuts and ends of the sequences of some users."""
        offsets, length = self.histories.offsets, self.max_sequence_length
        counts = -(-np.maximum(lengths - 1, 0) // length)
        if self.windows == "newest" and self.max_targets is None:
            counts = np.minimum(counts, 1)
        users = np.repeat(users, counts)
        firsts, ends = offsets[users], offsets[users + 1]
        if self.max_targets is not None:
            cuts = rng.integers(firsts + 1, ends)
            ends = np.minimum(ends, cuts + self.max_targets)
            return np.maximum(firsts, cuts - length), cuts, ends
        later = np.repeat(np.cumsum(counts), counts) - np.arange(len(users)) - 1
        ends = ends - later * length
        return np.maximum(firsts, ends - length - 1), ends - 1, ends

    def __len__(self) -> int:
        return len(self.plan(self.epoch))

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of this epoch were served; Lightning saves it."""
        return {"batches": self._served}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Skip the batches that were served when the state was taken."""
        self._skipped = state["batches"]

    def __iter__(self) -> Iterator[SequenceBatch]:
        skipped, self._skipped = self._skipped, 0
        for number, batch in enumerate(self._batches(), 1):
            if number > skipped:
                self._served = number
                yield batch.shard(*self.shard)

    def _batches(self) -> Iterator[SequenceBatch]:
        batches = self.plan(self.epoch)
        planned = self._pass(self.epoch // self.epochs_per_pass)
        rng = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        spans, longest = self.histories.spans, self.max_sequence_length
        for rows in batches:
            starts, cuts, ends = (values[rows] for values in planned[1:4])
            lengths = cuts - starts
            width = batch_width(int(lengths.max()), longest)
            if self.max_targets is not None:
                items, targets = spans(starts, cuts).padded(width), spans(cuts, ends).padded()
                yield SequenceBatch(_tensor(items), _tensor(lengths), _tensor(targets))
                continue
            sequences = spans(starts, ends)
            grid = _tensor(sequences.padded(width + 1))
            if self.mask_probability is not None:
                yield _masked(grid, _tensor(lengths + 1), self.mask_probability, rng)
                continue
            times = sequences.padded_times(width + 1)
            yield SequenceBatch(
                items=grid[:, :-1] * (grid[:, 1:] != PAD),
                lengths=_tensor(lengths),
                targets=grid[:, 1:].contiguous(),
                times=None if times is None else _tensor(times[:, :-1]).contiguous(),
                features=tuple(map(torch.from_numpy, spans(starts, cuts).padded_features(width))),
            )


def _tensor(values: Int64s | Int32s) -> Tensor:
    return torch.from_numpy(values.astype(np.int64, copy=False))


def _masked(
    items: Tensor, lengths: Tensor, probability: float, rng: np.random.Generator
) -> SequenceBatch:
    """Mask items [B, L] at random."""
    masked = torch.from_numpy(rng.random(items.shape) < probability)
    masked &= items != PAD
    masked[torch.arange(len(items)), lengths - 1] |= ~masked.any(dim=1)
    order = masked.int().argsort(dim=1, descending=True, stable=True)
    targets = (items * masked).gather(1, order)[:, : int(masked.sum(1).max())]
    return SequenceBatch(items * ~masked, lengths, targets.contiguous())


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

    oneDNN compiles its kernels for each shape, which took twice the memory and 15% more time.

    >>> [batch_width(length, 199) for length in (7, 33, 65, 198, 199)]
    [7, 34, 68, 199, 199]
    """
    step = 1 << max(0, (length if scale is None else scale).bit_length() - 5)
    return min(-(-length // step) * step, longest)
