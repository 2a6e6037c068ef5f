"""Cross-entropy over a catalogue whose rows are divided over processes: the exact full softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from recsys.data.histories import PAD
from recsys.model.division import Division
from recsys.training.losses.chunks import (
    LogitsFunction,
    chunk_gradients,
    count_targets,
    working_sides,
)
from recsys.training.losses.full_catalogue import aligned
from recsys.training.losses.seen import SeenItems


def divided_cross_entropy(
    logits: LogitsFunction,
    history: Sequence[Tensor],
    candidates: Sequence[Tensor],
    targets: Tensor,
    seen: Tensor | None,
    division: Division,
    *,
    chunk_rows: Callable[[int], int],
) -> Tensor:
    """Return the mean `cross_entropy` over the targets of this process, each against all items.

    All processes call it together, each with a batch of its own: numbers of sequences, lengths and
    seen items may differ. The batches are computed in turn. Every process has the logits of a few
    sequences and its own rows; the largest logit and the denominator of the softmax are reduced
    over the processes, and so each logit gets the gradient that it has in an undivided softmax.

    The gradient of ``candidates`` is that of the targets of all processes, times the factor that
    this process multiplies the sum of its losses by, which is the mean times `count_targets`. So
    all processes must multiply their sums by one factor.

    Args:
        logits: a function of (history, candidates) that returns [b, L, C].
        history: tensors whose first dimension is B and whose second-last is L.
        candidates: the representation of the rows of this process.
        targets: item tokens [B, L], PAD for none.
        seen: item tokens [B, N], of which the first N - L + 1 + t are excluded from the softmax of
            target t; None in all processes or in none.
        division: which rows each process holds.
        chunk_rows: the number of sequences of a length in a chunk, the same in all processes.
    """
    total: Tensor = _Divided.apply(  # type: ignore[no-untyped-call]
        logits,
        targets,
        seen,
        division,
        chunk_rows,
        len(history),
        *history,
        *(aligned(side, spare=1) for side in candidates),
    )
    return total / count_targets(targets)


class _Divided(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: LogitsFunction,
        targets: Tensor,
        seen: Tensor | None,
        division: Division,
        chunk_rows: Callable[[int], int],
        num_history: int,
        *sides: Tensor,
    ) -> Tensor:
        history, candidates, sums = working_sides(sides, num_history)
        for source, batch in enumerate(_batches(history, targets, seen, division)):
            theirs, their_targets, their_seen = batch
            length = their_targets.shape[1]

            def loss(
                scores: Tensor,
                rows: slice,
                targets: Tensor = their_targets,
                seen: Tensor | None = their_seen,
            ) -> tuple[Tensor, Tensor]:
                before = None if seen is None else SeenItems.up_to(seen, targets.shape[1])
                excluded = None if before is None else before.before(rows)
                return _softmax_gradient(scores, targets[rows], excluded, division)

            value, parts = chunk_gradients(
                logits, loss, theirs, candidates, chunk_rows(length), sums
            )
            # Each process has a part of the gradient of each state: that of its own rows.
            parts = [part.float() for part in parts]
            for part in parts:
                dist.reduce(part, source)
            if source == division.index:
                total, own = value, parts
        ctx.save_for_backward(*own, *sums)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        return *(None,) * 6, *(gradient * upstream[0] for gradient in ctx.saved_tensors)


def _batches(
    history: Sequence[Tensor], targets: Tensor, seen: Tensor | None, division: Division
) -> Iterator[tuple[list[Tensor], Tensor, Tensor | None]]:
    """Yield the history, targets and seen items of each process in turn, in every process."""
    own = targets.new_tensor([*targets.shape, 0 if seen is None else seen.shape[1]])
    sizes = [torch.empty_like(own) for _ in range(division.count)]
    dist.all_gather(sizes, own)
    for source, (rows, length, width) in enumerate(torch.stack(sizes).tolist()):
        yield (
            [
                _sent(side, (rows, *side.shape[1:-2], length, side.shape[-1]), source, division)
                for side in history
            ],
            _sent(targets, (rows, length), source, division),
            None if seen is None else _sent(seen, (rows, width), source, division),
        )


def _sent(side: Tensor, shape: tuple[int, ...], source: int, division: Division) -> Tensor:
    """Return the tensor that a process has, which is of this shape."""
    found = side.detach().contiguous() if source == division.index else side.new_empty(shape)
    dist.broadcast(found, source)
    return found


def _softmax_gradient(
    scores: Tensor,
    targets: Tensor,
    excluded: Tensor | None,
    division: Division,
) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses of a chunk, and its gradient, which overwrites the logits.

    The column after those of this process's items, and all that follow it, are of no item: what
    belongs to the rows of other processes is written there.

    Args:
        scores: [b, L, C], the logits of the rows of this process.
        targets: item tokens [b, L], of any process.
        excluded: item tokens [b, L, N], of any process; see `cross_entropy`.
        division: which rows each process holds.
    """
    rows, width = scores.flatten(0, 1), division.num_rows  # a view, whichever is contiguous
    each = torch.arange(len(rows), device=rows.device)
    column = division.columns(targets.flatten())
    elsewhere = column == width
    target = rows[each, column].masked_fill_(elsewhere, -torch.inf)
    rows[:, width:] = -torch.inf
    if division.own.start == PAD:
        rows[:, PAD] = -torch.inf
    if excluded is not None:
        rows[each[:, None], division.columns(excluded.flatten(0, 1))] = -torch.inf
    rows[each, column] = target
    peak = rows.amax(1).float()
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    weights = (rows - peak[:, None]).exp_()  # float32
    sums = torch.stack([weights.sum(1), target.float().masked_fill_(elsewhere, 0)])
    dist.all_reduce(sums)
    losses = sums[0].log() + peak - sums[1]
    weights /= sums[0][:, None]
    weights[each, column] -= 1
    weights[:, width:] = 0
    empty = targets.flatten() == PAD
    losses[empty] = 0
    weights.index_fill_(0, empty.nonzero().squeeze(1), 0)
    rows.copy_(weights)
    return losses.sum(), scores
