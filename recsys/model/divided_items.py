"""Item embeddings whose rows are divided over processes, and looked up where they are held."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.division import Division

_ROWS_AT_ONCE = 1 << 16
"""Rows that are drawn at once."""


class DividedItemEmbeddings(nn.Module):
    """e_i of items 1 to I, of which this process holds the rows of its share of the table.

    It takes the place of `ItemEmbeddings` without features. All processes call it together.

    Args:
        division: which rows each process holds.
        embedding_dim: D.
    """

    features: None = None
    """The items have none."""

    def __init__(self, division: Division, embedding_dim: int) -> None:
        super().__init__()
        self.division = division
        self.embedding_dim = embedding_dim
        self.sparse = False
        """Whether the gradient is sparse, as that of `nn.Embedding` may be."""
        self.weight: Tensor = nn.Parameter(torch.empty(division.num_rows, embedding_dim))
        # nn.Embedding draws its rows too. What is drawn after them, such as dropout, then is the
        # same as in a training with one table.
        self.draw(1.0)

    @property
    def num_items(self) -> int:
        """The number of items, I."""
        return self.division.num_items

    @torch.no_grad()
    def draw(self, std: float) -> None:
        """Draw the rows that an undivided table would have, on the CPU; that of PAD is zero.

        Every process draws all rows, some at a time, and keeps its own. torch draws normal numbers
        in groups of 16 and those at an end which is no multiple of 16 anew: so the table has the
        same numbers as if it were drawn at once, if blocks are such multiples and the last is long.
        """
        own, total = self.division.own, self.num_items + 1
        for start in range(0, max(1, total - _ROWS_AT_ONCE + 1), _ROWS_AT_ONCE):
            last = total - start < 2 * _ROWS_AT_ONCE
            stop = total if last else start + _ROWS_AT_ONCE
            rows = torch.empty(stop - start, self.embedding_dim).normal_(std=std)
            first, end = max(start, own.start), min(stop, own.stop)
            if first < end:
                self.weight[first - own.start : end - own.start] = rows[first - start : end - start]
        if own.start == 0:
            self.weight[0] = 0

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of item tokens [...], from the processes that hold their rows.

        Each distinct token is asked for once. The gradient goes back the same way, and each process
        adds up that of its own rows.
        """
        needed, places = tokens.unique(return_inverse=True)  # ascending, hence by process
        bounds = torch.tensor(self.division.bounds[1:-1], device=tokens.device)
        owners = torch.bucketize(needed, bounds, right=True)
        requests = owners.bincount(minlength=self.division.count)
        served = torch.empty_like(requests)
        dist.all_to_all_single(served, requests)
        receive_counts, send_counts = requests.tolist(), served.tolist()
        to_send = _exchange(needed, receive_counts, send_counts) - self.division.own.start
        pad = 0 if self.division.own.start == 0 else None
        rows: Tensor = _Exchanged.apply(  # type: ignore[no-untyped-call]
            F.embedding(to_send, self.weight, padding_idx=pad, sparse=self.sparse),
            send_counts,
            receive_counts,
        )
        return F.embedding(places, rows)

    def table(self) -> Tensor:
        """The embeddings of PAD and all items [I + 1, D], without gradients, in every process.

        Training and validation never ask for it.
        """
        return self.division.joined(self.weight)


class _Exchanged(torch.autograd.Function):
    """`_exchange`, whose gradient goes back to where the rows came from."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sizes = sent, received
        return _exchange(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        sent, received = ctx.sizes
        return _exchange(upstream[0], received, sent), None, None


def _exchange(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Send so many rows to each process, in their order, and return those from each process."""
    found = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(found, rows.contiguous(), received, sent)
    return found
