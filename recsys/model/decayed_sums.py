"""Decayed running sums over the positions of sequences, as products with triangular matrices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
        >>> NARROW.side_by_side(24, 5)
        3
        """
        most = max(1, self.shared // length)
        return max(count for count in range(1, most + 1) if sequences % count == 0)

    def block(self, length: int) -> int:
        """The length of the blocks of a sequence, which are as even as can be.

        >>> WIDE.block(200), NARROW.block(200), NARROW.block(50)
        (200, 50, 50)
        """
        return -(-length // -(-length // self.single))

    def sums(
        self, decay: Tensor, batch: int, length: int, dtype: torch.dtype, *, mean: bool
    ) -> DecayedSums:
        """The sums over the positions of B sequences; see `DecayedSums`."""
        together = self.side_by_side(batch, length)
        return DecayedSums(decay, length, dtype, together, self.block(length), mean=mean)


WIDE = Triangles(shared=192, single=256)
NARROW = Triangles(shared=16, single=64)


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
        rows = self._rows(x)
        sums, carry = torch.empty_like(rows), None
        parts, totals = self._parts(rows), self._parts(sums)
        for number, kernel in enumerate(self._kernels):
            if number:
                carry = totals[number - 1][:, -1] * self._carries[number - 1]
            _product(parts[number], kernel, carry, 0, totals[number])
        return sums.view(x.shape)

    def future(self, x: Tensor) -> Tensor:
        """y_j = Σ_{t≥j} exp(-decay · (t - j)) x_t, of x as in `past`; each x_t is divided if so."""
        rows = self._rows(x)
        sums, carry = torch.empty_like(rows), None
        parts, totals = self._parts(rows), self._parts(sums)
        last = len(parts) - 1
        for number in range(last, -1, -1):
            if number < last:
                carry = totals[number + 1][:, 0] * self._carries[number]
            _product(parts[number], self._kernels[number].T, carry, -1, totals[number])
        return sums.view(x.shape)

    def _rows(self, x: Tensor) -> Tensor:
        """A row for each matrix or sequence, in memory that may be changed for a moment."""
        return x.reshape(-1, sum(self._sizes)).contiguous()

    def _parts(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The positions of each block."""
        return torch.split(rows, self._sizes, dim=-1)


def _product(
    part: Tensor, kernel: Tensor, carry: Tensor | None, position: int, out: Tensor
) -> None:
    """Write the product of a block of positions, with a carry [N] added to one of them.

    Cheaper than to add the carry to all of the sums.
    """
    if carry is None:
        torch.mm(part, kernel, out=out)
        return
    column = part[:, position]
    before = column.clone()
    column += carry
    torch.mm(part, kernel, out=out)
    column.copy_(before)
