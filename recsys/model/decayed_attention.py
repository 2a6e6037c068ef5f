"""Attention of candidates over a history, at all positions at once, by decayed running sums.

The gradient is written by hand: autograd would make more [C, L] matrices than needed, and passes
over these dominate the cost of a step of target attention. Positions are the last dimension here:
a product with the triangle then has the small matrix on its right, which oneDNN does twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recsys.model.chunk_size import logits_per_chunk
from recsys.model.decayed_sums import NARROW, WIDE, DecayedSums, Triangles

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""`averages_at_all_positions`, `sums_at_all_positions`, or a kernel that does the same."""

_CHUNK = 768
"""The number of positions that are processed at once on a CPU. The gradients of all candidates are
added up after each chunk, which is expensive for small chunks; large ones do not fit in the
processor's cache."""
_KEPT = 4
"""The number of [C, B · L] matrices that the functions below keep for backward."""


def sequences_together(length: int, candidates: int, device: torch.device) -> int:
    """The number of sequences of a length that the functions below process at once.

    On a GPU the matrices that they keep have as many elements as training makes logits at once.

    >>> [sequences_together(length, 99, torch.device("cpu")) for length in (9, 50, 200, 1000)]
    [84, 12, 4, 4]
    """
    if device.type == "cpu":
        return _CHUNK // WIDE.shared * max(1, WIDE.shared // length)
    return max(1, logits_per_chunk(device) // (_KEPT * length * candidates))


def averages_at_all_positions(
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
    triangles: Triangles = WIDE,
) -> Tensor:
    """The average that each candidate attends to in the history up to each position.

    a_t(c) = Σ_{j≤t} w_cj(t) (u_c · v_j) / Σ_{j≤t} w_cj(t), w_cj(t) = exp(q_c · k_j - decay (t - j))

    Args:
        keys: k, [B, L, d]; their products with queries must not overflow exp.
        values: v, [B, L, d].
        queries: q, [C, d].
        value_queries: u, [C, d].
        decay: scalar ≥ 0; has no gradient.
        triangles: the size of the matrices that sum over the positions in half precision. In
            float32 narrow ones are faster.

    Returns:
        [C, B · L].
    """
    return _in_chunks(_Average, keys, values, queries, value_queries, decay, triangles)


def sums_at_all_positions(
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
    triangles: Triangles = WIDE,
) -> Tensor:
    """The sum that each candidate attends to in the history up to each position.

    a_t(c) = Σ_{j≤t} r_j(t) exp(q_c · k_j) (u_c · v_j), the recencies r_j(t) = exp(-decay (t - j)) /
    Σ_{i≤t} exp(-decay (t - i)); for the arguments see `averages_at_all_positions`.
    """
    return _in_chunks(_Sum, keys, values, queries, value_queries, decay, triangles)


def _in_chunks(
    function: type[torch.autograd.Function],
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
    triangles: Triangles,
) -> Tensor:
    together = sequences_together(keys.shape[1], len(queries), keys.device)
    chunks = (tensor.split(together) for tensor in (keys, values))
    parts: list[Tensor] = [
        function.apply(*chunk, queries, value_queries, decay, triangles)
        for chunk in zip(*chunks, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _sums_of(
    triangles: Triangles, decay: Tensor, keys: Tensor, dtype: torch.dtype, *, mean: bool
) -> DecayedSums:
    size = triangles if dtype.itemsize < 4 else NARROW
    return size.sums(decay, keys, dtype, mean=mean)


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        value_queries: Tensor,
        decay: Tensor,
        triangles: Triangles,
    ) -> Tensor:
        weights = (queries @ keys.flatten(0, 1).T).exp_()
        ctx.sums = _sums_of(triangles, decay, keys, weights.dtype, mean=False)
        value_scores = value_queries @ values.flatten(0, 1).T
        total = ctx.sums.past(weights)
        attended: Tensor = ctx.sums.past(weights * value_scores).div_(total)
        ctx.save_for_backward(
            keys, values, queries, value_queries, weights, value_scores, total, attended
        )
        return attended

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        keys, values, queries, value_queries, weights, value_scores, total, attended = (
            ctx.saved_tensors
        )
        share = upstream[0] / total
        value_score_gradient = ctx.sums.future(share)
        # The weights are in both sums: products × value_scores - total is their gradient. This is
        # its negative: the sign is cheaper to change in the narrow results.
        logit_gradient = ctx.sums.future(share.mul_(attended))
        logit_gradient.addcmul_(value_score_gradient, value_scores, value=-1).mul_(weights)
        value_score_gradient.mul_(weights)
        return (
            (logit_gradient.T @ queries).neg_().view(keys.shape),
            (value_score_gradient.T @ value_queries).view(values.shape),
            (logit_gradient @ keys.flatten(0, 1)).neg_(),
            value_score_gradient @ values.flatten(0, 1),
            None,
            None,
        )


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        value_queries: Tensor,
        decay: Tensor,
        triangles: Triangles,
    ) -> Tensor:
        weights = (queries @ keys.flatten(0, 1).T).exp_()
        ctx.sums = _sums_of(triangles, decay, keys, weights.dtype, mean=True)
        weighted = (value_queries @ values.flatten(0, 1).T).mul_(weights)
        ctx.save_for_backward(keys, values, queries, value_queries, weights, weighted)
        attended: Tensor = ctx.sums.past(weighted)
        return attended

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        keys, values, queries, value_queries, weights, weighted = ctx.saved_tensors
        weighted_gradient = ctx.sums.future(upstream[0])
        logit_gradient = weighted * weighted_gradient
        value_score_gradient = weighted_gradient.mul_(weights)
        return (
            (logit_gradient.T @ queries).view(keys.shape),
            (value_score_gradient.T @ value_queries).view(values.shape),
            logit_gradient @ keys.flatten(0, 1),
            value_score_gradient @ values.flatten(0, 1),
            None,
            None,
        )
