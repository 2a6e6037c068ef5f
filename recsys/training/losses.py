"""Losses: pure functions of logits and targets, in chunks where the logits would not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from recsys.data.histories import PAD


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    excluded: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Sum over positions of -log softmax(logits)[target], over the catalogue less what is excluded.

    With label smoothing ε the wanted distribution is 1 - ε on the target plus ε spread evenly over
    all items that are not excluded (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567).

    Args:
        logits: [B, L, I + 1], column = item token. **Overwritten**: nothing else may need them.
        targets: item tokens [B, L]; PAD marks positions without a target, which add 0.
        excluded: item tokens [B, L, N] left out of the softmax at each position, PAD for none; the
            target itself is never left out. PAD always is.
        label_smoothing: ε, from 0 to below 1.

    Returns:
        The sum, a float32 scalar; its gradient (softmax - one-hot) is made in the same pass.
    """
    loss: Tensor = _CrossEntropy.apply(logits, targets, excluded, label_smoothing)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        logits: Tensor,
        targets: Tensor,
        excluded: Tensor | None,
        label_smoothing: float,
    ) -> Tensor:
        logits = logits.detach()
        index = targets[..., None]
        wanted = logits.gather(-1, index)
        logits[..., PAD] = -torch.inf
        if excluded is not None:
            logits.scatter_(-1, excluded, -torch.inf)
        logits.scatter_(-1, index, wanted)
        if label_smoothing:
            allowed = logits > -torch.inf
            shares = label_smoothing / allowed.sum(-1, keepdim=True)
            mean = logits.masked_fill(~allowed, 0).sum(-1, keepdim=True, dtype=torch.float32)
            mean *= shares / label_smoothing
        gradient = torch.softmax(logits, dim=-1, out=logits)
        losses = -gradient.gather(-1, index).float().clamp_(min=1e-30).log_()
        if label_smoothing:
            # log of the softmax's denominator = loss + wanted logit
            losses = losses + label_smoothing * (wanted.float() - mean)
            gradient -= allowed * shares.to(gradient.dtype)
        gradient.scatter_add_(-1, index, torch.full_like(wanted, label_smoothing - 1))
        empty = targets == PAD
        losses[empty] = 0
        gradient[empty] = 0
        ctx.save_for_backward(gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype), None, None, None


def seen_items(items: Tensor, steps: int) -> Tensor:
    """The items up to each of the last ``steps`` positions; PAD fills the rest.

    From item tokens [B, N] to [B, steps, N].

    >>> seen_items(torch.tensor([[5, 3, 4]]), 3)
    tensor([[[5, 0, 0],
             [5, 3, 0],
             [5, 3, 4]]])
    >>> seen_items(torch.tensor([[5, 3, 4]]), 2)
    tensor([[[5, 3, 0],
             [5, 3, 4]]])
    """
    return items[:, None, :].expand(-1, steps, -1).tril(items.shape[1] - steps)


LogitsFunction = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], Tensor]


def chunked_cross_entropy(
    logits: LogitsFunction,
    history: Sequence[Tensor],
    candidates: Sequence[Tensor],
    targets: Tensor,
    items: Tensor | None,
    *,
    label_smoothing: float = 0.0,
    chunk_elements: int = 1 << 22,
) -> Tensor:
    """Mean `cross_entropy` over the positions with a target, never holding [B, L, I + 1] logits.

    A few sequences at a time, their logits are made, turned into loss and gradients, and dropped;
    backward only scales what forward has found.

    Args:
        logits: (history, candidates) to [b, L, I + 1].
        history: tensors whose first dimension is B; chunks of it go to `logits`.
        candidates: tensors that every chunk needs whole, row = item token.
        targets: [B, L], PAD for none.
        items: item tokens [B, N] to leave out of the softmax once seen: before target t the first
            N - L + 1 + t are. None: nothing is left out.
        label_smoothing: see `cross_entropy`.
        chunk_elements: logits held at once; at least one sequence's.
    """
    loss: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
        logits,
        targets,
        items,
        label_smoothing,
        chunk_elements,
        len(history),
        *history,
        *candidates,
    )
    return loss


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: LogitsFunction,
        targets: Tensor,
        items: Tensor | None,
        label_smoothing: float,
        chunk_elements: int,
        num_history: int,
        *sides: Tensor,
    ) -> Tensor:
        sides = tuple(_working_copy(side) for side in sides)
        history, candidates = sides[:num_history], sides[num_history:]
        sums = [torch.zeros_like(side, dtype=torch.float32) for side in candidates]
        parts: list[list[Tensor]] = [[] for _ in history]
        total = torch.zeros((), device=targets.device)
        size = max(1, chunk_elements // (targets.shape[1] * candidates[0].shape[-2]))
        for start in range(0, len(targets), size):
            rows = slice(start, start + size)
            chunk = tuple(side[rows].requires_grad_() for side in history)
            excluded = None if items is None else seen_items(items[rows], targets.shape[1])
            with torch.enable_grad():
                loss = cross_entropy(
                    logits(chunk, candidates), targets[rows], excluded, label_smoothing
                )
            gradients = torch.autograd.grad(loss, (*chunk, *candidates))
            for part, gradient in zip(parts, gradients[:num_history], strict=True):
                part.append(gradient)
            for index, gradient in enumerate(gradients[num_history:]):
                sums[index] += gradient
            total += loss.detach()
        count = (targets != PAD).sum().clamp_(min=1)
        ctx.save_for_backward(count, *(torch.cat(part) for part in parts), *sums)
        return total / count

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        count, *gradients = ctx.saved_tensors
        scale = upstream[0] / count
        return None, None, None, None, None, None, *(gradient * scale for gradient in gradients)


def _working_copy(side: Tensor) -> Tensor:
    """A leaf of the autocast dtype: cast once here, not once per chunk."""
    device = side.device.type
    if torch.is_autocast_enabled(device):
        side = side.to(torch.get_autocast_dtype(device))
    return side.detach().requires_grad_()
