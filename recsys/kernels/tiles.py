"""Tiles of matrices in kernels: read, written and multiplied."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(rows: tl.tensor, columns: tl.tensor) -> tl.tensor:
    """The matrix product, summed in float32; of float32 as three products of tensor cores."""
    return tl.dot(rows, columns, input_precision="tf32x3")


@triton.jit
def load(
    matrix: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    column: tl.tensor,
    num_columns: tl.tensor,
    stride: tl.tensor,
) -> tl.tensor:
    """The elements at rows and columns of a block; 0 beyond the end.

    Within a block offsets are 32 bits wide, which saves registers: 64 strides are below 2^31.
    """
    inside = (row < num_rows)[:, None] & (column < num_columns)[None, :]
    return tl.load(matrix + row[:, None] * stride + column[None, :], inside, 0.0)


@triton.jit
def store(
    matrix: tl.tensor,
    content: tl.tensor,
    row: tl.tensor,
    num_rows: tl.tensor,
    column: tl.tensor,
    num_columns: tl.tensor,
    stride: tl.tensor,
) -> None:
    """Write the elements at rows and columns of a block, but none beyond the end."""
    inside = (row < num_rows)[:, None] & (column < num_columns)[None, :]
    tl.store(matrix + row[:, None] * stride + column[None, :], content, inside)
