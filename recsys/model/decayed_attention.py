"""Attention of candidates over a history, at all positions at once, by decayed running sums.

The gradient is written by hand: autograd would make more [C, L] matrices than needed, and passes
over these dominate the cost of a step of target attention. Positions are the last dimension here:
a product with the triangle then has the small matrix on its right, which oneDNN does twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from recsys.model.chunk_size import logits_per_chunk
from recsys.model.decayed_sums import NARROW, WIDE, DecayedSums, Triangles

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""`add_averages` or `add_sums`."""

_CHUNK = 768
"""The number of positions that training processes at once on a CPU. The gradients of all candidates
are added up after each chunk, which is expensive for small chunks."""
_BLOCK = 6 << 20
"""Bytes of the scores of those candidates that are processed at once on a CPU, so that what a step
writes is in the cache when the next one reads it: 4 to 7% of the time over 12,000 candidates."""
_KEPT = 4
"""The number of [C, B · L] matrices that the functions below keep for backward."""


def sequences_together(length: int, candidates: int, device: torch.device) -> int:
    """The number of sequences of a length that training processes at once.

    On a GPU the matrices that are kept have as many elements as training makes logits at once.

    >>> [sequences_together(length, 99, torch.device("cpu")) for length in (9, 50, 200, 1000)]
    [84, 12, 4, 4]
    """
    if device.type == "cpu":
        return _CHUNK // WIDE.shared * max(1, WIDE.shared // length)
    return max(1, logits_per_chunk(device) // (_KEPT * length * candidates))


def add_averages(
    scores: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
    triangles: Triangles = WIDE,
) -> Tensor:
    """Add to scores what each candidate attends to, on average, in the history up to each position.

    a_t(c) = Σ_{j≤t} w_cj(t) (u_c · v_j) / Σ_{j≤t} w_cj(t), w_cj(t) = exp(q_c · k_j - decay (t - j))

    Args:
        scores: [C, B · L], contiguous. **Overwritten** in place. All tensors have one dtype.
        keys: k, [B, L, d]; their products with queries must not overflow exp.
        values: v, [B, L, d].
        queries: q, [C, d].
        value_queries: u, [C, d].
        decay: scalar ≥ 0; has no gradient.
        triangles: the size of the matrices that sum over the positions in half precision. In
            float32 narrow ones are faster.

    Returns:
        The scores.
    """
    return _Average.apply(scores, keys, values, queries, value_queries, decay, triangles)  # type: ignore[no-any-return, no-untyped-call]


def add_sums(
    scores: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
    triangles: Triangles = WIDE,
) -> Tensor:
    """Add to scores the sum that each candidate attends to in the history up to each position.

    a_t(c) = Σ_{j≤t} r_j(t) exp(q_c · k_j) (u_c · v_j), the recencies r_j(t) = exp(-decay (t - j)) /
    Σ_{i≤t} exp(-decay (t - i)); for the arguments see `add_averages`.
    """
    return _Sum.apply(scores, keys, values, queries, value_queries, decay, triangles)  # type: ignore[no-any-return, no-untyped-call]


def _sums_of(
    triangles: Triangles, decay: Tensor, keys: Tensor, dtype: torch.dtype, *, mean: bool
) -> DecayedSums:
    """The sums over the positions of keys [B, L, d].

    On a CPU they are cached, since to make them takes a thirtieth of the time of a chunk; there the
    decay can be read without waiting for a device.
    """
    size = triangles if dtype.itemsize < 4 else NARROW
    batch, length, _ = keys.shape
    if decay.device.type != "cpu":
        return size.sums(decay, batch, length, dtype, mean=mean)
    known = float(decay), decay.dtype
    return _known_sums(size, *known, size.side_by_side(batch, length), length, dtype, mean)


@lru_cache(maxsize=64)
def _known_sums(
    size: Triangles,
    decay: float,
    precision: torch.dtype,
    together: int,
    length: int,
    dtype: torch.dtype,
    mean: bool,
) -> DecayedSums:
    return size.sums(torch.tensor(decay, dtype=precision), together, length, dtype, mean=mean)


def _blocks(scores: Tensor) -> list[slice]:
    """Slices of the candidates [C, B · L] that are processed at once, as even as can be."""
    candidates, size = len(scores), scores.nbytes
    count = -(-size // _BLOCK) if scores.device.type == "cpu" else 1
    rows = max(1, -(-candidates // max(1, count)))
    return [slice(start, start + rows) for start in range(0, candidates, rows)]


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        value_queries: Tensor,
        decay: Tensor,
        triangles: Triangles,
    ) -> Tensor:
        ctx.sums = _sums_of(triangles, decay, keys, scores.dtype, mean=False)
        ctx.blocks, saved = _blocks(scores), []
        for block in ctx.blocks:
            weights = (queries[block] @ keys.flatten(0, 1).T).exp_()
            value_scores = value_queries[block] @ values.flatten(0, 1).T
            total = ctx.sums.past(weights)
            attended = ctx.sums.past(weights * value_scores).div_(total)
            scores[block] += attended
            saved += [weights, value_scores, total, attended]
        ctx.save_for_backward(keys, values, queries, value_queries, *saved)
        ctx.mark_dirty(scores)
        return scores

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        sides, saved = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        gradients = _Gradients(*sides)
        for number, block in enumerate(ctx.blocks):
            weights, value_scores, total, attended = saved[4 * number : 4 * number + 4]
            share = upstream[0][block] / total
            value_score_gradient = ctx.sums.future(share)
            # The weights are in both sums: products × value_scores - total is their gradient. This
            # is its negative: the sign is cheaper to change in the narrow results.
            logit_gradient = ctx.sums.future(share.mul_(attended))
            logit_gradient.addcmul_(value_score_gradient, value_scores, value=-1).mul_(weights)
            gradients.add(block, logit_gradient, value_score_gradient.mul_(weights))
        keys, values, queries, value_queries = gradients.totals()
        return upstream[0], keys.neg_(), values, queries.neg_(), value_queries, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        value_queries: Tensor,
        decay: Tensor,
        triangles: Triangles,
    ) -> Tensor:
        ctx.sums = _sums_of(triangles, decay, keys, scores.dtype, mean=True)
        ctx.blocks, saved = _blocks(scores), []
        for block in ctx.blocks:
            weights = (queries[block] @ keys.flatten(0, 1).T).exp_()
            weighted = (value_queries[block] @ values.flatten(0, 1).T).mul_(weights)
            scores[block] += ctx.sums.past(weighted)
            saved += [weights, weighted]
        ctx.save_for_backward(keys, values, queries, value_queries, *saved)
        ctx.mark_dirty(scores)
        return scores

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        sides, saved = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        gradients = _Gradients(*sides)
        for number, block in enumerate(ctx.blocks):
            weights, weighted = saved[2 * number : 2 * number + 2]
            weighted_gradient = ctx.sums.future(upstream[0][block])
            logit_gradient = weighted * weighted_gradient
            gradients.add(block, logit_gradient, weighted_gradient.mul_(weights))
        return upstream[0], *gradients.totals(), None, None


class _Gradients:
    """The gradients of keys and values, queries and value queries, from blocks of candidates."""

    def __init__(
        self, keys: Tensor, values: Tensor, queries: Tensor, value_queries: Tensor
    ) -> None:
        self._history, self._candidates = (keys, values), (queries, value_queries)
        # oneDNN takes a fifth less time where they are contiguous.
        self._by_feature = [side.T.contiguous() for side in self._candidates]
        wide = torch.promote_types(keys.dtype, torch.float32)  # for sums over the blocks
        self._of_history = [torch.zeros_like(side, dtype=wide) for side in self._history]
        self._of_candidates = [torch.empty_like(side) for side in self._candidates]

    def add(self, block: slice, logits: Tensor, value_scores: Tensor) -> None:
        """Add the gradients of the logits and value scores of some candidates."""
        for number, scores in enumerate((logits, value_scores)):
            history, by_feature = self._history[number], self._by_feature[number]
            self._of_history[number] += (by_feature[:, block] @ scores).T.view(history.shape)
            torch.mm(scores, history.flatten(0, 1), out=self._of_candidates[number][block])

    def totals(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients, each in the dtype of its tensor."""
        keys, values = (total.to(self._history[0].dtype) for total in self._of_history)
        queries, value_queries = self._of_candidates
        return keys, values, queries, value_queries
