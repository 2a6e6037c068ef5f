"""Losses of the target against sampled negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.data.histories import PAD
from recsys.training.losses.chunks import LogitsFunction, chunked_sum, count_targets
from recsys.training.losses.seen import NO_NEGATIVE, mask_negatives
from recsys.training.negatives import Negatives

SampledLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function from the logits of targets [...] and of their negatives [..., C], `NO_NEGATIVE` where
one does not count, to the losses [...] and their gradient by the logits of the targets [...]. That
by the logits of the negatives overwrites these."""


def sampled_softmax(target: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log of the share of the target in a softmax of the target and the negatives.

    If the log of its expected count in a draw is subtracted from the logit of each negative, the
    denominator is that of the full catalogue in expectation. The target's logit is not corrected
    because the target is always present (Khrylchenko et al. 2025,
    https://arxiv.org/abs/2507.09331; the correction is due to Bengio and Senécal 2008,
    https://doi.org/10.1109/TNN.2007.912312).

    See `SampledLoss`.
    """
    peak = negatives.amax(-1)
    torch.softmax(negatives, -1, out=negatives)
    # The largest share is 1 / sum exp(n - peak).
    difference = peak - negatives.amax(-1).log() - target
    wrong = difference.sigmoid()
    negatives *= wrong[..., None]
    return F.softplus(difference), wrong.neg_()


def binary_cross_entropy(
    target: Tensor, negatives: Tensor, target_weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the mean of -w log sigmoid(target) and -log(1 - sigmoid(negative)) of each negative.

    With w = 1 it is the loss of SASRec (Kang and McAuley 2018), with `calibrated_weight` that of
    gSASRec.

    Args:
        target: see `SampledLoss`.
        negatives: see `SampledLoss`.
        target_weight: w.
    """
    present = 1 + (negatives > NO_NEGATIVE).sum(-1)
    losses = (target_weight * F.softplus(-target) + F.softplus(negatives).sum(-1)) / present
    negatives.sigmoid_().div_(present[..., None])
    return losses, (target.sigmoid() - 1) * (target_weight / present)


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
        loss: gets float32 logits [b, L] and [b, L, C].
        logits: a function of (history, candidates) that returns [b, L, C].
        history: tensors whose first dimension is B.
        candidates: the representation of the negatives.
        target_logits: logits of the targets [B, L].
        targets: item tokens [B, L], PAD for none.
        negatives: a negative that equals the target is masked.
        seen: item tokens [B, N], masked as in `chunked_cross_entropy`. If None, no other item is.
        chunk_rows: number of sequences in a chunk.
    """
    of_targets = torch.empty_like(target_logits)

    def loss_and_gradient(scores: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        exact = _exact(scores).contiguous()
        if negatives.log_expected is not None:
            exact -= negatives.log_expected
        before = None if seen is None else seen[rows]
        mask_negatives(exact, negatives.items, targets[rows], before)
        losses, of_target = loss(_exact(target_logits.detach()[rows]), exact)
        empty = targets[rows] == PAD
        exact.flatten(0, 1).index_fill_(0, empty.flatten().nonzero().squeeze(1), 0)
        of_targets[rows] = of_target.masked_fill_(empty, 0)
        return losses.masked_fill_(empty, 0).sum(), exact.to(scores.dtype)

    beside = target_logits, of_targets
    total = chunked_sum(logits, loss_and_gradient, history, candidates, chunk_rows, beside)
    return total / count_targets(targets)


def _exact(logits: Tensor) -> Tensor:
    """The logits in float32 or more."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
