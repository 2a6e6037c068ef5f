"""Losses over the full catalogue and over sampled negatives, a chunk of logits at a time.

The logits of a few sequences are computed, turned into loss and gradients, and dropped: those of
all would not fit into memory. Negatives are drawn once per step and shared by all of its positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional as F

from recsys.data.batches import batch_width
from recsys.data.histories import PAD
from recsys.model.heads import CandidateRepresentation, HistoryRepresentation

_CACHE_LINE = 64  # bytes
NO_NEGATIVE = -1e30
"""The logit of what is no negative of a position: a softmax of nothing but -inf is undefined."""

LogitsFunction = Callable[[HistoryRepresentation, CandidateRepresentation], Tensor]
"""From (history, candidates) to logits [b, L, C]."""
LossFunction = Callable[[Tensor, slice], tuple[Tensor, Tensor]]
"""From logits [b, L, C], which it may overwrite, and their rows of the batch to the sum of the
losses and its gradient [b, L, C]."""


def chunked_sum(
    logits: LogitsFunction,
    loss: LossFunction,
    history: HistoryRepresentation,
    candidates: CandidateRepresentation,
    chunk_rows: int,
) -> Tensor:
    """Return the sum of a loss over all rows, a float32 scalar, without ever holding all logits.

    Forward computes the gradients too, ``chunk_rows`` sequences at a time; backward scales them.
    """
    return _Chunked.apply(logits, loss, chunk_rows, *history, *candidates)  # type: ignore[no-untyped-call]


class _Chunked(torch.autograd.Function):
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


@dataclass(frozen=True, slots=True)
class SeenItems:
    """The items that were seen before each target of B sequences.

    >>> seen = SeenItems.up_to(torch.tensor([[5, 3, 4]]), 3)
    >>> seen.before(slice(None))
    tensor([[[5, 0, 0],
             [5, 3, 0],
             [5, 3, 4]]])
    >>> seen.at(torch.tensor([2, 0])).before(slice(None)).tolist()
    [[[5, 3, 4]], [[5, 0, 0]]]
    """

    items: Tensor
    """Item tokens of the histories [S, N], oldest first."""
    history: Tensor
    """The number of the history that a sequence of targets follows [B]."""
    counts: Tensor
    """The number of its items that were seen before each target [B, L]."""

    @classmethod
    def up_to(cls, items: Tensor, steps: int) -> SeenItems:
        """The items [B, N] that were seen up to each of the last ``steps`` of them."""
        batch, width = items.shape
        counts = torch.arange(width - steps + 1, width + 1, device=items.device)
        return cls(items, torch.arange(batch, device=items.device), counts.expand(batch, -1))

    def at(self, positions: Tensor) -> SeenItems:
        """Select M targets by their positions in [B · L]: sequences of length 1."""
        history = self.history[positions // self.counts.shape[1]]
        return SeenItems(self.items, history, self.counts.flatten()[positions, None])

    def before(self, rows: slice) -> Tensor:
        """The item tokens seen before each target of some sequences [b, L, N], PAD for none."""
        items = self.items.index_select(0, self.history[rows])[:, None]
        order = torch.arange(items.shape[-1], device=items.device)
        return torch.where(order < self.counts[rows][..., None], items, PAD)


def drop_padding(
    history: HistoryRepresentation, targets: Tensor, seen: SeenItems | None, chunk_rows: int
) -> tuple[HistoryRepresentation, Tensor, SeenItems | None]:
    """Return the M positions with a target as sequences of length 1: states [M, 1, D], [M, 1].

    A few fill the end, so that the last chunk has one of few sizes: oneDNN caches kernels for each.
    """
    indices = targets.flatten().nonzero().squeeze(1)
    count = len(indices)
    full, rest = divmod(count, chunk_rows)
    rest = batch_width(rest, chunk_rows, chunk_rows if full else rest)
    indices = F.pad(indices, (0, full * chunk_rows + rest - count))
    states = history.states.flatten(0, 1).index_select(0, indices)[:, None]
    selected = targets.flatten()[indices, None]
    selected[count:] = PAD
    return history._replace(states=states), selected, None if seen is None else seen.at(indices)


def chunked_cross_entropy(
    logits: LogitsFunction,
    history: HistoryRepresentation,
    candidates: CandidateRepresentation,
    targets: Tensor,
    seen: SeenItems | None,
    *,
    chunk_rows: int = 64,
) -> Tensor:
    """Return the mean over targets [B, L] of -log softmax(logits)[target], without items ``seen``.

    PAD is in no softmax, and as a target has no loss. Candidates are the catalogue, row = token.
    """
    width = candidates.embeddings.shape[-2]
    candidates = CandidateRepresentation(*map(_aligned, candidates))

    def loss(scores: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        excluded = None if seen is None else seen.before(rows)
        return softmax_gradient(scores, targets[rows], excluded, width)

    total = chunked_sum(logits, loss, history, candidates, chunk_rows)
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


def _aligned(side: Tensor) -> Tensor:
    """Append rows of zeros, so that logits begin at a cache line: .39 s in place of .54 (bf16)."""
    return F.pad(side, (0, 0, 0, -side.shape[-2] % (_CACHE_LINE // _working_dtype(side).itemsize)))


# --- Against sampled negatives --------------------------------------------------------------------
# A loss takes the logits of targets [...] and of their negatives [..., C]; it returns the losses
# and their gradient by the logits of the targets [...]. That by the negatives' overwrites these.


def draw_negatives(
    kind: Literal["uniform", "popularity", "in_batch"],
    count: int,
    cumulative: Tensor,
    targets: Tensor,
) -> tuple[Tensor, Tensor]:
    """Draw the negatives of a step, of which some may be equal.

    Uniform: all items are equally likely, and a draw as large as the catalogue has every item once;
    popularity: in proportion to their interactions in training, which are added up to each item
    [I + 1], float64; in_batch: from the targets [B, L], PAD for none.

    Returns:
        Item tokens [C], and the log of the expected count of each of these items in a draw.
    """
    num_items = len(cumulative) - 1
    if kind == "uniform":
        items = torch.arange(1, num_items + 1, device=targets.device)
        if count < num_items:
            items = torch.randint(1, num_items + 1, (count,), device=targets.device)
        return items, torch.full_like(items, min(count / num_items, 1), dtype=torch.float32).log()
    if kind == "popularity":
        points = torch.rand(count, dtype=cumulative.dtype, device=targets.device) * cumulative[-1]
        items = torch.searchsorted(cumulative, points, right=True)
    else:
        pool = targets[targets != PAD]
        items = pool[torch.randint(len(pool), (count,), device=targets.device)]
    interactions = cumulative[items] - cumulative[items - 1]
    return items, (interactions * (count / cumulative[-1])).log().float()


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

    With w = 1 it is the loss of SASRec, with `calibrated_weight` that of gSASRec.
    """
    present = 1 + (negatives > NO_NEGATIVE).sum(-1)
    losses = (target_weight * F.softplus(-target) + F.softplus(negatives).sum(-1)) / present
    negatives.sigmoid_().div_(present[..., None])
    return losses, (target.sigmoid() - 1) * (target_weight / present)


def calibrated_weight(num_negatives: int, num_items: int, calibration: float) -> float:
    """Return gSASRec's weight β of the target: 1 - t (1 - alpha), alpha = C / (I - 1).

    Source: Petrov and Macdonald 2023, https://arxiv.org/abs/2308.07192

    >>> calibrated_weight(25, 101, 0.0), calibrated_weight(25, 101, 1.0)
    (1.0, 0.25)
    """
    sampled = min(1.0, num_negatives / max(num_items - 1, 1))
    return 1 - calibration * (1 - sampled)


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
