"""Losses in chunks: logits of a few sequences at a time, turned into gradients and dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from recsys.data.histories import PAD

LogitsFunction = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], Tensor]
"""A function from (history, candidates) to logits [b, L, C]."""
LossFunction = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""A function from logits [b, L, C], which it may overwrite, and their rows of the batch to the sum
of the losses and its gradient [b, L, C]."""


def chunked_sum(
    logits: LogitsFunction,
    loss: LossFunction,
    history: Sequence[Tensor],
    candidates: Sequence[Tensor],
    chunk_rows: int,
    beside: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the sum of a loss over all rows without ever holding [B, L, C] logits.

    Forward computes the gradients too, chunk by chunk; backward only scales them.

    Args:
        logits: the function that autograd differentiates.
        loss: the function that returns its own gradient, which saves a pass over the logits.
        history: tensors whose first dimension is B; they are passed to `logits` in chunks.
        candidates: tensors passed entire with every chunk.
        chunk_rows: number of sequences in a chunk.
        beside: a tensor that the loss depends on beside these logits, and one of its shape into
            which ``loss`` writes the gradient by it.

    Returns:
        A float32 scalar.
    """
    sides = (*history, *candidates)
    gradients = []
    if beside is not None:
        sides, gradients = (*sides, beside[0]), [beside[1]]
    total: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        logits, loss, chunk_rows, len(history), gradients, *sides
    )
    return total


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: LogitsFunction,
        loss: LossFunction,
        chunk_rows: int,
        num_history: int,
        gradients: list[Tensor],
        *sides: Tensor,
    ) -> Tensor:
        chunked = sides[: len(sides) - len(gradients)]  # the others have gradients of their own
        history, candidates, sums = working_sides(chunked, num_history)
        total, parts = chunk_gradients(logits, loss, history, candidates, chunk_rows, sums)
        ctx.save_for_backward(*parts, *sums, *gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        return *(None,) * 5, *(gradient * upstream[0] for gradient in ctx.saved_tensors)


def chunk_gradients(
    logits: LogitsFunction,
    loss: LossFunction,
    history: Sequence[Tensor],
    candidates: tuple[Tensor, ...],
    chunk_rows: int,
    sums: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """Compute the sum of a loss and its gradients, chunk by chunk; see `chunked_sum`.

    Args:
        logits: see `chunked_sum`.
        loss: see `chunked_sum`.
        history: tensors whose first dimension is B.
        candidates: leaves that require gradients.
        chunk_rows: number of sequences in a chunk.
        sums: float32 tensors of the shapes of the candidates; their gradients are added to these.

    Returns:
        The sum, a float32 scalar, and the gradients of the history.
    """
    parts = [torch.empty_like(side) for side in history]
    total = torch.zeros((), device=history[0].device)
    for start in range(0, len(history[0]), chunk_rows):
        rows = slice(start, start + chunk_rows)
        chunk = tuple(side[rows].requires_grad_() for side in history)
        with torch.enable_grad():
            scores = logits(chunk, candidates)
        # Before the scores are overwritten: the node of a view would then be replaced by one that
        # copies the entire gradient.
        node = get_gradient_edge(scores)
        losses, upstream = loss(scores.detach(), rows)
        # The dtypes are those of the forward pass. On a GPU autograd has threads of its own, in
        # which autocast took float16: https://github.com/pytorch/pytorch/issues/105682
        with torch.autocast(scores.device.type, enabled=False):
            gradients = torch.autograd.grad(node, (*chunk, *candidates), upstream)
        for part, gradient in zip(parts, gradients[: len(parts)], strict=True):
            part[rows] = gradient
        for index, gradient in enumerate(gradients[len(parts) :]):
            sums[index] += gradient
        total += losses
    return total, parts


def working_sides(
    sides: Sequence[Tensor], num_history: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], list[Tensor]]:
    """Return working copies of the history and of the candidates, and zeros for `sums` of these."""
    copies = tuple(_working_copy(side) for side in sides)
    history, candidates = copies[:num_history], copies[num_history:]
    sums = [torch.zeros_like(side, dtype=torch.float32) for side in candidates]
    return history, candidates, sums


def _working_copy(side: Tensor) -> Tensor:
    """Return a leaf of the autocast dtype, cast once here instead of once per chunk."""
    device = side.device.type
    if torch.is_autocast_enabled(device):
        side = side.to(torch.get_autocast_dtype(device))
    return side.detach().requires_grad_()


def count_targets(targets: Tensor) -> Tensor:
    """Count the positions with a target; 1 if there are none, so that it can divide a sum."""
    return (targets != PAD).sum().clamp_(min=1)
