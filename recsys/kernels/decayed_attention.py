"""Attention of candidates over a history, at all positions, in one pass over each sequence.

The same as `recsys.model.decayed_attention` in torch, which has the formulas, but weights and value
scores stay on the chip: forward writes what candidates attend to (and for averages the sums of the
weights), backward computes weights and value scores anew. Each program has some candidates and one
sequence, and walks over its positions block by block with a carry: within a block a decayed sum is
a product with the triangular matrix of decays, which tensor cores do. Backward writes the gradients
of logits and value scores, and cuBLAS multiplies them; sums over sequences or candidates within the
kernel would need atomic additions, whose order is not reproducible.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recsys.kernels.tiles import load, product, store

MAX_DIM = 128
"""The widest attention head: the tiles of wider ones would not fit on the chip."""
LAUNCH = {"num_warps": 8, "num_stages": 1}
"""With these the blocks of `block_sizes` stay in registers (bf16) or nearly so (float32)."""


def fused_averages(
    scores: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
) -> Tensor:
    """See `add_averages`; d is at most `MAX_DIM`."""
    return _add(scores, keys, values, queries, value_queries, decay, average=True)


def fused_sums(
    scores: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
) -> Tensor:
    """See `add_sums`; d is at most `MAX_DIM`."""
    return _add(scores, keys, values, queries, value_queries, decay, average=False)


def block_sizes(length: int, dim: int, dtype: torch.dtype) -> dict[str, int]:
    """The block sizes of the kernels: powers of two, 16 at least for tensor cores."""
    return {
        "block_c": 64 if dtype.itemsize < 4 else 32,
        "block_t": 16 if length <= 16 else 32,
        "block_d": max(16, triton.next_power_of_2(dim)),
    }


def _add(
    scores: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    value_queries: Tensor,
    decay: Tensor,
    *,
    average: bool,
) -> Tensor:
    if keys.shape[-1] > MAX_DIM:
        raise ValueError(f"head_dim is at most {MAX_DIM}, not {keys.shape[-1]}")
    dtype = torch.result_type(keys, queries)
    sides = (side.to(dtype).contiguous() for side in (keys, values, queries, value_queries))
    scores += _Attended.apply(*sides, decay, average)  # type: ignore[no-untyped-call]
    return scores


class _Attended(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        value_queries: Tensor,
        decay: Tensor,
        average: bool,
    ) -> Tensor:
        batch, length, dim = keys.shape
        attended = queries.new_empty(len(queries), batch * length)
        ages = torch.arange(length, device=decay.device)
        # Of an average the sums of the weights [C, B · L], else those of the decays [L].
        totals = torch.empty_like(attended) if average else torch.exp(-decay * ages).cumsum(0)
        blocks = block_sizes(length, dim, keys.dtype)
        _forward_kernel[_grid(batch, len(queries), blocks)](
            keys,
            values,
            queries,
            value_queries,
            decay,
            totals,
            attended,
            batch,
            length,
            len(queries),
            dim,
            average,
            **blocks,
            **LAUNCH,
        )
        saved = (attended,) if average else ()
        ctx.save_for_backward(keys, values, queries, value_queries, decay, totals, *saved)
        ctx.average = average
        return attended

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, None, None]:
        keys, values, queries, value_queries, decay, totals, *saved = ctx.saved_tensors
        gradient = upstream[0].contiguous()
        batch, length, dim = keys.shape
        logit_gradient, value_score_gradient = (torch.empty_like(gradient) for _ in range(2))
        blocks = block_sizes(length, dim, keys.dtype)
        _backward_kernel[_grid(batch, len(queries), blocks)](
            keys,
            values,
            queries,
            value_queries,
            decay,
            totals,
            saved[0] if ctx.average else gradient,
            gradient,
            logit_gradient,
            value_score_gradient,
            batch,
            length,
            len(queries),
            dim,
            ctx.average,
            **blocks,
            **LAUNCH,
        )
        return (
            (logit_gradient.T @ queries).view(keys.shape),
            (value_score_gradient.T @ value_queries).view(values.shape),
            logit_gradient @ keys.flatten(0, 1),
            value_score_gradient @ values.flatten(0, 1),
            None,
            None,
        )


def _grid(batch: int, candidates: int, blocks: dict[str, int]) -> tuple[int]:
    """One program for each sequence and block of candidates, in one dimension, which is unbounded.

    Programs of consecutive sequences write to consecutive memory.
    """
    return (batch * triton.cdiv(candidates, blocks["block_c"]),)


@triton.jit
def _forward_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    queries: tl.tensor,
    value_queries: tl.tensor,
    decay: tl.tensor,
    totals: tl.tensor,
    attended: tl.tensor,
    batch: tl.tensor,
    length: tl.tensor,
    candidates: tl.tensor,
    dim: tl.tensor,
    average: tl.constexpr,
    block_c: tl.constexpr,
    block_t: tl.constexpr,
    block_d: tl.constexpr,
) -> None:
    """Write what some candidates attend to in one sequence, from its first position on."""
    sequence = (tl.program_id(0) % batch).to(tl.int64)
    before = (tl.program_id(0) // batch).to(tl.int64) * block_c
    candidate, left = tl.arange(0, block_c), candidates - before
    feature, step = tl.arange(0, block_d), tl.arange(0, block_t)
    dtype = keys.dtype.element_ty
    query = load(queries + before * dim, candidate, left, feature, dim, dim)
    value_query = load(value_queries + before * dim, candidate, left, feature, dim, dim)
    rate = tl.load(decay)
    triangle = _triangle(rate, block_t).to(dtype)
    since_before, until_end = tl.exp(-rate * (step + 1)), tl.exp(-rate * (block_t - 1 - step))
    last = tl.zeros((block_c,), tl.float32)
    last_total = tl.zeros((block_c,), tl.float32)
    width = batch * length
    here = before * width + sequence * length
    for start in range(0, length, block_t):
        time = start + step
        key = load(keys + sequence * length * dim, time, length, feature, dim, dim)
        value = load(values + sequence * length * dim, time, length, feature, dim, dim)
        weights = tl.exp(product(query, tl.trans(key)))
        weighted = weights * product(value_query, tl.trans(value))
        sums = product(weighted.to(dtype), triangle) + last[:, None] * since_before[None, :]
        last = last * tl.exp(-rate * block_t) + tl.sum(weighted * until_end[None, :], 1)
        if average:
            total = product(weights.to(dtype), triangle)
            total += last_total[:, None] * since_before[None, :]
            last_total *= tl.exp(-rate * block_t)
            last_total += tl.sum(weights * until_end[None, :], 1)
            store(totals + here, total, candidate, left, time, length, width)
            sums /= total
        else:
            sums /= tl.load(totals + time, mask=time < length, other=1.0)[None, :]
        store(attended + here, sums, candidate, left, time, length, width)


@triton.jit
def _backward_kernel(
    keys: tl.tensor,
    values: tl.tensor,
    queries: tl.tensor,
    value_queries: tl.tensor,
    decay: tl.tensor,
    totals: tl.tensor,
    attended: tl.tensor,
    gradient: tl.tensor,
    logit_gradient: tl.tensor,
    value_score_gradient: tl.tensor,
    batch: tl.tensor,
    length: tl.tensor,
    candidates: tl.tensor,
    dim: tl.tensor,
    average: tl.constexpr,
    block_c: tl.constexpr,
    block_t: tl.constexpr,
    block_d: tl.constexpr,
) -> None:
    """Write the gradients of logits and value scores, from the last position back."""
    sequence = (tl.program_id(0) % batch).to(tl.int64)
    before = (tl.program_id(0) // batch).to(tl.int64) * block_c
    candidate, left = tl.arange(0, block_c), candidates - before
    feature, step = tl.arange(0, block_d), tl.arange(0, block_t)
    dtype = keys.dtype.element_ty
    query = load(queries + before * dim, candidate, left, feature, dim, dim)
    value_query = load(value_queries + before * dim, candidate, left, feature, dim, dim)
    rate = tl.load(decay)
    triangle = tl.trans(_triangle(rate, block_t)).to(dtype)
    until_after, since_start = tl.exp(-rate * (block_t - step)), tl.exp(-rate * step)
    first, first_part = tl.zeros((block_c,), tl.float32), tl.zeros((block_c,), tl.float32)
    width = batch * length
    here = before * width + sequence * length
    for block in range(tl.cdiv(length, block_t) - 1, -1, -1):
        time = block * block_t + step
        key = load(keys + sequence * length * dim, time, length, feature, dim, dim)
        value = load(values + sequence * length * dim, time, length, feature, dim, dim)
        weights = tl.exp(product(query, tl.trans(key)))
        value_scores = product(value_query, tl.trans(value))
        share = load(gradient + here, candidate, left, time, length, width).to(tl.float32)
        if average:
            total = load(totals + here, candidate, left, time, length, width)
            found = load(attended + here, candidate, left, time, length, width)
            share /= tl.where(total > 0, total.to(tl.float32), 1.0)  # 0 beyond the end
            part = share * found.to(tl.float32)
        else:
            share /= tl.load(totals + time, mask=time < length, other=1.0)[None, :]
        sums = product(share.to(dtype), triangle) + first[:, None] * until_after[None, :]
        first = first * tl.exp(-rate * block_t) + tl.sum(share * since_start[None, :], 1)
        by_weight = sums * value_scores
        if average:  # the weights are in both sums
            by_weight -= product(part.to(dtype), triangle)
            by_weight -= first_part[:, None] * until_after[None, :]
            first_part *= tl.exp(-rate * block_t)
            first_part += tl.sum(part * since_start[None, :], 1)
        store(logit_gradient + here, by_weight * weights, candidate, left, time, length, width)
        store(value_score_gradient + here, sums * weights, candidate, left, time, length, width)


@triton.jit
def _triangle(rate: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """exp(-rate · (t - j)) for j ≤ t, else 0 [size (j), size (t)]."""
    step = tl.arange(0, size)
    age = step[None, :] - step[:, None]
    return tl.where(age >= 0, tl.exp(-rate * tl.maximum(age, 0)), 0.0)
