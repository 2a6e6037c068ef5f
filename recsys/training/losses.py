"""Losses over the full catalogue and over sampled negatives, a chunk of logits at a time.

The logits of a few sequences are computed, turned into loss and gradients, and dropped: those of
all would not fit into memory. Negatives are drawn once per step and shared by all of its positions.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from recsys.config.experiment import (
    CrossEntropy,
    GeneralisedBinaryCrossEntropy,
    LossConfig,
    SampledLossConfig,
    SampledSoftmax,
)
from recsys.data.batches import batch_width
from recsys.data.histories import PAD
from recsys.model.heads import CandidateRepresentation, HistoryRepresentation
from recsys.model.models import Model
from recsys.training.followers import Followers

_CACHE_LINE = 64  # bytes
_TAUGHT = 0.9
"""The share of a teacher's probabilities, beside the true target, in what a model learns."""
_TAUGHT_ITEMS = 4096
"""A teacher teaches over so many items in a step, or multiples of it: any items teach the same."""
NO_NEGATIVE = -1e30
"""The logit of what is no negative of a position: a softmax of nothing but -inf is undefined."""

LogitsFunction = Callable[[HistoryRepresentation, CandidateRepresentation], Tensor]
"""From (history, candidates) to logits [b, L, C]."""
LossFunction = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""From logits [b, L, C], which it may overwrite, and their rows of the batch to the sum of the
losses and its gradient [b, L, C]."""


class _Chunked(torch.autograd.Function):
    """The sum of a loss over all rows, a float32 scalar, without ever holding all logits.

    Forward computes the gradients too, ``chunk_rows`` sequences at a time; backward scales them.
    The sides are those of a `HistoryRepresentation` and a `CandidateRepresentation`.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: LogitsFunction, loss: LossFunction, chunk_rows: int, *sides: Tensor
    ) -> Tensor:
        # Cast once here instead of once per chunk.
        copies = [side.to(_working_dtype(side)).detach().requires_grad_() for side in sides]
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


def _working_dtype(side: Tensor) -> torch.dtype:
    device = side.device.type
    autocast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if autocast else side.dtype


def count_targets(targets: Tensor) -> Tensor:
    """Count the targets; at least 1: one of several processes may have none in a step."""
    return (targets != PAD).sum().clamp_(min=1)


# --- Over the full catalogue ----------------------------------------------------------------------


def seen_before(items: Tensor, positions: Tensor, length: int) -> Tensor:
    """The items of the histories [B, N] that were seen before some targets [b, l]: [b, l, N].

    ``positions`` are those of the targets among B · L; L is the ``length``. The first N - L + 1 + t
    items precede target t, the others are PAD.

    >>> seen_before(torch.tensor([[5, 3, 4]]), torch.tensor([[0, 1, 2]]), 3)
    tensor([[[5, 0, 0],
             [5, 3, 0],
             [5, 3, 4]]])
    """
    counts = items.shape[1] - length + 1 + positions % length
    histories = items.index_select(0, positions[:, 0] // length)[:, None]
    order = torch.arange(items.shape[1], device=items.device)
    return torch.where(order < counts[..., None], histories, PAD)


def drop_padding(
    history: HistoryRepresentation, targets: Tensor, chunk_rows: int
) -> tuple[HistoryRepresentation, Tensor, Tensor]:
    """Return the M positions with a target as sequences of length 1: states [M, 1, D], [M, 1].

    The positions [M, 1] are those among B · L. A few fill the end, so that the last chunk has one
    of few sizes: oneDNN caches kernels for each.
    """
    indices = targets.flatten().nonzero().squeeze(1)
    count = len(indices)
    full, rest = divmod(count, chunk_rows)
    rest = batch_width(rest, chunk_rows, chunk_rows if full else rest)
    indices = F.pad(indices, (0, full * chunk_rows + rest - count))
    states = history.states.flatten(0, 1).index_select(0, indices)[:, None]
    selected = targets.flatten()[indices, None]
    selected[count:] = PAD
    return history._replace(states=states), selected, indices[:, None]


def chunked_cross_entropy(
    logits: LogitsFunction,
    history: HistoryRepresentation,
    candidates: CandidateRepresentation,
    targets: Tensor,
    excluded: Callable[[slice], Tensor] | None,
    *,
    chunk_rows: int = 64,
    teacher: tuple[Tensor, Tensor] | None = None,
    soften: Callable[[Tensor, slice], None] | None = None,
) -> Tensor:
    """Return the mean over targets [B, L] of -log softmax(logits)[target].

    Items that ``excluded`` returns for some sequences [b, L, N], and PAD, are in no softmax; as a
    target PAD has no loss. The row of a candidate is its number in both. With the states [B, L, W]
    and items [C, W] of a ``teacher`` the gradient is that of a cross-entropy whose targets are
    mostly its softmax (Hinton et al. 2015, https://arxiv.org/abs/1503.02531); the value stays.
    ``soften`` changes the gradient of some sequences [b, L, C], too: see `Followers.soften`.
    """
    width = candidates.embeddings.shape[-2]
    candidates = CandidateRepresentation(*map(_aligned, candidates))
    if teacher is not None:
        wide = _aligned(teacher[1].to(_working_dtype(teacher[1])))
        teacher = teacher[0].to(wide.dtype), wide

    def loss(scores: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        known = targets[rows], excluded and excluded(rows), width
        losses, gradient = softmax_gradient(scores, *known)
        if teacher is not None:
            soft = softmax_gradient(teacher[0][rows] @ teacher[1].T, *known)[1]
            gradient.sub_(soft, alpha=_TAUGHT)
        if soften is not None:
            soften(gradient, rows)
        return losses, gradient

    total: Tensor = _Chunked.apply(logits, loss, chunk_rows, *history, *candidates)  # type: ignore[no-untyped-call]
    return total / count_targets(targets)


def softmax_gradient(
    logits: Tensor, targets: Tensor, excluded: Tensor | None, width: int
) -> tuple[Tensor, Tensor]:
    """Return the sum of the losses and its gradient, which overwrites the logits.

    Logits are [B, L, C], column = item token; columns from ``width``, I + 1, on are of no item.
    Targets are item tokens [B, L], those to exclude from the softmax [B, L, N], PAD for none.
    """
    rows = logits.flatten(0, 1)  # either dimension may be the contiguous one
    row_stride, item_stride = rows.stride()
    # Index the memory directly: on a CPU torch.scatter_ first copies the entire tensor.
    flat = rows.as_strided((rows.numel(),), (1,))
    starts = torch.arange(len(rows), device=rows.device).mul_(row_stride).view(targets.shape)
    target_index = starts + targets * item_stride
    target_logits = flat[target_index]
    logits[..., PAD] = -torch.inf
    logits[..., width:] = -torch.inf
    if excluded is not None:
        flat[(excluded * item_stride).add_(starts[..., None])] = -torch.inf
    flat[target_index] = target_logits
    if rows.is_cuda and item_stride != 1:
        # Of candidates that are not contiguous CUDA's softmax takes a hundred times as long.
        rows.copy_(torch.softmax(rows.contiguous(), 1))
    else:
        dense, dim = (rows, 1) if item_stride == 1 else (rows.T, 0)
        torch.softmax(dense, dim, out=dense)
    losses = -flat[target_index].float().clamp_(min=1e-30).log_()
    flat[target_index] -= 1
    empty = targets == PAD
    losses[empty] = 0
    # By row: few or none are empty, and a mask would read the entire matrix.
    rows.index_fill_(0, empty.flatten().nonzero().squeeze(1), 0)
    return losses.sum(), logits


def draw_taught(targets: Tensor, rows: int, count: int) -> Tensor:
    """Draw ``count`` items with rows in a table, ascending: PAD, the targets, and others."""
    order = torch.rand(rows, device=targets.device)
    order[targets.flatten()], order[PAD] = 2, 3
    return order.topk(count).indices.sort().values


def _aligned(side: Tensor) -> Tensor:
    """Append rows of zeros, so that logits begin at a cache line: .39 s in place of .54 (bf16)."""
    return F.pad(side, (0, 0, 0, -side.shape[-2] % (_CACHE_LINE // _working_dtype(side).itemsize)))


# --- Against sampled negatives --------------------------------------------------------------------
# A loss takes the logits of targets [...] and of their negatives [..., C]; it returns the losses
# and their gradient by the logits of the targets [...]. That by the negatives' overwrites these.


def draw_negatives(count: int, num_items: int, device: torch.device) -> Tensor:
    """Draw the negatives of a step, item tokens [C]: all are equally likely, some may be equal.

    A draw as large as the catalogue has every item once.
    """
    if count < num_items:
        return torch.randint(1, num_items + 1, (count,), device=device)
    return torch.arange(1, num_items + 1, device=device)


def sampled_softmax(target: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Return -log of the share of the target in a softmax of the target and the negatives.

    With the log of its expected count subtracted from the logit of each negative, but not of the
    target, the denominator is that of the full catalogue in expectation (Bengio and Senécal 2008,
    https://doi.org/10.1109/TNN.2007.912312; Khrylchenko et al. 2025,
    https://arxiv.org/abs/2507.09331).
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

    With w = 1 it is the loss of SASRec, with β = 1 - t (1 - C / (I - 1)) that of gSASRec, whose
    calibration is t (Petrov and Macdonald 2023, https://arxiv.org/abs/2308.07192).
    """
    present = 1 + (negatives > NO_NEGATIVE).sum(-1)
    losses = (target_weight * F.softplus(-target) + F.softplus(negatives).sum(-1)) / present
    negatives.sigmoid_().div_(present[..., None])
    return losses, (target.sigmoid() - 1) * (target_weight / present)


def exact(logits: Tensor) -> Tensor:
    """The logits in float32 or more."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def mask_negatives(logits: Tensor, items: Tensor, targets: Tensor, seen: Tensor | None) -> None:
    """Set logits to `NO_NEGATIVE` where an item is the target of a position or was seen before it.

    Few are: they are set one by one, without a mask of all logits. Logits [B, L, C] are contiguous,
    items [C] and targets [B, L] are tokens; of those seen [B, N] N - L + 1 + t precede target t.
    """
    distinct, index = items.unique(return_inverse=True)
    flat, wanted = logits.flatten(0, 1), targets.flatten()
    positions = (_places(distinct, wanted) < len(distinct)).nonzero().squeeze(1)
    position, column = (items == wanted[positions, None]).nonzero(as_tuple=True)
    flat[positions[position], column] = NO_NEGATIVE
    if seen is None:
        return
    # The first place of each item in a history: it is masked from there on.
    (batch, width), length = seen.shape, targets.shape[1]
    first = seen.new_full((batch, len(distinct) + 1), width)
    order = torch.arange(width, device=seen.device).expand(batch, -1)
    first.scatter_reduce_(1, _places(distinct, seen), order, "amin")
    first = first[:, index]
    row, column = (first < width).nonzero(as_tuple=True)
    before = torch.arange(width - length, width, device=seen.device) < first[row, column, None]
    logits[row, :, column] = logits[row, :, column].where(before, NO_NEGATIVE)


def _places(distinct: Tensor, tokens: Tensor) -> Tensor:
    """The place of each token among ascending ones; their number if it is not among them."""
    places = torch.searchsorted(distinct, tokens)
    among = distinct[places.clamp(max=len(distinct) - 1)] == tokens
    return places.masked_fill_(~among, len(distinct))


# --- The loss of a training -----------------------------------------------------------------------


def mean_loss(
    config: LossConfig,
    model: Model,
    history: HistoryRepresentation,
    targets: Tensor,
    seen: Tensor | None,
    taught: tuple[Tensor, Tensor] | None = None,
    soft: tuple[Followers, Tensor] | None = None,
) -> Tensor:
    """Return the mean loss of the targets [B, L], PAD for none.

    ``history`` and ``seen`` are what `Model.teacher_forced` returns; if ``seen`` is None, seen
    items are wrong answers like any other. ``taught`` are the states [B, L, W] of a teacher and its
    items [I + 1, W], for a loss over the full catalogue: over a sample of it where it is large.
    ``soft`` are the items of the histories [B, L] and what softens the labels of an untaught loss.
    """
    if not isinstance(config, CrossEntropy):
        return _sampled_loss(config, model, history, targets, seen)
    head, table, length = model.head, model.items.table(), targets.shape[1]
    positions = torch.arange(targets.numel(), device=targets.device).view_as(targets)
    count = -(-2 * targets.numel() // _TAUGHT_ITEMS) * _TAUGHT_ITEMS  # half are no targets
    if taught is not None and len(table) > count:
        items = draw_taught(targets, len(table), count)
        table, taught = table[items], (taught[0], taught[1][items])
        targets = _places(items, targets) % len(items)  # PAD is at 0, and what was not drawn
        seen = None if seen is None else _places(items, seen) % len(items)
    if not head.attends:
        rows = head.chunk_rows(1, len(table), table.device)
        history, targets, positions = drop_padding(history, targets, rows)
    if taught is not None:
        taught = taught[0].flatten(0, 1)[positions], taught[1]
    return chunked_cross_entropy(
        head.logits,
        history,
        head.represent_candidates(table),
        targets,
        None if seen is None else lambda rows: seen_before(seen, positions[rows], length),
        chunk_rows=head.chunk_rows(targets.shape[1], len(table), table.device),
        teacher=taught,
        soften=None if soft is None else partial(soft[0].soften, soft[1], positions, targets),
    )


def _sampled_loss(
    config: SampledLossConfig,
    model: Model,
    history: HistoryRepresentation,
    targets: Tensor,
    seen: Tensor | None,
) -> Tensor:
    """`mean_loss` against negatives; embeddings are read by row, so their gradient is sparse."""
    head, count = model.head, config.num_negatives
    items = draw_negatives(count, model.num_items, targets.device)
    candidates = head.represent_candidates(model.items(items))
    of_targets = head.represent_candidates(model.items(targets))
    target_logits = exact(head.score_targets(history, of_targets))
    gradients = torch.empty_like(target_logits, requires_grad=False)
    weight = 1.0
    if isinstance(config, GeneralisedBinaryCrossEntropy):
        sampled = min(1.0, count / max(model.num_items - 1, 1))
        weight = 1 - config.calibration * (1 - sampled)

    def loss(scores: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        logits, of_target = exact(scores).contiguous(), target_logits.detach()[rows]
        corrected = isinstance(config, SampledSoftmax)
        if corrected:
            logits -= math.log(len(items) / model.num_items)
        mask_negatives(logits, items, targets[rows], None if seen is None else seen[rows])
        if corrected:
            losses, gradient = sampled_softmax(of_target, logits)
        else:
            losses, gradient = binary_cross_entropy(of_target, logits, weight)
        empty = targets[rows] == PAD
        logits.flatten(0, 1).index_fill_(0, empty.flatten().nonzero().squeeze(1), 0)
        gradients[rows] = gradient.masked_fill_(empty, 0)
        return losses.masked_fill_(empty, 0).sum(), logits.to(scores.dtype)

    chunk_rows = head.chunk_rows(targets.shape[1], len(items), targets.device)
    sides = *history, *candidates
    total: Tensor = _Chunked.apply(head.logits, loss, chunk_rows, *sides)  # type: ignore[no-untyped-call]
    # A zero whose gradient is that of the loss by the logits of the targets.
    zero = ((target_logits - target_logits.detach()) * gradients).sum()
    return (total + zero) / count_targets(targets)
