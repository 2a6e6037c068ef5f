"""Attention of candidates over a history, at all positions at once, by decayed running sums.

The gradient is written by hand: autograd would make more [C, L] matrices than it needs, and passes
over these are what a step of target attention costs. Positions come last here:
a product with the triangle then has the small matrix on its right, which oneDNN does twice as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_GROUP = 192
"""Positions that are worked on together: of several short sequences, or of a single longer one.
Smaller matrices are left to waste by the products, larger ones by the cache."""


class DecayedSums:
    """Running sums that forget: y_t = Σ_{j≤t} exp(-decay · (t - j)) x_j, and their transpose.

    A product with the triangular matrix of decays, block by block with a carry: matrix units do it
    several times faster than a scan, and nothing grows with t. Of several sequences side by side
    the triangles stand along the diagonal of one matrix.

    >>> sums = DecayedSums(torch.tensor(2.0).log(), 3, torch.float32, sequences=2)
    >>> sums.past(torch.ones(1, 6))
    tensor([[1.0000, 1.5000, 1.7500, 1.0000, 1.5000, 1.7500]])
    >>> sums.future(torch.ones(1, 3))
    tensor([[1.7500, 1.5000, 1.0000]])

    Args:
        decay: scalar ≥ 0.
        length: of a sequence, L.
        dtype: of what is summed.
        sequences: the most that are side by side.
        block: rows of the triangular matrix of a single one.
    """

    def __init__(
        self, decay: Tensor, length: int, dtype: torch.dtype, sequences: int = 1, block: int = 256
    ) -> None:
        size = min(block, length) if sequences == 1 else length
        steps = torch.arange(size, device=decay.device)
        ages = steps - steps[:, None]
        triangle = torch.exp(-decay * ages.clamp(min=0)).masked_fill(ages < 0, 0)
        self._kernel = torch.block_diag(*[triangle] * sequences).to(dtype)
        self._fade = torch.exp(-decay * (steps + 1)).to(dtype)

    def past(self, x: Tensor) -> Tensor:
        """y_t = Σ_{j≤t} exp(-decay · (t - j)) x_j, of x [C, L] or [C, sequences · L]."""
        sums: list[Tensor] = []
        for part in x.split(len(self._kernel), dim=-1):
            size = part.shape[-1]
            total = part @ self._kernel[:size, :size]
            if sums:
                total = total + self._fade[:size] * sums[-1][..., -1:]
            sums.append(total)
        return sums[0] if len(sums) == 1 else torch.cat(sums, dim=-1)

    def future(self, x: Tensor) -> Tensor:
        """y_t = Σ_{j≥t} exp(-decay · (j - t)) x_j, of x as in `past`."""
        size = x.shape[-1]
        if size <= len(self._kernel):
            total: Tensor = x @ self._kernel[:size, :size].T
            return total
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
        sequences = min(batch, max(1, _GROUP // length))
        ctx.sums, ctx.group = DecayedSums(decay, length, dtype, sequences), sequences * length
        out = keys.new_empty(batch, length, len(queries), dtype=dtype)
        sides = [side.flatten(0, 1).split(ctx.group) for side in (keys, values, out)]
        kept = []
        for key, value, place in zip(*sides, strict=True):
            weights = (queries @ key.T).exp_()
            evidence = uses @ value.T
            total = ctx.sums.past(weights)
            attended = ctx.sums.past(weights * evidence).div_(total)
            place.copy_(attended.T)
            kept += [weights, evidence, total, attended]
        ctx.save_for_backward(keys, values, queries, uses, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None]:
        keys, values, queries, uses, *kept = ctx.saved_tensors
        of_keys, of_values = torch.empty_like(keys), torch.empty_like(values)
        wide = torch.promote_types(queries.dtype, torch.float32)
        of_queries, of_uses = (torch.zeros_like(side, dtype=wide) for side in (queries, uses))
        flat = (side.flatten(0, 1) for side in (upstream[0], keys, values, of_keys, of_values))
        groups = zip(*(side.split(ctx.group) for side in flat), strict=True)
        for gradient, key, value, of_key, of_value in groups:
            weights, evidence, total, attended = kept[:4]
            del kept[:4]
            share = torch.empty_like(total).copy_(gradient.T).div_(total)
            of_evidence = ctx.sums.future(share)
            # The weights stand in both sums: products × evidence - total is their gradient. Its
            # negative here: the sign is cheaper to turn in the narrow results.
            of_logits = ctx.sums.future(share.mul_(attended))
            of_logits.addcmul_(of_evidence, evidence, value=-1).mul_(weights)
            of_evidence.mul_(weights)
            of_key.copy_(of_logits.T @ queries).neg_()
            of_value.copy_(of_evidence.T @ uses)
            of_queries -= of_logits @ key
            of_uses += of_evidence @ value
        return of_keys, of_values, of_queries.to(queries), of_uses.to(uses), None
