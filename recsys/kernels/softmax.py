"""Cross-entropy over a catalogue and its gradient, which overwrites the logits, in two passes.

The same as `softmax_gradient` of `recsys.training.losses.full_catalogue` in torch, where it takes a
pass over the logits for every step. The first kernel reads them once for the denominators of the
softmax, the second reads them again and writes the gradient: what a single kernel with a program
for each position does (Liger, https://arxiv.org/abs/2410.10989), but the items of a position may be
split over programs, so few positions and a million items keep a GPU busy too. The sums of the parts
are added up in a fixed order: results are reproducible.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096
"""The number of logits that a program reads at once: 16 for each thread of 8 warps."""
LAUNCH = {"num_warps": 8}
_PROGRAMS = 1024
"""Enough programs to keep a GPU of 132 multiprocessors busy."""
_LARGEST_LOSS = -math.log(1e-30)
"""As in torch, where the probability of a target is 1e-30 at least."""


def softmax_gradient(
    logits: Tensor,
    targets: Tensor,
    excluded: Tensor | None,
    label_smoothing: float,
    width: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss of `cross_entropy` and its gradient, which overwrites the logits.

    Args:
        logits: [b, L, C] in any floating dtype; computed with in float32. Column 0 is no item.
        targets: item tokens [b, L], 0 for none.
        excluded: item tokens [b, L, N], 0 for none; None if none are excluded.
        label_smoothing: ε; see `cross_entropy`.
        width: the column from which on columns are of no item; C if None.
    """
    rows, target = logits.flatten(0, 1), targets.flatten()
    width = rows.shape[1] if width is None else width
    each = torch.arange(len(rows), device=rows.device)
    target_logits = rows[each, target]
    if excluded is not None:
        rows[each[:, None], excluded.flatten(0, 1)] = -torch.inf
        rows[each, target] = target_logits
    log_sums, logit_sums, counts = _sums(rows, width, smoothing=label_smoothing > 0)
    log_sums = log_sums.logsumexp(0)
    exact = target_logits.float()
    losses = (log_sums - exact).clamp_(max=_LARGEST_LOSS)
    allowed = counts.sum(0)
    if label_smoothing:
        losses += label_smoothing * (exact - logit_sums.sum(0) / allowed)
    _write_gradient(rows, target, log_sums, label_smoothing / allowed, label_smoothing, width)
    return losses.where(target > 0, 0).sum(), logits


def tile_shape(rows: Tensor) -> dict[str, int]:
    """The numbers of rows and columns of a tile, which is longer where memory is contiguous."""
    num_rows, columns = (triton.next_power_of_2(size) for size in rows.shape)
    if rows.stride(1) == 1:
        block_columns = min(TILE, max(16, columns))
        return {"block_rows": TILE // block_columns, "block_columns": block_columns}
    block_rows = min(64, num_rows)
    return {"block_rows": block_rows, "block_columns": TILE // block_rows}


def _sums(rows: Tensor, width: int, *, smoothing: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The log of the sum of exp(logit), the sums and the numbers of logits of allowed items.

    Each [S, rows], of S parts of the columns; without smoothing the latter two are empty.
    """
    shape = tile_shape(rows)
    row_blocks = triton.cdiv(len(rows), shape["block_rows"])
    tiles = triton.cdiv(width, shape["block_columns"])
    tiles_per_part = triton.cdiv(tiles, min(tiles, triton.cdiv(_PROGRAMS, row_blocks)))
    parts = triton.cdiv(tiles, tiles_per_part)
    log_sums = rows.new_empty(parts, len(rows), dtype=torch.float32)
    logit_sums, counts = log_sums.new_empty(2, parts if smoothing else 0, len(rows))
    _sums_kernel[(row_blocks * parts,)](
        rows,
        log_sums,
        logit_sums,
        counts,
        len(rows),
        width,
        *rows.stride(),
        tiles_per_part,
        smoothing,
        **shape,
        **LAUNCH,
    )
    return log_sums, logit_sums, counts


def _write_gradient(
    rows: Tensor,
    targets: Tensor,
    log_sums: Tensor,
    spread: Tensor,
    label_smoothing: float,
    width: int,
) -> None:
    """Overwrite the logits by their gradients; spread [rows] is ε's share of each allowed item."""
    shape = tile_shape(rows)
    blocks = (
        triton.cdiv(size, block) for size, block in zip(rows.shape, shape.values(), strict=True)
    )
    _gradient_kernel[(math.prod(blocks),)](
        rows,
        targets,
        log_sums,
        spread,
        label_smoothing,
        *rows.shape,
        width,
        *rows.stride(),
        label_smoothing > 0,
        **shape,
        **LAUNCH,
    )


@triton.jit
def _sums_kernel(
    logits: tl.tensor,
    log_sums: tl.tensor,
    logit_sums: tl.tensor,
    counts: tl.tensor,
    num_rows: tl.tensor,
    width: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    tiles_per_part: tl.tensor,
    smoothing: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
) -> None:
    """Write the log of the sum of exp(logit) over a part of the items, for some positions."""
    row_blocks = tl.cdiv(num_rows, block_rows)
    first_row = (tl.program_id(0) % row_blocks).to(tl.int64) * block_rows
    part = tl.program_id(0) // row_blocks
    row = tl.arange(0, block_rows)
    peak = tl.full((block_rows,), -float("inf"), tl.float32)
    total = tl.zeros((block_rows,), tl.float32)
    logit_sum = tl.zeros((block_rows,), tl.float32)
    count = tl.zeros((block_rows,), tl.float32)
    present = first_row + row < num_rows
    column = tl.arange(0, block_columns)
    first = part.to(tl.int64) * tiles_per_part * block_columns
    for _ in range(tiles_per_part):
        is_item = (first + column > 0) & (first + column < width)
        start = logits + first_row * row_stride + first * column_stride
        offsets = row[:, None] * row_stride + column[None, :] * column_stride
        inside = present[:, None] & is_item[None, :]
        tile_logits = tl.load(start + offsets, inside, -float("inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(tile_logits, 1))
        finite = tl.where(higher == -float("inf"), 0.0, higher)  # all may be excluded
        total = total * tl.exp(peak - finite) + tl.sum(tl.exp(tile_logits - finite[:, None]), 1)
        peak = higher
        first += block_columns
        if smoothing:
            allowed = tile_logits > -float("inf")
            logit_sum += tl.sum(tl.where(allowed, tile_logits, 0.0), 1)
            count += tl.sum(allowed.to(tl.float32), 1)
    log_sum = tl.where(total > 0, peak + tl.log(tl.where(total > 0, total, 1.0)), -float("inf"))
    here = part.to(tl.int64) * num_rows + first_row + row
    tl.store(log_sums + here, log_sum, present)
    if smoothing:
        tl.store(logit_sums + here, logit_sum, present)
        tl.store(counts + here, count, present)


@triton.jit
def _gradient_kernel(
    logits: tl.tensor,
    targets: tl.tensor,
    log_sums: tl.tensor,
    spread: tl.tensor,
    label_smoothing: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    width: tl.tensor,
    row_stride: tl.tensor,
    column_stride: tl.tensor,
    smoothing: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
) -> None:
    """Overwrite one tile of the logits: softmax minus the target's distribution, 0 if no item."""
    row_blocks = tl.cdiv(num_rows, block_rows)
    first_row = (tl.program_id(0) % row_blocks).to(tl.int64) * block_rows
    first = (tl.program_id(0) // row_blocks).to(tl.int64) * block_columns
    row, column = tl.arange(0, block_rows), tl.arange(0, block_columns)
    present = first_row + row < num_rows
    target = tl.load(targets + first_row + row, present, 0)
    log_sum = tl.load(log_sums + first_row + row, present, 0.0)
    start = logits + first_row * row_stride + first * column_stride
    offsets = row[:, None] * row_stride + column[None, :] * column_stride
    inside = present[:, None] & (first + column < num_columns)[None, :]
    tile_logits = tl.load(start + offsets, inside, -float("inf")).to(tl.float32)
    counted = (target > 0)[:, None] & (first + column > 0)[None, :]
    counted &= (first + column < width)[None, :]
    tile_logits = tl.where(counted, tile_logits, -float("inf"))
    gradient = tl.exp(tile_logits - tl.where(target > 0, log_sum, 0.0)[:, None])
    if smoothing:
        share = tl.load(spread + first_row + row, present, 0.0)[:, None]
        gradient -= tl.where(tile_logits > -float("inf"), share, 0.0)
    is_target = counted & (first + column[None, :] == target[:, None])
    gradient -= tl.where(is_target, 1 - label_smoothing, 0.0)
    tl.store(start + offsets, gradient, inside)
