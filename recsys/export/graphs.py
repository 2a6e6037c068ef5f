"""The two graphs of an export: histories to what their scores need, and candidates to scores.

They are apart because they run apart: a history is encoded once, and any number of candidates are
scored with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.model.embeddings import ItemEmbeddings
from recsys.model.heads import Head, LastRepresentation
from recsys.model.models import Model, ModelInputs

BATCH, LENGTH, TIMES, CANDIDATES = "batch", "length", "length_plus_one", "candidates"
"""The names of the dynamic dimensions."""


class EncoderGraph(nn.Module):
    """Item tokens [B, L], lengths [B] and perhaps times [B, L + 1] to what scores need of them."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, items: Tensor, lengths: Tensor, times: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The state [B, D]; of target attention also keys and values [B, H, L, d]."""
        last = self.model.encode_last(ModelInputs(items, lengths, times))
        return last[:3] if self.model.head.kv_source is not None else last[:1]


class HeadGraph(nn.Module):
    """Candidates [B, C] and what the encoder made of histories to scores [B, C]."""

    def __init__(self, items: ItemEmbeddings, head: Head) -> None:
        super().__init__()
        self.items = items
        self.head = head

    def forward(self, candidates: Tensor, lengths: Tensor, last: tuple[Tensor, ...]) -> Tensor:
        """The scores of item tokens; that of 0 (PAD) has no meaning."""
        state, *attended = last
        keys, values = attended if self.head.kv_source is not None else (state, state)
        represented = self.head.represent_candidates(self.items(candidates))
        return self.head.score_last(LastRepresentation(state, keys, values, lengths), represented)


@dataclass(frozen=True)
class Inputs:
    """Histories and candidates to trace and to check the graphs with."""

    items: Tensor
    lengths: Tensor
    times: Tensor | None
    candidates: Tensor

    @classmethod
    def draw(
        cls, lengths: list[int], candidates: int, num_items: int, *, timed: bool, seed: int = 0
    ) -> Inputs:
        """Draw items and times of right-padded histories with these lengths, and candidates."""
        generator = torch.Generator().manual_seed(seed)
        shape = len(lengths), max(lengths)
        items = torch.randint(1, num_items + 1, shape, generator=generator)
        of = torch.tensor(lengths)
        items[torch.arange(shape[1]) >= of[:, None]] = 0
        gaps = torch.randint(0, 10**6, (shape[0], shape[1] + 1), generator=generator)
        drawn = torch.randint(1, num_items + 1, (len(lengths), candidates), generator=generator)
        return cls(items, of, gaps.cumsum(1) if timed else None, drawn)

    @property
    def encoder(self) -> dict[str, Tensor]:
        """The inputs of the encoder by name."""
        named = {"items": self.items, "lengths": self.lengths}
        return named if self.times is None else named | {"times": self.times}


@contextmanager
def plain_items(model: Model) -> Iterator[Model]:
    """Put one table in the place of item embeddings that are made of features, for a while."""
    items = model.items
    if items.features is None:
        yield model
        return
    with torch.no_grad():
        table = items.table().clone()
    plain = ItemEmbeddings(len(table) - 1, table.shape[1])
    plain.weight = nn.Parameter(table, requires_grad=False)
    model.items = plain
    try:
        yield model
    finally:
        model.items = items
