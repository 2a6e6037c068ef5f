"""Losses of the target against sampled negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.data.histories import PAD
from recsys.training.losses.chunks import LogitsFunction, chunked_sum, count_targets
from recsys.training.losses.seen import negative_mask
from recsys.training.negatives import Negatives

SampledLoss = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A function from logits [..., 1 + C], the target's in column 0 and -inf where a column does not
count, to the losses [...] and their gradient, which overwrites the logits."""


def sampled_softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log softmax(logits)[0], where column 0 is the target and the others are negatives.

    If the log of its expected count in a draw is subtracted from the logit of each negative, the
    denominator is that of the full catalogue in expectation. The target's logit is not corrected
    because the target is always present (Khrylchenko et al. 2025,
    https://arxiv.org/abs/2507.09331; the correction is due to Bengio and Senécal 2008,
    https://doi.org/10.1109/TNN.2007.912312).

    See `SampledLoss`. A loss is 69 at most, as that of a target of probability 1e-30.
    """
    torch.softmax(logits, -1, out=logits)
    target = logits[..., 0]
    losses = -target.clamp(min=1e-30).log()
    target -= 1
    return losses, logits


def binary_cross_entropy(logits: Tensor, target_weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the mean of -w log sigmoid(target) and -log(1 - sigmoid(negative)) of each negative.

    With w = 1 it is the loss of SASRec (Kang and McAuley 2018), with `calibrated_weight` that of
    gSASRec.

    Args:
        logits: see `SampledLoss`.
        target_weight: w.
    """
    present = (logits > -torch.inf).sum(-1)
    wrong = F.softplus(logits[..., 1:]).sum(-1)
    losses = (target_weight * F.softplus(-logits[..., 0]) + wrong) / present
    logits.sigmoid_()
    target = logits[..., 0]
    target.sub_(1).mul_(target_weight)
    logits /= present[..., None]
    return losses, logits


def calibrated_weight(num_negatives: int, num_items: int, calibration: float) -> float:
    """Return gSASRec's weight β of the target: 1 - t (1 - alpha), alpha = C / (I - 1).

    With few negatives, plain binary cross-entropy learns overconfident scores: sigmoid must be
    raised to β to give a probability. Source: Petrov and Macdonald 2023,
    https://arxiv.org/abs/2308.07192: β = alpha (t (1 - 1/alpha) + 1/alpha).

    >>> calibrated_weight(25, 101, 0.0), calibrated_weight(25, 101, 1.0)
    (1.0, 0.25)
    """
    sampled = min(1.0, num_negatives / max(num_items - 1, 1))
    return 1 - calibration * (1 - sampled)


def chunked_sampled_loss(
    loss: SampledLoss,
    logits: LogitsFunction,
    history: Sequence[Tensor],
    candidates: Sequence[Tensor],
    target_logits: Tensor,
    targets: Tensor,
    negatives: Negatives,
    seen: Tensor | None,
    *,
    chunk_rows: int,
) -> Tensor:
    """Return the mean over targets of a loss of the target against shared negatives.

    Args:
        loss: gets float32 logits [b, L, 1 + C].
        logits: a function of (history, candidates) that returns [b, L, C].
        history: tensors whose first dimension is B.
        candidates: the representation of the negatives.
        target_logits: logits of the targets [B, L].
        targets: item tokens [B, L], PAD for none.
        negatives: a negative that equals the target is masked.
        seen: item tokens [B, N], masked as in `chunked_cross_entropy`. If None, no other item is.
        chunk_rows: number of sequences in a chunk.
    """

    def all_logits(history: tuple[Tensor, ...], candidates: tuple[Tensor, ...]) -> Tensor:
        target, *sides = history
        return torch.cat([target[..., None], logits(tuple(sides), candidates)], dim=-1)

    def loss_and_gradient(scores: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        exact = scores.to(torch.promote_types(scores.dtype, torch.float32))
        before = None if seen is None else seen[rows]
        mask = negative_mask(negatives.items, targets[rows], before)
        if negatives.log_expected is not None:
            exact[..., 1:] -= negatives.log_expected
        exact[..., 1:].masked_fill_(mask, -torch.inf)
        losses, gradient = loss(exact)
        empty = targets[rows] == PAD
        losses[empty] = 0
        gradient.flatten(0, 1).index_fill_(0, empty.flatten().nonzero().squeeze(1), 0)
        return losses.sum(), gradient.to(scores.dtype)

    sides = (target_logits, *history)
    total = chunked_sum(all_logits, loss_and_gradient, sides, candidates, chunk_rows)
    return total / count_targets(targets)
