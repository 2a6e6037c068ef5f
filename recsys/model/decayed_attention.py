"""Attention of candidates over a history, at all positions at once, by decayed running sums.

The gradient is written by hand: autograd would make more [C, L] matrices than it needs, and passes
over these are what a step of target attention costs. Positions come last here:
a product with the triangle then has the small matrix on its right, which oneDNN does twice as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SIDE_BY_SIDE = 192
"""Positions of short sequences that share one triangular matrix."""
_SIDE_BY_SIDE_FLOAT32 = 64
"""... in float32: processors have no matrix units for it, and zeros beside the triangles cost."""
_GROUPS = 4
"""How many times `_SIDE_BY_SIDE` positions are worked on together: the gradients of all candidates
are added up after each, which is dear where there are few; many do not stay near the processor."""


def sequences_together(length: int) -> int:
    """How many sequences of some length the functions below work on at once."""
    return _GROUPS * max(1, _SIDE_BY_SIDE // length)


def _side_by_side(sequences: int, length: int, dtype: torch.dtype) -> int:
    """How many of them share a triangular matrix: a divisor of all.

    >>> [_side_by_side(*shape, torch.bfloat16) for shape in ((24, 16), (23, 16), (2, 200))]
    [12, 1, 1]
    >>> _side_by_side(24, 16, torch.float32)
    4
    """
    most = max(1, (_SIDE_BY_SIDE if dtype.itemsize < 4 else _SIDE_BY_SIDE_FLOAT32) // length)
    return max(some for some in range(1, most + 1) if sequences % some == 0)


class DecayedSums:
    """Running sums that forget: y_t = Σ_{j≤t} exp(-decay · (t - j)) x_j, and their transpose.

    A product with the triangular matrix of decays, block by block with a carry: matrix units do it
    several times faster than a scan, and nothing grows with t. Of short sequences side by side the
    triangles stand along the diagonal of one matrix.

    >>> sums = DecayedSums(torch.tensor(2.0).log(), 3, torch.float32)
    >>> sums.past(torch.ones(1, 6))
    tensor([[1.0000, 1.5000, 1.7500, 1.0000, 1.5000, 1.7500]])
    >>> sums.future(torch.ones(1, 3))
    tensor([[1.7500, 1.5000, 1.0000]])

    Args:
        decay: scalar ≥ 0.
        length: of a sequence, L.
        dtype: of what is summed.
        side_by_side: sequences that share a matrix.
        block: rows of the triangular matrix of a single one.
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
        self._fade = torch.exp(-decay * (steps + 1)).to(dtype)

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
                total = total + self._fade[:size] * sums[-1][..., -1:]
            sums.append(total)
        return sums[0] if len(sums) == 1 else torch.cat(sums, dim=-1)


def _triangle(decay: Tensor, length: int) -> Tensor:
    """exp(-decay · (t - j)) for j ≤ t, else 0 [length (j), length (t)]."""
    steps = torch.arange(length, device=decay.device)
    ages = steps - steps[:, None]
    return torch.exp(-decay * ages.clamp(min=0)).masked_fill(ages < 0, 0)


def averages_at_all_positions(
    keys: Tensor, values: Tensor, queries: Tensor, uses: Tensor, decay: Tensor
) -> Tensor:
    """What each candidate finds in the history up to each position, on the average.

    a_t(c) = Σ_{j≤t} w_cj(t) (u_c · v_j) / Σ_{j≤t} w_cj(t), w_cj(t) = exp(q_c · k_j - decay (t - j))

    Args:
        keys: [B, L, d]; their products with queries must not overflow exp.
        values: [B, L, d].
        queries: [C, d].
        uses: [C, d].
        decay: scalar ≥ 0; has no gradient.

    Returns:
        [C, B · L].
    """
    return _in_groups(_Average, keys, values, queries, uses, decay)


def sums_at_all_positions(
    keys: Tensor, values: Tensor, queries: Tensor, uses: Tensor, decay: Tensor
) -> Tensor:
    """What each candidate finds in the history up to each position, all together.

    a_t(c) = Σ_{j≤t} r_j(t) exp(q_c · k_j) (u_c · v_j), the recencies r_j(t) = exp(-decay (t - j)) /
    Σ_{i≤t} exp(-decay (t - i)); for all else see `averages_at_all_positions`.
    """
    return _in_groups(_Sum, keys, values, queries, uses, decay)


def _in_groups(
    function: type[torch.autograd.Function],
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    uses: Tensor,
    decay: Tensor,
) -> Tensor:
    groups = (side.split(sequences_together(keys.shape[1])) for side in (keys, values))
    parts: list[Tensor] = [
        function.apply(*group, queries, uses, decay) for group in zip(*groups, strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, values: Tensor, queries: Tensor, uses: Tensor, decay: Tensor
    ) -> Tensor:
        batch, length, _ = keys.shape
        dtype = torch.result_type(keys, queries)
        ctx.sums = DecayedSums(decay, length, dtype, _side_by_side(batch, length, dtype))
        weights = (queries @ keys.flatten(0, 1).T).exp_()
        value_scores = uses @ values.flatten(0, 1).T
        total = ctx.sums.past(weights)
        attended: Tensor = ctx.sums.past(weights * value_scores).div_(total)
        ctx.save_for_backward(keys, values, queries, uses, weights, value_scores, total, attended)
        return attended

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        keys, values, queries, uses, weights, value_scores, total, attended = ctx.saved_tensors
        share = upstream[0] / total
        of_value_scores = ctx.sums.future(share)
        # The weights stand in both sums: products × value_scores - total is their gradient. Its
        # negative here: the sign is cheaper to turn in the narrow results.
        of_logits = ctx.sums.future(share.mul_(attended))
        of_logits.addcmul_(of_value_scores, value_scores, value=-1).mul_(weights)
        of_value_scores.mul_(weights)
        return (
            (of_logits.T @ queries).neg_().view(keys.shape),
            (of_value_scores.T @ uses).view(values.shape),
            (of_logits @ keys.flatten(0, 1)).neg_(),
            of_value_scores @ values.flatten(0, 1),
            None,
        )


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, values: Tensor, queries: Tensor, uses: Tensor, decay: Tensor
    ) -> Tensor:
        triangle = _triangle(decay, keys.shape[1])
        dtype = torch.result_type(keys, queries)
        same = [triangle / triangle.sum(dim=0)] * _side_by_side(len(keys), keys.shape[1], dtype)
        recencies = torch.block_diag(*same).to(dtype)
        weights = (queries @ keys.flatten(0, 1).T).exp_()
        weighted = (uses @ values.flatten(0, 1).T).mul_(weights)
        ctx.save_for_backward(keys, values, queries, uses, weights, weighted, recencies)
        attended: Tensor = (weighted.view(-1, len(recencies)) @ recencies).view(weighted.shape)
        return attended

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        keys, values, queries, uses, weights, weighted, recencies = ctx.saved_tensors
        of_attended = upstream[0].reshape(-1, len(recencies))
        of_weighted = (of_attended @ recencies.T).view(weighted.shape)
        of_logits = weighted * of_weighted
        of_value_scores = of_weighted.mul_(weights)
        return (
            (of_logits.T @ queries).view(keys.shape),
            (of_value_scores.T @ uses).view(values.shape),
            of_logits @ keys.flatten(0, 1),
            of_value_scores @ values.flatten(0, 1),
            None,
        )
