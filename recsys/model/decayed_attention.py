"""Attention of candidates over a history, at all positions at once, by decayed running sums.

The gradient is written by hand: autograd would make more [C, L] matrices than needed, and passes
over these dominate the cost of a step of target attention. Positions are the last dimension here:
a product with the triangle then has the small matrix on its right, which oneDNN does twice as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recsys.model.chunk_size import logits_per_chunk

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""`averages_at_all_positions`, `sums_at_all_positions`, or a kernel that does the same."""

_CHUNK = 768
"""The number of positions that are processed at once on a CPU. The gradients of all candidates are
added up after each chunk, which is expensive for small chunks; large ones do not fit in the
processor's cache."""
_KEPT = 4
"""The number of [C, B · L] matrices that the functions below keep for backward."""


@dataclass(frozen=True, slots=True)
class Triangles:
    """How many positions the triangular matrices of `DecayedSums` have.

    Half of a matrix, or most of it where short sequences share one, is zeros. Units for matrix
    products (AMX) multiply them at no cost; elsewhere small matrices are several times as fast.
    """

    shared: int
    """The most positions of short sequences that share a matrix."""
    single: int
    """The most positions of a sequence in one matrix; longer ones are summed block by block."""

    def side_by_side(self, sequences: int, length: int) -> int:
        """The number of sequences that share a matrix: a divisor of ``sequences``.

        >>> [WIDE.side_by_side(*shape) for shape in ((24, 16), (23, 16), (2, 200))]
        [12, 1, 1]
        >>> NARROW.side_by_side(24, 16)
        4
        """
        most = max(1, self.shared // length)
        return max(count for count in range(1, most + 1) if sequences % count == 0)

    def block(self, length: int) -> int:
        """The length of the blocks of a sequence, which are as even as can be.

        >>> WIDE.block(200), NARROW.block(200), NARROW.block(50)
        (200, 50, 50)
        """
        return -(-length // -(-length // self.single))

    def sums(self, decay: Tensor, keys: Tensor, dtype: torch.dtype, *, mean: bool) -> DecayedSums:
        """The sums over the positions of keys [B, L, d]; see `DecayedSums`."""
        batch, length, _ = keys.shape
        together = self.side_by_side(batch, length)
        return DecayedSums(decay, length, dtype, together, self.block(length), mean=mean)


WIDE = Triangles(shared=192, single=256)
NARROW = Triangles(shared=64, single=64)


def sequences_together(length: int, candidates: int, device: torch.device) -> int:
    """The number of sequences of a length that the functions below process at once.

    On a GPU the matrices that they keep have as many elements as training makes logits at once.

    >>> [sequences_together(length, 99, torch.device("cpu")) for length in (9, 50, 200, 1000)]
    [84, 12, 4, 4]
    """
    if device.type == "cpu":
        return _CHUNK // WIDE.shared * max(1, WIDE.shared // length)
    return max(1, logits_per_chunk(device) // (_KEPT * length * candidates))


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
    >>> DecayedSums(torch.tensor(2.0).log(), 3, torch.float32, mean=True).past(torch.ones(1, 3))
    tensor([[1., 1., 1.]])

    Args:
        decay: scalar ≥ 0.
        length: the length of each sequence, L.
        dtype: the dtype of x.
        side_by_side: the number of sequences that share a matrix.
        block: the number of positions of the matrix of a single sequence.
        mean: whether y_t is divided by Σ_{j≤t} exp(-decay · (t - j)).
    """

    def __init__(
        self,
        decay: Tensor,
        length: int,
        dtype: torch.dtype,
        side_by_side: int = 1,
        block: int = 256,
        *,
        mean: bool = False,
    ) -> None:
        size = length if side_by_side > 1 else min(block, length)
        steps = torch.arange(length, device=decay.device)
        recencies = torch.exp(-decay * steps)
        divisors = recencies.cumsum(0) if mean else torch.ones_like(recencies)
        ages = steps[:size] - steps[:size, None]
        triangle = torch.exp(-decay * ages.clamp(min=0)).masked_fill_(ages < 0, 0)
        kernels = [triangle[: len(part), : len(part)] / part for part in divisors.split(size)]
        if side_by_side > 1:
            kernels = [torch.block_diag(*kernels * side_by_side)]
        self._kernels = [kernel.to(dtype) for kernel in kernels]
        self._sizes = [len(kernel) for kernel in kernels]
        # Of the sum before a block, and of that after it in the transpose.
        self._carries = (torch.exp(-decay) * divisors)[size - 1 : -1 : size].to(dtype).unbind()

    def past(self, x: Tensor) -> Tensor:
        """y_t = Σ_{j≤t} exp(-decay · (t - j)) x_j, of x [C, B · L]; B % side_by_side = 0."""
        sums: list[Tensor] = []
        for part, kernel in zip(self._parts(x), self._kernels, strict=True):
            carry = sums[-1][:, -1] * self._carries[len(sums) - 1] if sums else None
            sums.append(_product(part, kernel, carry, 0))
        return _joined(sums).view(x.shape)

    def future(self, x: Tensor) -> Tensor:
        """y_j = Σ_{t≥j} exp(-decay · (t - j)) x_t, of x as in `past`; each x_t is divided if so."""
        sums: list[Tensor] = []
        kernels = [kernel.T for kernel in self._kernels]
        for part, kernel in zip(reversed(self._parts(x)), reversed(kernels), strict=True):
            carry = sums[-1][:, 0] * self._carries[-len(sums)] if sums else None
            sums.append(_product(part, kernel, carry, -1))
        return _joined(sums[::-1]).view(x.shape)

    def _parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The positions of each block, in memory that may be changed for a moment."""
        rows = x.reshape(-1, sum(self._sizes)).contiguous()
        return torch.split(rows, self._sizes, dim=-1)


def _product(part: Tensor, kernel: Tensor, carry: Tensor | None, position: int) -> Tensor:
    """The product of a block of positions, with a carry [N] added to one of them.

    Cheaper than to add the carry to all of the sums.
    """
    if carry is None:
        return part @ kernel
    column = part[:, position]
    before = column.clone()
    column += carry
    total = part @ kernel
    column.copy_(before)
    return total


def _joined(sums: list[Tensor]) -> Tensor:
    return sums[0] if len(sums) == 1 else torch.cat(sums, dim=-1)


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
