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
