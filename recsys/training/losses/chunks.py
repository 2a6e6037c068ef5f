"""Losses in chunks: logits of a few sequences at a time, turned into gradients and dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from recsys.data.histories import PAD
from recsys.model.heads import CandidateRepresentation, HistoryRepresentation

LogitsFunction = Callable[[HistoryRepresentation, CandidateRepresentation], Tensor]
"""A function from (history, candidates) to logits [b, L, C]."""
LossFunction = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""A function from logits [b, L, C], which it may overwrite, and their rows of the batch to the sum
of the losses and its gradient [b, L, C]."""


def chunked_sum(
    logits: LogitsFunction,
    loss: LossFunction,
    history: HistoryRepresentation,
    candidates: CandidateRepresentation,
    chunk_rows: int,
) -> Tensor:
    """Return the sum of a loss over all rows without ever holding [B, L, C] logits.

    Forward computes the gradients too, chunk by chunk; backward only scales them.

    Args:
        logits: the function that autograd differentiates.
        loss: the function that returns its own gradient, which saves a pass over the logits.
        history: passed to `logits` a few sequences at a time.
        candidates: passed entire with every chunk.
        chunk_rows: number of sequences in a chunk.

    Returns:
        A float32 scalar.
    """
    total: Tensor = _Chunked.apply(logits, loss, chunk_rows, *history, *candidates)  # type: ignore[no-untyped-call]
    return total


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: LogitsFunction, loss: LossFunction, chunk_rows: int, *sides: Tensor
    ) -> Tensor:
        copies = [_working_copy(side) for side in sides]
        count = len(HistoryRepresentation._fields)
        history, candidates = copies[:count], CandidateRepresentation(*copies[count:])
        of_history = [torch.empty_like(side) for side in history]
        of_candidates = [torch.zeros_like(side, dtype=torch.float32) for side in candidates]
        total = torch.zeros((), device=sides[0].device)
        for start in range(0, len(sides[0]), chunk_rows):
            rows = slice(start, start + chunk_rows)
            chunk = HistoryRepresentation(*(side[rows].requires_grad_() for side in history))
            with torch.enable_grad():
                scores = logits(chunk, candidates)
            # Before the scores are overwritten: the node of a view would then be replaced by one
            # that copies the entire gradient.
            node = get_gradient_edge(scores)
            losses, upstream = loss(scores.detach(), rows)
            # The dtypes are those of the forward pass. On a GPU autograd has threads of its own, in
            # which autocast took float16: https://github.com/pytorch/pytorch/issues/105682
            with torch.autocast(scores.device.type, enabled=False):
                gradients = torch.autograd.grad(
                    node, (*chunk, *candidates), upstream, materialize_grads=True
                )
            for whole, gradient in zip(of_history, gradients, strict=False):
                whole[rows] = gradient
            for whole, gradient in zip(of_candidates, gradients[count:], strict=True):
                whole.add_(gradient)
            total += losses
        ctx.save_for_backward(*of_history, *of_candidates)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        return *(None,) * 3, *(gradient * upstream[0] for gradient in ctx.saved_tensors)


def _working_copy(side: Tensor) -> Tensor:
    """Return a leaf of the autocast dtype, cast once here instead of once per chunk."""
    device = side.device.type
    if torch.is_autocast_enabled(device):
        side = side.to(torch.get_autocast_dtype(device))
    return side.detach().requires_grad_()


def count_targets(targets: Tensor) -> Tensor:
    """Count the positions with a target; 1 if there are none, so that it can divide a sum."""
    return (targets != PAD).sum().clamp_(min=1)
