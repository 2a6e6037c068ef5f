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

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""`averages_at_all_positions`, `sums_at_all_positions`, or a kernel that does the same."""

_SIDE_BY_SIDE = 192
"""The number of positions of short sequences that share one triangular matrix."""
_SIDE_BY_SIDE_FLOAT32 = 64
"""The same in float32: processors have no matrix units for it, so zeros around triangles cost."""
_GROUPS = 4
"""The number of triangular matrices in a chunk. The gradients of all candidates are added up after
each chunk, which is expensive for small chunks; large ones do not fit in the processor's cache."""
_KEPT = 4
"""The number of [C, B · L] matrices that the functions below keep for backward."""


def sequences_together(length: int, candidates: int, device: torch.device) -> int:
    """The number of sequences of a length that the functions below process at once.

    On a GPU the matrices that they keep have as many elements as training makes logits at once.
    """
    if device.type == "cpu":
        return _GROUPS * max(1, _SIDE_BY_SIDE // length)
    return max(1, logits_per_chunk(device) // (_KEPT * length * candidates))


def _side_by_side(sequences: int, length: int, dtype: torch.dtype) -> int:
    """The number of sequences that share a triangular matrix: a divisor of ``sequences``.

    >>> [_side_by_side(*shape, torch.bfloat16) for shape in ((24, 16), (23, 16), (2, 200))]
    [12, 1, 1]
    >>> _side_by_side(24, 16, torch.float32)
    4
    """
    most = max(1, (_SIDE_BY_SIDE if dtype.itemsize < 4 else _SIDE_BY_SIDE_FLOAT32) // length)
    return max(count for count in range(1, most + 1) if sequences % count == 0)


class DecayedSums:
    """Decayed running sums y_t = Σ_{j≤t} exp(-decay · (t - j)) x_j, and their transpose.

    They are products with the triangular matrix of decays, block by block with a carry: matrix
    units do it several times faster than a scan, and nothing grows with t. For short sequences side
    by side, the triangles are put along the diagonal of one matrix.

    >>> sums = DecayedSums(torch.tensor(2.0).log(), 3, torch.float32)
    >>> sums.past(torch.ones(1, 6))
    tensor([[1.0000, 1.5000, 1.7500, 1.0000, 1.5000, 1.7500]])
    >>> sums.future(torch.ones(1, 3))
    tensor([[1.7500, 1.5000, 1.0000]])

    Args:
        decay: scalar ≥ 0.
        length: the length of each sequence, L.
        dtype: the dtype of x.
        side_by_side: the number of sequences that share a matrix.
        block: the number of rows of the matrix of a single sequence.
    """

    def __init__(
        self,
        decay: Tensor,
        length: int,
        dtype: torch.dtype,
        side_by_side: int = 1,
        block: int = 256,
    ) -> None:
        self._width = side_by_side * length
        size = min(block, length) if side_by_side == 1 else length
        triangle = _triangle(decay, size)
        self._kernel = torch.block_diag(*[triangle] * side_by_side).to(dtype)
        steps = torch.arange(size, device=decay.device)
        self._decays = torch.exp(-decay * (steps + 1)).to(dtype)

    def past(self, x: Tensor) -> Tensor:
        """y_t = Σ_{j≤t} exp(-decay · (t - j)) x_j, of x [C, B · L]; B % side_by_side = 0."""
        return self._past(x.reshape(-1, self._width)).view(x.shape)

    def future(self, x: Tensor) -> Tensor:
        """y_t = Σ_{j≥t} exp(-decay · (j - t)) x_j, of x as in `past`."""
        rows = x.reshape(-1, self._width)
        if self._width <= len(self._kernel):
            total: Tensor = rows @ self._kernel.T
            return total.view(x.shape)
        return self._past(rows.flip(-1)).flip(-1).view(x.shape)

    def _past(self, rows: Tensor) -> Tensor:
        sums: list[Tensor] = []
        for part in rows.split(len(self._kernel), dim=-1):
            size = part.shape[-1]
            total = part @ self._kernel[:size, :size]
            if sums:
                total = total + self._decays[:size] * sums[-1][..., -1:]
            sums.append(total)
        return sums[0] if len(sums) == 1 else torch.cat(sums, dim=-1)


def _triangle(decay: Tensor, length: int) -> Tensor:
    """exp(-decay · (t - j)) for j ≤ t, else 0 [length (j), length (t)]."""
    steps = torch.arange(length, device=decay.device)
    ages = steps - steps[:, None]
    return torch.exp(-decay * ages.clamp(min=0)).masked_fill(ages < 0, 0)


def averages_at_all_positions(
    keys: Tensor, values: Tensor, queries: Tensor, value_queries: Tensor, decay: Tensor
) -> Tensor:
    """The average that each candidate attends to in the history up to each position.

    a_t(c) = Σ_{j≤t} w_cj(t) (u_c · v_j) / Σ_{j≤t} w_cj(t), w_cj(t) = exp(q_c · k_j - decay (t - j))

    Args:
        keys: k, [B, L, d]; their products with queries must not overflow exp.
        values: v, [B, L, d].
        queries: q, [C, d].
        value_queries: u, [C, d].
        decay: scalar ≥ 0; has no gradient.

    Returns:
        [C, B · L].
    """
    return _in_chunks(_Average, keys, values, queries, value_queries, decay)


def sums_at_all_positions(
    keys: Tensor, values: Tensor, queries: Tensor, value_queries: Tensor, decay: Tensor
) -> Tensor:
    """The sum that each candidate attends to in the history up to each position.

    a_t(c) = Σ_{j≤t} r_j(t) exp(q_c · k_j) (u_c · v_j), the recencies r_j(t) = exp(-decay (t - j)) /
    Σ_{i≤t} exp(-decay (t - i)); for the arguments see `averages_at_all_positions`.
    """
    return _in_chunks(_Sum, keys, values, queries, value_queries, decay)


def _in_chunks(
    function: type[torch.autograd.Function],
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
) -> Tensor:
    together = sequences_together(keys.shape[1], len(queries), keys.device)
    chunks = (tensor.split(together) for tensor in (keys, values))
    parts: list[Tensor] = [
        function.apply(*chunk, queries, value_queries, decay) for chunk in zip(*chunks, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        value_queries: Tensor,
        decay: Tensor,
    ) -> Tensor:
        batch, length, _ = keys.shape
        dtype = torch.result_type(keys, queries)
        ctx.sums = DecayedSums(decay, length, dtype, _side_by_side(batch, length, dtype))
        weights = (queries @ keys.flatten(0, 1).T).exp_()
        value_scores = value_queries @ values.flatten(0, 1).T
        total = ctx.sums.past(weights)
        attended: Tensor = ctx.sums.past(weights * value_scores).div_(total)
        ctx.save_for_backward(
            keys, values, queries, value_queries, weights, value_scores, total, attended
        )
        return attended

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
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
    ) -> Tensor:
        triangle = _triangle(decay, keys.shape[1])
        dtype = torch.result_type(keys, queries)
        same = [triangle / triangle.sum(dim=0)] * _side_by_side(len(keys), keys.shape[1], dtype)
        recencies = torch.block_diag(*same).to(dtype)
        weights = (queries @ keys.flatten(0, 1).T).exp_()
        weighted = (value_queries @ values.flatten(0, 1).T).mul_(weights)
        ctx.save_for_backward(keys, values, queries, value_queries, weights, weighted, recencies)
        attended: Tensor = (weighted.view(-1, len(recencies)) @ recencies).view(weighted.shape)
        return attended

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        keys, values, queries, value_queries, weights, weighted, recencies = ctx.saved_tensors
        attended_gradient = upstream[0].reshape(-1, len(recencies))
        weighted_gradient = (attended_gradient @ recencies.T).view(weighted.shape)
        logit_gradient = weighted * weighted_gradient
        value_score_gradient = weighted_gradient.mul_(weights)
        return (
            (logit_gradient.T @ queries).view(keys.shape),
            (value_score_gradient.T @ value_queries).view(values.shape),
            logit_gradient @ keys.flatten(0, 1),
            value_score_gradient @ values.flatten(0, 1),
            None,
        )
