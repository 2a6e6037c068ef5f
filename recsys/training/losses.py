"""Losses: pure functions of logits and targets, in chunks where the logits would not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.data.histories import PAD
from recsys.training.chunks import LogitsFunction, chunked_sum
from recsys.training.negatives import Negatives, negative_mask


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
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        excluded: Tensor | None,
        label_smoothing: float,
    ) -> Tensor:
        loss, gradient = _softmax_gradient(logits.detach(), targets, excluded, label_smoothing)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype), None, None, None


def _softmax_gradient(
    logits: Tensor, targets: Tensor, excluded: Tensor | None, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """See `cross_entropy`: the loss, and its gradient in the place of the logits."""
    rows = logits.flatten(0, 1)  # in memory one after the other, or side by side
    along, across = rows.stride()
    # By index into the memory: on a CPU torch.scatter_ copies the whole tensor first.
    flat = rows.as_strided((rows.numel(),), (1,))
    starts = torch.arange(len(rows), device=rows.device).mul_(along).view(targets.shape)
    place = starts + targets * across
    wanted = flat[place]

    def leave_out(value: float, kept: Tensor) -> None:
        logits[..., PAD] = value
        if excluded is not None:
            flat[starts[..., None] + excluded * across] = value
        flat[place] = kept

    if label_smoothing:
        leave_out(0, wanted)
        total = logits.sum(-1, dtype=torch.float32)
    leave_out(-torch.inf, wanted)
    if label_smoothing:
        allowed = (logits > -torch.inf).sum(-1)
    dense, dim = (rows, 1) if across == 1 else (rows.T, 0)
    torch.softmax(dense, dim, out=dense)
    losses = -flat[place].float().clamp_(min=1e-30).log_()
    if label_smoothing:
        # log of the softmax's denominator = loss + wanted logit
        losses += label_smoothing * (wanted.float() - total / allowed)
        logits -= (label_smoothing / allowed)[..., None].to(logits.dtype)
        leave_out(0, flat[place])
    flat[place] += label_smoothing - 1
    empty = targets == PAD
    losses[empty] = 0
    # By row: mostly few or none are empty, and a mask would pass over the whole matrix.
    rows.index_fill_(0, empty.flatten().nonzero().squeeze(1), 0)
    return losses.sum(), logits


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


def chunked_cross_entropy(
    logits: LogitsFunction,
    history: Sequence[Tensor],
    candidates: Sequence[Tensor],
    targets: Tensor,
    items: Tensor | None,
    *,
    chunk_rows: int = 64,
    label_smoothing: float = 0.0,
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
        chunk_rows: sequences at a time.
        label_smoothing: see `cross_entropy`.
    """
    length = targets.shape[1]

    def loss(scores: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        excluded = None if items is None else seen_items(items[rows], length)
        return _softmax_gradient(scores, targets[rows], excluded, label_smoothing)

    total = chunked_sum(logits, loss, history, candidates, chunk_rows)
    return total / _count(targets)


def sampled_softmax(logits: Tensor) -> Tensor:
    """-log softmax(logits)[0]: the target in column 0, against the others.

    With the log of how often each of the others is expected in a draw taken off its logit, the
    denominator is that of the whole catalogue in expectation. The target's logit stays as it is: it
    is always there (Khrylchenko et al. 2025, https://arxiv.org/abs/2507.09331; the correction is of
    Bengio and Senécal 2008, https://doi.org/10.1109/TNN.2007.912312).

    Args:
        logits: [..., 1 + C]; -inf is left out.

    Returns:
        [...]
    """
    return logits.logsumexp(-1) - logits[..., 0]


def binary_cross_entropy(logits: Tensor, target_weight: float = 1.0) -> Tensor:
    """Mean of -w log sigmoid(target) and of -log(1 - sigmoid(other)) for each of the others.

    With w = 1 it is SASRec's loss (Kang and McAuley 2018), with `calibrated_weight` gSASRec's.

    Args:
        logits: [..., 1 + C]; -inf is left out.
        target_weight: w.

    Returns:
        [...]
    """
    present = (logits > -torch.inf).sum(-1)
    wrong = F.softplus(logits[..., 1:]).sum(-1)
    return (target_weight * F.softplus(-logits[..., 0]) + wrong) / present


def calibrated_weight(num_negatives: int, num_items: int, calibration: float) -> float:
    """The weight β of a target beside sampled negatives: 1 - t (1 - alpha), alpha = C / (I - 1).

    With few negatives a plain binary cross-entropy learns scores that are too sure: sigmoid must be
    raised to β to give a probability. Source: Petrov and Macdonald 2023 (gSASRec),
    https://arxiv.org/abs/2308.07192: β = alpha (t (1 - 1/alpha) + 1/alpha).

    >>> calibrated_weight(25, 101, 0.0), calibrated_weight(25, 101, 1.0)
    (1.0, 0.25)
    """
    sampled = min(1.0, num_negatives / max(num_items - 1, 1))
    return 1 - calibration * (1 - sampled)


def chunked_sampled(
    loss: Callable[[Tensor], Tensor],
    logits: LogitsFunction,
    history: Sequence[Tensor],
    candidates: Sequence[Tensor],
    wanted: Tensor,
    targets: Tensor,
    negatives: Negatives,
    had: Tensor | None,
    *,
    chunk_rows: int,
) -> Tensor:
    """Mean of a loss of the target and shared negatives, over the positions with a target.

    Args:
        loss: float32 logits [b, L, 1 + C], the target's in column 0, to [b, L].
        logits: (history, candidates) to [b, L, C].
        history: tensors whose first dimension is B.
        candidates: those of the negatives.
        wanted: logits of the targets [B, L].
        targets: item tokens [B, L], PAD for none.
        negatives: where one is the target itself, it is left out.
        had: item tokens [B, N], left out as `chunked_cross_entropy` does; None: nothing else is.
        chunk_rows: sequences at a time.
    """

    def all_logits(history: tuple[Tensor, ...], candidates: tuple[Tensor, ...]) -> Tensor:
        own, *sides = history
        return torch.cat([own[..., None], logits(tuple(sides), candidates)], dim=-1)

    def loss_and_gradient(scores: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
        out = negative_mask(negatives.items, targets[rows], None if had is None else had[rows])
        if negatives.log_expected is not None:
            exact[..., 1:] -= negatives.log_expected
        exact[..., 1:].masked_fill_(out, -torch.inf)
        with torch.enable_grad():
            total = loss(exact.requires_grad_())[targets[rows] != PAD].sum()
        (gradient,) = torch.autograd.grad(total, exact)
        return total.detach(), gradient.to(scores.dtype)

    sides = (wanted, *history)
    total = chunked_sum(all_logits, loss_and_gradient, sides, candidates, chunk_rows)
    return total / _count(targets)


def _count(targets: Tensor) -> Tensor:
    """Positions with a target; 1 if there are none."""
    return (targets != PAD).sum().clamp_(min=1)
