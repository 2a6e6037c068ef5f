"""The division of a table with a row per item over the processes that train together."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from recsys.errors import InputError


@dataclass(frozen=True, slots=True)
class Division:
    """Which of the I + 1 rows, PAD and the items, each process of the default group holds.

    Each holds consecutive rows, about equally many; the first one holds PAD. Methods that exchange
    tensors must be called in all processes together.
    """

    num_items: int
    """I."""
    index: int
    """The rank of this process, from 0."""
    count: int
    """P, the number of processes."""

    def __post_init__(self) -> None:
        if self.num_items + 1 < self.count:
            raise InputError(
                f"training.divide_catalogue: {self.num_items} items cannot be divided over "
                f"{self.count} processes: start fewer"
            )

    @property
    def bounds(self) -> list[int]:
        """The first row of each process, and the number of all rows [P + 1].

        >>> Division(num_items=6, index=0, count=3).bounds
        [0, 2, 4, 7]
        """
        return [(self.num_items + 1) * index // self.count for index in range(self.count + 1)]

    @property
    def own(self) -> slice:
        """The rows of this process."""
        start, stop = self.bounds[self.index : self.index + 2]
        return slice(start, stop)

    @property
    def num_rows(self) -> int:
        """The number of rows of this process."""
        return self.sizes[self.index]

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each process [P]."""
        return [stop - start for start, stop in pairwise(self.bounds)]

    def columns(self, tokens: Tensor) -> Tensor:
        """The place of item tokens among the rows of this process; `num_rows` if they are not here.

        >>> Division(num_items=6, index=1, count=3).columns(torch.arange(7))
        tensor([2, 2, 0, 1, 2, 2, 2])
        """
        rows = self.own
        here = (tokens >= rows.start) & (tokens < rows.stop)
        return torch.where(here, tokens - rows.start, rows.stop - rows.start)

    def joined(self, part: Tensor, dim: int = 0) -> Tensor:
        """Return what all processes hold, in the order of the rows, without gradients.

        Args:
            part: `num_rows` long in that dimension, and of equal sizes in the others.
            dim: the dimension of the rows.
        """
        part = part.detach().movedim(dim, 0)
        whole = part.new_empty(self.num_items + 1, *part.shape[1:])
        whole[self.own] = part
        for source, rows in enumerate(whole.split(self.sizes)):
            dist.broadcast(rows, source)
        return whole.movedim(0, dim).contiguous()

    def collected(self, part: Tensor) -> Tensor | None:
        """Return the rows of all processes on the CPU of the first one, and None in the others.

        Args:
            part: the rows of this process [`num_rows`, ...].
        """
        part = part.detach().cpu().contiguous()
        if self.index > 0:
            dist.send(part, dst=0)
            return None
        whole = part.new_empty(self.num_items + 1, *part.shape[1:])
        whole[self.own] = part
        for source, rows in enumerate(whole.split(self.sizes)):
            if source > 0:
                dist.recv(rows, src=source)
        return whole
