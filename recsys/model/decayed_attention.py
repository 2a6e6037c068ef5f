"""Attention of candidates over a history, at all positions at once, by decayed running sums.

The gradient is written by hand: autograd would make more [C, L] matrices than it needs, and passes
over these are what a step of target attention costs. Positions come last here:
a product with the triangle then has the small matrix on its right, which oneDNN does twice as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class DecayedSums:
    """Running sums that forget: y_t = Σ_{j≤t} exp(-decay · (t - j)) x_j, and their transpose.

    A product with the triangular matrix of decays, block by block with a carry: matrix units do it
    several times faster than a scan, and nothing grows with t.

    >>> sums = DecayedSums(torch.tensor(2.0).log(), 3, torch.float32)
    >>> sums.past(torch.ones(1, 3))
    tensor([[1.0000, 1.5000, 1.7500]])
    >>> sums.future(torch.ones(1, 3))
    tensor([[1.7500, 1.5000, 1.0000]])

    Args:
        decay: scalar ≥ 0.
        length: of the sums, L.
        dtype: of what is summed.
        block: rows of the triangular matrix.
    """

    def __init__(self, decay: Tensor, length: int, dtype: torch.dtype, block: int = 256) -> None:
        self._block = block
        steps = torch.arange(min(block, length), device=decay.device)
        ages = steps - steps[:, None]
        self._kernel = torch.exp(-decay * ages.clamp(min=0)).masked_fill(ages < 0, 0).to(dtype)
        self._fade = torch.exp(-decay * (steps + 1)).to(dtype)

    def past(self, x: Tensor) -> Tensor:
        """y_t = Σ_{j≤t} exp(-decay · (t - j)) x_j, of x [..., L]."""
        sums: list[Tensor] = []
        for part in x.split(self._block, dim=-1):
            size = part.shape[-1]
            total = part @ self._kernel[:size, :size]
            if sums:
                total = total + self._fade[:size] * sums[-1][..., -1:]
            sums.append(total)
        return sums[0] if len(sums) == 1 else torch.cat(sums, dim=-1)

    def future(self, x: Tensor) -> Tensor:
        """y_t = Σ_{j≥t} exp(-decay · (j - t)) x_j, of x [..., L]."""
        if x.shape[-1] <= self._block:
            return x @ self._kernel.T
        return self.past(x.flip(-1)).flip(-1)


def attend_at_all_positions(
    keys: Tensor, values: Tensor, queries: Tensor, uses: Tensor, decay: Tensor
) -> Tensor:
    """What each candidate finds in the history up to each position.

    a_t(c) = Σ_{j≤t} w_cj(t) (u_c · v_j) / Σ_{j≤t} w_cj(t), w_cj(t) = exp(q_c · k_j - decay (t - j))

    Args:
        keys: [B, L, d]; their products with queries must not overflow exp.
        values: [B, L, d].
        queries: [C, d].
        uses: [C, d].
        decay: scalar ≥ 0; has no gradient.

    Returns:
        [B, L, C].
    """
    attended: Tensor = _Attend.apply(keys, values, queries, uses, decay)  # type: ignore[no-untyped-call]
    return attended


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, values: Tensor, queries: Tensor, uses: Tensor, decay: Tensor
    ) -> Tensor:
        (batch, length, _), dtype = keys.shape, torch.result_type(keys, queries)
        out = keys.new_empty(batch, length, len(queries), dtype=dtype)
        # One sequence after the other on a CPU: what stays in its cache is faster.
        ctx.size = 1 if keys.device.type == "cpu" else batch
        ctx.sums = DecayedSums(decay, length, dtype)
        kept = []
        for start in range(0, batch, ctx.size):
            rows = slice(start, start + ctx.size)
            weights = _batched(queries, keys[rows].mT).exp_()
            evidence = _batched(uses, values[rows].mT)
            total = ctx.sums.past(weights)
            attended = ctx.sums.past(weights * evidence).div_(total)
            _turn(attended, out[rows])
            kept += [weights, evidence, total, attended]
        ctx.save_for_backward(keys, values, queries, uses, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        keys, values, queries, uses, *kept = ctx.saved_tensors
        of_keys, of_values = torch.empty_like(keys), torch.empty_like(values)
        wide = torch.promote_types(queries.dtype, torch.float32)
        of_queries, of_uses = (torch.zeros_like(side, dtype=wide) for side in (queries, uses))
        for start in range(0, len(keys), ctx.size):
            rows = slice(start, start + ctx.size)
            weights, evidence, total, attended = kept[:4]
            del kept[:4]
            share = _turn(upstream[0][rows], torch.empty_like(total)).div_(total)
            of_evidence = ctx.sums.future(share)
            # The weights stand in both sums: products × evidence - total is their gradient. Its
            # negative here: the sign is cheaper to turn in the narrow results.
            of_logits = ctx.sums.future(share.mul_(attended))
            of_logits.addcmul_(of_evidence, evidence, value=-1).mul_(weights)
            of_evidence.mul_(weights)
            of_keys[rows] = -_batched(of_logits.mT, queries)
            of_values[rows] = _batched(of_evidence.mT, uses)
            for logits_part, evidence_part, key, value in zip(
                of_logits, of_evidence, keys[rows], values[rows], strict=True
            ):
                of_queries -= logits_part @ key
                of_uses += evidence_part @ value
        return of_keys, of_values, of_queries.to(queries), of_uses.to(uses), None


def _batched(one: Tensor, other: Tensor) -> Tensor:
    """A product with one side the same for all; `torch.matmul` would turn the result round."""
    batch = len(one) if one.dim() == 3 else len(other)
    return torch.bmm(one.expand(batch, -1, -1), other.expand(batch, -1, -1))


def _turn(x: Tensor, out: Tensor) -> Tensor:
    """Put x [b, M, N] into out [b, N, M]; one by one on a CPU, where torch is quick at that."""
    if x.device.type != "cpu":
        return out.copy_(x.mT)
    for matrix, place in zip(x, out, strict=True):
        place.copy_(matrix.T)
    return out
